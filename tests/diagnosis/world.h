// World: the ranks of a communicator, and their watches, without GPUs, threads or clocks: logs are
// filled and reports stored by hand. Several communicators may share the same devices.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "diagnosis/watch.h"
#include "tests/calls/calls.h"

namespace niccolite::diagnosis {

using namespace calls;

class World;

/// What several communicators share; outlives them.
struct Devices {
  Watch::Time now{std::chrono::seconds(1000)};
  std::vector<World*> worlds;

  /// Time passes, and every watch looks as often as the watchdog has it look.
  void pass(std::chrono::milliseconds time);
  template <typename Rank>
  std::optional<Hold> find_holder(const Rank& held, uint64_t stream) const;
};

class World {
 public:
  /// So many consecutive ranks share a process.
  explicit World(int nranks, int of_a_process = 1)
      : own_(std::make_unique<Devices>()), devices_(*own_), of_a_process_(of_a_process) {
    std::vector<int> devices;
    for (int rank = 0; rank < nranks; ++rank) devices.push_back(rank);
    add_ranks(devices);
  }
  /// A communicator beside others, whose rank r is on devices[r].
  World(Devices& all, const std::vector<int>& devices) : devices_(all) { add_ranks(devices); }
  World(const World&) = delete;

  uint64_t id() const { return id_; }
  const Devices& devices() const { return devices_; }
  struct Rank {
    explicit Rank(int nranks) : log(nranks) {}
    CallLog log;
    executor::ControlWords control{};
    std::unique_ptr<Watch> watch;
    bool has_left = false;
    std::optional<std::pair<int, std::string_view>> awaited_leaver{};
    bool is_unreachable = false;
    int island = 0;                              // ranks of several hear nothing of each other
    std::chrono::milliseconds answers_after{0};  // who is less patient hears nothing
    RunState run_state = RunState::Runs;
    bool has_failed = false;
    bool is_stalled = false;  // its watchdog looks at nothing
    int device = 0;
    int asked = 0;
    std::optional<transport::NetworkState> network{};
    Watch::Time awake_since{};
  };
  bool asking_takes_time = false;  // of a thread that looks after all ranks, if nobody answers

  const std::deque<Rank>& ranks() const { return ranks_; }
  Rank& of(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  void call(int rank, const Call& call) { of(rank).log.add({&call, 1}, false); }
  /// The same, on a stream of the rank's device.
  void launch(int rank, const Call& call, uint64_t stream = 7) {
    of(rank).log.before_launch_on(stream);
    of(rank).log.add({&call, 1}, false);
  }
  void call_all(const Call& made) {
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) call(rank, made);
  }
  void capture(int rank, const Call& call) { of(rank).log.add({&call, 1}, true); }

  void wait(int rank, int peer, const Call& call, int repeats = 0,
            executor::ReportKind kind = executor::ReportKind::Waiting) {
    of(rank).control.report = encode(executor::Report{.kind = kind,
                                                      .peer = static_cast<uint32_t>(peer),
                                                      .own_tag = tag_of(call),
                                                      .repeats = static_cast<uint16_t>(repeats)});
  }
  void mismatch(int rank, int peer, const Call& call, const Call& peers_call) {
    of(rank).control.report = encode(executor::Report{.kind = executor::ReportKind::Mismatch,
                                                      .peer = static_cast<uint32_t>(peer),
                                                      .own_tag = tag_of(call),
                                                      .peer_tag = tag_of(peers_call)});
  }

  /// Time passes, and every watch looks as often as the watchdog has it look.
  void pass(std::chrono::milliseconds time) { devices_.pass(time); }
  void look() {
    for (Rank& rank : ranks_)
      if (!rank.is_stalled) rank.watch->look();
  }
  /// Time in which ranks wait: `report` stores what they report after each interval.
  template <typename Function>
  void wait_for(std::chrono::milliseconds length, Function&& report) {
    for (int repeats = 0; repeats < length / executor::kReportInterval; ++repeats) {
      pass(executor::kReportInterval);
      report(repeats);
    }
    pass(std::chrono::milliseconds(100));
  }

  /// What is found when `rank` leaves.
  std::string leave(int rank) {
    const auto difference = of(rank).watch->compare_before_leaving();
    of(rank).has_left = true;
    return difference.value_or("");
  }

  const std::vector<Status>& failures() const { return failures_; }
  std::string failure() const { return failures_.empty() ? "" : failures_.front().message(); }

 private:
  bool reaches(int rank, int peer) {
    return !of(peer).is_unreachable && of(peer).island == of(rank).island;
  }
  void add_ranks(const std::vector<int>& devices) {
    devices_.worlds.push_back(this);
    id_ = 0xc0 + devices_.worlds.size();
    const int nranks = static_cast<int>(devices.size());
    for (int rank = 0; rank < nranks; ++rank) {
      Rank& added = ranks_.emplace_back(nranks);
      added.device = devices[static_cast<size_t>(rank)];
      Watch::Hooks hooks;
      hooks.device = added.device;
      hooks.communicator = id_;
      if (rank % of_a_process_ == 0) silences_ = std::make_shared<Silences>();
      hooks.silences = silences_;
      hooks.now = [this] { return devices_.now; };
      hooks.ask = [this, rank](int peer, std::chrono::milliseconds patience) -> Result<Account> {
        Rank& asked = of(peer);
        const bool is_silent = !reaches(rank, peer) || patience < asked.answers_after;
        if (is_silent && asking_takes_time) devices_.now += patience;
        if (is_silent) return Status::remote_error("rank {} does not answer", peer);
        ++asked.asked;
        return Account::decode(asked.watch->account(rank).encode(), peer);
      };
      hooks.find_holder = [this, rank](uint64_t stream) {
        return devices_.find_holder(of(rank), stream);
      };
      hooks.say_farewell = [this, rank](int peer, const Account& mine) -> Result<Account> {
        Rank& asked = of(peer);
        if (!reaches(rank, peer)) return Status::remote_error("rank {} does not answer", peer);
        asked.watch->keep_farewell(Account::decode(mine.encode(), rank).take());
        return Account::decode(asked.watch->account(rank).encode(), peer);
      };
      hooks.run_state = [this](int peer) { return of(peer).run_state; };
      hooks.network = [&added] { return added.network; };
      hooks.awake_since = [&added] { return added.awake_since; };
      hooks.describe = [](int of_rank) {
        return fmt::format("process {} on host box", 100 + of_rank);
      };
      hooks.propose = [this, rank](int peer, const Verdict& verdict, std::chrono::milliseconds) {
        Rank& asked = of(peer);
        if (!reaches(rank, peer)) return Status::remote_error("rank {} does not answer", peer);
        asked.watch->decide(
            Verdict::decode(verdict.encode(), static_cast<int>(ranks_.size())).take());
        return Status();
      };
      hooks.publish = [this, rank](const Verdict& verdict) {
        const Verdict arrived =
            Verdict::decode(verdict.encode(), static_cast<int>(ranks_.size())).take();
        for (int other = 0; other < static_cast<int>(ranks_.size()); ++other)
          if (other != rank && of(other).island == of(rank).island) of(other).watch->note(arrived);
      };
      hooks.has_left = [this](int peer) { return of(peer).has_left; };
      hooks.awaited_leaver = [&added] { return added.awaited_leaver; };
      hooks.has_failed = [&added] { return added.has_failed; };
      hooks.fail_all = [this](const Status& status) {
        failures_.push_back(status.copy());
        for (Rank& failed : ranks_) failed.has_failed = true;
      };
      added.watch =
          std::make_unique<Watch>(rank, nranks, added.log, added.control, std::move(hooks));
    }
  }

  const std::unique_ptr<Devices> own_;  // null: it is one of several communicators
  Devices& devices_;
  const int of_a_process_ = 1;
  std::shared_ptr<Silences> silences_;  // of the ranks that are being made
  uint64_t id_ = 0;
  std::deque<Rank> ranks_;  // watches refer to their neighbours
  std::vector<Status> failures_;
};

inline void Devices::pass(std::chrono::milliseconds time) {
  for (const auto end = now + time; now < end;) {
    now += std::chrono::milliseconds(50);
    for (World* world : worlds) world->look();
  }
}

template <typename Rank>
std::optional<Hold> Devices::find_holder(const Rank& held, uint64_t stream) const {
  std::optional<Hold> newest;
  for (World* const world : worlds) {
    for (const Rank& rank : world->ranks()) {
      if (&rank == &held) continue;
      auto hold = rank.watch->holding(held.device, stream);
      if (hold && (!newest || hold->wait.most_age < newest->wait.most_age)) newest = hold;
    }
  }
  return newest;
}

}  // namespace niccolite::diagnosis
