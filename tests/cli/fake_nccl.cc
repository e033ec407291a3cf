// A test double for libnccl.so.2: all-reduce of int32 and float sums over virtual GPUs, done
// synchronously on the host through memory shared by all ranks, which a unique id names. Not a
// communication library: it is here so that the command's verification, alternation and supervision
// meet faults on demand.
//   FAKE_WRONG_ELEMENT (compiled in)   the last rank gets one element wrong
//   FAKE_NCCL_KILL_RANK=R              rank R's process dies in its third all-reduce
//   FAKE_NCCL_FAIL_RANK=R              rank R's third all-reduce returns an error
#include <fcntl.h>
#include <nccl.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "base/fd.h"
#include "gpu/machine.h"

namespace {

using niccolite::Fd;
using niccolite::Mapping;

constexpr int kMaxRanks = 16;
constexpr size_t kSlotBytes = size_t{1} << 20;

struct Shared {
  std::atomic<uint32_t> arrived;
  char padding[4092];
  char slots[kMaxRanks][kSlotBytes];
};

struct Id {
  char path[64];
};

struct Operation {
  ncclComm_t comm;
  const void* send;
  void* receive;
  size_t count;
  ncclDataType_t type;
  cudaStream_t stream;
};

thread_local int group_depth = 0;
thread_local std::vector<Operation> recorded;

bool names_rank(const char* variable, int rank) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::atoi(value) == rank;
}

template <typename T>
void fold(const Shared& shared, int nranks, size_t count, void* output) {
  for (size_t i = 0; i < count; ++i) {
    T sum = 0;
    for (int rank = 0; rank < nranks; ++rank) {
      T value;
      std::memcpy(&value, shared.slots[rank] + i * sizeof(T), sizeof(T));
      if constexpr (std::is_integral_v<T>) {  // wraps, as NCCL's does
        sum = static_cast<T>(static_cast<std::make_unsigned_t<T>>(sum) +
                             static_cast<std::make_unsigned_t<T>>(value));
      } else {
        sum = static_cast<T>(sum + value);
      }
    }
    std::memcpy(static_cast<char*>(output) + i * sizeof(T), &sum, sizeof(T));
  }
}

}  // namespace

struct ncclComm {
  Mapping mapping;
  int rank = 0;
  int nranks = 0;
  int device = 0;
  uint32_t barriers = 0;  // passed so far by this rank
  int operations = 0;

  Shared& shared() const { return *static_cast<Shared*>(mapping.data()); }
  // acq_rel and acquire: slots written before arrive() are read after wait() by all ranks.
  void arrive() { shared().arrived.fetch_add(1, std::memory_order_acq_rel); }
  void wait() {
    const uint32_t wanted = ++barriers * static_cast<uint32_t>(nranks);
    while (shared().arrived.load(std::memory_order_acquire) < wanted) sched_yield();
  }
};

namespace {

ncclResult_t run(std::vector<Operation> operations) {
  for (const Operation& operation : operations) {
    ncclComm& comm = *operation.comm;
    if (++comm.operations == 3) {
      if (names_rank("FAKE_NCCL_KILL_RANK", comm.rank)) kill(getpid(), SIGKILL);
      if (names_rank("FAKE_NCCL_FAIL_RANK", comm.rank)) return ncclSystemError;
    }
    auto machine = niccolite::gpu::machine();
    if (!machine.is_ok()) return ncclUnhandledCudaError;
    if (!(*machine)->synchronize_stream(comm.device, operation.stream).is_ok())
      return ncclUnhandledCudaError;
    const size_t bytes = operation.count * 4;
    if (bytes > kSlotBytes || (operation.type != ncclInt32 && operation.type != ncclFloat32))
      return ncclInvalidArgument;
    // Virtual device memory is the host's.
    if (bytes > 0) std::memcpy(comm.shared().slots[comm.rank], operation.send, bytes);
    comm.arrive();
  }
  for (const Operation& operation : operations) operation.comm->wait();
  for (const Operation& operation : operations) {
    ncclComm& comm = *operation.comm;
    if (operation.type == ncclInt32)
      fold<int32_t>(comm.shared(), comm.nranks, operation.count, operation.receive);
    else
      fold<float>(comm.shared(), comm.nranks, operation.count, operation.receive);
#ifdef FAKE_WRONG_ELEMENT
    if (comm.rank == comm.nranks - 1 && operation.count > 0)
      static_cast<char*>(operation.receive)[operation.count / 2 * 4 + 2] ^= 0x40;
#endif
    comm.arrive();
  }
  for (const Operation& operation : operations) operation.comm->wait();
  return ncclSuccess;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT ncclResult_t ncclGetVersion(int* version) {
  *version = FAKE_VERSION;
  return ncclSuccess;
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  auto fd = Fd::memfd("fake-nccl", sizeof(Shared));
  if (!fd.is_ok()) return ncclSystemError;
  // The descriptor stays open, for ranks that come later; the process is short-lived.
  const std::string path =
      "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd->release());
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, path.c_str(), path.size());
  return ncclSuccess;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  Fd fd(open(id.internal, O_RDWR | O_CLOEXEC));
  if (!fd.valid() || nranks > kMaxRanks) return ncclSystemError;
  auto mapping = Mapping::shared(fd, sizeof(Shared));
  auto machine = niccolite::gpu::machine();
  if (!mapping.is_ok() || !machine.is_ok()) return ncclSystemError;
  auto device = (*machine)->current_device();
  if (!device.is_ok()) return ncclUnhandledCudaError;
  *comm = new ncclComm{
      .mapping = std::move(*mapping), .rank = rank, .nranks = nranks, .device = *device};
  return ncclSuccess;
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = ncclSuccess;
  return ncclSuccess;
}

EXPORT const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess           ? "fine"
         : result == ncclInvalidArgument ? "invalid argument"
                                         : "failure made to order";
}

EXPORT ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return ncclSuccess;
  // One operation of each communicator at a time.
  std::vector<Operation> pending = std::exchange(recorded, {});
  while (!pending.empty()) {
    std::vector<Operation> now;
    std::vector<Operation> later;
    for (const Operation& operation : pending) {
      bool is_taken = false;
      for (const Operation& taken : now) is_taken |= taken.comm == operation.comm;
      (is_taken ? later : now).push_back(operation);
    }
    if (const ncclResult_t result = run(now); result != ncclSuccess) return result;
    pending = std::move(later);
  }
  return ncclSuccess;
}

EXPORT ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count,
                                  ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                                  cudaStream_t stream) {
  const Operation operation = {comm, send, receive, count, type, stream};
  if (group_depth == 0) return run({operation});
  recorded.push_back(operation);
  return ncclSuccess;
}
