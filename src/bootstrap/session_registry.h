// The sessions of this process, by unique id: how the ranks of one process find each other.
// Thread safety: any thread.
#pragma once

#include <memory>

#include "base/wait.h"
#include "bootstrap/session.h"

namespace niccolite::bootstrap {

/// Adds `local` to the session of `id` that still waits for ranks; makes one if there is none.
Result<std::shared_ptr<Session>> enter_session(const UniqueId& id,
                                               const std::shared_ptr<Local>& local,
                                               Deadline deadline);

/// The id has served a communicator: nobody else may use it.
void note_used(const UniqueId& id);

}  // namespace niccolite::bootstrap
