// Random programs over several communicators, of which some call in orders that differ, with hosts,
// GPUs, transfers and watchdogs that are late at random: what is accused never ends, and nothing
// else is.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/calls/calls.h"
#include "tests/diagnosis/world.h"

namespace niccolite::diagnosis {

using namespace calls;
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTick{50};  // the watchdog's interval

class Program {
 public:
  Program(uint32_t seed, bool is_wrong) : random_(seed) {
    const int ndevices = 2 + pick(3);
    for (auto* const counts : {&called_, &ended_}) counts->resize(static_cast<size_t>(ndevices));
    queues_.resize(static_cast<size_t>(ndevices));
    const int communicators = 2 + pick(2);
    for (int c = 0; c < communicators; ++c) {
      std::vector<int> of_this;
      for (int device = 0; device < ndevices; ++device)
        if (of_this.size() + static_cast<size_t>(ndevices - device) <= 2 || pick(3) > 0)
          of_this.push_back(device);
      std::shuffle(of_this.begin(), of_this.end(), random_);
      worlds_.emplace_back(devices_, of_this);
      members_.push_back(of_this);
    }
    const int calls = 3 + pick(6);
    for (int i = 0; i < calls; ++i) {
      const auto c = static_cast<size_t>(pick(communicators));
      operations_.push_back({.communicator = c, .states = states_of(c)});
      for (size_t rank = 0; rank < members_[c].size(); ++rank)
        queue_of(c, rank).push_back(
            {.operation = operations_.size() - 1, .rank = static_cast<int>(rank)});
    }
    if (is_wrong) cross();
  }

  /// Do all operations end?
  bool run() {
    for (int tick = 0; tick < 1200 && !is_done(); ++tick) {
      for (size_t device = 0; device < queues_.size(); ++device) {
        if (pick(8) == 0) make_next_call(device);
        go_on(device);
      }
      for (World& world : worlds_)
        for (int rank = 0; rank < static_cast<int>(world.ranks().size()); ++rank)
          if (pick(40) == 0) world.of(rank).is_stalled = !world.of(rank).is_stalled;
      devices_.pass(kTick);
    }
    return is_done();
  }
  bool is_accused() const {
    return std::any_of(worlds_.begin(), worlds_.end(),
                       [](const World& world) { return !world.failures().empty(); });
  }

 private:
  enum class State : uint8_t { NotBegun, UnderWay, Ended };
  struct Operation {
    size_t communicator = 0;
    std::vector<State> states;  // by rank
  };
  struct Queued {
    size_t operation = 0;
    int rank = -1;
    int waits_for = -1;
    int ticks = 0, repeats = 0;  // of this wait
  };

  int pick(int below) { return std::uniform_int_distribution(0, below - 1)(random_); }
  std::vector<State> states_of(size_t c) const {
    return std::vector<State>(members_[c].size(), State::NotBegun);
  }
  std::vector<Queued>& queue_of(size_t c, size_t rank) {
    return queues_[static_cast<size_t>(members_[c][rank])];
  }
  // A device calls two neighbouring operations of different communicators the other way round.
  void cross() {
    std::vector<Queued>& queue =
        queues_[static_cast<size_t>(pick(static_cast<int>(queues_.size())))];
    for (size_t i = 0; i + 1 < queue.size(); ++i) {
      if (operations_[queue[i].operation].communicator ==
          operations_[queue[i + 1].operation].communicator)
        continue;
      std::swap(queue[i], queue[i + 1]);
      if (pick(2) == 0) return;
      ++i;
    }
  }
  // Equal calls: by them alone the watches cannot tell which one waits.
  Call call_of(const Queued& queued) const {
    return all_reduce(1 + operations_[queued.operation].communicator);
  }
  World& world_of(const Queued& queued) {
    return worlds_[operations_[queued.operation].communicator];
  }
  void make_next_call(size_t device) {
    if (called_[device] == queues_[device].size()) return;
    const Queued& queued = queues_[device][called_[device]++];
    world_of(queued).launch(queued.rank, call_of(queued));
  }
  void go_on(size_t device) {
    if (ended_[device] == called_[device]) return;
    Queued& queued = queues_[device][ended_[device]];
    std::vector<State>& states = operations_[queued.operation].states;
    State& own = states[static_cast<size_t>(queued.rank)];
    if (own == State::NotBegun) {
      if (pick(8) == 0) own = State::UnderWay;  // something else may be running on the GPU
      return;
    }
    const bool all_begun = std::find(states.begin(), states.end(), State::NotBegun) == states.end();
    const bool is_last = std::count(states.begin(), states.end(), State::Ended) + 1 ==
                         static_cast<std::ptrdiff_t>(states.size());
    if (all_begun && (is_last || pick(16) == 0)) {
      own = State::Ended;
      ++ended_[device];
      return;
    }
    wait(queued, states);
  }
  // For any rank that has not done its part: it may not have begun, or wait itself.
  void wait(Queued& queued, const std::vector<State>& states) {
    const bool is_in_vain =
        queued.waits_for >= 0 && states[static_cast<size_t>(queued.waits_for)] == State::Ended;
    if (queued.waits_for < 0 || is_in_vain || pick(100) == 0) {
      queued.ticks = queued.repeats = 0;
      do {
        queued.waits_for = pick(static_cast<int>(states.size()));
      } while (queued.waits_for == queued.rank ||
               states[static_cast<size_t>(queued.waits_for)] == State::Ended);
    }
    if (++queued.ticks % (executor::kReportInterval / kTick) != 0) return;
    World& world = world_of(queued);
    if (world.of(queued.rank).control.report == 0)  // as virtual GPUs do it
      world.wait(queued.rank, queued.waits_for, call_of(queued), queued.repeats);
    ++queued.repeats;
  }
  bool is_done() const {
    for (size_t device = 0; device < queues_.size(); ++device)
      if (ended_[device] < queues_[device].size()) return false;
    return true;
  }

  std::mt19937 random_;
  Devices devices_;
  std::deque<World> worlds_;
  std::vector<std::vector<int>> members_;  // of each communicator: device by rank
  std::vector<Operation> operations_;
  std::vector<std::vector<Queued>> queues_;  // by device
  std::vector<size_t> called_, ended_;       // of each queue
};

TEST(WatchOfRandomPrograms, AccusesNoneThatEnds) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    Program program(seed, /*is_wrong=*/false);
    EXPECT_TRUE(program.run()) << "seed " << seed;
    EXPECT_FALSE(program.is_accused()) << "seed " << seed;
  }
}

TEST(WatchOfRandomPrograms, AccusesOnlyWhatNeverEnds) {
  int stuck = 0, found = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    Program program(seed, /*is_wrong=*/true);
    const bool ends = program.run();
    EXPECT_FALSE(ends && program.is_accused()) << "seed " << seed;
    stuck += ends ? 0 : 1;
    found += program.is_accused() ? 1 : 0;
  }
  EXPECT_GT(stuck, 100);
  EXPECT_GT(found, stuck * 9 / 10) << "of " << stuck;
}

}  // namespace
}  // namespace niccolite::diagnosis
