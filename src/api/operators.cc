// Operations made at run time.

#include "api/arguments.h"
#include "api/call.h"
#include "executor/numeric/element.h"

namespace niccolite::api {
namespace {

using executor::DataType;

/// Reads the scalar of type `type` at `scalar` into the planner's form.
template <DataType kType>
void read_scalar(const void* scalar, planner::Operator& op) {
  typename executor::Element<kType>::Storage value;
  std::memcpy(&value, scalar, sizeof value);
  if constexpr (executor::is_floating(kType)) {
    op.scale = static_cast<double>(executor::Element<kType>::widen(value));
  } else {
    op.factor = static_cast<int64_t>(+value);
  }
}

planner::Operator host_operator(const void* scalar, DataType type) {
  planner::Operator op{.operation = planner::Operation::PreMulSum};
  switch (type) {
#define X(name, bytes, text)                 \
  case DataType::name:                       \
    read_scalar<DataType::name>(scalar, op); \
    break;
    NICCOLITE_DATA_TYPES(X)
#undef X
  }
  return op;
}

Status create(int* handle, const void* scalar, int datatype, int residence, ncclComm_t comm) {
  constexpr const char* kFunction = "ncclRedOpCreatePreMulSum";
  const auto communicator = TRY(find(comm));
  TRY(communicator->lifetime().check_ready());
  if (handle == nullptr) return Status::invalid_argument("{} : op argument is NULL", kFunction);
  if (scalar == nullptr) return Status::invalid_argument("{} : scalar argument is NULL", kFunction);
  const DataType type = TRY(data_type(kFunction, datatype));
  if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate)
    return Status::invalid_argument("{} : invalid residence {}", kFunction, residence);
  const planner::Operator op =
      residence == ncclScalarHostImmediate
          ? host_operator(scalar, type)
          : planner::Operator{.operation = planner::Operation::PreMulSum, .device_scale = scalar};
  *handle = communicator->operators().add(op, type);
  return {};
}

Status destroy(int handle, ncclComm_t comm) {
  constexpr const char* kFunction = "ncclRedOpDestroy";
  const auto communicator = TRY(find(comm));
  if (handle >= 0 && handle < ncclNumOps)
    return Status::invalid_argument("{} : operation {} is built in", kFunction, handle);
  return communicator->operators().remove(handle).with_context("{}", kFunction);
}

}  // namespace
}  // namespace niccolite::api

using namespace niccolite;

extern "C" {

ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm) {
  return api::call("ncclRedOpCreatePreMulSum", [&]() -> Status {
    int handle = 0;
    TRY(api::create(op == nullptr ? nullptr : &handle, scalar, api::number_of(datatype),
                    api::number_of(residence), comm));
    // Copied as bytes, because a handle is no enumerator.
    std::memcpy(op, &handle, sizeof handle);
    return {};
  });
}

ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return api::call("ncclRedOpDestroy", [&] { return api::destroy(api::number_of(op), comm); });
}

}  // extern "C"

NICCOLITE_EXPORT(ncclRedOpCreatePreMulSum);
NICCOLITE_EXPORT(ncclRedOpDestroy);
