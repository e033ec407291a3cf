// Execution: runs one round of one pattern channel of an access plan on symbolic values, step by
// step, each worker on as many FIFO channels as a scenario has. Finds deadlocks, accesses to a
// buffer before its rank's kernel runs, or that may come after its end, races, and wrong values.
// Why few scenarios prove all of them is in check.h. Checker use only. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lowering/plan.h"
#include "schedule/check_form.h"
#include "schedule/reducers.h"
#include "schedule/results.h"
#include "schedule/value.h"

namespace niccolite::lowering {

/// Which worker's kernel is aborted, and when.
struct Abort {
  int rank;
  int after;             // steps of that rank's workers together
  bool rank_goes_first;  // its workers run before others, else behind them
};

struct Scenario {
  schedule::Placement place = schedule::Placement::OutOfPlace;
  int channel = 0;   // pattern channel
  int depth = 2;     // slots
  int channels = 1;  // FIFO channels; each has one tile of every block
  /// For dynamic tiles: the channel whose worker takes `tile`. `worker` is its flat number.
  std::function<int(int worker, int tile)> taker{};
  std::optional<Abort> abort{};
};

/// "input block 2".
std::string describe(const schedule::BlockReference& reference);

class Execution {
 public:
  /// `ends` belong to the plan's schedule (schedule::check_form()). All must outlive the execution.
  Execution(const AccessPlan& plan, const std::vector<schedule::Ends>& ends,
            const Scenario& scenario);

  /// Runs until all workers are done. InvalidUsage: the error, with rank, channel, worker and
  /// instruction.
  Status run();
  /// After run(), without an abort: the output of every rank is the result of the collective.
  Status check_result() const;
  /// Steps that the workers of a rank did.
  int steps_of(int rank) const { return steps_of_[static_cast<size_t>(rank)]; }

 private:
  /// The entry of `connection`, made when it is first asked for. Few connections have one.
  template <typename T>
  static T& entry_of(std::vector<std::pair<int, T>>& entries, int connection) {
    for (auto& [number, entry] : entries)
      if (number == connection) return entry;
    return entries.emplace_back(connection, T{}).second;
  }

  /// How much of each worker's moves, and of each rank's user before its kernel, comes before: by
  /// flat number of a worker on a channel, and behind those by rank.
  using Clock = std::vector<uint32_t>;
  using SharedClock = std::shared_ptr<const Clock>;

  struct Chunk {
    schedule::SharedValue value{};
    int tile = 0;
    SharedClock clock{};
  };

  /// In their order. Few, and mostly none: many thousand executions are made, and an empty deque
  /// has memory.
  using Chunks = std::vector<Chunk>;

  /// The place of an advertised buffer.
  struct Block {
    int rank;
    schedule::BlockReference block;
  };

  /// A connection on one FIFO channel.
  struct Link {
    int sender = -1;  // flat numbers of its workers on that channel
    int receiver = -1;
    Chunks slots;      // announced, and not taken
    int used = 0;      // slots without credit
    int unused = 0;    // of them, whose credit was awaited, and to which nothing was announced yet
    int read = 0;      // slots that the receiver has read, and not given credit for
    Chunks handed_in;  // to the network's reducer, in slots of the sender's
    int held = 0;      // slots of the receiver's, with what came of the reducer
    bool is_advertised = false, is_taken = false, is_withdrawn = false;
    std::optional<Block> memory;
    SharedClock advertised;
    SharedClock put;  // all is put; null: it is not
    std::vector<int> requests;
    SharedClock requested;
    Chunks delivered;
    SharedClock released;
    SharedClock left;
    bool is_awaited = false;  // by whoever advertised: arrival, release, or that the peer has left
  };

  /// A worker on one FIFO channel.
  struct Instance {
    const LoweredWorker* lowered;
    const schedule::Worker* worker;
    int flat;  // of the worker
    int rank;
    int worker_number;
    int tile;  // its channel's
    size_t next = 0;
    bool is_aborted = false;
    bool is_queued = false;
    uint32_t moves = 0;
    int instruction = 0;  // that the next step is of, for messages
    Clock clock{};
    std::vector<std::pair<int, std::optional<Block>>> taken{};  // by connection
    std::vector<std::pair<int, Chunks>> received{};             // chunks in slots, not read
    std::vector<std::pair<int, Chunk>> staged{};                // stored to a slot, not announced
    std::optional<schedule::SharedValue> own_part{};            // Event::Stage; until the move

    const std::vector<Step>& steps() const { return is_aborted ? lowered->abort : lowered->steps; }
    bool is_done() const { return next == steps().size(); }
  };

  struct Access {
    int instance;
    uint32_t moves;
    int instruction;
    bool is_write;
  };

  struct Location {
    schedule::SharedValue value;  // null: nothing was ever written here
    std::optional<schedule::Position> writer;
    bool is_kept = false;  // somebody copies the block onto itself
    std::vector<Access> accesses;
  };

  struct Memory {
    std::vector<std::vector<Location>> input, output, scratch;  // [block][tile]
  };

  Link& link(int connection, int channel);
  Link& link(const Instance& instance, int connection) { return link(connection, instance.tile); }
  Location& location(int rank, const schedule::BlockReference& reference, int tile);
  bool is_one_memory(int rank, const schedule::BlockReference& a,
                     const schedule::BlockReference& b);
  std::vector<int> tiles_of(const Instance& instance, Tiles tiles) const;
  schedule::Position position(const Instance& instance) const;

  bool can_do(Instance& instance, const Step& step);
  Status do_step(Instance& instance, int number, const Step& step);
  Status move(Instance& instance, int number, const Step& step);
  Status move_tile(Instance& instance, int number, const schedule::Instruction& instruction,
                   const Accesses& accesses, int tile);
  Result<schedule::Operand> operand_of(Instance& instance, int number,
                                       const schedule::Instruction& instruction,
                                       const Accesses& accesses, size_t receive, int tile);
  static Status check_not_told(const Link& link, const char* verb, const Block& place);
  Status serve_pulls(Instance& instance, int number, int connection);
  Result<schedule::SharedValue> read_source(Instance& instance, int number,
                                            const schedule::BlockReference& source, int tile);
  Status stage(Instance& instance, int number, const Step& step);
  Status check_teams(const Instance& instance, const schedule::Instruction& instruction,
                     const Accesses& accesses) const;
  Status access(Instance& instance, int number, int rank, const schedule::BlockReference& block,
                int tile, bool is_write);
  Status carry(int group, int channel);
  void wake(int instance);
  void wake_ends(const Link& link);
  Status run_instance(int number);
  Status run_all();
  void abort_rank(int rank);
  Status check_ends() const;
  Status check_end(int rank) const;
  Status check_awaited() const;
  Status report_hang() const;
  SharedClock share(const Instance& instance) const;
  void merge(Instance& instance, const SharedClock& clock) const;

  const AccessPlan& plan_;
  const schedule::Schedule& schedule_;
  const Scenario& scenario_;
  std::vector<Instance> instances_;       // [channel][worker]
  std::vector<std::vector<Link>> links_;  // [connection][channel]; of other pattern channels none
  std::vector<schedule::ReducerGroup> groups_;  // of the network's reducer
  std::vector<int> group_of_;                   // by connection; -1: of none
  std::vector<std::vector<int>> carried_;       // [group][channel]
  std::vector<Memory> memory_;                  // by rank
  std::deque<int> runnable_, later_;
  std::vector<int> steps_of_;
  std::vector<char> is_aborted_;  // by rank
};

}  // namespace niccolite::lowering
