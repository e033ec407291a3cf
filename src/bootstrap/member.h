// Member: one rank's part in the out-of-band communication of its communicator. The public face of
// bootstrap.
//
//   UniqueId id = TRY(create_unique_id());  // once; the 128 bytes reach all ranks by any means
//   auto member = TRY(Member::join({.id = id, .nranks = n, .rank = r, .deadline = deadline}));
//   auto cards = TRY(member->all_gather(my_card, deadline));  // cards[rank]: bytes of every rank
//
// Ranks of one process share one Session (one event loop, one listening port, links to other
// processes made when needed) and never use sockets among themselves. So do the members made from
// others (derive()).
//
// Waits end with: the result; RemoteError with peer() set when a rank they need has ended or left;
// RemoteError naming who is missing when the deadline passes; the abort's reason when the abort is
// raised. Thread safety: any thread; collectives (all_gather, barrier) of one member one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/address.h"
#include "base/authentication.h"
#include "base/process.h"
#include "base/status.h"
#include "base/wait.h"
#include "base/wire.h"
#include "bootstrap/unique_id.h"

namespace niccolite::bootstrap {

class Group;
class Session;
struct Local;

/// How long a question waits for its answer.
enum class Patience {
  UntilDeadline,
  WhileItRuns  // nor when the peer's process is stopped for long (Absences): of a rank that leaves
};

/// The ranks' contributions to an all-gather, by rank. Shared, immutable, cheap to copy; spans live
/// as long as a copy does.
class Gathered {
 public:
  Gathered() = default;
  Gathered(std::vector<std::shared_ptr<const Bytes>> frames,
           std::vector<std::span<const std::byte>> by_rank)
      : content_(std::make_shared<const Content>(Content{std::move(frames), std::move(by_rank)})) {}
  size_t size() const { return content_ ? content_->by_rank.size() : 0; }
  std::span<const std::byte> operator[](int rank) const {
    return content_->by_rank[static_cast<size_t>(rank)];
  }
  auto begin() const { return content_->by_rank.begin(); }
  auto end() const { return content_->by_rank.end(); }

 private:
  struct Content {
    std::vector<std::shared_ptr<const Bytes>> frames;  // the memory of the spans
    std::vector<std::span<const std::byte>> by_rank;
  };
  std::shared_ptr<const Content> content_;
};

struct Query {
  int peer = 0;
  std::span<const std::byte> message;
};

struct JoinOptions {
  UniqueId id;
  int nranks = 0;
  int rank = 0;
  Deadline deadline = Deadline::never();
  Abort* abort = nullptr;  // ends all waits of the member when raised; outlives the member
};

/// A new group, as each of its members describes it.
struct DeriveOptions {
  uint64_t id = 0;         // equal on all members; unique among the groups of one origin
  std::vector<int> ranks;  // by new rank: the rank in the group that this is made from
  int rank = 0;            // of this member in the new group
  Abort* abort = nullptr;  // as in JoinOptions
};

class Member {
 public:
  /// Collective over `nranks` ranks that hold the same id. Serves one communicator: an id is used
  /// once.
  /// @return InvalidArgument: nranks or rank out of range. InvalidUsage: ranks disagree about
  /// nranks, two claim one rank, or versions differ (reported on all ranks). RemoteError: the
  /// deadline passed (names who is missing), a process ended, or the root cannot be reached.
  static Result<std::unique_ptr<Member>> join(const JoinOptions& options);
  /// Tells the others, instead of joining, why this rank cannot join, so that they do not wait for
  /// it. Bounded in time; a failure to tell is ignored.
  static void give_up(const JoinOptions& options, const Status& why);
  /// Makes a member of a group of some of this member's ranks, over the same links. Local and
  /// quick. There must be a barrier of all new members between derive() and the first use of one;
  /// otherwise a message of the group may reach a process that does not know the group. The two
  /// members may end in any order.
  std::unique_ptr<Member> derive(const DeriveOptions& options);
  /// Collective over the ranks that are not in `excluded` (ascending). Makes a group of them in
  /// their order. The excluded ranks may be dead, and collectives of this member may fail: only the
  /// links must work. The group's id differs from all others with the same `seed`. All survivors
  /// get their member, after everybody has called with the same list, or none does: InvalidArgument
  /// when the lists differ, RemoteError when a survivor ends, has ended, or gives up. (If a process
  /// ends at the very moment in which everybody has heard of everybody, some survivors may fail;
  /// the new group of the others then has a lost process from the start.)
  struct ShrinkOptions {
    std::vector<int> excluded;
    uint64_t seed = 0;
    std::span<const std::byte> mine{};  // at most 64 KiB, for all survivors
    Deadline deadline = Deadline::never();
    Abort* abort = nullptr;  // of the new member
  };
  struct Shrunk {
    std::unique_ptr<Member> member;
    Gathered contributions;  // by new rank
  };
  Result<Shrunk> shrink(const ShrinkOptions& options);
  /// The id of the group: equal on all ranks.
  uint64_t id() const;
  ~Member();  // leave()
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  int rank() const;
  int nranks() const;
  bool same_process(int peer) const;
  /// Returns the address at which other hosts reach this process; without a port.
  Address interface() const;
  /// Returns a secret for connections of the group's own. All ranks of the group have it, and
  /// nobody else.
  authentication::Secret secret(std::string_view purpose) const;
  /// The address of the peer's host, without a port: "10.0.0.4".
  std::string host(int peer) const;
  ProcessId process(int peer) const;
  /// "process 4711 on host a12", for messages.
  std::string describe(int peer) const;

  /// Collective. Sizes may differ; at most 64 KiB per rank. After a failure every later one fails
  /// with an equal status.
  Result<Gathered> all_gather(std::span<const std::byte> mine, Deadline deadline);
  Status barrier(Deadline deadline);
  /// Names the purpose of collectives from now on, as in "communicator 0x12: initialization". A
  /// collective that has waited for a second for a stopped process of this machine (SIGSTOP, a
  /// debugger) prints a line that begins with these words. Empty, the default: none prints, and the
  /// caller looks itself.
  void explain_waits(std::string what);

  /// Queues a message of at most 16 MiB for `peer`; messages from one rank to another with one tag
  /// arrive in order.
  Status send(int peer, uint32_t tag, std::span<const std::byte> message);
  Result<Bytes> receive(int peer, uint32_t tag, Deadline deadline);

  /// Answers requests of peers, several at a time, on a service thread of the process or on the
  /// thread of an asking rank of the same process. It may take milliseconds, and may not call
  /// request() or leave().
  using Handler = std::function<Result<Bytes>(int from, std::span<const std::byte> request)>;
  void serve(Handler handler);
  /// Asks `peer`, whatever its own threads are doing, and waits for the answer; also for the peer
  /// to call serve().
  Result<Bytes> request(int peer, std::span<const std::byte> message, Deadline deadline);
  /// Asks after an abort, too, how a job does that has failed: the wait ends with the reason of
  /// `cancel`, when that is raised.
  Result<Bytes> request(int peer, std::span<const std::byte> message, Deadline deadline,
                        Abort& cancel);
  /// Asks several peers at once: takes as long as the slowest of them. The answers are in the order
  /// of the queries and end with the first failure.
  std::vector<Result<Bytes>> request(std::span<const Query> queries, Deadline deadline,
                                     Patience patience = Patience::UntilDeadline) {
    return request(queries, deadline, patience, nullptr);
  }
  /// The peer did not answer, and leave() does not wait for it: prints a line.
  void give_up_on(int peer);
  /// True if the peer is given up, because its process is stopped for long or did not answer
  /// (Absences).
  bool is_absent(int peer);
  /// Hands `peer` a request whose answer nobody waits for; only queues it.
  Status notify(int peer, std::span<const std::byte> message);

  /// Has `peer` ended in an orderly way, so that nothing more will come from it?
  bool has_left(int peer) const;
  /// Calls `callback` on the service thread, once for each rank whose process ends without leaving,
  /// now or later.
  void on_peer_lost(std::function<void(int rank, const Status& why)> callback);

  /// Ends the member gracefully. Waits until no handler or callback of it runs (so it must not be
  /// called from inside one). The last member of a process also waits until others have heard the
  /// goodbyes, at most a second for stopped processes. After an abort it waits milliseconds, or 0.3
  /// seconds if a message is queued for a process without a link. Calls that still wait in other
  /// threads end with an error.
  void leave();

 private:
  Member(std::shared_ptr<Session> session, std::shared_ptr<Group> group,
         std::shared_ptr<Local> local);
  std::vector<Result<Bytes>> request(std::span<const Query> queries, Deadline deadline,
                                     Patience patience, const Abort* cancel);
  std::shared_ptr<Session> session_;  // outlives the group
  std::shared_ptr<Group> group_;
  std::shared_ptr<Local> local_;
};

}  // namespace niccolite::bootstrap
