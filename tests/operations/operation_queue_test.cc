// The steps of an operation queue: groups that are under way side by side, and calls that come
// again.
#include "operations/operation_queue.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/wait.h"
#include "gpu/virtual/driver.h"
#include "planner/settings.h"

namespace niccolite::operations {
namespace {

gpu::Machine& machine() { return *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion); }

/// The queue of a communicator of one rank.
struct Lone {
  planner::Settings settings = planner::make_settings(gpu::Kind::Virtual, /*nranks=*/1, {}).take();
  executor::ControlWords control{};
  OperationQueue queue{
      OperationQueue::Parts{.machine = machine(), .settings = settings, .control = &control}};
};

constexpr size_t kCount = 100;

/// All-reduces of one rank, which scale, or copy.
struct Calls {
  Calls(size_t number, double scale, gpu::StreamHandle stream)
      : scale(scale), inputs(number), outputs(number), tasks(number) {
    for (size_t i = 0; i < number; ++i) {
      inputs[i].assign(kCount, static_cast<float>(i + 1));
      outputs[i].assign(kCount, 0);
      planner::Request& request = tasks[i].call.request;
      request = {.collective = schedule::Collective::AllReduce,
                 .count = kCount,
                 .type = executor::DataType::Float32};
      if (scale != 1) request.op = {.operation = planner::Operation::PreMulSum, .scale = scale};
      tasks[i].input = inputs[i].data();
      tasks[i].output = outputs[i].data();
      tasks[i].stream = stream;
    }
  }
  bool are_right() const {
    for (size_t i = 0; i < outputs.size(); ++i)
      for (const float value : outputs[i])
        if (value != static_cast<float>(scale) * static_cast<float>(i + 1)) return false;
    return true;
  }

  double scale;
  std::vector<std::vector<float>> inputs, outputs;
  std::vector<calls::Task> tasks;
};

Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

#define ASSERT_FINE(...)                             \
  do {                                               \
    const Status status = (__VA_ARGS__);             \
    ASSERT_TRUE(status.is_ok()) << status.message(); \
  } while (false)

// Another thread's group may be captured while this one's waits for peers.
TEST(OperationQueue, RemembersAGroupByThePlansThatWereChosenForIt) {
  Lone lone;
  const gpu::Stream live = machine().create_stream(0).take();
  const gpu::Stream captured = machine().create_stream(0).take();
  Calls first(2, 3, live.handle()), second(2, 5, captured.handle());
  Chosen of_first = lone.queue.choose(first.tasks).take();
  ASSERT_FINE(machine().begin_capture(0, captured.handle()));
  Chosen of_second = lone.queue.choose(second.tasks).take();
  ASSERT_NE(of_first.plans, of_second.plans);
  ASSERT_FINE(lone.queue.connect(of_first, soon()));
  ASSERT_FINE(lone.queue.connect(of_second, soon()));
  ASSERT_FINE(lone.queue.launch(of_first, 0, of_first.launches()));
  ASSERT_FINE(lone.queue.launch(of_second, 0, of_second.launches()));
  gpu::Graph graph = machine().end_capture(0, captured.handle()).take();
  ASSERT_FINE(machine().synchronize_stream(0, live.handle()));
  EXPECT_TRUE(first.are_right());
  EXPECT_FALSE(second.are_right()) << "the graph has not been launched";

  const Chosen again = lone.queue.choose(first.tasks).take();
  EXPECT_FALSE(again.is_new);
  EXPECT_EQ(again.group, of_first.group);
}

TEST(OperationQueue, FindsCallsAgainAndTakesTheBuffersOfTheNewOnes) {
  Lone lone;
  const gpu::Stream stream = machine().create_stream(0).take();
  const gpu::Stream other = machine().create_stream(0).take();
  for (const double scale : {1.0, 3.0}) {  // a copy, and a kernel
    for (const size_t number : {1, 3}) {
      Calls first(number, scale, stream.handle()), again(number, scale, other.handle());
      ASSERT_FINE(lone.queue.carry_out(first.tasks, std::chrono::seconds(10)));
      const Chosen chosen = lone.queue.choose(again.tasks).take();
      EXPECT_FALSE(chosen.is_new) << number << " calls, scaled by " << scale;
      ASSERT_FINE(lone.queue.launch(chosen, 0, chosen.launches()));
      ASSERT_FINE(machine().synchronize_stream(0, other.handle()));
      EXPECT_TRUE(first.are_right());
      EXPECT_TRUE(again.are_right());
    }
  }
}

// A remembered group is found by its calls, and its streams are no part of them.
TEST(OperationQueue, RemembersNoGroupOfSeveralStreams) {
  Lone lone;
  const gpu::Stream stream = machine().create_stream(0).take();
  const gpu::Stream other = machine().create_stream(0).take();
  Calls calls(2, 3, stream.handle());
  calls.tasks[1].stream = other.handle();
  for (int i = 0; i < 2; ++i) {
    Chosen chosen = lone.queue.choose(calls.tasks).take();
    EXPECT_TRUE(chosen.is_new);
    ASSERT_FINE(lone.queue.connect(chosen, soon()));
    ASSERT_FINE(lone.queue.launch(chosen, 0, chosen.launches()));
  }
  ASSERT_FINE(machine().synchronize_stream(0, stream.handle()));
  ASSERT_FINE(machine().synchronize_stream(0, other.handle()));
  EXPECT_TRUE(calls.are_right());
}

}  // namespace
}  // namespace niccolite::operations
