#include "bootstrap/session_registry.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <set>

#include "base/thread.h"

namespace niccolite::bootstrap {
namespace {
constexpr auto kFarewellAtExit = std::chrono::milliseconds(300);
}

// Never destroyed, because members may outlive static objects.
class SessionRegistry {
 public:
  static SessionRegistry& of_process() {
    static SessionRegistry* const registry = new SessionRegistry;
    static const AtExit at_exit;
    return *registry;
  }

  Result<std::shared_ptr<Session>> enter(const UniqueId& id, const std::shared_ptr<Local>& local,
                                         Deadline deadline) {
    std::lock_guard lock(mutex_);
    std::erase_if(sessions_, [](const auto& entry) { return entry.second.expired(); });
    const auto [first, last] = sessions_.equal_range(id.bytes());
    for (auto it = first; it != last; ++it) {
      std::shared_ptr<Session> session = it->second.lock();
      if (session != nullptr && session->belongs_to_this_process() &&
          admit(*session, local, deadline, /*is_new=*/false))
        return session;
    }
    if (is_used(id))
      return Status::invalid_usage(
          "this process has used the unique id for another communicator before: each communicator "
          "needs an id of its own (ncclGetUniqueId)");
    std::shared_ptr<Session> session = TRY(Session::create(id));
    sessions_.emplace(id.bytes(), session);
    admit(*session, local, deadline, /*is_new=*/true);
    return session;
  }

  void note_used(const UniqueId& id) {
    // NCCL_COMM_ID gives one id again and again.
    if (id.origin() != UniqueId::Origin::Root) return;
    std::lock_guard lock(used_mutex_);
    if (!used_.insert(id.number()).second) return;
    order_used_.push_back(id.number());
    if (order_used_.size() <= kMostUsed) return;
    used_.erase(order_used_.front());
    order_used_.pop_front();
  }

 private:
  static constexpr size_t kMostUsed = 4096;  // ids that are remembered

  bool is_used(const UniqueId& id) {
    std::lock_guard lock(used_mutex_);
    return used_.contains(id.number());
  }

  // A process that exits without destroying its communicators has not died: say goodbye for it.
  struct AtExit {
    ~AtExit() { of_process().say_goodbye(); }
  };

  // Only a session that still waits for ranks takes one: with NCCL_COMM_ID the same id leads to one
  // session after the other. A refusal of a rank that does not join must hold from the moment in
  // which the rank is counted. Otherwise all ranks might be there, be ready, and only see it leave.
  static bool admit(Session& session, const std::shared_ptr<Local>& local, Deadline deadline,
                    bool is_new) {
    const Roster::Lock lock = session.roster_.lock();
    if (session.phase_ != Session::Phase::Joining || session.shut_down_) return false;
    session.admit(*session.all_ranks_, local);
    session.joining_.emplace_back(local, deadline);
    session.loop_->post([&session, local, deadline] { session.announce(local, deadline); });
    // Started only when its first rank is there, because a failure names the rank.
    if (is_new) session.loop_->post([&session] { session.root_->start(session.id_.root()); });
    if (!local->refusal.is_ok()) session.fail_locked(session.given_up(*local, local->refusal), {});
    return true;
  }

  void say_goodbye() {
    std::multimap<std::array<std::byte, UniqueId::kBytes>, std::weak_ptr<Session>> sessions;
    {
      const std::unique_lock lock = lock_at_exit(mutex_, process_);
      if (!lock.owns_lock()) return;
      sessions.swap(sessions_);
    }
    for (const auto& [id, weak] : sessions) {
      const std::shared_ptr<Session> session = weak.lock();
      if (session == nullptr || !session->belongs_to_this_process()) continue;
      Roster::Lock lock = session->roster_.lock();
      if (session->phase_ != Session::Phase::Ready) continue;
      lock.unlock();
      session->shut_down({.patience = kFarewellAtExit, .answer = kFarewellAtExit});
      session->count_all_as_departed();
    }
  }

  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::mutex used_mutex_;  // guards the members below; a session's lock may be held
  std::set<uint64_t> used_;
  std::deque<uint64_t> order_used_;
  std::multimap<std::array<std::byte, UniqueId::kBytes>, std::weak_ptr<Session>> sessions_;
};

Result<std::shared_ptr<Session>> enter_session(const UniqueId& id,
                                               const std::shared_ptr<Local>& local,
                                               Deadline deadline) {
  return SessionRegistry::of_process().enter(id, local, deadline);
}

void note_used(const UniqueId& id) { SessionRegistry::of_process().note_used(id); }

}  // namespace niccolite::bootstrap
