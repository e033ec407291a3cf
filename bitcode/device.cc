// The words of niccolite/device.h as functions with C linkage, for compilers that link LLVM bitcode
// (libniccolite_device.bc): Triton and its like. Built by clang, for GPUs of sm_90 and newer.
//
// Callers. All threads of a block (a program of Triton) call each function, with equal
// arguments: one does what one can do, all share copies. Each word begins with a barrier of the
// block, so that what any thread did before is covered; a wait ends with one. Not inside of
// warp-specialized code. Functions under "Where" have no barrier, and any thread may call them.
//
// Arguments. Addresses are numbers, as pointers are: `comm` of the ncclDevComm that
// ncclDevCommCreate has written, copied to memory of this GPU; `window` is an ncclWindow_t. Offsets
// and sizes are bytes, `peer` is a rank of the load-store team: for network functions a rank of the
// communicator. Nothing is checked.
//
// Memory order is system-wide, as niccolite/device.h says: what the block did before a signal or a
// barrier is visible to the peer's block after the wait or barrier that it ends.
//
// Results. Waits return 1, and 0 after an abort: data are undefined then, and the kernel should
// return. What waits for nothing returns 1.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "niccolite/device.h"

namespace {

using namespace niccolite::device;  // NOLINT(google-build-using-namespace)

NICCOLITE_DEVICE Comm comm_at(uint64_t address) {
  return Comm(*reinterpret_cast<const ncclDevComm_t*>(address));
}
/// A buffer's count serves checks alone.
template <typename T = char>
NICCOLITE_DEVICE Buffer<T> buffer_at(uint64_t window, uint64_t offset = 0) {
  return Buffer<T>(reinterpret_cast<ncclWindow_t>(window), 0, offset);
}
/// The count of a channels' handle serves checks alone.
NICCOLITE_DEVICE Channel<ThisBlock> channel_of(const Comm& comm, uint32_t channels, int index) {
  return Channel<ThisBlock>(ThisBlock(), comm, ChannelsHandle{channels, 0}, index);
}

template <typename T>
NICCOLITE_DEVICE int sum_of_peers(uint64_t comm_address, uint64_t window, uint64_t offset,
                                  uint64_t count, uint64_t target) {
  const Comm comm = comm_at(comm_address);
  const Buffer<T> source = buffer_at<T>(window, offset);
  T* const to = reinterpret_cast<T*>(target);
  constexpr uint64_t kPack = Pack<T>::kElements;
  const ThisBlock block;
  block.sync();
  for (uint64_t i = block.rank(); i < count / kPack; i += block.size())
    *reinterpret_cast<Pack<T>*>(to + i * kPack) = load_reduce(comm, source, i * kPack).rounded();
  for (uint64_t i = count / kPack * kPack + block.rank(); i < count; i += block.size()) {
    typename Sums<T>::Value sum(0);
    for (int peer = 0; peer < comm.nranks(); ++peer)
      sum += static_cast<typename Sums<T>::Value>(source.of(peer)[i]);
    to[i] = static_cast<T>(sum);
  }
  block.sync();
  return 1;
}

}  // namespace

extern "C" {

// ---- Where: no barrier, any thread

/// This rank in the load-store team, and the number of the team's ranks.
__device__ int niccolite_rank(uint64_t comm) { return comm_at(comm).rank(); }
__device__ int niccolite_nranks(uint64_t comm) { return comm_at(comm).nranks(); }
/// This rank in the communicator, and the number of its ranks: the peers of network functions.
__device__ int niccolite_world_rank(uint64_t comm) { return comm_at(comm).world_rank(); }
__device__ int niccolite_world_nranks(uint64_t comm) { return comm_at(comm).world_nranks(); }
/// The address of byte `offset` of a peer's copy of the window, or of this rank's.
__device__ uint64_t niccolite_peer(uint64_t window, uint64_t offset, int peer) {
  return reinterpret_cast<uint64_t>(buffer_at(window, offset).of(peer));
}
__device__ uint64_t niccolite_own(uint64_t window, uint64_t offset) {
  return reinterpret_cast<uint64_t>(buffer_at(window, offset).own());
}
/// The address of byte `offset` of all copies, for multimem instructions; 0: there is none.
__device__ uint64_t niccolite_all(uint64_t comm, uint64_t window, uint64_t offset) {
  return reinterpret_cast<uint64_t>(buffer_at(window, offset).of_all(comm_at(comm)));
}

// ---- Data

/// Copies `bytes` from `source`, memory of this GPU, to byte `offset` of the peer's copy of the
/// window: 16 bytes at a time where both are multiples of 16, else one. The source must stay until
/// niccolite_flush, a signal or a barrier; the data are there when the peer's wait has ended.
__device__ int niccolite_put(uint64_t comm, uint64_t window, uint64_t offset, int peer,
                             uint64_t source, uint64_t bytes) {
  ThisBlock().sync();
  put(ThisBlock(), comm_at(comm), buffer_at(window), offset, peer,
      reinterpret_cast<const char*>(source), bytes);
  return 1;
}
/// Copies `bytes` from `source` to all peers' copies, the own one included, by the machine's
/// switch where the device communicator has multicast addresses. Offset and source are multiples
/// of 16; else as niccolite_put.
__device__ int niccolite_store_all(uint64_t comm_address, uint64_t window, uint64_t offset,
                                   uint64_t source, uint64_t bytes) {
  const Comm comm = comm_at(comm_address);
  const Buffer<char> target = buffer_at(window, offset);
  const char* const from = reinterpret_cast<const char*>(source);
  const ThisBlock block;
  block.sync();
  for (uint64_t i = block.rank() * 16; i + 16 <= bytes; i += block.size() * 16)
    store_all(comm, target, i, *reinterpret_cast<const Pack<char>*>(from + i));
  for (uint64_t i = bytes / 16 * 16 + block.rank(); i < bytes; i += block.size())
    for (int peer = 0; peer < comm.nranks(); ++peer) target.of(peer)[i] = from[i];
  return 1;
}
/// Stores the sums of `count` elements of all peers' copies, from byte `offset` on, to `target`,
/// memory of this GPU; both are multiples of 16. Sums of 2-byte elements are made in float, in the
/// order of the peers, and rounded once; the switch, where there are multicast addresses, has an
/// order of its own. All threads of the block may load the target afterwards.
__device__ int niccolite_load_reduce_f32(uint64_t comm, uint64_t window, uint64_t offset,
                                         uint64_t count, uint64_t target) {
  return sum_of_peers<float>(comm, window, offset, count, target);
}
__device__ int niccolite_load_reduce_f16(uint64_t comm, uint64_t window, uint64_t offset,
                                         uint64_t count, uint64_t target) {
  return sum_of_peers<__half>(comm, window, offset, count, target);
}
__device__ int niccolite_load_reduce_bf16(uint64_t comm, uint64_t window, uint64_t offset,
                                          uint64_t count, uint64_t target) {
  return sum_of_peers<__nv_bfloat16>(comm, window, offset, count, target);
}

// ---- Order

/// Waits until the blocks of all ranks that use barrier `index` have come. Release and acquire.
/// One block of a rank uses a barrier at a time.
__device__ int niccolite_barrier(uint64_t comm_address, int index) {
  const Comm comm = comm_at(comm_address);
  Barrier<ThisBlock> barrier(ThisBlock(), comm, index);
  return barrier.sync() ? 1 : 0;
}
/// Tells a peer, or all, once, after all that the block has done. Release. `channels` is the handle
/// of require_channels(), `index` a channel of it, which one block of a rank uses at a time.
__device__ int niccolite_signal(uint64_t comm_address, uint32_t channels, int index, int peer) {
  const Comm comm = comm_at(comm_address);
  channel_of(comm, channels, index).signal(peer);
  return 1;
}
__device__ int niccolite_signal_all(uint64_t comm_address, uint32_t channels, int index) {
  const Comm comm = comm_at(comm_address);
  channel_of(comm, channels, index).signal_all();
  return 1;
}
/// Waits for the next signal of a peer, or for one of each, and takes it. Acquire.
__device__ int niccolite_wait(uint64_t comm_address, uint32_t channels, int index, int peer) {
  const Comm comm = comm_at(comm_address);
  ThisBlock().sync();
  return channel_of(comm, channels, index).wait(peer) ? 1 : 0;
}
__device__ int niccolite_wait_all(uint64_t comm_address, uint32_t channels, int index) {
  const Comm comm = comm_at(comm_address);
  ThisBlock().sync();
  return channel_of(comm, channels, index).wait_all() ? 1 : 0;
}
/// The sources of the block's puts and store_alls may be written again.
__device__ int niccolite_flush() {
  ThisBlock().sync();
  return 1;
}

// ---- Networks: any rank of the communicator, by context `context`. See Network

/// Copies `bytes` from byte `from` of this rank's copy of `source` to byte `to` of the peer's copy
/// of `target`. The source must stay until niccolite_network_flush.
__device__ int niccolite_network_put(uint64_t comm_address, int context, uint64_t target,
                                     uint64_t to, int peer, uint64_t source, uint64_t from,
                                     uint64_t bytes) {
  const Comm comm = comm_at(comm_address);
  Network<ThisBlock>(ThisBlock(), comm, context)
      .put(buffer_at(target), to, peer, buffer_at(source), from, bytes);
  return 1;
}
/// Stores 8 bytes to byte `to`, a multiple of 8, of the peer's copy of `target`.
__device__ int niccolite_network_put_value(uint64_t comm_address, int context, uint64_t target,
                                           uint64_t to, int peer, uint64_t value) {
  const Comm comm = comm_at(comm_address);
  Network<ThisBlock>(ThisBlock(), comm, context)
      .put_value(buffer_at<uint64_t>(target, to), 0, peer, value);
  return 1;
}
/// Copies from the peer's copy of `source` to this rank's of `target`: there after
/// niccolite_network_flush.
__device__ int niccolite_network_get(uint64_t comm_address, int context, uint64_t source,
                                     uint64_t from, int peer, uint64_t target, uint64_t to,
                                     uint64_t bytes) {
  const Comm comm = comm_at(comm_address);
  Network<ThisBlock>(ThisBlock(), comm, context)
      .get(buffer_at(source), from, peer, buffer_at(target), to, bytes);
  return 1;
}
/// Adds `amount` to the peer's signal, after all that the block has put to it before. Release.
__device__ int niccolite_network_signal(uint64_t comm_address, int context, int peer,
                                        uint32_t signal, uint64_t amount) {
  const Comm comm = comm_at(comm_address);
  Network<ThisBlock>(ThisBlock(), comm, context).signal(peer, signal, amount);
  return 1;
}
/// Waits until this rank's signal has at least `least`. Acquire.
__device__ int niccolite_network_wait(uint64_t comm_address, int context, uint32_t signal,
                                      uint64_t least) {
  const Comm comm = comm_at(comm_address);
  ThisBlock().sync();
  return Network<ThisBlock>(ThisBlock(), comm, context).wait(signal, least) ? 1 : 0;
}
/// Waits until all that this rank has asked the context for is done: sources may be written, and
/// data of gets be read. May return 1 after an abort: data of gets are undefined then.
__device__ int niccolite_network_flush(uint64_t comm_address, int context) {
  const Comm comm = comm_at(comm_address);
  return Network<ThisBlock>(ThisBlock(), comm, context).flush() ? 1 : 0;
}

}  // extern "C"
