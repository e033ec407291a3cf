// Mailroom: messages from rank to rank (send, receive) and calls (request, serve). Between ranks of
// one process they are moved in memory; all others go through `transmit`. Thread safety: the
// roster's lock is held in every call unless the function says otherwise; waits release it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "bootstrap/roster.h"

namespace niccolite::bootstrap {

class Mailroom {
 public:
  using Transmit = std::function<void(uint32_t process, std::shared_ptr<const Bytes> frame)>;
  using Probe = std::function<void(uint32_t process)>;
  using Post = std::function<void(std::function<void()> task)>;

  /// Absences, by the group's numbers of processes. Called without the roster's lock.
  struct Presence {
    std::function<bool()> are_some_absent;
    std::function<bool(uint32_t process)> is_absent;
  };

  /// `probe` finds out whether a process is still there, and has it reported when it is not. `post`
  /// runs a task on the service thread, and keeps the mailroom until then.
  Mailroom(Roster& roster, Post post, Transmit transmit, Probe probe, Presence presence)
      : roster_(roster),
        post_(std::move(post)),
        transmit_(std::move(transmit)),
        probe_(std::move(probe)),
        presence_(std::move(presence)) {}

  Status send(const Local& local, int32_t peer, uint32_t tag, std::span<const std::byte> content);
  Result<Bytes> receive(Roster::Lock& lock, Local& local, int32_t peer, uint32_t tag,
                        Deadline deadline);
  void serve(Local& local, Member::Handler handler);
  /// The limits of a wait for an answer, besides the local's abort and leave().
  struct Limits {
    Deadline deadline;
    Patience patience;
    const Abort* cancel;  // replaces the local's abort; its raise wakes the local
  };
  /// Ranks of this process answer on the calling thread, while the others' answers travel.
  std::vector<Result<Bytes>> request(Roster::Lock& lock, Local& local,
                                     std::span<const Query> queries, const Limits& limits);
  /// A request whose answer nobody waits for.
  Status notify(const Local& local, int32_t peer, std::span<const std::byte> content);

  /// Data, Request or Response of another process.
  Status take(Reader& reader, MessageType type, uint32_t process);
  /// Answers the requests that wait for the handler of a leaving rank.
  void local_left(Local& local);

 private:
  struct Pending {
    std::optional<Result<Bytes>> answer;
    std::shared_ptr<Local> caller;
  };

  /// Waits for the answer to the first of `queries`, whose calls have numbers from `number` on.
  Result<Bytes> await(Roster::Lock& lock, Local& local, std::span<const Query> queries,
                      uint64_t number, const Limits& limits, Deadline::Clock::time_point start);
  template <typename Condition>
  bool is_given_up(Roster::Lock& lock, Local& local, std::span<const Query> queries,
                   uint64_t number, Deadline deadline, Condition happened);
  bool is_absent(Roster::Lock& lock, std::span<const Query> queries, uint64_t number);
  void call(const Local& local, int32_t peer, uint64_t number, std::span<const std::byte> content);
  void deliver(int32_t from, int32_t to, uint32_t tag, Bytes content);
  void take_call(int32_t to, Call call);
  void answer(uint32_t process, uint64_t number, Result<Bytes> result);
  void finish(uint64_t number, Result<Bytes> result);
  void run_next_call(int32_t rank);  // on the service thread, without the lock
  void run_call(Roster::Lock& lock, const std::shared_ptr<Local>& local, const Call& call);

  Roster& roster_;
  Post post_;
  Transmit transmit_;
  Probe probe_;
  Presence presence_;
  std::map<uint64_t, Pending> pending_;       // requests of this process' ranks
  static constexpr uint64_t kUnanswered = 0;  // the number of calls that get no answer
  uint64_t next_call_ = 1;
};

}  // namespace niccolite::bootstrap
