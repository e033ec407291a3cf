// Capture, replay, and what graphs keep alive.
#include <atomic>

#include "conformance/gpu_fixture.h"

namespace niccolite::gpu {
namespace {

void count_up(void* counter) {
  static_cast<std::atomic<int>*>(counter)->fetch_add(1, std::memory_order_relaxed);
}

TEST_P(Gpu, CapturedWorkRunsAtReplayOnly) {
  Memory memory = allocate(4);
  Stream stream = must(machine->create_stream(0));
  EXPECT_EQ(must(machine->capture_of(0, stream.handle())).state, CaptureState::None);
  ASSERT_OK(machine->begin_capture(0, stream.handle()));
  EXPECT_EQ(must(machine->capture_of(0, stream.handle())).state, CaptureState::Active);
  ASSERT_OK(machine->set_async(memory.data(), 0x11, 16, 0, stream.handle()));
  Graph graph = must(machine->end_capture(0, stream.handle()));
  EXPECT_EQ(must(machine->capture_of(0, stream.handle())).state, CaptureState::None);
  EXPECT_EQ(read(memory.data(), 4), std::vector<uint32_t>(4, 0));
  ASSERT_OK(machine->launch_graph(graph, 0, stream.handle()));
  ASSERT_OK(machine->synchronize_stream(0, stream.handle()));
  EXPECT_EQ(read(memory.data(), 4), std::vector<uint32_t>(4, 0x11111111));
}

TEST_P(Gpu, CapturesHaveDifferentIds) {
  Stream a = must(machine->create_stream(0));
  Stream b = must(machine->create_stream(0));
  ASSERT_OK(machine->begin_capture(0, a.handle()));
  ASSERT_OK(machine->begin_capture(0, b.handle()));
  EXPECT_NE(must(machine->capture_of(0, a.handle())).id,
            must(machine->capture_of(0, b.handle())).id);
  ASSERT_OK(machine->end_capture(0, b.handle()));
  ASSERT_OK(machine->end_capture(0, a.handle()));
}

TEST_P(Gpu, ReplaysFollowOneAnotherAndTheStreamsOrder) {
  constexpr int kReplays = 30;
  constexpr int kSteps = 5;
  Memory ring = allocate(kSteps + 1);
  auto* words = static_cast<uint32_t*>(ring.data());
  Memory host = must(machine->allocate_host(4));
  Stream stream = must(machine->create_stream(0));
  std::atomic<int> calls{0};
  // Each replay shifts the words by one place; a replay that overtakes another loses a word.
  ASSERT_OK(machine->begin_capture(0, stream.handle()));
  for (int i = kSteps; i > 0; --i)
    ASSERT_OK(machine->copy_async(words + i, words + i - 1, 4, 0, stream.handle()));
  ASSERT_OK(machine->call_host(0, stream.handle(), &count_up, &calls));
  Graph graph = must(machine->end_capture(0, stream.handle()));
  for (int i = 0; i < kReplays; ++i) {
    ASSERT_OK(machine->set_async(words, static_cast<uint8_t>(i), 4, 0, stream.handle()));
    ASSERT_OK(machine->launch_graph(graph, 0, stream.handle()));
  }
  ASSERT_OK(machine->synchronize_stream(0, stream.handle()));
  EXPECT_EQ(calls.load(std::memory_order_relaxed), kReplays);
  std::vector<uint32_t> expected;
  for (int i = 0; i <= kSteps; ++i)
    expected.push_back(0x01010101u * static_cast<uint32_t>(kReplays - std::max(i, 1)));
  EXPECT_EQ(read(ring.data(), kSteps + 1), expected);
}

TEST_P(Gpu, ReplaysInTwoStreamsDoNotOverlap) {
  Memory host = must(machine->allocate_host(8));
  auto* words = static_cast<uint32_t*>(host.data());
  Stream a = must(machine->create_stream(0));
  Stream b = must(machine->create_stream(0));
  struct Busy {
    std::atomic<int> inside{0};
    std::atomic<int> most{0};
  } busy;
  const auto enter = [](void* data) {
    auto* counts = static_cast<Busy*>(data);
    const int now = counts->inside.fetch_add(1) + 1;
    if (now > counts->most.load()) counts->most.store(now);
  };
  const auto leave = [](void* data) { static_cast<Busy*>(data)->inside.fetch_sub(1); };
  ASSERT_OK(machine->begin_capture(0, a.handle()));
  ASSERT_OK(machine->call_host(0, a.handle(), enter, &busy));
  ASSERT_OK(machine->set_async(words, 1, 8, 0, a.handle()));
  ASSERT_OK(machine->call_host(0, a.handle(), leave, &busy));
  Graph graph = must(machine->end_capture(0, a.handle()));
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK(machine->launch_graph(graph, 0, a.handle()));
    ASSERT_OK(machine->launch_graph(graph, 0, b.handle()));
  }
  ASSERT_OK(machine->synchronize_stream(0, a.handle()));
  ASSERT_OK(machine->synchronize_stream(0, b.handle()));
  EXPECT_EQ(busy.most.load(), 1);
}

TEST_P(Gpu, AnEventBringsAnotherStreamIntoTheCapture) {
  Memory memory = allocate(3);
  auto* words = static_cast<uint32_t*>(memory.data());
  Stream origin = must(machine->create_stream(0));
  Stream side = must(machine->create_stream(0));
  Event fork = must(machine->create_event(0, false));
  Event join = must(machine->create_event(0, false));
  ASSERT_OK(machine->begin_capture(0, origin.handle()));
  ASSERT_OK(machine->set_async(words, 1, 4, 0, origin.handle()));
  ASSERT_OK(machine->record_event(fork, 0, origin.handle()));
  ASSERT_OK(machine->wait_event(0, side.handle(), fork));
  EXPECT_EQ(must(machine->capture_of(0, side.handle())).id,
            must(machine->capture_of(0, origin.handle())).id);
  ASSERT_OK(machine->copy_async(words + 1, words, 4, 0, side.handle()));
  ASSERT_OK(machine->record_event(join, 0, side.handle()));
  ASSERT_OK(machine->wait_event(0, origin.handle(), join));
  ASSERT_OK(machine->copy_async(words + 2, words + 1, 4, 0, origin.handle()));
  Graph graph = must(machine->end_capture(0, origin.handle()));
  EXPECT_EQ(must(machine->capture_of(0, side.handle())).state, CaptureState::None);
  ASSERT_OK(machine->launch_graph(graph, 0, side.handle()));
  ASSERT_OK(machine->synchronize_stream(0, side.handle()));
  EXPECT_EQ(read(words, 3), std::vector<uint32_t>(3, 0x01010101));
}

TEST_P(Gpu, ACaptureWithoutItsJoinIsRefused) {
  Memory memory = allocate(1);
  Stream origin = must(machine->create_stream(0));
  Stream side = must(machine->create_stream(0));
  Event fork = must(machine->create_event(0, false));
  ASSERT_OK(machine->begin_capture(0, origin.handle()));
  ASSERT_OK(machine->record_event(fork, 0, origin.handle()));
  ASSERT_OK(machine->wait_event(0, side.handle(), fork));
  ASSERT_OK(machine->set_async(memory.data(), 1, 4, 0, side.handle()));
  EXPECT_EQ(machine->end_capture(0, origin.handle()).status().code(), Code::CudaError);
  // Both streams are as before.
  ASSERT_OK(machine->set_async(memory.data(), 2, 4, 0, side.handle()));
  ASSERT_OK(machine->synchronize_stream(0, side.handle()));
  ASSERT_OK(machine->synchronize_stream(0, origin.handle()));
}

TEST_P(Gpu, TheLegacyStreamIsNotCaptured) {
  EXPECT_EQ(machine->begin_capture(0, nullptr).code(), Code::CudaError);
}

TEST_P(Gpu, WaitingForACapturingStreamInvalidatesTheCapture) {
  Stream stream = must(machine->create_stream(0));
  ASSERT_OK(machine->begin_capture(0, stream.handle()));
  EXPECT_EQ(machine->synchronize_stream(0, stream.handle()).code(), Code::CudaError);
  EXPECT_EQ(must(machine->capture_of(0, stream.handle())).state, CaptureState::Invalidated);
  EXPECT_EQ(machine->end_capture(0, stream.handle()).status().code(), Code::CudaError);
  ASSERT_OK(machine->synchronize_stream(0, stream.handle()));
}

TEST_P(Gpu, KeptObjectsAreReleasedWithTheGraph) {
  Stream stream = must(machine->create_stream(0));
  Memory memory = allocate(1);
  std::atomic<int> released{0};
  ASSERT_OK(machine->begin_capture(0, stream.handle()));
  ASSERT_OK(machine->set_async(memory.data(), 1, 4, 0, stream.handle()));
  ASSERT_OK(machine->keep_in_graph(0, stream.handle(), &released, &count_up));
  Graph graph = must(machine->end_capture(0, stream.handle()));
  for (int i = 0; i < 3; ++i) ASSERT_OK(machine->launch_graph(graph, 0, stream.handle()));
  ASSERT_OK(machine->synchronize_stream(0, stream.handle()));
  EXPECT_EQ(released.load(std::memory_order_relaxed), 0);
  graph.reset();
  if (GetParam() == Kind::Cuda) GTEST_SKIP() << "the CUDA driver calls back in its own time";
  EXPECT_EQ(released.load(std::memory_order_relaxed), 1);
}

TEST_P(Gpu, OnlyCapturingStreamsKeepObjects) {
  Stream stream = must(machine->create_stream(0));
  std::atomic<int> released{0};
  EXPECT_FALSE(machine->keep_in_graph(0, stream.handle(), &released, &count_up).is_ok());
  EXPECT_EQ(released.load(std::memory_order_relaxed), 0);
}

TEST_P(Gpu, AllocatingDuringACaptureDoesNotDisturbIt) {
  Stream stream = must(machine->create_stream(0));
  ASSERT_OK(machine->begin_capture(0, stream.handle()));
  Memory memory = allocate(1);
  Memory host = must(machine->allocate_host(4));
  ASSERT_OK(machine->set_async(memory.data(), 1, 4, 0, stream.handle()));
  Graph graph = must(machine->end_capture(0, stream.handle()));
  ASSERT_OK(machine->launch_graph(graph, 0, stream.handle()));
  ASSERT_OK(machine->synchronize_stream(0, stream.handle()));
}

}  // namespace
}  // namespace niccolite::gpu
