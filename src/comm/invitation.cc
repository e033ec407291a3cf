#include "comm/invitation.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "bootstrap/member.h"

namespace niccolite::comm {
namespace {

// From one rank to another, also where cores are busy.
constexpr std::chrono::seconds kOnItsWay{5};

}  // namespace

void decline(const bootstrap::UniqueId& id, int nranks, int rank, const Status& why) {
  constexpr std::chrono::seconds kTime{2};
  bootstrap::Member::give_up(
      {.id = id, .nranks = nranks, .rank = rank, .deadline = Deadline::after(kTime), .abort = {}},
      why);
}

void Invitation::put(const bootstrap::UniqueId& id) {
  {
    std::lock_guard lock(mutex_);
    id_ = id;
  }
  changed_.notify_all();
}

void Invitation::refuse(int nranks, int rank, const std::optional<bootstrap::UniqueId>& passed,
                        const Status& why) {
  std::optional<bootstrap::UniqueId> id;
  {
    std::lock_guard lock(mutex_);
    id = std::exchange(id_, std::nullopt);
  }
  if (passed) id = passed;
  if (id) decline(*id, nranks, rank, why);
}

Result<bootstrap::UniqueId> Invitation::accept(int nranks, int rank,
                                               const std::optional<bootstrap::UniqueId>& passed,
                                               const Deadline& deadline, Abort& abort) {
  const bootstrap::UniqueId id = TRY(take(passed, deadline, abort));
  if (!passed || *passed == id) return id;
  Status why = Status::invalid_argument(
      "rank {} has passed a unique id that ncclCommGetUniqueId did not make for this communicator; "
      "members may pass NULL",
      rank);
  bootstrap::Member::give_up(
      {.id = id, .nranks = nranks, .rank = rank, .deadline = deadline, .abort = &abort}, why);
  return why;
}

Result<bootstrap::UniqueId> Invitation::take(const std::optional<bootstrap::UniqueId>& passed,
                                             const Deadline& deadline, Abort& abort) {
  {
    std::lock_guard lock(mutex_);
    if (passed.has_value() && passed == served_ && passed != id_)
      return Status::invalid_usage(
          "the unique id has been used before: each growth needs one of its own "
          "(ncclCommGetUniqueId)");
  }
  const int listener = abort.listen([this] {
    { std::lock_guard lock(mutex_); }  // a waiter is before its test, or asleep
    changed_.notify_all();
  });
  std::optional<bootstrap::UniqueId> id;
  {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline.at(), [&] { return id_.has_value() || abort.raised(); });
    // That of an earlier growth, which came to nothing, may be here still.
    const auto next = std::min(deadline.at(), Deadline::after(kOnItsWay).at());
    if (passed.has_value())
      changed_.wait_until(lock, next, [&] { return id_ == passed || abort.raised(); });
    id = std::exchange(id_, std::nullopt);
    if (id.has_value()) served_ = id;
  }
  abort.forget(listener);
  if (id.has_value()) return *id;
  if (abort.raised()) return abort.reason();
  return Status::remote_error(
      "no rank has called ncclCommGetUniqueId on the communicator: one has to, before each "
      "ncclCommGrow");
}

}  // namespace niccolite::comm
