// The table of kernels written by hand: each gets the plans of the shape that it declares.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "algorithms/point_to_point.h"
#include "executor/cuda/launch/launch_header.h"
#include "executor/cuda/patterns/pattern_kernels.h"
#include "planner/form.h"

namespace niccolite::executor::cuda {
namespace {

using schedule::Collective;
using schedule::Schedule;

/// Rank 0's launch, whose connections have no memory.
Launch launch_of(const Schedule& schedule, Protocol protocol, bool in_host = false) {
  Launch launch;
  launch.program = std::make_shared<const Program>(compile(schedule, 0).take());
  launch.protocol = protocol;
  launch.shape = {.channels = 4, .depth = 4, .slot_bytes = 4096};
  launch.type = DataType::Float32;
  for (const WorkShape& work : launch.program->works) {
    const auto blocks = static_cast<uint32_t>(work.nblocks);
    const Cut cut{.max_channels = 1, .slot_data_bytes = data_bytes(protocol, 4096)};
    launch.works.push_back({.partition = schedule::cuts_one_buffer(schedule.collective)
                                             ? make_partition(240, 4, blocks, cut)
                                             : make_block_partition(240, 4, blocks, cut),
                            .buffers = {}});
  }
  std::vector<PortAddress> ports(launch.program->ports.size());
  for (PortAddress& port : ports) port.in_host = in_host;
  set_ports(launch, std::move(ports));
  return launch;
}

Schedule build(Collective collective, const char* algorithm, int nranks) {
  return planner::find_form(collective, algorithm)->build(nranks, {}).take();
}

std::string kernel_of(const Launch& launch) {
  const PatternKernel* const kernel = match(launch, reduces(launch, flags_of(launch)));
  return kernel == nullptr ? "the interpreter" : kernel->name;
}

TEST(PatternKernels, GetPlansOfTheirShape) {
  const Schedule one_shot = build(Collective::AllReduce, "one_shot", 3);
  EXPECT_EQ(kernel_of(launch_of(one_shot, Protocol::LL)), "one step");
  EXPECT_EQ(kernel_of(launch_of(one_shot, Protocol::LL128)), "lines");
  Launch of_two_rounds = launch_of(one_shot, Protocol::LL128);
  of_two_rounds.works[0].partition.rounds = 2;
  EXPECT_EQ(kernel_of(of_two_rounds), "phases");
  const Schedule one_shot_of_five = build(Collective::AllReduce, "one_shot", 5);
  EXPECT_EQ(kernel_of(launch_of(one_shot_of_five, Protocol::LL128)), "phases");
  EXPECT_EQ(kernel_of(launch_of(one_shot, Protocol::Simple)), "the interpreter");
  const Schedule two_shot = build(Collective::AllReduce, "two_shot", 3);
  EXPECT_EQ(kernel_of(launch_of(two_shot, Protocol::LL)), "the interpreter");
  EXPECT_EQ(kernel_of(launch_of(two_shot, Protocol::LL128)), "phases");
  const Schedule gather = build(Collective::AllGather, "direct_workers", 3);
  EXPECT_EQ(kernel_of(launch_of(gather, Protocol::LL)), "one step");
  EXPECT_EQ(kernel_of(launch_of(gather, Protocol::LL128)), "the interpreter");
  const Schedule ring = build(Collective::AllReduce, "ring", 3);
  for (const Protocol protocol : {Protocol::LL, Protocol::LL128, Protocol::Simple})
    EXPECT_EQ(kernel_of(launch_of(ring, protocol)), "the interpreter");
}

TEST(PatternKernels, GetListsByTheirData) {
  const Schedule one_shot = build(Collective::AllReduce, "one_shot", 3);
  Launch launch = launch_of(one_shot, Protocol::LL);
  launch.works.push_back(launch.works[0]);
  launch.list_channels = 1;
  EXPECT_EQ(kernel_of(launch), "list");
  launch.list_access = ListAccess{.inputs = 7, .outputs = 7};
  EXPECT_EQ(kernel_of(launch), "direct list");
}

TEST(PatternKernels, GetMessagesOfWhichEachHasOnePeer) {
  const std::vector<algorithms::Envelope> envelopes{{0, 1}, {1, 0}, {0, 2}};
  const Schedule messages = algorithms::point_to_point(3, envelopes).take();
  EXPECT_EQ(kernel_of(launch_of(messages, Protocol::LL)), "messages");
  EXPECT_EQ(kernel_of(launch_of(messages, Protocol::Simple)), "the interpreter");
}

TEST(PatternKernels, HaveFewPeersWhereCountersLieInHostMemory) {
  const int most = static_cast<int>(kFewDirectPeers) + 1;
  for (const int nranks : {most, most + 1}) {
    const Schedule one_shot = build(Collective::AllReduce, "one_shot", nranks);
    EXPECT_EQ(kernel_of(launch_of(one_shot, Protocol::LL)), "one step");
    EXPECT_EQ(kernel_of(launch_of(one_shot, Protocol::LL, /*in_host=*/true)),
              nranks == most ? "one step" : "the interpreter");
  }
}

}  // namespace
}  // namespace niccolite::executor::cuda
