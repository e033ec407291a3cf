// Communication calls: check the arguments, translate them, hand them to the group.

#include "api/arguments.h"

#include "api/call.h"
#include "api/call_configuration.h"
#include "base/log.h"
#include "calls/overlaps.h"
#include "gpu/machine.h"

namespace niccolite::api {
namespace {

using calls::Task;
using comm::Communicator;
using executor::DataType;
using planner::Operation;
using planner::Request;
using schedule::Collective;

static_assert(ncclNumTypes == executor::kDataTypes && ncclNumOps == planner::kBuiltInOperations);
static_assert(ncclInt8 == static_cast<int>(DataType::Int8) &&
              ncclUint64 == static_cast<int>(DataType::Uint64) &&
              ncclFloat16 == static_cast<int>(DataType::Float16) &&
              ncclFloat64 == static_cast<int>(DataType::Float64) &&
              ncclBfloat16 == static_cast<int>(DataType::Bfloat16) &&
              ncclFloat8e5m2 == static_cast<int>(DataType::Float8e5m2));
static_assert(ncclSum == static_cast<int>(Operation::Sum) &&
              ncclAvg == static_cast<int>(Operation::Average));

/// Checks the size of the buffer. Where blocks lie side by side, it has a block for each rank.
Status check_size(const char* function, const Request& request, int nranks) {
  constexpr size_t kMost =
      size_t{1} << 62;  // beyond any address space; keeps the arithmetic on sizes from wrapping
  const size_t blocks =
      schedule::has_blocks_of_ranks(request.collective) ? static_cast<size_t>(nranks) : 1;
  if (request.count > kMost / executor::size_of(request.type) / blocks)
    return Status::invalid_argument("{} : count {} of {} does not fit the address space", function,
                                    request.count, executor::name_of(request.type));
  return {};
}

/// Virtual GPUs look a pointer up in a table. This costs nothing compared with the call, and a
/// wrong pointer would end the process with a signal. On CUDA devices the check asks the driver, so
/// it is off unless the user turns it on.
bool checks_pointers(const gpu::Devices& devices) {
  return calls::asked_buffer_checks().value_or(devices.kind() == gpu::Kind::Virtual);
}

/// A buffer that this rank's part of the call uses as a whole.
struct Buffer {
  const char* name;
  const void* pointer;
  size_t bytes;
};

Status check_not_null(const char* function, const Buffer& buffer, const Communicator& comm) {
  if (buffer.pointer != nullptr) return {};
  return Status::invalid_argument("{} : {} argument is NULL (rank {}, {} bytes)", function,
                                  buffer.name, comm.rank(), buffer.bytes);
}

Status check_memory(const char* function, const Buffer& buffer, Communicator& comm) {
  const auto* const begin = static_cast<const std::byte*>(buffer.pointer);
  // More than one step where mappings or registrations that lie side by side make one buffer.
  for (size_t passed = 0; passed < buffer.bytes;) {
    const std::byte* const at = begin + passed;
    const gpu::PointerInfo info = TRY(comm.machine().pointer_info(at));
    if (info.kind == gpu::PointerKind::Unknown && passed == 0)
      return Status::invalid_argument(
          "{} : {} {} of rank {} is not a valid pointer: no GPU memory or registered host memory "
          "is there; was it freed, or is it pageable memory of the host?",
          function, buffer.name, buffer.pointer, comm.rank());
    if (info.kind == gpu::PointerKind::Device && info.device != comm.device())
      return Status::invalid_argument(
          "{} : {} {} is allocated on device {}, but the communicator of rank {} is on device {}",
          function, buffer.name, buffer.pointer, info.device, comm.rank(), comm.device());
    const auto* const base = static_cast<const std::byte*>(info.base);
    if (info.kind != gpu::PointerKind::Unknown) {
      // Registered memory may be told at another address than the host's.
      if (at < base || at >= base + info.bytes) return {};
      passed = static_cast<size_t>(base + info.bytes - begin);
    }
    // Allocations of a virtual GPU that lie side by side have nothing to do with each other, but
    // where the program put them there.
    const bool may_go_on = info.kind == gpu::PointerKind::Host ||
                           (info.kind == gpu::PointerKind::Device &&
                            (comm.machine().kind() == gpu::Kind::Cuda || info.is_mapping));
    if (passed < buffer.bytes && !may_go_on)
      return Status::invalid_argument(
          "{} : {} {} of rank {} is too small: the call uses {} bytes from there on, and its "
          "memory ends after {}",
          function, buffer.name, buffer.pointer, comm.rank(), buffer.bytes, passed);
  }
  return {};
}

/// How far the output lies behind the input where the call works in place, and how a program would
/// write that; nothing: it never does.
struct InPlace {
  ptrdiff_t distance;
  const char* form;
};
std::optional<InPlace> in_place_form(const Request& request, int rank, size_t block) {
  const ptrdiff_t own = static_cast<ptrdiff_t>(block) * rank;
  switch (request.collective) {
    case Collective::AllReduce:
    case Collective::Reduce:
    case Collective::Broadcast:
      return InPlace{0, "recvbuff is sendbuff"};
    case Collective::AllGather:
      return InPlace{-own, "sendbuff is the rank's own block of recvbuff"};
    case Collective::ReduceScatter:
      return InPlace{own, "recvbuff is the rank's own block of sendbuff"};
    case Collective::Gather:
      return InPlace{-own, "at the root, sendbuff is its own block of recvbuff"};
    case Collective::Scatter:
      return InPlace{own, "at the root, recvbuff is its own block of sendbuff"};
    case Collective::AllToAll:
    case Collective::PointToPoint:
      return std::nullopt;
  }
  return std::nullopt;
}

/// Checks a collective. A group checks its messages when it ends (Group::end()).
Status check_overlap(const Task& task, const Buffer& reads, const Buffer& writes,
                     const Communicator& comm) {
  const calls::Range input{reads.pointer, reads.bytes}, output{writes.pointer, writes.bytes};
  if (!input.overlaps(output)) return {};
  const Request& request = task.call.request;
  const std::optional<InPlace> in_place = in_place_form(request, comm.rank(), request.bytes());
  const ptrdiff_t distance = output.begin() - input.begin();
  if (in_place && distance == in_place->distance) return {};
  return Status::invalid_argument(
      "{} : sendbuff {} and recvbuff {} of rank {} overlap: use memory that does not{}",
      calls::function_of(task.call), input.describe(), output.describe(), comm.rank(),
      in_place ? fmt::format(", or the form in place, where {}", in_place->form)
               : "; the call has no form in place");
}

/// The buffers that this rank's part of the call uses.
Status check_buffers(const Task& task, Communicator& comm) {
  const Request& request = task.call.request;
  const bool is_root = request.root == comm.rank();
  const size_t block = request.count * executor::size_of(request.type);
  const size_t blocks = block * static_cast<size_t>(comm.nranks());
  Buffer reads{"sendbuff", task.input, block};
  Buffer writes{"recvbuff", task.output, block};
  switch (request.collective) {
    case Collective::Broadcast:
      if (!is_root) reads.bytes = 0;
      break;
    case Collective::Reduce:
      if (!is_root) writes.bytes = 0;
      break;
    case Collective::AllGather:
      writes.bytes = blocks;
      break;
    case Collective::ReduceScatter:
      reads.bytes = blocks;
      break;
    case Collective::AllToAll:
      reads.bytes = writes.bytes = blocks;
      break;
    case Collective::Gather:
      writes.bytes = is_root ? blocks : 0;
      break;
    case Collective::Scatter:
      reads.bytes = is_root ? blocks : 0;
      break;
    case Collective::PointToPoint:
      (task.call.is_send ? writes : reads).bytes = 0;
      break;
    case Collective::AllReduce:
      break;
  }
  const char* const function = calls::function_of(task.call);
  const bool looks_up = checks_pointers(comm.machine());
  for (const Buffer& buffer : {reads, writes}) {
    if (buffer.bytes == 0) continue;
    TRY(check_not_null(function, buffer, comm));
    if (looks_up) TRY(check_memory(function, buffer, comm));
  }
  // Off by default, because programs use overlaps that happen to work: nccl-tests run an all-to-all
  // in place.
  if (calls::asked_buffer_checks().value_or(false)) TRY(check_overlap(task, reads, writes, comm));
  return {};
}

/// The arguments of a call. Enumerations are not checked yet.
struct Arguments {
  Collective collective;
  const void* sendbuff = nullptr;
  void* recvbuff = nullptr;
  size_t count = 0;
  int datatype = 0;
  int op = 0;
  int root = 0;  // or the peer of a message
  bool is_send = false;
  ncclComm_t handle = nullptr;
  cudaStream_t stream = nullptr;
  const ncclCollConfig_t* config = nullptr;
};

Result<planner::Operator> operation(const char* function, int value, DataType type,
                                    const Communicator& communicator) {
  if (value < 0)
    return Status::invalid_argument("{} : invalid reduction operation {}", function, value);
  if (value < ncclNumOps) return planner::Operator{.operation = static_cast<Operation>(value)};
  return communicator.operators().find(value, type);
}

Status configure(Task& task, const Arguments& arguments) {
  const CallConfiguration configuration =
      TRY(resolve(calls::function_of(task.call), arguments.collective, arguments.config));
  task.launched = configuration.launched;
  task.call.request.settings = configuration.settings;
  if (configuration.settings != nullptr)
    task.call.settings_tag = planner::tag_of(*configuration.settings);
  return {};
}

// In the order in which NCCL checks (c-api reference §6.5).
Result<comm::Completion> enqueue(const Arguments& arguments) {
  Task task;
  task.call.request.collective = arguments.collective;
  task.call.is_send = arguments.is_send;
  const char* function = calls::function_of(task.call);
  if (arguments.config != nullptr) TRY(configure(task, arguments));
  comm::Group& group = comm::Group::current();
  comm::Group::Tasks* const listed = group.find_tasks(arguments.handle);
  std::shared_ptr<Communicator> found;
  if (listed == nullptr) found = TRY(find(arguments.handle));
  Communicator* const communicator = listed != nullptr ? listed->communicator.get() : found.get();
  TRY(communicator->lifetime().check_takes_operations());
  Request& request = task.call.request;
  const bool is_message = task.call.is_message();
  if (arguments.root < 0 || arguments.root >= communicator->nranks())
    return Status::invalid_argument("{} : invalid {} {}: the communicator has {} ranks", function,
                                    is_message ? "peer" : "root", arguments.root,
                                    communicator->nranks());
  (is_message ? task.call.peer : request.root) = arguments.root;
  request.type = TRY(data_type(function, arguments.datatype));
  request.count = arguments.count;
  if (schedule::reduces(arguments.collective))
    request.op = TRY(operation(function, arguments.op, request.type, *communicator));
  TRY(check_size(function, request, communicator->nranks()));
  task.input = arguments.sendbuff;
  task.output = arguments.recvbuff;
  task.stream = arguments.stream;
  LOG(Info, Coll,
      "{}: sendbuff {} recvbuff {} count {} datatype {} op {} root {} comm {} [nranks={}] stream "
      "{}",
      function + 4, arguments.sendbuff, arguments.recvbuff, arguments.count, arguments.datatype,
      arguments.op, arguments.root, static_cast<const void*>(arguments.handle),
      communicator->nranks(), static_cast<const void*>(arguments.stream));
  if (arguments.count == 0 && !is_message) return comm::Completion::Done;
  if (arguments.count != 0) TRY(check_buffers(task, *communicator));
  if (listed == nullptr) return group.add_task(std::move(found), task);
  listed->tasks.push_back(task);
  return comm::Completion::Done;
}

ncclResult_t call_operation(const char* function, const Arguments& arguments) {
  return call(function, [&] { return enqueue(arguments); });
}

// Values of parameters that a collective does not have.
constexpr ncclRedOp_t kNoOperation = ncclSum;
constexpr int kNoRoot = 0;

/// A collective, in the order of NCCL's parameters; `config`: null in the form that has none.
ncclResult_t call_collective(const char* function, Collective collective, const void* sendbuff,
                             void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                             int root, ncclComm_t comm, cudaStream_t stream,
                             const ncclCollConfig_t* config = nullptr) {
  return call_operation(function, {.collective = collective,
                                   .sendbuff = sendbuff,
                                   .recvbuff = recvbuff,
                                   .count = count,
                                   .datatype = number_of(datatype),
                                   .op = number_of(op),
                                   .root = root,
                                   .handle = comm,
                                   .stream = stream,
                                   .config = config});
}

}  // namespace
}  // namespace niccolite::api

using niccolite::api::call_collective;
using niccolite::api::call_operation;
using niccolite::api::kNoOperation;
using niccolite::api::kNoRoot;
using niccolite::api::number_of;
using niccolite::schedule::Collective;

extern "C" {

ncclResult_t pncclAllReduceConfig(const void* sendbuff, void* recvbuff, size_t count,
                                  ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                  cudaStream_t stream, const ncclCollConfig_t* config) {
  return call_collective("ncclAllReduceConfig", Collective::AllReduce, sendbuff, recvbuff, count,
                         datatype, op, kNoRoot, comm, stream, config);
}

ncclResult_t pncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                            ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                            cudaStream_t stream) {
  return call_collective("ncclAllReduce", Collective::AllReduce, sendbuff, recvbuff, count,
                         datatype, op, kNoRoot, comm, stream);
}

ncclResult_t pncclReduceConfig(const void* sendbuff, void* recvbuff, size_t count,
                               ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                               cudaStream_t stream, const ncclCollConfig_t* config) {
  return call_collective("ncclReduceConfig", Collective::Reduce, sendbuff, recvbuff, count,
                         datatype, op, root, comm, stream, config);
}

ncclResult_t pncclReduce(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  return call_collective("ncclReduce", Collective::Reduce, sendbuff, recvbuff, count, datatype, op,
                         root, comm, stream);
}

ncclResult_t pncclBroadcastConfig(const void* sendbuff, void* recvbuff, size_t count,
                                  ncclDataType_t datatype, int root, ncclComm_t comm,
                                  cudaStream_t stream, const ncclCollConfig_t* config) {
  return call_collective("ncclBroadcastConfig", Collective::Broadcast, sendbuff, recvbuff, count,
                         datatype, kNoOperation, root, comm, stream, config);
}

ncclResult_t pncclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                            ncclDataType_t datatype, int root, ncclComm_t comm,
                            cudaStream_t stream) {
  return call_collective("ncclBroadcast", Collective::Broadcast, sendbuff, recvbuff, count,
                         datatype, kNoOperation, root, comm, stream);
}

ncclResult_t pncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return call_collective("ncclBcast", Collective::Broadcast, buff, buff, count, datatype,
                         kNoOperation, root, comm, stream);
}

ncclResult_t pncclAllGatherConfig(const void* sendbuff, void* recvbuff, size_t sendcount,
                                  ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                                  const ncclCollConfig_t* config) {
  return call_collective("ncclAllGatherConfig", Collective::AllGather, sendbuff, recvbuff,
                         sendcount, datatype, kNoOperation, kNoRoot, comm, stream, config);
}

ncclResult_t pncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                            ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return call_collective("ncclAllGather", Collective::AllGather, sendbuff, recvbuff, sendcount,
                         datatype, kNoOperation, kNoRoot, comm, stream);
}

ncclResult_t pncclReduceScatterConfig(const void* sendbuff, void* recvbuff, size_t recvcount,
                                      ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                      cudaStream_t stream, const ncclCollConfig_t* config) {
  return call_collective("ncclReduceScatterConfig", Collective::ReduceScatter, sendbuff, recvbuff,
                         recvcount, datatype, op, kNoRoot, comm, stream, config);
}

ncclResult_t pncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                cudaStream_t stream) {
  return call_collective("ncclReduceScatter", Collective::ReduceScatter, sendbuff, recvbuff,
                         recvcount, datatype, op, kNoRoot, comm, stream);
}

ncclResult_t pncclAlltoAllConfig(const void* sendbuff, void* recvbuff, size_t count,
                                 ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t* config) {
  return call_collective("ncclAlltoAllConfig", Collective::AllToAll, sendbuff, recvbuff, count,
                         datatype, kNoOperation, kNoRoot, comm, stream, config);
}

ncclResult_t pncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return call_collective("ncclAlltoAll", Collective::AllToAll, sendbuff, recvbuff, count, datatype,
                         kNoOperation, kNoRoot, comm, stream);
}

ncclResult_t pncclGatherConfig(const void* sendbuff, void* recvbuff, size_t count,
                               ncclDataType_t datatype, int root, ncclComm_t comm,
                               cudaStream_t stream, const ncclCollConfig_t* config) {
  return call_collective("ncclGatherConfig", Collective::Gather, sendbuff, recvbuff, count,
                         datatype, kNoOperation, root, comm, stream, config);
}

ncclResult_t pncclGather(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream) {
  return call_collective("ncclGather", Collective::Gather, sendbuff, recvbuff, count, datatype,
                         kNoOperation, root, comm, stream);
}

ncclResult_t pncclScatterConfig(const void* sendbuff, void* recvbuff, size_t count,
                                ncclDataType_t datatype, int root, ncclComm_t comm,
                                cudaStream_t stream, const ncclCollConfig_t* config) {
  return call_collective("ncclScatterConfig", Collective::Scatter, sendbuff, recvbuff, count,
                         datatype, kNoOperation, root, comm, stream, config);
}

ncclResult_t pncclScatter(const void* sendbuff, void* recvbuff, size_t count,
                          ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream) {
  return call_collective("ncclScatter", Collective::Scatter, sendbuff, recvbuff, count, datatype,
                         kNoOperation, root, comm, stream);
}

ncclResult_t pncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                       ncclComm_t comm, cudaStream_t stream) {
  return call_operation("ncclSend", {.collective = Collective::PointToPoint,
                                     .sendbuff = sendbuff,
                                     .count = count,
                                     .datatype = number_of(datatype),
                                     .root = peer,
                                     .is_send = true,
                                     .handle = comm,
                                     .stream = stream});
}

ncclResult_t pncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                       ncclComm_t comm, cudaStream_t stream) {
  return call_operation("ncclRecv", {.collective = Collective::PointToPoint,
                                     .recvbuff = recvbuff,
                                     .count = count,
                                     .datatype = number_of(datatype),
                                     .root = peer,
                                     .handle = comm,
                                     .stream = stream});
}

}  // extern "C"

NICCOLITE_EXPORT(ncclAllReduce);
NICCOLITE_EXPORT(ncclAllReduceConfig);
NICCOLITE_EXPORT(ncclReduce);
NICCOLITE_EXPORT(ncclReduceConfig);
NICCOLITE_EXPORT(ncclBroadcast);
NICCOLITE_EXPORT(ncclBroadcastConfig);
NICCOLITE_EXPORT(ncclBcast);
NICCOLITE_EXPORT(ncclAllGather);
NICCOLITE_EXPORT(ncclAllGatherConfig);
NICCOLITE_EXPORT(ncclReduceScatter);
NICCOLITE_EXPORT(ncclReduceScatterConfig);
NICCOLITE_EXPORT(ncclAlltoAll);
NICCOLITE_EXPORT(ncclAlltoAllConfig);
NICCOLITE_EXPORT(ncclGather);
NICCOLITE_EXPORT(ncclGatherConfig);
NICCOLITE_EXPORT(ncclScatter);
NICCOLITE_EXPORT(ncclScatterConfig);
NICCOLITE_EXPORT(ncclSend);
NICCOLITE_EXPORT(ncclRecv);
