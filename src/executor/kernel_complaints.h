// Complaints of the user's kernels: with NICCOLITE_DEVICE_CHECK=1, niccolite/device.h stores bad
// calls and long waits here, and the host names them. The layout and the numbers are those of that
// header (device::Report, device::Call), and of all programs that were compiled with it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace niccolite::executor {

/// The function of niccolite/device.h that complains.
enum class KernelCall : uint8_t {
  None,
  Barrier,  // has no such index
  Signal,   // has no such channel or peer
  Wait,     // the same
  Put,
  LoadReduce,
  StoreAll,
  BarrierStands,
  ChannelStands,
  NetworkStands,
};

/// Stored as 16 bytes at once. Blocks with one number modulo kSlots share a slot.
struct KernelComplaints {
  static constexpr size_t kSlots = 8;
  struct Slot {
    uint64_t where;  // 0: nothing. Bits: call 8, block 24, thread 12, peer 20
    uint64_t value;
  };
  Slot slots[kSlots];
};
static_assert(sizeof(KernelComplaints) == 128);

struct KernelComplaint {
  KernelCall call;
  uint32_t block;
  uint32_t thread;
  int peer;  // a number in the load-store team; may be any number
  uint64_t value;
};
inline KernelComplaint decode_complaint(uint64_t where, uint64_t value) {
  constexpr int kPeerBits = 20;
  const auto peer = static_cast<int32_t>(where >> 44);
  return {.call = static_cast<KernelCall>(where & 0xff),
          .block = static_cast<uint32_t>(where >> 8 & 0xffffff),
          .thread = static_cast<uint32_t>(where >> 32 & 0xfff),
          .peer = peer >= 1 << (kPeerBits - 1) ? peer - (1 << kPeerBits) : peer,
          .value = value};
}

}  // namespace niccolite::executor
