// Windows: memory that all ranks can address, and the addresses.

#include "registry/windows.h"
#include "api/call.h"
#include "base/parameters.h"
#pragma GCC visibility push(default)
#include "nccl_device.h"
#pragma GCC visibility pop

namespace niccolite::api {
namespace {

using comm::Completion;
using registry::Window;

static_assert(NCCL_WIN_COLL_SYMMETRIC == registry::kSymmetricWindow);
static_assert(NCCL_WIN_STRICT_ORDERING == registry::kOrderedWindow);

// The other ranks wait for this one. So the communicator checks the memory, and tells them of an
// error.
Result<Completion> register_window(ncclComm_t handle, void* buffer, size_t bytes,
                                   ncclWindow_t* window, int flags) {
  const auto communicator = TRY(find(handle));
  if (window == nullptr)
    return Status::invalid_argument("ncclCommWindowRegister : win argument is NULL");
  *window = nullptr;
  TRY(communicator->lifetime().check_ready());
  const auto job = [=]() -> Status {
    Result<const void*> made = communicator->register_window(buffer, bytes, flags);
    if (!made.is_ok()) return std::move(made).status().with_context("ncclCommWindowRegister");
    *window = static_cast<ncclWindow_t>(const_cast<void*>(made.value()));
    return {};
  };
  const auto undo = [=] {
    if (*window != nullptr)
      communicator->buffers().deregister_window(*window).ignore(
          "the group's failure is the error to report");
    *window = nullptr;
  };
  return comm::Group::current().add_job(communicator, communicator->configuration().blocking, job,
                                        undo);
}

Status deregister_window(ncclComm_t handle, ncclWindow_t window) {
  const auto communicator = TRY(find(handle));
  if (window == nullptr) return {};
  return communicator->buffers().deregister_window(window).with_context(
      "ncclCommWindowDeregister : rank {}", communicator->rank());
}

Status get_user_pointer(ncclComm_t handle, ncclWindow_t window, void** answer) {
  constexpr const char* kFunction = "ncclWinGetUserPtr";
  const auto communicator = TRY(find(handle));
  if (answer == nullptr)
    return Status::invalid_argument("{} : outUserPtr argument is NULL", kFunction);
  *answer = nullptr;
  TRY(communicator->lifetime().check_usable());
  if (parameters::win_enable() == 0 || !communicator->ways().has_windows()) return {};
  if (window == nullptr) return Status::invalid_argument("{} : win argument is NULL", kFunction);
  const auto found = communicator->buffers().find_window(window);
  if (found == nullptr)
    return Status::invalid_argument(
        "{} : win argument {} is not a window of rank {}'s communicator", kFunction,
        static_cast<const void*>(window), communicator->rank());
  *answer = found->user();
  return {};
}

Result<std::shared_ptr<const Window>> find_window(const char* function, ncclWindow_t handle,
                                                  void** answer) {
  if (answer == nullptr) return Status::invalid_argument("{} : outPtr argument is NULL", function);
  *answer = nullptr;
  if (handle == nullptr) return Status::invalid_argument("{} : window argument is NULL", function);
  auto window = registry::Windows::find_in_process(handle);
  if (window == nullptr)
    return Status::invalid_argument(
        "{} : window argument {} is not a window of this process: it was deregistered, or never "
        "made by ncclCommWindowRegister",
        function, static_cast<const void*>(handle));
  return window;
}

Status check_offset(const char* function, const Window& window, size_t offset, int peer) {
  if (offset < window.bytes_of(peer)) return {};
  return Status::invalid_argument("{} : offset {} is outside of the {} bytes of rank {}'s window",
                                  function, offset, window.bytes_of(peer), peer);
}

Status get_team_pointer(ncclWindow_t handle, size_t offset, int member, void** answer) {
  constexpr const char* kFunction = "ncclGetLsaDevicePointer";
  const auto window = TRY(find_window(kFunction, handle, answer));
  if (member < 0 || member >= window->team_ranks())
    return Status::invalid_argument(
        "{} : lsaRank argument {} is not one of the {} ranks of the load-store team", kFunction,
        member, window->team_ranks());
  const int peer = window->team_first() + member;
  TRY(check_offset(kFunction, *window, offset, peer));
  *answer = window->copy_of(peer) + offset;
  return {};
}

// Kernels do not reach ranks outside of the load-store team: null.
Status get_peer_pointer(ncclWindow_t handle, size_t offset, int peer, void** answer) {
  constexpr const char* kFunction = "ncclGetPeerDevicePointer";
  const auto window = TRY(find_window(kFunction, handle, answer));
  if (peer < 0 || peer >= window->nranks())
    return Status::invalid_argument("{} : peer argument {} is not one of {} ranks", kFunction, peer,
                                    window->nranks());
  TRY(check_offset(kFunction, *window, offset, peer));
  if (window->is_in_team(peer)) *answer = window->copy_of(peer) + offset;
  return {};
}

}  // namespace
}  // namespace niccolite::api

using namespace niccolite;

extern "C" {

ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                                     int winFlags) {
  return api::call("ncclCommWindowRegister",
                   [&] { return api::register_window(comm, buff, size, win, winFlags); });
}

ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
  return api::call("ncclCommWindowDeregister", [&] { return api::deregister_window(comm, win); });
}

ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void** outUserPtr) {
  return api::call("ncclWinGetUserPtr",
                   [&] { return api::get_user_pointer(comm, win, outUserPtr); });
}

ncclResult_t pncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank,
                                      void** outPtr) {
  return api::call("ncclGetLsaDevicePointer",
                   [&] { return api::get_team_pointer(window, offset, lsaRank, outPtr); });
}

ncclResult_t pncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer,
                                       void** outPtr) {
  return api::call("ncclGetPeerDevicePointer",
                   [&] { return api::get_peer_pointer(window, offset, peer, outPtr); });
}

ncclResult_t pncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void** outPtr) {
  return api::call("ncclGetLsaMultimemDevicePointer", [&]() -> Status {
    constexpr const char* kFunction = "ncclGetLsaMultimemDevicePointer";
    const auto found = TRY(api::find_window(kFunction, window, outPtr));
    TRY(api::check_offset(kFunction, *found, offset, found->rank()));
    if (found->multicast_address() != nullptr) *outPtr = found->multicast_address() + offset;
    return {};
  });
}

ncclResult_t pncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset,
                                           ncclMultimemHandle_t multimem, void** outPtr) {
  return api::call("ncclGetMultimemDevicePointer", [&]() -> Status {
    constexpr const char* kFunction = "ncclGetMultimemDevicePointer";
    if (multimem.mcBasePtr == nullptr)
      return Status::invalid_argument("{} : multimem argument has no address", kFunction);
    const auto found = TRY(api::find_window(kFunction, window, outPtr));
    TRY(api::check_offset(kFunction, *found, offset, found->rank()));
    // The team of the handle is the load-store team: no other has multicast.
    if (found->multicast_address() != nullptr) *outPtr = found->multicast_address() + offset;
    return {};
  });
}

}  // extern "C"

NICCOLITE_EXPORT(ncclCommWindowRegister);
NICCOLITE_EXPORT(ncclCommWindowDeregister);
NICCOLITE_EXPORT(ncclWinGetUserPtr);
NICCOLITE_EXPORT(ncclGetLsaDevicePointer);
NICCOLITE_EXPORT(ncclGetPeerDevicePointer);
NICCOLITE_EXPORT(ncclGetLsaMultimemDevicePointer);
NICCOLITE_EXPORT(ncclGetMultimemDevicePointer);
