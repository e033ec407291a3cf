// From the calls that a group collected for one communicator to the launches that carry them out.
//
//   collectives   Small ones of one kernel (same type and operation when they reduce) share a
//                 launch: operations of one kind, over buffers that all ranks reach, as a direct
//                 list; else the smallest operations of one kind as a list, in each channel one
//                 after the other; others each on FIFO channels of its own. Direct lists come
//                 first, then all others in the order of the calls
//   messages      after the collectives, ordered by (turn, protocol, distance, layer): distance is
//                 receiver - sender. Messages of one pair that may share a launch (executor::Turn)
//                 are layers of one turn, the next ones of another. A launch has as many of this
//                 order, one after the other, as fit a program. One to the own rank goes with
//                 others, by their protocol, where that is faster than another launch. Launches
//                 that follow each other by different protocols have different connections, and run
//                 side by side
//
// Why no pattern of messages deadlocks. Both ends of a message know its place in the order, since
// it depends on the messages of their pair alone, and every rank launches its messages in this
// order. Of the messages that are not done take the first: both of its ranks are done with all
// launches before, so both are in the launch that holds it, where each message has a worker of its
// own, and none waits for another but for slots that are free when that one is done. (The ranks'
// groups must hold both ends of it, or come to it in their order, as NCCL asks.)
//
// All ranks make the same batches of collectives, since they make the same calls. Pure functions.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "algorithms/workers.h"
#include "calls/task.h"
#include "planner/plan.h"

namespace niccolite::operations {

/// The content of one launch: collectives, or messages.
struct Batch {
  executor::Protocol protocol = executor::Protocol::Simple;  // of messages
  std::vector<const calls::Task*> tasks{};                   // the program's works, in order
  std::vector<size_t> layers{};  // works of each layer of messages (Planner::messages())
  std::vector<const calls::Task*> outputs{};  // by work: whose output it has; of a message to the
                                              // own rank the receive's, else as tasks
  std::vector<gpu::StreamHandle> streams{};   // of the calls, each once; the launch is on the first
  bool is_list = false;                       // executor::Launch::is_list()
  bool is_beside = false;                     // needs not wait for the batch before it
  bool goes_direct = false;                   // executor::Launch::list_access, of a list
  int most_channels = 0;  // of each collective that else shares the launch; 0: of one alone
  // By work: how each collective goes, as it was planned to decide on this batch. Empty: nothing
  // had to be decided, and nothing is planned yet, as of messages.
  std::vector<planner::Plan> plans{};

  bool holds_messages() const { return tasks[0]->call.is_message(); }
};

/// The most workers that a collective which may be joined has on any rank. (The number of workers
/// of one collective may differ from rank to rank, so it must not decide which collectives are
/// joined.)
constexpr int most_workers(int nranks) {
  return 2 * std::min(nranks, algorithms::kMaxWorkersRanks);
}

/// Errors: InvalidUsage for a message to the own rank without its other end, or of another size.
/// `planner` plans the collectives and chooses protocols. `is_captured`: the calls are, on all
/// ranks.
Result<std::vector<Batch>> make_batches(std::span<const calls::Task> tasks,
                                        planner::Planner& planner, bool is_captured = false);

}  // namespace niccolite::operations
