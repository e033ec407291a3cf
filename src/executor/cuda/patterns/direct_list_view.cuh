// A direct list (direct_list.cuh) as a CTA sees it: its works and tiles, and the addresses of the
// ranks' buffers, which it has learnt, in shared memory: one for each rank, work and buffer.
#pragma once

#include "executor/cuda/patterns/direct_connections.cuh"

namespace niccolite::executor::cuda {

template <uint32_t kMostPeers>
class ListView {
 public:
  using Params = DirectListParams<kMostPeers>;
  static constexpr uint32_t kUnneeded = 1;  // the address of a buffer that nobody uses

  __device__ __forceinline__ ListView(const Params& list, uint32_t element_bytes)
      : list_(list),
        first_(list.starts[ptx::replica()]),
        end_(list.starts[ptx::replica() + 1]),
        element_bytes_(element_bytes) {}

  // ---- the list

  __device__ __forceinline__ uint32_t end_of_works() const {
    return uint32_t{end_.work} + (end_.tile > 0 ? 1 : 0);
  }
  __device__ __forceinline__ uint32_t first_tile_of(uint32_t work) const {
    return work == first_.work ? first_.tile : 0;
  }
  __device__ __forceinline__ uint32_t tiles_of(uint32_t bytes) const {
    return (bytes + kListTileBytes - 1) / kListTileBytes;
  }
  __device__ __forceinline__ uint32_t end_tile_of(uint32_t work) const {
    return work == end_.work ? end_.tile : tiles_of(block_bytes(work));
  }
  __device__ __forceinline__ uint32_t block_bytes(uint32_t work) const {
    return list_.work[work].count * element_bytes_;
  }
  __device__ __forceinline__ uint32_t rank() const { return list_.rank; }
  __device__ __forceinline__ uint32_t nranks() const { return list_.nranks; }
  __device__ __forceinline__ uint32_t tile_parts_bits() const { return list_.tile_parts_bits; }
  __device__ __forceinline__ uint32_t first_work() const { return first_.work; }
  __device__ __forceinline__ const ListAccess& access() const { return list_.access; }
  __device__ __forceinline__ bool is_used(uint32_t of, bool is_output) const {
    return has_rank(is_output ? access().outputs : access().inputs, of);
  }
  /// The ranks whose inputs and outputs this rank uses, as bits, and the offsets within them.
  __device__ __forceinline__ uint32_t sources() const { return sources_of(access(), rank()); }
  __device__ __forceinline__ uint32_t targets() const { return targets_of(access(), rank()); }
  // 32 bits hold them (kMostListBufferBytes), and take registers that the sums of eight ranks need.
  __device__ __forceinline__ uint32_t source_block_at(uint32_t work) const {
    return source_block_of(access(), rank()) * block_bytes(work);
  }
  __device__ __forceinline__ uint32_t target_block_at(uint32_t work) const {
    return target_block_of(access(), rank()) * block_bytes(work);
  }

  // ---- shared memory

  /// Returns where the address of `work`'s input or output of rank `of` lies, as this rank sees it.
  __device__ __forceinline__ uint64_t* address(uint32_t of, uint32_t work, bool is_output) const {
    return reinterpret_cast<uint64_t*>(ptx::shared_memory()) +
           2 * (of * list_.most_works + work - first_.work) + (is_output ? 1 : 0);
  }
  __device__ __forceinline__ std::byte* memory(uint32_t of, uint32_t work, bool is_output) const {
    return reinterpret_cast<std::byte*>(ptx::load_relaxed_shared(address(of, work, is_output)));
  }

  /// All threads of a warp: is it true of a buffer that the work uses?
  template <typename Function>
  __device__ __forceinline__ bool is_true_of_any(uint32_t work, Function&& function) const {
    const uint32_t of = ptx::thread() % kWarp / 2;
    const bool is_output = ptx::thread() % 2 != 0;
    bool is_true = false;
    if (of < nranks() && is_used(of, is_output))
      is_true = function(ptx::load_relaxed_shared(address(of, work, is_output)), is_output);
    return ptx::any_of_warp(is_true);
  }
  __device__ __forceinline__ bool is_hidden(uint32_t work) const {
    return is_true_of_any(work, [](uint64_t seen, bool) { return seen == 0; });
  }

 private:
  const Params& list_;
  const ListPosition first_;
  const ListPosition end_;
  const uint32_t element_bytes_;
};

}  // namespace niccolite::executor::cuda
