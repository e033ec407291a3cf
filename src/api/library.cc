// Calls that concern the library, not a communicator.

#include <unistd.h>

#include "api/call.h"
#include "api/encryption.h"
#include "base/environment.h"
#include "base/forks.h"
#include "base/log.h"
#include "bootstrap/unique_id.h"
#include "comm/live_communicators.h"
#include "comm/version.h"
#include "observe/dumps.h"

namespace niccolite::api {

static_assert(comm::kVersionCode == NCCL_VERSION_CODE);

// Programs look for these words in the file of the library, to know its version without loading it.
#define NICCOLITE_TEXT_OF(number) #number
#define NICCOLITE_VERSION_TEXT(major, minor, patch) \
  NICCOLITE_TEXT_OF(major) "." NICCOLITE_TEXT_OF(minor) "." NICCOLITE_TEXT_OF(patch)
[[gnu::used]] const char version_in_file[] =
    "NCCL version " NICCOLITE_VERSION_TEXT(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH) "+cuda13.0";

namespace {
// Before the first call, which may read a variable.
const bool uses_environment_plugin = [] {
  environment::use_plugin({NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH});
  return true;
}();
}  // namespace

ncclResult_t translate(Code code) {
  switch (code) {
    case Code::Ok:
      return ncclSuccess;
    case Code::CudaError:
      return ncclUnhandledCudaError;
    case Code::SystemError:
      return ncclSystemError;
    case Code::InternalError:
      return ncclInternalError;
    case Code::InvalidArgument:
      return ncclInvalidArgument;
    case Code::InvalidUsage:
      return ncclInvalidUsage;
    case Code::RemoteError:
      return ncclRemoteError;
  }
  return ncclInternalError;
}

ncclResult_t report(const char* function, const Status& status) {
  log::error(status, function);
  // A program often ends with its first error.
  observe::Dumps::of_process().write_requested();
  return translate(status.code());
}

Status check_process(const char* function) {
  if (!forks::is_orphan()) return {};
  return Status::invalid_usage(
      "{} : process {} was forked from one that had used NCCL, whose communicators and memory it "
      "cannot use. Fork before the first use, or start processes anew (Python: "
      "multiprocessing.set_start_method(\"spawn\"))",
      function, getpid());
}

Result<std::shared_ptr<comm::Communicator>> find(ncclComm_t handle) {
  if (handle == nullptr) return Status::invalid_argument("comm argument is NULL");
  auto communicator = comm::LiveCommunicators::instance().find(handle);
  if (communicator == nullptr)
    return Status::invalid_argument(
        "comm argument {} is not a communicator of this process: it was destroyed, or never made "
        "by ncclCommInit",
        static_cast<const void*>(handle));
  return communicator;
}

}  // namespace niccolite::api

using namespace niccolite;

extern "C" {

ncclResult_t pncclGetVersion(int* version) {
  if (version == nullptr) return ncclInvalidArgument;
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* pncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (ncclGetLastError has the details)";
    case ncclSystemError:
      return "unhandled system error (ncclGetLastError has the details)";
    case ncclInternalError:
      return "internal error - a bug of the library; please report it with the last error's text";
    case ncclInvalidArgument:
      return "invalid argument (ncclGetLastError has the details)";
    case ncclInvalidUsage:
      return "invalid usage (ncclGetLastError has the details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    case ncclTimeout:
      return "timeout";
    case ncclNumResults:
      break;
  }
  return "unknown result code";
}

const char* pncclGetLastError(ncclComm_t) { return log::last_error(); }

ncclResult_t pncclGetUniqueId(ncclUniqueId* uniqueId) {
  return api::call("ncclGetUniqueId", [&]() -> Status {
    if (uniqueId == nullptr)
      return Status::invalid_argument("ncclGetUniqueId: uniqueId argument is NULL");
    TRY(api::check_encryption("ncclGetUniqueId"));
    const bootstrap::UniqueId id = TRY(bootstrap::create_unique_id());
    static_assert(sizeof *uniqueId == sizeof id.bytes());
    std::memcpy(uniqueId, id.bytes().data(), sizeof *uniqueId);
    return {};
  });
}

// The header hides this pair behind macros, as NCCL 2.30 does; binaries of older headers call it.
#undef ncclResetDebugInit
#undef pncclResetDebugInit
void pncclResetDebugInit(void);
__attribute__((visibility("default"))) void pncclResetDebugInit(void) { log::reset(); }
__attribute__((visibility("default"))) void ncclResetDebugInitInternal(void);
void ncclResetDebugInitInternal(void) { log::reset(); }

}  // extern "C"

NICCOLITE_EXPORT(ncclGetVersion);
NICCOLITE_EXPORT(ncclGetErrorString);
NICCOLITE_EXPORT(ncclGetLastError);
NICCOLITE_EXPORT(ncclGetUniqueId);
NICCOLITE_EXPORT(ncclResetDebugInit);
