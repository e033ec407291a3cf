// What graphs wait for, and what waits for them, beyond the streams they are launched on.
#include <dlfcn.h>

#include <atomic>
#include <thread>

#include "conformance/gpu_fixture.h"

namespace niccolite::gpu {
namespace {

using std::chrono::milliseconds;

const StreamHandle kPerThread = reinterpret_cast<StreamHandle>(2);

/// Numbers host calls in the order in which they run.
class Order {
 public:
  struct Call {
    Order* order;
    std::atomic<int> place{-1};
  };
  static void run(void* call) {
    auto* mine = static_cast<Call*>(call);
    mine->place.store(mine->order->next_.fetch_add(1));
  }

 private:
  std::atomic<int> next_{0};
};

TEST_P(Gpu, AGraphWaitsForTheLastRecordBeforeEachLaunch) {
  Stream live = must(machine->create_stream(0));
  Stream stream = must(machine->create_stream(0));
  Event event = must(machine->create_event(0, false));
  std::atomic<int> replays{0};
  const auto count = [](void* counter) { static_cast<std::atomic<int>*>(counter)->fetch_add(1); };
  ASSERT_OK(machine->begin_capture(0, stream.handle()));
  ASSERT_OK(machine->wait_event_at_launch(0, stream.handle(), event));
  ASSERT_OK(machine->call_host(0, stream.handle(), count, &replays));
  Graph graph = must(machine->end_capture(0, stream.handle()));

  ASSERT_OK(machine->launch_graph(graph, 0, stream.handle()));  // never recorded: no wait
  ASSERT_OK(machine->synchronize_stream(0, stream.handle()));
  EXPECT_EQ(replays.load(), 1);

  Gate gate;
  ASSERT_OK(machine->record_event(event, 0, live.handle()));
  ASSERT_OK(machine->launch_graph(graph, 0, stream.handle()));
  ASSERT_OK(machine->call_host(0, live.handle(), &Gate::pass, &gate));
  gate.wait_for_arrival();
  ASSERT_OK(machine->synchronize_stream(0, stream.handle()));  // what comes later is not waited for
  EXPECT_EQ(replays.load(), 2);

  ASSERT_OK(machine->record_event(event, 0, live.handle()));
  ASSERT_OK(machine->launch_graph(graph, 0, stream.handle()));
  EXPECT_FALSE(must(machine->query_stream(0, stream.handle())));
  EXPECT_EQ(replays.load(), 2);
  gate.open();
  ASSERT_OK(machine->synchronize_stream(0, stream.handle()));
  EXPECT_EQ(replays.load(), 3);
}

TEST_P(Gpu, ARecordInAGraphCountsFromItsLaunch) {
  Stream stream = must(machine->create_stream(0));
  Stream other = must(machine->create_stream(0));
  Event event = must(machine->create_event(0, false));
  Gate gate;
  ASSERT_OK(machine->begin_capture(0, stream.handle()));
  ASSERT_OK(machine->call_host(0, stream.handle(), &Gate::pass, &gate));
  const CapturePoint point = must(machine->capture_point(0, stream.handle()));
  EXPECT_EQ(point.nodes.size(), 1u);
  ASSERT_OK(machine->record_event_at_launch(0, point, event));
  // The record is in nobody's way: it is no part of the stream, and needs no join.
  EXPECT_EQ(must(machine->capture_point(0, stream.handle())).nodes, point.nodes);
  Graph graph = must(machine->end_capture(0, stream.handle()));

  EXPECT_TRUE(must(machine->await_event(event, Deadline::after(milliseconds(0)))));
  ASSERT_OK(machine->launch_graph(graph, 0, stream.handle()));
  EXPECT_FALSE(must(machine->await_event(event, Deadline::after(milliseconds(1)))));
  ASSERT_OK(machine->wait_event(0, other.handle(), event));
  EXPECT_FALSE(must(machine->query_stream(0, other.handle())));
  gate.open();
  EXPECT_TRUE(must(machine->await_event(event, Deadline::never())));
  ASSERT_OK(machine->synchronize_stream(0, other.handle()));
  ASSERT_OK(machine->synchronize_stream(0, stream.handle()));
}

TEST_P(Gpu, ARecordInAGraphMovesOnWithTheCapture) {
  Stream stream = must(machine->create_stream(0));
  Stream other = must(machine->create_stream(0));
  Event event = must(machine->create_event(0, false));
  Order order;
  Order::Call calls[3] = {{&order}, {&order}, {&order}};
  ASSERT_OK(machine->begin_capture(0, stream.handle()));
  ASSERT_OK(machine->call_host(0, stream.handle(), &Order::run, &calls[0]));
  const CapturePoint first = must(machine->capture_point(0, stream.handle()));
  const GraphNode record = must(machine->record_event_at_launch(0, first, event));
  ASSERT_OK(machine->call_host(0, stream.handle(), &Order::run, &calls[1]));
  const CapturePoint second = must(machine->capture_point(0, stream.handle()));
  ASSERT_OK(machine->move_record(0, record, first, second));
  EXPECT_FALSE(machine->move_record(0, record, first, second).is_ok()) << "each edge is once";
  Graph graph = must(machine->end_capture(0, stream.handle()));
  ASSERT_OK(machine->launch_graph(graph, 0, stream.handle()));
  ASSERT_OK(machine->wait_event(0, other.handle(), event));
  ASSERT_OK(machine->call_host(0, other.handle(), &Order::run, &calls[2]));
  ASSERT_OK(machine->synchronize_stream(0, other.handle()));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(calls[i].place.load(), i);
}

TEST_P(Gpu, LaunchesThatWaitForAndRecordOneEventTakeTurns) {
  constexpr int kGraphs = 3;
  constexpr int kLaunches = 10;
  Event event = must(machine->create_event(0, false));
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
  Memory memory = allocate(1 << 16);
  std::vector<Stream> streams;
  std::vector<Graph> graphs;
  for (int i = 0; i < kGraphs; ++i) {
    streams.push_back(must(machine->create_stream(0)));
    const StreamHandle stream = streams.back().handle();
    ASSERT_OK(machine->begin_capture(0, stream));
    ASSERT_OK(machine->wait_event_at_launch(0, stream, event));
    ASSERT_OK(machine->call_host(0, stream, enter, &busy));
    ASSERT_OK(machine->set_async(memory.data(), 1, memory.bytes(), 0, stream));
    ASSERT_OK(machine->call_host(0, stream, leave, &busy));
    const CapturePoint point = must(machine->capture_point(0, stream));
    ASSERT_OK(machine->record_event_at_launch(0, point, event));
    graphs.push_back(must(machine->end_capture(0, stream)));
  }
  for (int launch = 0; launch < kLaunches; ++launch) {
    for (size_t i = 0; i < kGraphs; ++i)
      ASSERT_OK(machine->launch_graph(graphs[i], 0, streams[i].handle()));
  }
  EXPECT_TRUE(must(machine->await_event(event, Deadline::never())));
  EXPECT_EQ(busy.most.load(), 1);
  EXPECT_EQ(busy.inside.load(), 0);
  for (const Stream& stream : streams) ASSERT_OK(machine->synchronize_stream(0, stream.handle()));
}

TEST_P(Gpu, StreamsOfOneCaptureAreChainedWithoutAnEvent) {
  Stream origin = must(machine->create_stream(0));
  Stream side = must(machine->create_stream(0));
  Event fork = must(machine->create_event(0, false));
  Order order;
  Order::Call calls[3] = {{&order}, {&order}, {&order}};
  ASSERT_OK(machine->begin_capture(0, origin.handle()));
  ASSERT_OK(machine->record_event(fork, 0, origin.handle()));
  ASSERT_OK(machine->wait_event(0, side.handle(), fork));
  ASSERT_OK(machine->call_host(0, side.handle(), &Order::run, &calls[0]));
  const CapturePoint first = must(machine->capture_point(0, side.handle()));
  ASSERT_OK(machine->capture_after(0, origin.handle(), first));
  ASSERT_OK(machine->capture_after(0, origin.handle(), first));  // said twice is said once
  EXPECT_EQ(must(machine->capture_point(0, origin.handle())).nodes, first.nodes);
  ASSERT_OK(machine->call_host(0, origin.handle(), &Order::run, &calls[1]));
  ASSERT_OK(machine->call_host(0, origin.handle(), &Order::run, &calls[2]));
  Graph graph = must(machine->end_capture(0, origin.handle()));  // which joins the streams, too
  ASSERT_OK(machine->launch_graph(graph, 0, origin.handle()));
  ASSERT_OK(machine->synchronize_stream(0, origin.handle()));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(calls[i].place.load(), i);
}

TEST_P(Gpu, OnlyCapturingStreamsHaveAPlaceInAGraph) {
  Stream stream = must(machine->create_stream(0));
  Event event = must(machine->create_event(0, false));
  EXPECT_EQ(machine->capture_point(0, stream.handle()).status().code(), Code::InvalidUsage);
  EXPECT_EQ(machine->capture_after(0, stream.handle(), {}).code(), Code::InvalidUsage);
  EXPECT_EQ(machine->wait_event_at_launch(0, stream.handle(), event).code(), Code::InvalidUsage);
  ASSERT_OK(machine->record_event(event, 0, stream.handle()));
  ASSERT_OK(machine->synchronize_stream(0, stream.handle()));
}

TEST_P(Gpu, ThePerThreadStreamIsCaptured) {
  Memory host = must(machine->allocate_host(4));
  ASSERT_OK(machine->begin_capture(0, kPerThread));
  ASSERT_OK(machine->set_async(host.data(), 1, 4, 0, kPerThread));
  std::thread other(
      [&] { EXPECT_EQ(must(machine->capture_of(0, kPerThread)).state, CaptureState::None); });
  other.join();
  Graph graph = must(machine->end_capture(0, kPerThread));
  ASSERT_OK(machine->launch_graph(graph, 0, kPerThread));
  ASSERT_OK(machine->synchronize_stream(0, kPerThread));
  EXPECT_EQ(*static_cast<uint32_t*>(host.data()), 0x01010101u);
}

TEST_P(Gpu, ACapturingStreamIsNotAskedForItsIdentity) {
  Stream stream = must(machine->create_stream(0));
  Stream live = must(machine->create_stream(0));
  ASSERT_OK(machine->begin_capture(0, stream.handle()));
  for (StreamHandle other : {live.handle(), StreamHandle{nullptr}, kPerThread})
    EXPECT_TRUE(machine->stream_id(0, other).is_ok());
  EXPECT_EQ(must(machine->capture_of(0, stream.handle())).state, CaptureState::Active);
  EXPECT_EQ(machine->stream_id(0, stream.handle()).status().code(), Code::CudaError);
  EXPECT_EQ(must(machine->capture_of(0, stream.handle())).state, CaptureState::Invalidated);
  EXPECT_FALSE(machine->end_capture(0, stream.handle()).is_ok());
}

TEST_P(Gpu, WaitingForAnEventDisturbsNoCapture) {
  Memory memory = allocate(1);
  Stream stream = must(machine->create_stream(0));
  Stream live = must(machine->create_stream(0));
  Event event = must(machine->create_event(0, false));
  ASSERT_OK(machine->begin_capture(0, stream.handle()));
  ASSERT_OK(machine->set_async(memory.data(), 1, 4, 0, stream.handle()));
  Gate gate;
  ASSERT_OK(machine->call_host(0, live.handle(), &Gate::pass, &gate));
  ASSERT_OK(machine->record_event(event, 0, live.handle()));
  EXPECT_FALSE(must(machine->await_event(event, Deadline::after(milliseconds(1)))));
  gate.open();
  EXPECT_TRUE(must(machine->await_event(event, Deadline::never())));
  EXPECT_EQ(must(machine->capture_of(0, stream.handle())).state, CaptureState::Active);
  ASSERT_OK(machine->end_capture(0, stream.handle()));
}

// A backlog is made once, and can then be awaited whatever the program captures.
TEST_P(Gpu, WaitingForABacklogDisturbsNoCapture) {
  if (GetParam() == Kind::Cuda &&
      dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxRecordEvent") == nullptr)
    GTEST_SKIP() << "a driver before CUDA 12.5: a thread waits, which may begin after the capture";
  Memory memory = allocate(1);
  Stream stream = must(machine->create_stream(0));
  Stream live = must(machine->create_stream(0));
  Gate gate;
  ASSERT_OK(machine->call_host(0, live.handle(), &Gate::pass, &gate));
  const std::shared_ptr<Backlog> backlog = must(machine->backlog(0));
  EXPECT_FALSE(must(backlog->await(Deadline::after(milliseconds(1)))));
  ASSERT_OK(machine->begin_capture(0, stream.handle()));
  ASSERT_OK(machine->set_async(memory.data(), 1, 4, 0, stream.handle()));
  EXPECT_FALSE(must(backlog->await(Deadline::after(milliseconds(1)))));
  gate.open();
  EXPECT_TRUE(must(backlog->await(Deadline::never())));
  EXPECT_EQ(must(machine->capture_of(0, stream.handle())).state, CaptureState::Active);
  ASSERT_OK(machine->end_capture(0, stream.handle()));
}

TEST_P(Gpu, DrainingWhileAStreamIsCapturingWorksOrSaysWhyNot) {
  Memory memory = allocate(1);
  Stream stream = must(machine->create_stream(0));
  ASSERT_OK(machine->begin_capture(0, stream.handle()));
  ASSERT_OK(machine->set_async(memory.data(), 1, 4, 0, stream.handle()));
  const Result<bool> drained = machine->drain(0, Deadline::after(milliseconds(1000)));
  if (GetParam() == Kind::Virtual) {
    EXPECT_TRUE(must(machine->drain(0, Deadline::after(milliseconds(1000)))));
    ASSERT_OK(machine->end_capture(0, stream.handle()));
  } else {
    EXPECT_EQ(drained.status().code(), Code::InvalidUsage);
    EXPECT_NE(drained.status().message().find("captur"), std::string::npos);
    EXPECT_FALSE(machine->end_capture(0, stream.handle()).is_ok());
  }
  EXPECT_TRUE(must(machine->drain(0, Deadline::never())));
}

}  // namespace
}  // namespace niccolite::gpu
