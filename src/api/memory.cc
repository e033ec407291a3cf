// Memory of users, and its registration.

#include "api/call.h"
#include "base/forks.h"
#include "base/parameters.h"
#include "gpu/machine.h"
#include "registry/user_memory.h"

namespace niccolite::api {
namespace {

Status allocate(void** pointer, size_t bytes) {
  // Where memory cannot be shared, cudaMalloc serves this call; a null pointer gets cudaMalloc's
  // error.
  if (pointer == nullptr) return Status::cuda_error("ncclMemAlloc : ptr argument is NULL");
  *pointer = nullptr;
  if (bytes == 0) return {};
  gpu::Machine* machine = TRY(gpu::machine());
  const int device = TRY(machine->current_device());
  forks::make_orphans();
  *pointer = TRY(registry::allocate_user_memory(*machine, device, bytes));
  return {};
}

Status free(void* pointer) {
  if (pointer == nullptr) return {};
  gpu::Machine* machine = TRY(gpu::machine());
  return registry::free_user_memory(*machine, pointer).with_context("ncclMemFree");
}

Status register_range(ncclComm_t handle, void* buffer, size_t bytes, void** registration) {
  const auto communicator = TRY(find(handle));
  if (registration == nullptr)
    return Status::invalid_argument("ncclCommRegister : handle argument is NULL");
  *registration = nullptr;
  TRY(communicator->lifetime().check_ready());
  if (parameters::local_register() == 0) return {};
  *registration = TRY(communicator->buffers().register_range(buffer, bytes));
  return {};
}

// In every state of the communicator: registrations of one that has failed are given back, too.
Status deregister_range(ncclComm_t handle, void* registration) {
  const auto communicator = TRY(find(handle));
  if (registration == nullptr) return {};
  return communicator->buffers()
      .deregister_range(registration)
      .with_context("ncclCommDeregister : rank {}", communicator->rank());
}

}  // namespace
}  // namespace niccolite::api

using namespace niccolite;

extern "C" {

ncclResult_t pncclMemAlloc(void** ptr, size_t size) {
  return api::call("ncclMemAlloc", [&] { return api::allocate(ptr, size); });
}

ncclResult_t pncclMemFree(void* ptr) {
  return api::call("ncclMemFree", [&] { return api::free(ptr); });
}

ncclResult_t pncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle) {
  return api::call("ncclCommRegister",
                   [&] { return api::register_range(comm, buff, size, handle); });
}

ncclResult_t pncclCommDeregister(const ncclComm_t comm, void* handle) {
  return api::call("ncclCommDeregister", [&] { return api::deregister_range(comm, handle); });
}

}  // extern "C"

NICCOLITE_EXPORT(ncclMemAlloc);
NICCOLITE_EXPORT(ncclMemFree);
NICCOLITE_EXPORT(ncclCommRegister);
NICCOLITE_EXPORT(ncclCommDeregister);
