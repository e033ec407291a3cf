// Invitation: the id of a root at which the ranks of a communicator meet newcomers. It comes from
// whichever rank has made it, before or after this rank asks, and serves once. Thread safety: any
// thread.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>

#include "base/thread_annotations.h"
#include "base/wait.h"
#include "bootstrap/unique_id.h"

namespace niccolite::comm {

class Invitation {
 public:
  /// Takes the place of one that nobody took.
  void put(const bootstrap::UniqueId& id) EXCLUDES(mutex_);
  /// It serves nobody any more; none: there was none.
  std::optional<bootstrap::UniqueId> withdraw() EXCLUDES(mutex_);
  /// Waits for it. `passed` is what the caller believes it to be. InvalidUsage when that has served
  /// already; RemoteError when none comes before `deadline`; the abort's reason.
  Result<bootstrap::UniqueId> take(const std::optional<bootstrap::UniqueId>& passed,
                                   const Deadline& deadline, Abort& abort) EXCLUDES(mutex_);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<bootstrap::UniqueId> id_ GUARDED_BY(mutex_);
  std::optional<bootstrap::UniqueId> served_ GUARDED_BY(mutex_);  // the last one taken
};

/// Tells those who meet at `id` to grow to `nranks` why `rank` does not come. Bounded in time.
void decline(const bootstrap::UniqueId& id, int nranks, int rank, const Status& why);

}  // namespace niccolite::comm
