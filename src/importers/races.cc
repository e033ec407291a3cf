#include "importers/races.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "schedule/index.h"

namespace niccolite::importers {
namespace {

using schedule::at;
using schedule::length;

/// Finds two steps of one rank that touch a chunk, one of them writing, and that nothing orders.
class Races {
 public:
  Races(const Program& program, const Order& order, const Places& places)
      : program_(program), order_(order), places_(places) {}

  Status check() {
    const size_t nblocks = order_.blocks().size();
    clocks_.assign(nblocks, Clock(nblocks));
    for (const auto& [flat, number] : order_.order()) {
      const auto& [rank, block] = at(order_.blocks(), flat);
      const Step& step = at(block->steps, number);
      Clock& clock = at(clocks_, flat);
      for (const Wait& wait : step.waits) {
        const int other = order_.flat(rank, wait.block);
        if (const auto kept = ends_.find({other, wait.step}); kept != ends_.end())
          join(clock, kept->second);
      }
      if (receives(step.action)) {
        auto& fifo = fifos_[{block->receive_from, rank, block->channel}];
        join(clock, fifo.front());
        fifo.pop_front();
      }
      clock[static_cast<size_t>(flat)] = static_cast<uint32_t>(number + 1);
      if (reads_source(step.action)) TRY(touch(flat, number, step.source, step.count, false));
      if (reads_target(step.action)) TRY(touch(flat, number, step.target, step.count, false));
      if (writes_target(step.action)) TRY(touch(flat, number, step.target, step.count, true));
      if (sends(step.action)) fifos_[{rank, block->send_to, block->channel}].push_back(clock);
      if (is_waited_for(rank, block, number)) ends_[{flat, number}] = clock;
    }
    return {};
  }

 private:
  using Clock = std::vector<uint32_t>;  // steps done, by flat thread block
  struct Access {
    int flat;
    int step;
    bool is_write;
  };

  static void join(Clock& clock, const Clock& other) {
    for (size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
  }
  bool is_waited_for(int rank, const ThreadBlock* block, int number) {
    auto& known = waited_[rank];
    if (known.empty()) {
      known.emplace(nullptr, 0);  // not empty any more
      const std::vector<ThreadBlock>& blocks = at(program_.ranks, rank).blocks;
      for (const ThreadBlock& each : blocks)
        for (const Step& step : each.steps)
          for (const Wait& wait : step.waits) known.emplace(&at(blocks, wait.block), wait.step);
    }
    return known.contains({block, number});
  }
  Status touch(int flat, int number, const Place& first, int count, bool is_write) {
    const int rank = at(order_.blocks(), flat).rank;
    const Clock& clock = at(clocks_, flat);
    Status status;
    for_each_chunk(places_, rank, first, count, [&](const Place& place) {
      std::vector<Access>& accesses = accesses_[{rank, place}];
      for (const Access& access : accesses) {
        if (!is_write && !access.is_write) continue;
        if (clock[static_cast<size_t>(access.flat)] > static_cast<uint32_t>(access.step)) continue;
        if (status.is_ok())
          status = Status::invalid_usage(
              "race: on gpu {} line {} {} and line {} {} chunk {} of {}, and nothing orders them",
              rank, line_of(access.flat, access.step), access.is_write ? "writes" : "reads",
              line_of(flat, number), is_write ? "writes" : "reads", place.chunk,
              name_of(place.buffer));
      }
      // The newest of each thread block and kind is enough.
      std::erase_if(accesses, [&](const Access& access) {
        return access.flat == flat && access.is_write == is_write;
      });
      accesses.push_back({flat, number, is_write});
    });
    return status;
  }
  int line_of(int flat, int step) const {
    return at(at(order_.blocks(), flat).block->steps, step).line;
  }

  const Program& program_;
  const Order& order_;
  const Places& places_;
  std::vector<Clock> clocks_;
  std::map<FifoKey, std::deque<Clock>> fifos_;
  std::map<std::pair<int, int>, Clock> ends_;  // of steps that others wait for
  std::map<int, std::set<std::pair<const ThreadBlock*, int>>> waited_;
  std::map<std::pair<int, Place>, std::vector<Access>> accesses_;
};

}  // namespace

Status check_races(const Program& program, const Order& order, const Places& places) {
  return Races(program, order, places).check();
}

}  // namespace niccolite::importers
