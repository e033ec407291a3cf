// The one way in and out of the C API: looks up the handle, stops every exception, translates and
// reports failures. Every pncclX is a call of api::call(); every ncclX is its weak alias, so that
// tools may take its place.
#pragma once

#include <memory>
#include <type_traits>

#include "comm/communicator.h"
#include "comm/group.h"

// Everything that nccl.h declares is exported; all else is hidden (-fvisibility=hidden).
#pragma GCC visibility push(default)
#include "nccl.h"
#pragma GCC visibility pop

/// Defines the public name of an entry point; stands after the definition of pncclX.
#define NICCOLITE_EXPORT(name) \
  extern "C" __attribute__((visibility("default"), weak, alias("p" #name))) decltype(p##name) name

namespace niccolite::api {

ncclResult_t translate(Code code);

/// Logs a failure once, keeps it for ncclGetLastError, and returns its code.
ncclResult_t report(const char* function, const Status& status);

/// The communicator behind a handle. InvalidArgument for null, freed and foreign handles.
Result<std::shared_ptr<comm::Communicator>> find(ncclComm_t handle);

/// InvalidUsage in a child made by fork() of a process that used the library: all that it has
/// inherited is its parent's.
Status check_process(const char* function);

/// Runs `body`, which returns a Status, or a Result<Completion>: of calls that a group records,
/// whose work may go on in the background. An error of such a call is the group's, too.
template <typename Body>
ncclResult_t call(const char* function, Body&& body) {
  constexpr bool kIsRecorded = !std::is_same_v<std::invoke_result_t<Body>, Status>;
  comm::Completion completion = comm::Completion::Done;
  const Status status = guarded([&]() -> Status {
    TRY(check_process(function));
    if constexpr (kIsRecorded) {
      completion = TRY(body());
      return {};
    } else {
      return body();
    }
  });
  if (!status.is_ok()) {
    if (kIsRecorded) comm::Group::current().poison(status);
    return report(function, status);
  }
  return completion == comm::Completion::Done ? ncclSuccess : ncclInProgress;
}

}  // namespace niccolite::api
