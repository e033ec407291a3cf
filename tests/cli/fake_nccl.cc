// A test double for libnccl.so.2: every collective over virtual GPUs, done synchronously on the
// host through memory shared by all ranks, which a unique id names; reductions of int32 and float
// sums. Each rank copies its input into its slot, and takes from the others' slots what the
// definition of the collective gives it. Not a communication library: it is here so that the
// command's verification, alternation and supervision meet faults on demand.
//   FAKE_WRONG_ELEMENT (compiled in)   the last rank gets one element wrong
//   FAKE_ONLY_ALL_REDUCE (compiled in) none of the other collectives, no sends and receives
//   FAKE_NO_ALLTOALL (compiled in)     neither ncclAlltoAll nor ncclGather nor ncclScatter
//   FAKE_NCCL_KILL_RANK=R              rank R's process dies in its third operation
//   FAKE_NCCL_FAIL_RANK=R              rank R's third operation returns an error
#include <fcntl.h>
#include <nccl.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
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
  double scalars[kMaxRanks];  // what each rank's operands are multiplied with
  char slots[kMaxRanks][kSlotBytes];
};

struct Id {
  char path[64];
};

enum class Kind {
  AllReduce,
  AllGather,
  ReduceScatter,
  Broadcast,
  Reduce,
  AllToAll,
  Gather,
  Scatter,
  Exchange
};

/// A send or a receive.
struct Message {
  bool is_send;
  int peer;
  const char* source;
  char* target;
  size_t bytes;
};

struct Operation {
  Kind kind;
  ncclComm_t comm;
  const void* send;
  void* receive;
  size_t count;
  ncclDataType_t type;
  cudaStream_t stream;
  ncclRedOp_t operation = ncclSum;
  int root = 0;
  std::vector<Message> messages = {};  // of an Exchange
};

thread_local int group_depth = 0;
thread_local std::vector<Operation> recorded;

bool names_rank(const char* variable, int rank) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::atoi(value) == rank;
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

/// `count` elements from `first` of the slots, reduced.
template <typename T>
void reduce(const Shared& shared, int nranks, size_t first, size_t count, void* output) {
  for (size_t i = 0; i < count; ++i) {
    T sum = 0;
    for (int rank = 0; rank < nranks; ++rank) {
      T value;
      std::memcpy(&value, shared.slots[rank] + (first + i) * sizeof(T), sizeof(T));
      const T scalar = static_cast<T>(shared.scalars[rank]);
      if constexpr (std::is_integral_v<T>) {  // wraps, as NCCL's does
        using Wrapping = std::make_unsigned_t<T>;
        sum = static_cast<T>(static_cast<Wrapping>(sum) +
                             static_cast<Wrapping>(scalar) * static_cast<Wrapping>(value));
      } else {
        sum = static_cast<T>(sum + scalar * value);
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
  std::map<int, double> scalars = {};  // of the operations made with one

  Shared& shared() const { return *static_cast<Shared*>(mapping.data()); }
  // acq_rel and acquire: slots written before arrive() are read after wait() by all ranks.
  void arrive() { shared().arrived.fetch_add(1, std::memory_order_acq_rel); }
  void wait() {
    const uint32_t wanted = ++barriers * static_cast<uint32_t>(nranks);
    while (shared().arrived.load(std::memory_order_acquire) < wanted) sched_yield();
  }
};

namespace {

// ---- before all ranks have arrived: the input goes into the slot

size_t blocks_sent(const Operation& operation) {
  const bool sends_blocks = operation.kind == Kind::ReduceScatter ||
                            operation.kind == Kind::AllToAll || operation.kind == Kind::Scatter;
  return sends_blocks ? static_cast<size_t>(operation.comm->nranks) : 1;
}

/// Records (peer, bytes, data) one after the other; a peer of -1 ends them.
ncclResult_t post_messages(const Operation& operation, char* slot) {
  size_t used = 0;
  for (const Message& message : operation.messages) {
    if (!message.is_send) continue;
    if (used + message.bytes + 32 > kSlotBytes) return ncclInvalidArgument;
    std::memcpy(slot + used, &message.peer, sizeof message.peer);
    std::memcpy(slot + used + 8, &message.bytes, sizeof message.bytes);
    std::memcpy(slot + used + 16, message.source, message.bytes);
    used += 16 + message.bytes;
  }
  const int end = -1;
  std::memcpy(slot + used, &end, sizeof end);
  return ncclSuccess;
}

ncclResult_t post(const Operation& operation) {
  ncclComm& comm = *operation.comm;
  char* slot = comm.shared().slots[comm.rank];
  if (operation.kind == Kind::Exchange) return post_messages(operation, slot);
  const bool reduces = operation.kind == Kind::AllReduce || operation.kind == Kind::Reduce ||
                       operation.kind == Kind::ReduceScatter;
  if (reduces && operation.type != ncclInt32 && operation.type != ncclFloat32)
    return ncclInvalidArgument;
  const size_t bytes = operation.count * blocks_sent(operation) * bytes_of(operation.type);
  if (bytes > kSlotBytes) return ncclInvalidArgument;
  const auto scalar = comm.scalars.find(operation.operation);
  comm.shared().scalars[comm.rank] = scalar == comm.scalars.end() ? 1 : scalar->second;
  // Virtual device memory is the host's. Only the root's input counts where only the root sends.
  const bool has_input = (operation.kind != Kind::Broadcast && operation.kind != Kind::Scatter) ||
                         comm.rank == operation.root;
  if (bytes > 0 && has_input) std::memcpy(slot, operation.send, bytes);
  return ncclSuccess;
}

// ---- after it: the output comes from the slots

void copy_block(const Operation& operation, int source, int source_block, int target_block) {
  const size_t bytes = operation.count * bytes_of(operation.type);
  if (bytes > 0)
    std::memcpy(static_cast<char*>(operation.receive) + static_cast<size_t>(target_block) * bytes,
                operation.comm->shared().slots[source] + static_cast<size_t>(source_block) * bytes,
                bytes);
}

void reduce_into(const Operation& operation, size_t first) {
  const ncclComm& comm = *operation.comm;
  if (operation.type == ncclInt32)
    reduce<int32_t>(comm.shared(), comm.nranks, first, operation.count, operation.receive);
  else
    reduce<float>(comm.shared(), comm.nranks, first, operation.count, operation.receive);
}

/// The first message from `peer` to this rank after `offset` of its slot; moves `offset` behind it.
ncclResult_t take_message(const ncclComm& comm, const Message& message, size_t& offset) {
  const char* slot = comm.shared().slots[message.peer];
  for (;;) {
    int to = -1;
    std::memcpy(&to, slot + offset, sizeof to);
    if (to < 0) return ncclInvalidUsage;
    size_t bytes = 0;
    std::memcpy(&bytes, slot + offset + 8, sizeof bytes);
    const char* data = slot + offset + 16;
    offset += 16 + bytes;
    if (to != comm.rank) continue;
    if (bytes != message.bytes) return ncclInvalidUsage;
    std::memcpy(message.target, data, bytes);
    return ncclSuccess;
  }
}

ncclResult_t finish(const Operation& operation) {
  const ncclComm& comm = *operation.comm;
  const bool is_root = comm.rank == operation.root;
  switch (operation.kind) {
    case Kind::AllReduce:
      reduce_into(operation, 0);
      break;
    case Kind::Reduce:
      if (is_root) reduce_into(operation, 0);
      break;
    case Kind::ReduceScatter:
      reduce_into(operation, operation.count * static_cast<size_t>(comm.rank));
      break;
    case Kind::Broadcast:
      copy_block(operation, operation.root, 0, 0);
      break;
    case Kind::Scatter:
      copy_block(operation, operation.root, comm.rank, 0);
      break;
    case Kind::AllGather:
    case Kind::Gather:
      for (int peer = 0; peer < comm.nranks; ++peer)
        if (is_root || operation.kind == Kind::AllGather) copy_block(operation, peer, 0, peer);
      break;
    case Kind::AllToAll:
      for (int peer = 0; peer < comm.nranks; ++peer) copy_block(operation, peer, comm.rank, peer);
      break;
    case Kind::Exchange: {
      std::map<int, size_t> offsets;
      for (const Message& message : operation.messages)
        if (!message.is_send)
          if (const ncclResult_t result = take_message(comm, message, offsets[message.peer]);
              result != ncclSuccess)
            return result;
      break;
    }
  }
  return ncclSuccess;
}

#ifdef FAKE_WRONG_ELEMENT
/// Damages the middle of what the last rank receives.
void damage(const Operation& operation) {
  if (operation.comm->rank != operation.comm->nranks - 1) return;
  char* target = static_cast<char*>(operation.receive);
  size_t count = operation.count;
  const size_t bytes = bytes_of(operation.type);
  if (operation.kind == Kind::Exchange)
    for (const Message& message : operation.messages)
      if (!message.is_send && message.bytes > 0) {
        target = message.target;
        count = message.bytes / bytes;
      }
  if (count > 0 && target != nullptr) target[(count / 2 + 1) * bytes - bytes / 2] ^= 0x40;
}
#endif

ncclResult_t run(const std::vector<Operation>& operations) {
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
    if (const ncclResult_t result = post(operation); result != ncclSuccess) return result;
    comm.arrive();
  }
  for (const Operation& operation : operations) operation.comm->wait();
  for (const Operation& operation : operations) {
    if (const ncclResult_t result = finish(operation); result != ncclSuccess) return result;
#ifdef FAKE_WRONG_ELEMENT
    damage(operation);
#endif
    operation.comm->arrive();
  }
  for (const Operation& operation : operations) operation.comm->wait();
  return ncclSuccess;
}

/// Adds a message to the exchange that its communicator has open in this group, or opens one.
void add_message(const Operation& exchange) {
  for (auto each = recorded.rbegin(); each != recorded.rend(); ++each)
    if (each->comm == exchange.comm && each->kind == Kind::Exchange) {
      each->messages.push_back(exchange.messages[0]);
      return;
    }
  recorded.push_back(exchange);
}

ncclResult_t queue(const Operation& operation) {
  if (group_depth == 0) return run({operation});
  if (operation.kind == Kind::Exchange)
    add_message(operation);
  else
    recorded.push_back(operation);
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
                                  ncclDataType_t type, ncclRedOp_t operation, ncclComm_t comm,
                                  cudaStream_t stream) {
  return queue({Kind::AllReduce, comm, send, receive, count, type, stream, operation});
}

#ifndef FAKE_ONLY_ALL_REDUCE

EXPORT ncclResult_t ncclAllGather(const void* send, void* receive, size_t count,
                                  ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return queue({Kind::AllGather, comm, send, receive, count, type, stream});
}

EXPORT ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count,
                                      ncclDataType_t type, ncclRedOp_t operation, ncclComm_t comm,
                                      cudaStream_t stream) {
  return queue({Kind::ReduceScatter, comm, send, receive, count, type, stream, operation});
}

EXPORT ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count,
                                  ncclDataType_t type, int root, ncclComm_t comm,
                                  cudaStream_t stream) {
  return queue({Kind::Broadcast, comm, send, receive, count, type, stream, ncclSum, root});
}

EXPORT ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, int root, ncclComm_t comm,
                               cudaStream_t stream) {
  return queue({Kind::Reduce, comm, send, receive, count, type, stream, operation, root});
}

#ifndef FAKE_NO_ALLTOALL

EXPORT ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count, ncclDataType_t type,
                                 ncclComm_t comm, cudaStream_t stream) {
  return queue({Kind::AllToAll, comm, send, receive, count, type, stream});
}

EXPORT ncclResult_t ncclGather(const void* send, void* receive, size_t count, ncclDataType_t type,
                               int root, ncclComm_t comm, cudaStream_t stream) {
  return queue({Kind::Gather, comm, send, receive, count, type, stream, ncclSum, root});
}

EXPORT ncclResult_t ncclScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                                int root, ncclComm_t comm, cudaStream_t stream) {
  return queue({Kind::Scatter, comm, send, receive, count, type, stream, ncclSum, root});
}

#endif  // FAKE_NO_ALLTOALL

EXPORT ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                             ncclComm_t comm, cudaStream_t stream) {
  const Message message = {true, peer, static_cast<const char*>(send), nullptr,
                           count * bytes_of(type)};
  return queue({.kind = Kind::Exchange,
                .comm = comm,
                .send = nullptr,
                .receive = nullptr,
                .count = 0,
                .type = type,
                .stream = stream,
                .messages = {message}});
}

EXPORT ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer,
                             ncclComm_t comm, cudaStream_t stream) {
  const Message message = {false, peer, nullptr, static_cast<char*>(receive),
                           count * bytes_of(type)};
  return queue({.kind = Kind::Exchange,
                .comm = comm,
                .send = nullptr,
                .receive = nullptr,
                .count = 0,
                .type = type,
                .stream = stream,
                .messages = {message}});
}

// Reads a device scalar at once, which is as good as later: the command does not change it.
EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* operation, void* scalar,
                                             ncclDataType_t type, ncclScalarResidence_t,
                                             ncclComm_t comm) {
  double value = 0;
  if (type == ncclInt32) {
    int32_t integer = 0;
    std::memcpy(&integer, scalar, sizeof integer);
    value = integer;
  } else if (type == ncclFloat32) {
    float number = 0;
    std::memcpy(&number, scalar, sizeof number);
    value = static_cast<double>(number);
  } else {
    return ncclInvalidArgument;
  }
  const int id = 100 + static_cast<int>(comm->scalars.size());
  comm->scalars[id] = value;
  *operation = static_cast<ncclRedOp_t>(id);
  return ncclSuccess;
}

EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t operation, ncclComm_t comm) {
  return comm->scalars.erase(operation) == 1 ? ncclSuccess : ncclInvalidArgument;
}

#endif  // FAKE_ONLY_ALL_REDUCE
