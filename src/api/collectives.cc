// Communication calls: check the arguments, translate them, hand them to the group.

#include <cctype>
#include <cstring>

#include "api/call.h"
#include "base/log.h"
#include "base/parameters.h"

namespace niccolite::api {
namespace {

using executor::DataType;
using planner::Operation;

static_assert(ncclNumTypes == executor::kDataTypes && ncclNumOps == planner::kOperations);
static_assert(ncclInt8 == static_cast<int>(DataType::Int8) &&
              ncclUint64 == static_cast<int>(DataType::Uint64) &&
              ncclFloat16 == static_cast<int>(DataType::Float16) &&
              ncclFloat64 == static_cast<int>(DataType::Float64) &&
              ncclBfloat16 == static_cast<int>(DataType::Bfloat16) &&
              ncclFloat8e5m2 == static_cast<int>(DataType::Float8e5m2));
static_assert(ncclSum == static_cast<int>(Operation::Sum) &&
              ncclAvg == static_cast<int>(Operation::Average));

/// What a caller passed for an enumeration, which may be no value of it: such a value must not be
/// read as one.
template <typename Enumeration>
int number_of(const Enumeration& value) {
  static_assert(sizeof(Enumeration) == sizeof(int));
  int number = 0;
  std::memcpy(&number, &value, sizeof number);
  return number;
}

Result<DataType> data_type(const char* function, int value) {
  if (value < 0 || value >= ncclNumTypes)
    return Status::invalid_argument("{} : invalid type {}: 0 to {} are types", function, value,
                                    ncclNumTypes - 1);
  return static_cast<DataType>(value);
}

Result<Operation> operation(const char* function, int value) {
  if (value < 0 || value >= ncclNumOps)
    return Status::invalid_argument("{} : invalid reduction operation {}: 0 to {} are operations",
                                    function, value, ncclNumOps - 1);
  return static_cast<Operation>(value);
}

Status check_size(const char* function, size_t count, DataType type) {
  constexpr size_t kMost =
      size_t{1} << 62;  // beyond any address space; keeps the arithmetic on sizes from wrapping
  if (count > kMost / executor::size_of(type))
    return Status::invalid_argument("{} : count {} of {} does not fit the address space", function,
                                    count, executor::name_of(type));
  return {};
}

bool pointer_checks_wanted() {
  static const bool wanted = [] {
    std::string mode = parameters::check_mode();
    for (char& c : mode) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    if (mode == "DEBUG_LOCAL" || mode == "DEBUG_GLOBAL") return true;
    return mode.empty() && parameters::check_pointers() != 0;
  }();
  return wanted;
}

Status check_pointer(const char* function, const char* name, const void* pointer,
                     comm::Communicator& communicator) {
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

}  // namespace

Result<comm::Completion> all_reduce(const void* sendbuff, void* recvbuff, size_t count,
                                    int datatype, int op, ncclComm_t handle, cudaStream_t stream) {
  constexpr const char* kFunction = "ncclAllReduce";
  const auto communicator = TRY(find(handle));
  TRY(communicator->check_ready());
  const DataType type = TRY(data_type(kFunction, datatype));
  const Operation fold = TRY(operation(kFunction, op));
  TRY(check_size(kFunction, count, type));
  LOG(Info, Coll,
      "AllReduce: sendbuff {} recvbuff {} count {} datatype {} op {} root 0 comm {} [nranks={}] "
      "stream {}",
      sendbuff, recvbuff, count, datatype, op, static_cast<const void*>(handle),
      communicator->nranks(), static_cast<const void*>(stream));
  if (count == 0) return comm::Completion::Done;
  if (pointer_checks_wanted()) {
    TRY(check_pointer(kFunction, "sendbuff", sendbuff, *communicator));
    TRY(check_pointer(kFunction, "recvbuff", recvbuff, *communicator));
  }
  return comm::Group::current().add_task(communicator, {.input = sendbuff,
                                                        .output = recvbuff,
                                                        .count = count,
                                                        .type = type,
                                                        .operation = fold,
                                                        .stream = stream});
}

}  // namespace niccolite::api

extern "C" ncclResult_t pncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                                       ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                       cudaStream_t stream) {
  using namespace niccolite::api;
  return call("ncclAllReduce", [&] {
    return all_reduce(sendbuff, recvbuff, count, number_of(datatype), number_of(op), comm, stream);
  });
}

NICCOLITE_EXPORT(ncclAllReduce);
