// The kernels of `niccolite perf --device`. Compiled by a C++ compiler for virtual GPUs, and by
// nvcc -x cu for real ones.
#ifndef NCCL_DEVICE_HOST_ONLY
#define NCCL_DEVICE_HOST_ONLY  // niccolite/device.h has the kernels' part
#endif
#include "cli/perf/kernels/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <niccolite/device.h>

namespace {

using niccolite::launch;
using niccolite::perf::KernelCall;
using niccolite::perf::KernelLibrary;
using namespace niccolite::device;  // NOLINT(google-build-using-namespace)
using Work = KernelCall::Work;
using Bytes = Buffer<uint8_t>;

#ifdef __CUDACC__
constexpr unsigned kBlocks = 16, kThreads = 512;
constexpr unsigned kContexts = 4, kNetworkThreads = 128;
#else
constexpr unsigned kBlocks = 2, kThreads = 64;
constexpr unsigned kContexts = 2, kNetworkThreads = 32;
#endif
constexpr size_t kLeastBytes = 8192;  // of a block

/// The part of `bytes` that is the block's.
struct Slice {
  __device__ explicit Slice(size_t bytes) {
    const size_t each = ((bytes + gridDim.x - 1) / gridDim.x + 15) / 16 * 16;
    begin = each * blockIdx.x < bytes ? each * blockIdx.x : bytes;
    count = each < bytes - begin ? each : bytes - begin;
  }
  size_t begin, count;
};

/// Copies all that rank `rank` has for `peer`: `copy(where to, where from)`.
template <typename Copy>
__device__ void copy_to(Work work, int rank, int peer, size_t bytes, const Slice& slice,
                        const Copy& copy) {
  const size_t into = work == Work::SendReceive ? 0 : static_cast<size_t>(rank) * bytes;
  const size_t from = work == Work::AllToAll ? static_cast<size_t>(peer) * bytes : 0;
  copy(into + slice.begin, from + slice.begin);
}

// ---- By loads and stores. Before the first barrier no rank's buffers are ready, behind the second
// one all results are there.

__global__ void move(Comm comm, Bytes send, Bytes receive, size_t bytes, Work work) {
  Barrier barrier(ThisBlock(), comm, static_cast<int>(blockIdx.x));
  if (!barrier.sync()) return;
  const Slice slice(bytes);
  const int n = comm.nranks();
  for (int i = 1; i <= (work == Work::SendReceive ? 1 : n); ++i) {
    const int peer = (comm.rank() + i) % n;
    copy_to(work, comm.rank(), peer, bytes, slice, [&](size_t to, size_t from) {
      put(ThisBlock(), comm, receive, to, peer, send.own() + from, slice.count);
    });
  }
  (void)barrier.sync();
}

/// Adds elements `first` to `first + count` of all ranks, and hands each sum to `store(its place
/// from `first` on, sum)`, or 16 bytes of sums to `store_pack`.
template <typename T, typename Store, typename StorePack>
__device__ void add(const Comm& comm, const Buffer<T>& send, size_t first, size_t count,
                    bool is_aligned, unsigned thread, unsigned threads, const Store& store,
                    const StorePack& store_pack) {
  constexpr size_t kEach = Pack<T>::kElements;
  const size_t packs = is_aligned ? count / kEach : 0;
  for (size_t i = thread; i < packs; i += threads)
    store_pack(i * kEach, load_reduce(comm, send, first + i * kEach).rounded());
  for (size_t i = packs * kEach + thread; i < count; i += threads) {
    typename Sums<T>::Value sum(0);
    for (int peer = 0; peer < comm.nranks(); ++peer)
      sum += static_cast<typename Sums<T>::Value>(send.of(peer)[first + i]);
    store(i, static_cast<T>(sum));
  }
}

template <typename T>
__global__ void all_reduce(Comm comm, Buffer<T> send, Buffer<T> receive, size_t count,
                           bool is_aligned) {
  Barrier barrier(ThisBlock(), comm, static_cast<int>(blockIdx.x));
  if (!barrier.sync()) return;
  const unsigned rank = static_cast<unsigned>(comm.rank());
  const unsigned n = static_cast<unsigned>(comm.nranks());
  add(
      comm, send, 0, count, is_aligned, (blockIdx.x * n + rank) * blockDim.x + threadIdx.x,
      gridDim.x * n * blockDim.x,
      [&](size_t at, T sum) {
        for (int peer = 0; peer < comm.nranks(); ++peer) receive.of(peer)[at] = sum;
      },
      [&](size_t at, const Pack<T>& sums) { store_all(comm, receive, at, sums); });
  (void)barrier.sync();
}

template <typename T>
__global__ void reduce_scatter(Comm comm, Buffer<T> send, Buffer<T> receive, size_t count,
                               bool is_aligned) {
  Barrier barrier(ThisBlock(), comm, static_cast<int>(blockIdx.x));
  if (!barrier.sync()) return;
  add(
      comm, send, static_cast<size_t>(comm.rank()) * count, count, is_aligned,
      blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x,
      [&](size_t at, T sum) { receive.own()[at] = sum; },
      [&](size_t at, const Pack<T>& sums) {
        *reinterpret_cast<Pack<T>*>(receive.own() + at) = sums;
      });
  (void)barrier.sync();
}

// ---- By the network: a block for each context. A rank says to whoever sends to it that it is
// ready. Both kinds of pattern have signals of their own, so that no rank takes one for the other.

enum Signal : uint32_t { kReady, kHasCome, kSignalsOfAKind };

__global__ void move_by_network(Comm comm, Bytes send, Bytes receive, size_t bytes, Work work,
                                uint32_t epochs) {
  Network network(ThisBlock(), comm, static_cast<int>(blockIdx.x));
  const int n = network.nranks(), rank = network.rank();
  const bool is_ring = work == Work::SendReceive;
  uint64_t* const epoch = reinterpret_cast<uint64_t*>(comm.resources(epochs, comm.rank())) +
                          blockIdx.x * 2 + (is_ring ? 1 : 0);
  const uint32_t signals = is_ring ? uint32_t{kSignalsOfAKind} : 0U;
  const uint64_t now = *epoch + 1;
  const uint64_t all = now * (is_ring ? 1 : static_cast<uint64_t>(n));
  if (is_ring)
    network.signal((rank + n - 1) % n, signals + kReady);
  else
    for (int i = 1; i <= n; ++i) network.signal((rank + i) % n, signals + kReady);
  if (!network.wait(signals + kReady, all)) return;
  const Slice slice(bytes);
  for (int i = 1; i <= (is_ring ? 1 : n); ++i) {
    const int peer = (rank + i) % n;
    copy_to(work, rank, peer, bytes, slice, [&](size_t to, size_t from) {
      network.put(receive, to, peer, send, from, slice.count);
    });
    network.signal(peer, signals + kHasCome);
  }
  if (!network.wait(signals + kHasCome, all) || !network.flush()) return;
  __syncthreads();  // all threads have read the epoch
  if (threadIdx.x == 0) *epoch = now;
}

// ---- Host

unsigned blocks_for(size_t bytes, unsigned most) {
  const size_t wanted = (bytes + kLeastBytes - 1) / kLeastBytes;
  return wanted < 1 ? 1 : wanted < most ? static_cast<unsigned>(wanted) : most;
}

template <typename T>
cudaError_t launch_sum(const KernelCall& call, int n) {
  const bool is_scatter = call.work == Work::ReduceScatter;
  const size_t of_send = call.count * (is_scatter ? static_cast<size_t>(n) : 1);
  const bool is_aligned = call.send_offset % 16 == 0 && call.receive_offset % 16 == 0 &&
                          (!is_scatter || call.count % Pack<T>::kElements == 0);
  return launch(is_scatter ? reduce_scatter<T> : all_reduce<T>,
                blocks_for(call.count * sizeof(T), kBlocks), kThreads, 0, call.stream,
                Comm(*call.device), Buffer<T>(call.send, of_send, call.send_offset),
                Buffer<T>(call.receive, call.count, call.receive_offset), call.count, is_aligned);
}

size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 1;
  }
}

cudaError_t launch_move(const KernelCall& call, int n) {
  const size_t bytes = call.count * bytes_of(call.type);
  const auto all = static_cast<size_t>(n);
  const Bytes send(call.send, call.work == Work::AllToAll ? bytes * all : bytes, call.send_offset);
  const Bytes receive(call.receive, call.work == Work::SendReceive ? bytes : bytes * all,
                      call.receive_offset);
  if (!call.by_network)
    return launch(move, blocks_for(bytes, kBlocks), kThreads, 0, call.stream, Comm(*call.device),
                  send, receive, bytes, call.work);
  return launch(move_by_network, blocks_for(bytes, kContexts), kNetworkThreads, 0, call.stream,
                Comm(*call.device), send, receive, bytes, call.work, call.epochs);
}

cudaError_t launch_any(const KernelCall& call) {
  const int n = call.device->nRanks;
  if (call.work != Work::AllReduce && call.work != Work::ReduceScatter) return launch_move(call, n);
  switch (call.type) {
    case ncclInt8:
      return launch_sum<int8_t>(call, n);
    case ncclUint8:
      return launch_sum<uint8_t>(call, n);
    case ncclInt32:
      return launch_sum<int32_t>(call, n);
    case ncclUint32:
      return launch_sum<uint32_t>(call, n);
    case ncclInt64:
      return launch_sum<int64_t>(call, n);
    case ncclUint64:
      return launch_sum<uint64_t>(call, n);
    case ncclFloat16:
      return launch_sum<__half>(call, n);
    case ncclBfloat16:
      return launch_sum<__nv_bfloat16>(call, n);
    case ncclFloat32:
      return launch_sum<float>(call, n);
    case ncclFloat64:
      return launch_sum<double>(call, n);
    default:
      return cudaErrorInvalidValue;
  }
}

const char* launch_call(const KernelCall& call) {
  const cudaError_t error = launch_any(call);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const KernelLibrary niccolite_perf_kernels = {
    niccolite::perf::kKernelsVersion, kBlocks,    kContexts, 2 * kSignalsOfAKind,
    kContexts * 2 * sizeof(uint64_t), launch_call};
