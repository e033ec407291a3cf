// Direct lists (executor/list_access.h) do what the lowered plan of a schedule does: each rank owns
// the tiles of one block, gets them from the inputs that there are, and puts the result to the
// outputs that there are. Of Scatter and Gather that is what direct_workers of the registry does
// (proof_test.cc); of Whole it is proved here.
#include <gtest/gtest.h>

#include <algorithm>

#include "lowering/check.h"
#include "schedule/builder.h"
#include "schedule/check.h"

namespace niccolite::lowering {
namespace {

using schedule::Builder;
using schedule::Collective;
using schedule::Connections;
using schedule::input;
using schedule::Instruction;
using schedule::output;
using schedule::Schedule;
using schedule::WorkerBuilder;

constexpr int kInputs = 0, kOutputs = 1;  // tags

std::vector<int> all_of(int nranks) {
  std::vector<int> ranks;
  for (int rank = 0; rank < nranks; ++rank) ranks.push_back(rank);
  return ranks;
}

/// `inputs`: the ranks whose inputs are read; `outputs`: those whose outputs are stored to.
Schedule whole_list(Collective collective, int nranks, int root, const std::vector<int>& inputs,
                    const std::vector<int>& outputs) {
  Builder builder({.collective = collective,
                   .algorithm = "list",
                   .nranks = nranks,
                   .nblocks = nranks,
                   .root = root});
  for (int owner = 0; owner < nranks; ++owner) {
    WorkerBuilder worker = builder.add_worker(owner);
    Instruction move{.reduce = inputs.size() > 1, .finish = schedule::reduces(collective)};
    for (const int rank : inputs) {
      if (rank == owner) {
        move.source = input(owner);
        move.source_position = static_cast<int>(move.receive_from.size());
      } else {
        move.receive_from.push_back(worker.from(rank, kInputs).front());
      }
    }
    for (const int rank : outputs) {
      if (rank == owner) {
        move.target = output(owner);
      } else {
        move.send_to.push_back(worker.to(rank, kOutputs).front());
      }
    }
    worker.add(std::move(move));
    for (const int rank : inputs) {
      if (rank == owner) continue;
      WorkerBuilder other = builder.add_worker(rank);
      other.add({.source = input(owner), .send_to = other.to(owner, kInputs)});
    }
    for (const int rank : outputs) {
      if (rank == owner) continue;
      WorkerBuilder other = builder.add_worker(rank);
      other.add({.receive_from = other.from(owner, kOutputs), .target = output(owner)});
    }
  }
  return std::move(builder).take();
}

void expect_right(const Schedule& schedule) {
  SCOPED_TRACE(fmt::format("{} of {}, root {}", name_of(schedule.collective), schedule.nranks,
                           schedule.root));
  const Status in_slots = schedule::check(schedule, {.depth = 1});
  EXPECT_TRUE(in_slots.is_ok()) << in_slots.message();
  const Routes routes = routes_of(schedule);
  EXPECT_EQ(routes.of(kInputs), (Route{.way = Way::DirectGet}));
  EXPECT_EQ(routes.of(kOutputs), (Route{.way = Way::DirectPut, .is_final = true}));
  const Status status = check_all(schedule, {.with_aborts = schedule.nranks == 2});
  EXPECT_TRUE(status.is_ok()) << status.message();
}

TEST(WholeLists, AreRightFromTheStartOfKernelsToTheirEnds) {
  for (const int nranks : {2, 3, 4}) {
    const std::vector<int> all = all_of(nranks);
    expect_right(whole_list(Collective::AllReduce, nranks, 0, all, all));
    for (int root = 0; root < nranks; ++root) {
      expect_right(whole_list(Collective::Reduce, nranks, root, all, {root}));
      expect_right(whole_list(Collective::Broadcast, nranks, root, {root}, all));
    }
  }
}

}  // namespace
}  // namespace niccolite::lowering
