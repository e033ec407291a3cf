// Invitation: the id of a root at which the ranks of a communicator meet newcomers. The rank that
// calls Communicator::invite() makes it, before or after this rank asks; it serves once. Thread
// safety: any thread.
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
  /// Rank `rank` of the communicator will not come: ranks that wait at the root, to grow to
  /// `nranks`, hear why. `passed`: the id, if the caller knows it; it may be on its way here.
  void refuse(int nranks, int rank, const std::optional<bootstrap::UniqueId>& passed,
              const Status& why) EXCLUDES(mutex_);
  /// Waits for the id, for rank `rank` of the `nranks` of the new communicator. If `passed` is
  /// another id, all ranks that have come to the root hear of it: InvalidArgument.
  Result<bootstrap::UniqueId> accept(int nranks, int rank,
                                     const std::optional<bootstrap::UniqueId>& passed,
                                     const Deadline& deadline, Abort& abort) EXCLUDES(mutex_);

 private:
  /// Waits for the id. `passed` is the id that the caller expects. InvalidUsage when that has
  /// served already; RemoteError when none comes before `deadline`; the abort's reason.
  Result<bootstrap::UniqueId> take(const std::optional<bootstrap::UniqueId>& passed,
                                   const Deadline& deadline, Abort& abort) EXCLUDES(mutex_);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<bootstrap::UniqueId> id_ GUARDED_BY(mutex_);
  std::optional<bootstrap::UniqueId> served_ GUARDED_BY(mutex_);  // the last one taken
};

/// Tells the ranks that meet at `id` to grow to `nranks` why `rank` does not come. Bounded in time.
void decline(const bootstrap::UniqueId& id, int nranks, int rank, const Status& why);

}  // namespace niccolite::comm
