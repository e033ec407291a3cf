// Execution: runs one round of one channel of all ranks on symbolic values, each worker as far as
// it gets, with FIFOs of bounded depth. Finds deadlocks, races and wrong values; why one round in
// one order proves all of them is in check.h. Checker use only. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "schedule/check_form.h"
#include "schedule/reducers.h"
#include "schedule/results.h"
#include "schedule/schedule.h"
#include "schedule/value.h"

namespace niccolite::schedule {

class Execution {
 public:
  /// `ends` as check_form() found them. Both must outlive the execution.
  Execution(const Schedule& schedule, const std::vector<Ends>& ends, int channel, Placement place,
            int depth);

  /// Runs until all workers are done. InvalidUsage: deadlock, race, or a value that must not be.
  Status run();
  /// After run(): the output of every rank is the result of the collective.
  Status check_result();

 private:
  /// A vector clock, by flat worker number: how many instructions of each worker come before, as
  /// the data's way orders them.
  using Clock = std::vector<uint32_t>;

  struct WorkerState {
    const Worker* worker;
    Position next;       // the instruction to run next
    int waits_for = -1;  // the connection that it lacks a chunk or credit of, when blocked
    bool waits_for_credit = false;
    Clock clock;  // empty when no rank has two workers, as nothing can race then
  };

  struct Chunk {
    SharedValue value;
    std::shared_ptr<const Clock> clock;
  };

  struct Fifo {
    std::deque<Chunk> slots;
    std::deque<Chunk> handed_in;  // to the network's reducer, and not carried yet
    int group = -1;               // of the reducer; -1: none
    int sender;                   // flat worker numbers
    int receiver;
  };

  struct Group {
    ReducerGroup of;
    int carried = 0;
  };

  struct Access {
    int worker;  // flat
    int instruction;
    bool is_write;
  };

  /// One block of one rank's memory.
  struct Location {
    SharedValue value;               // null: nothing was ever written here
    std::optional<Position> writer;  // none: nobody yet; the value is the user's
    std::optional<Position> keeper;  // the instruction that copies the block onto itself
    std::vector<Access> accesses;    // newest of each worker and kind
  };

  /// One rank's buffers. In place some of `output` is never used: its blocks are input blocks.
  struct Memory {
    std::vector<Location> input;
    std::vector<Location> output;
    std::vector<Location> scratch;
  };

  int flat_worker(int rank, int worker) const;
  bool is_done(const WorkerState& state) const;
  bool can_run(WorkerState& state) const;
  void run_worker(int flat, Status& status);
  Status step(WorkerState& state, int flat);
  Status carry(Group& group, const Position& position);
  void wake_members(const Group& group);
  int obstacle_to(const Group& group) const;
  Location& location(int rank, const BlockReference& reference);
  bool is_copy_onto_itself(int rank, const Instruction& instruction);
  Status check_block(int rank, int block);
  Status access(const WorkerState& state, int flat, const BlockReference& reference, bool is_write);
  Status report_deadlock() const;

  const Schedule& schedule_;
  const Placement place_;
  const int channel_;
  const int depth_;
  bool may_race_ = false;             // some rank has several workers
  std::vector<int> first_worker_;     // by rank: flat number of its worker 0
  std::vector<WorkerState> workers_;  // by flat number
  std::vector<Fifo> fifos_;           // by connection; other channels' connections are unused
  std::vector<Group> groups_;         // of the network's reducer
  std::vector<Memory> memory_;        // by rank
  std::vector<int> runnable_;         // flat workers that may have become able to run
};

}  // namespace niccolite::schedule
