// Order: an order in which the steps of a program can be done. Thread safety: one thread.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "importers/program.h"
#include "schedule/index.h"

namespace niccolite::importers {

/// A FIFO of the program.
using FifoKey = std::tuple<int, int, int>;  // sender, receiver, channel

/// A thread block's number among those of all ranks.
struct FlatBlock {
  int rank;
  const ThreadBlock* block;
};

/// Executes the steps with FIFOs of a depth, as far as they go. A rank adds what it has received
/// before it receives more: sums that wait would have to be stored.
class Order {
 public:
  explicit Order(const Program& program);

  /// True if all steps were done. order() has them.
  bool run(int depth);

  const std::vector<std::pair<int, int>>& order() const { return order_; }  // flat block, step
  const std::vector<FlatBlock>& blocks() const { return blocks_; }
  int flat(int rank, int block) const { return schedule::at(first_, rank) + block; }

  /// After a run that did not finish: who waits for whom, from the first that waits until a circle
  /// closes, or until somebody waits for what nobody does.
  Status describe_standstill() const;

 private:
  bool is_done(int flat) const {
    return schedule::at(next_, flat) == schedule::length(schedule::at(blocks_, flat).block->steps);
  }
  const Step& next_step(int flat) const;
  FifoKey fifo_in(int flat) const;
  FifoKey fifo_out(int flat) const;
  bool can_run(int flat, int depth);
  void step(int flat);
  /// Does the steps of a rank that neither send nor receive: sums in the order of their chunks, in
  /// which peers send them.
  void step_locally(int rank, int depth);
  std::string describe(int flat) const;
  /// The obstacle of a thread block's next step, and the thread block that it waits for.
  std::pair<std::string, int> obstacle(int flat) const;

  std::vector<FlatBlock> blocks_;
  std::vector<int> first_;  // flat thread block, by rank
  std::map<FifoKey, int> senders_;
  std::map<FifoKey, int> receivers_;
  std::vector<int> next_;                      // step, by flat thread block
  std::map<FifoKey, std::deque<int>> filled_;  // counts
  std::vector<std::pair<int, int>> order_;
};

}  // namespace niccolite::importers
