// Communication calls: check the arguments, translate them, hand them to the group.

#include <cctype>

#include "api/arguments.h"

#include "api/call.h"
#include "base/log.h"
#include "base/parameters.h"

namespace niccolite::api {
namespace {

using comm::Communicator;
using comm::Task;
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

/// Where blocks lie side by side, the buffer has a block for each rank.
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

bool pointer_checks_wanted() {
  static const bool wanted = [] {
    std::string mode = parameters::check_mode();
    for (char& c : mode) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    if (mode == "DEBUG_LOCAL" || mode == "DEBUG_GLOBAL") return true;
    return mode.empty() && parameters::check_pointers() == 1;
  }();
  return wanted;
}

Status check_pointer(const Task& task, const char* name, const void* pointer,
                     Communicator& communicator) {
  const char* function = comm::function_of(task.call);
  if (pointer == nullptr)
    return Status::invalid_argument("{} : {} argument is NULL", function, name);
  const gpu::PointerInfo info = TRY(communicator.machine().pointer_info(pointer));
  if (info.kind == gpu::PointerKind::Unknown)
    return Status::invalid_argument(
        "{} : {} {} is not a valid pointer: the GPU driver does not know it", function, name,
        pointer);
  if (info.kind == gpu::PointerKind::Device && info.device != communicator.device())
    return Status::invalid_argument(
        "{} : {} {} is allocated on device {}, but the communicator of rank {} is on device {}",
        function, name, pointer, info.device, communicator.rank(), communicator.device());
  return {};
}

/// The buffers that this rank's part of the call uses.
Status check_pointers(const Task& task, Communicator& communicator) {
  const Request& request = task.call.request;
  const bool is_root = request.root == communicator.rank();
  bool reads = true, writes = true;
  switch (request.collective) {
    case Collective::Broadcast:
    case Collective::Scatter:
      reads = is_root;
      break;
    case Collective::Reduce:
    case Collective::Gather:
      writes = is_root;
      break;
    case Collective::PointToPoint:
      reads = task.call.is_send;
      writes = !reads;
      break;
    default:
      break;
  }
  if (reads) TRY(check_pointer(task, "sendbuff", task.input, communicator));
  if (writes) TRY(check_pointer(task, "recvbuff", task.output, communicator));
  return {};
}

/// What a call passed, enumerations as they came.
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
};

Result<planner::Operator> operation(const char* function, int value, DataType type,
                                    const Communicator& communicator) {
  if (value < 0)
    return Status::invalid_argument("{} : invalid reduction operation {}", function, value);
  if (value < ncclNumOps) return planner::Operator{.operation = static_cast<Operation>(value)};
  return communicator.operators().find(value, type);
}

// In the order in which NCCL checks (c-api reference §6.5).
Result<comm::Completion> enqueue(const Arguments& arguments) {
  Task task;
  task.call.request.collective = arguments.collective;
  task.call.is_send = arguments.is_send;
  const char* function = comm::function_of(task.call);
  const auto communicator = TRY(find(arguments.handle));
  TRY(communicator->check_ready());
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
  if (arguments.count != 0 && pointer_checks_wanted()) TRY(check_pointers(task, *communicator));
  return comm::Group::current().add_task(communicator, task);
}

ncclResult_t run(const char* function, const Arguments& arguments) {
  return call(function, [&] { return enqueue(arguments); });
}

}  // namespace
}  // namespace niccolite::api

using niccolite::api::number_of;
using niccolite::schedule::Collective;

extern "C" {

ncclResult_t pncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                            ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                            cudaStream_t stream) {
  return niccolite::api::run("ncclAllReduce", {.collective = Collective::AllReduce,
                                               .sendbuff = sendbuff,
                                               .recvbuff = recvbuff,
                                               .count = count,
                                               .datatype = number_of(datatype),
                                               .op = number_of(op),
                                               .handle = comm,
                                               .stream = stream});
}

ncclResult_t pncclReduce(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  return niccolite::api::run("ncclReduce", {.collective = Collective::Reduce,
                                            .sendbuff = sendbuff,
                                            .recvbuff = recvbuff,
                                            .count = count,
                                            .datatype = number_of(datatype),
                                            .op = number_of(op),
                                            .root = root,
                                            .handle = comm,
                                            .stream = stream});
}

ncclResult_t pncclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                            ncclDataType_t datatype, int root, ncclComm_t comm,
                            cudaStream_t stream) {
  return niccolite::api::run("ncclBroadcast", {.collective = Collective::Broadcast,
                                               .sendbuff = sendbuff,
                                               .recvbuff = recvbuff,
                                               .count = count,
                                               .datatype = number_of(datatype),
                                               .root = root,
                                               .handle = comm,
                                               .stream = stream});
}

ncclResult_t pncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return niccolite::api::run("ncclBcast", {.collective = Collective::Broadcast,
                                           .sendbuff = buff,
                                           .recvbuff = buff,
                                           .count = count,
                                           .datatype = number_of(datatype),
                                           .root = root,
                                           .handle = comm,
                                           .stream = stream});
}

ncclResult_t pncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                            ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return niccolite::api::run("ncclAllGather", {.collective = Collective::AllGather,
                                               .sendbuff = sendbuff,
                                               .recvbuff = recvbuff,
                                               .count = sendcount,
                                               .datatype = number_of(datatype),
                                               .handle = comm,
                                               .stream = stream});
}

ncclResult_t pncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                cudaStream_t stream) {
  return niccolite::api::run("ncclReduceScatter", {.collective = Collective::ReduceScatter,
                                                   .sendbuff = sendbuff,
                                                   .recvbuff = recvbuff,
                                                   .count = recvcount,
                                                   .datatype = number_of(datatype),
                                                   .op = number_of(op),
                                                   .handle = comm,
                                                   .stream = stream});
}

ncclResult_t pncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return niccolite::api::run("ncclAlltoAll", {.collective = Collective::AllToAll,
                                              .sendbuff = sendbuff,
                                              .recvbuff = recvbuff,
                                              .count = count,
                                              .datatype = number_of(datatype),
                                              .handle = comm,
                                              .stream = stream});
}

ncclResult_t pncclGather(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream) {
  return niccolite::api::run("ncclGather", {.collective = Collective::Gather,
                                            .sendbuff = sendbuff,
                                            .recvbuff = recvbuff,
                                            .count = count,
                                            .datatype = number_of(datatype),
                                            .root = root,
                                            .handle = comm,
                                            .stream = stream});
}

ncclResult_t pncclScatter(const void* sendbuff, void* recvbuff, size_t count,
                          ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream) {
  return niccolite::api::run("ncclScatter", {.collective = Collective::Scatter,
                                             .sendbuff = sendbuff,
                                             .recvbuff = recvbuff,
                                             .count = count,
                                             .datatype = number_of(datatype),
                                             .root = root,
                                             .handle = comm,
                                             .stream = stream});
}

ncclResult_t pncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                       ncclComm_t comm, cudaStream_t stream) {
  return niccolite::api::run("ncclSend", {.collective = Collective::PointToPoint,
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
  return niccolite::api::run("ncclRecv", {.collective = Collective::PointToPoint,
                                          .recvbuff = recvbuff,
                                          .count = count,
                                          .datatype = number_of(datatype),
                                          .root = peer,
                                          .handle = comm,
                                          .stream = stream});
}

}  // extern "C"

NICCOLITE_EXPORT(ncclAllReduce);
NICCOLITE_EXPORT(ncclReduce);
NICCOLITE_EXPORT(ncclBroadcast);
NICCOLITE_EXPORT(ncclBcast);
NICCOLITE_EXPORT(ncclAllGather);
NICCOLITE_EXPORT(ncclReduceScatter);
NICCOLITE_EXPORT(ncclAlltoAll);
NICCOLITE_EXPORT(ncclGather);
NICCOLITE_EXPORT(ncclScatter);
NICCOLITE_EXPORT(ncclSend);
NICCOLITE_EXPORT(ncclRecv);
