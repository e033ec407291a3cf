// The kernels of `niccolite perf --device`, which communicate by themselves (niccolite/device.h),
// as the command calls them: shared libraries, one for virtual GPUs and, where nvcc made it, one
// for real ones. Plain data.
#pragma once

#include <nccl.h>
#include <nccl_device.h>

#include <cstddef>
#include <cstdint>

namespace niccolite::perf {

/// One rank's part of an operation. Buffers are of symmetric windows, from these bytes on.
struct KernelCall {
  enum class Work : int { AllReduce, AllGather, ReduceScatter, AllToAll, SendReceive };
  Work work = Work::AllReduce;
  bool by_network = false;  // else by loads and stores
  ncclDataType_t type = ncclUint8;
  size_t count = 0;  // the collective's: of the whole data or of a block
  const ncclDevComm_t* device = nullptr;
  ncclWindow_t send = nullptr, receive = nullptr;
  size_t send_offset = 0, receive_offset = 0;
  uint32_t epochs = 0;  // handle of KernelLibrary::state_bytes
  cudaStream_t stream = nullptr;
};

/// Found in the library by kKernelsSymbol.
struct KernelLibrary {
  int version;  // kKernelsVersion
  int barriers;
  int contexts;
  int signals;
  size_t state_bytes;  // of a buffer of the device communicator's, for calls by the network
  /// On the current device. Null, or the reason why not.
  const char* (*launch)(const KernelCall& call);
};
constexpr int kKernelsVersion = 1;
constexpr const char* kKernelsSymbol = "niccolite_perf_kernels";

}  // namespace niccolite::perf
