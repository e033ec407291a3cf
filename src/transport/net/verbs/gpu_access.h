// GpuAccess: how the NICs of a network reach memory of this rank's GPU (GPUDirect RDMA), and when
// kernels see the NICs' writes. Thread safety: a value.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "gpu/adapters.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::transport::net::verbs {

/// The step between a NIC's completion and a word to the kernel.
enum class Flush : uint8_t {
  None,
  Call,       // gpu::Adapters::flush_nic_writes()
  Impossible  // so NICs must not write memory of the GPU
};
/// `is_forced`, `is_off`: NCCL_NET_FORCE_FLUSH, NCCL_GDR_FLUSH_DISABLE.
constexpr Flush choose_flush(const gpu::NicWrites& writes, bool is_forced, bool is_off) {
  if (is_off || (writes.are_ordered && !is_forced)) return Flush::None;
  return writes.can_be_flushed ? Flush::Call : Flush::Impossible;
}

struct GpuAccess {
  gpu::Machine& machine;
  int device = 0;
  bool has_dma_buffers = false;  // tried first
  bool has_peer_memory = false;  // peer_memory.h
  Flush flush = Flush::None;
};

}  // namespace niccolite::transport::net::verbs
