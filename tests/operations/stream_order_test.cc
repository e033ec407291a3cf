// Operations are kernels that say when they run: those of one communicator must run one at a time
// and in the order in which the host launched them.
#include "operations/stream_order.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "gpu/virtual/tasks.h"

extern "C" niccolite::gpu::virtual_::VirtualMachine* niccolite_virtual_driver(int);

namespace niccolite::operations {
namespace {

using gpu::StreamHandle;
using gpu::virtual_::Kernel;
using gpu::virtual_::Progress;
using gpu::virtual_::Task;

const StreamHandle kLegacy = nullptr;
const StreamHandle kPerThread = reinterpret_cast<StreamHandle>(2);

gpu::virtual_::VirtualMachine& machine() {
  return *niccolite_virtual_driver(gpu::virtual_::kInterfaceVersion);
}

#define ASSERT_OK(...)                                                             \
  do {                                                                             \
    const Status niccolite_test_status = (__VA_ARGS__);                            \
    ASSERT_TRUE(niccolite_test_status.is_ok()) << niccolite_test_status.message(); \
  } while (false)

template <typename T>
T must(Result<T> result) {
  if (!result.is_ok()) {
    ADD_FAILURE() << result.status().message();
    std::abort();
  }
  return std::move(result).take();
}

/// A kernel made of a function that is called until it returns Done, anew for each run.
class FunctionKernel final : public Kernel {
 public:
  using Step = std::function<Progress()>;
  explicit FunctionKernel(std::function<Step()> start) : start_(std::move(start)) {}
  std::unique_ptr<Task> start() override {
    struct Run final : Task {
      explicit Run(Step run) : call(std::move(run)) {}
      Progress step() override { return call(); }
      Step call;
    };
    return std::make_unique<Run>(start_());
  }

 private:
  std::function<Step()> start_;
};

/// Holds back the streams that wait() was queued on, until it is opened or gone.
class Gate {
 public:
  ~Gate() { open(); }
  void open() { is_open_->store(true, std::memory_order_release); }  // pairs with wait()
  void wait(StreamHandle stream) {
    const auto step = [is_open = is_open_] {
      return is_open->load(std::memory_order_acquire) ? Progress::Done : Progress::WouldBlock;
    };
    EXPECT_TRUE(machine()
                    .launch(0, stream, std::make_shared<FunctionKernel>([step] { return step; }))
                    .is_ok());
  }

 private:
  std::shared_ptr<std::atomic<bool>> is_open_ = std::make_shared<std::atomic<bool>>(false);
};

/// One communicator: its order, and what ran.
class Communicator {
 public:
  explicit Communicator(bool graphs_mix = true)
      : order(std::in_place, machine(), /*device=*/0, graphs_mix) {}
  ~Communicator() { EXPECT_TRUE(must(machine().drain(0, Deadline::never()))); }

  /// Launches operation `name` on `stream`; it takes `steps`.
  Status launch(int name, StreamHandle stream, int steps = 3) {
    TRY(order->before(stream));
    TRY(machine().launch(0, stream, std::make_shared<FunctionKernel>([this, name, steps] {
                           return [this, name, left = steps, started = false]() mutable {
                             if (!std::exchange(started, true)) begin(name);
                             if (--left > 0) return Progress::Advanced;
                             running_.fetch_sub(1);
                             return Progress::Done;
                           };
                         })));
    return order->after(stream);
  }
  std::vector<int> wait() {
    EXPECT_TRUE(must(order->drain(Deadline::never())));
    return ran();
  }
  std::vector<int> ran() {
    std::lock_guard lock(mutex_);
    return ran_;
  }
  int overlaps() const { return overlaps_.load(); }

  std::optional<StreamOrder> order;

 private:
  void begin(int name) {
    if (running_.fetch_add(1) != 0) overlaps_.fetch_add(1);
    std::lock_guard lock(mutex_);
    ran_.push_back(name);
  }
  std::atomic<int> running_{0};
  std::atomic<int> overlaps_{0};
  std::mutex mutex_;
  std::vector<int> ran_;
};

gpu::Stream make_stream() { return must(machine().create_stream(0)); }

gpu::Graph capture(StreamHandle stream, const std::function<void()>& body) {
  EXPECT_TRUE(machine().begin_capture(0, stream).is_ok());
  body();
  return must(machine().end_capture(0, stream));
}

// ---- live operations

TEST(StreamOrder, LiveOperationsOfSeveralStreamsFollowOneAnother) {
  Communicator communicator;
  gpu::Stream a = make_stream();
  gpu::Stream b = make_stream();
  Gate gate;
  gate.wait(a.handle());
  ASSERT_OK(communicator.launch(1, a.handle()));
  ASSERT_OK(communicator.launch(2, b.handle()));
  ASSERT_OK(communicator.launch(3, kLegacy));
  ASSERT_OK(communicator.launch(4, kPerThread));
  ASSERT_OK(communicator.launch(5, a.handle()));
  EXPECT_EQ(communicator.ran(), std::vector<int>());
  gate.open();
  EXPECT_EQ(communicator.wait(), std::vector<int>({1, 2, 3, 4, 5}));
}

TEST(StreamOrder, AStreamMayBeDestroyedAfterItsOperation) {
  Communicator communicator;
  Gate gate;
  for (int i = 0; i < 20; ++i) {
    gpu::Stream stream = make_stream();
    if (i == 0) gate.wait(stream.handle());
    ASSERT_OK(communicator.launch(i, stream.handle()));
  }
  EXPECT_EQ(communicator.ran(), std::vector<int>());
  gate.open();
  EXPECT_EQ(communicator.wait().size(), 20u);
  EXPECT_EQ(communicator.overlaps(), 0);
}

TEST(StreamOrder, EachThreadsDefaultStreamIsAStreamOfItsOwn) {
  Communicator communicator;
  Gate gate;
  gate.wait(kPerThread);
  ASSERT_OK(communicator.launch(1, kPerThread));
  std::thread([&] { EXPECT_TRUE(communicator.launch(2, kPerThread).is_ok()); }).join();
  std::thread([&] { EXPECT_TRUE(communicator.launch(3, kPerThread).is_ok()); }).join();
  EXPECT_EQ(communicator.ran(), std::vector<int>());
  gate.open();
  EXPECT_EQ(communicator.wait(), std::vector<int>({1, 2, 3}));
}

// ---- graphs

TEST(StreamOrder, ALiveOperationWaitsForAGraphInFlight) {
  Communicator communicator;
  gpu::Stream a = make_stream();
  gpu::Stream b = make_stream();
  Gate gate;
  gpu::Graph graph = capture(a.handle(), [&] {
    gate.wait(a.handle());
    ASSERT_OK(communicator.launch(1, a.handle()));
    ASSERT_OK(communicator.launch(2, a.handle()));
  });
  ASSERT_OK(machine().launch_graph(graph, 0, a.handle()));
  ASSERT_OK(communicator.launch(3, b.handle()));
  EXPECT_FALSE(must(communicator.order->drain(Deadline::after(std::chrono::milliseconds(1)))));
  EXPECT_EQ(communicator.ran(), std::vector<int>());
  gate.open();
  EXPECT_EQ(communicator.wait(), std::vector<int>({1, 2, 3}));
}

TEST(StreamOrder, AGraphWaitsForLiveWorkLaunchedBeforeIt) {
  Communicator communicator;
  gpu::Stream a = make_stream();
  gpu::Stream b = make_stream();
  // Before, during and after the capture, which is on the stream of the earlier live operation.
  ASSERT_OK(communicator.launch(0, a.handle()));
  gpu::Graph graph = capture(a.handle(), [&] {
    ASSERT_OK(communicator.launch(10, a.handle()));
    ASSERT_OK(communicator.launch(1, b.handle()));
    ASSERT_OK(communicator.launch(11, a.handle()));
  });
  Gate gate;
  gate.wait(b.handle());
  ASSERT_OK(communicator.launch(2, b.handle()));
  ASSERT_OK(machine().launch_graph(graph, 0, a.handle()));
  ASSERT_OK(communicator.launch(3, b.handle()));
  ASSERT_OK(machine().launch_graph(graph, 0, a.handle()));
  EXPECT_NE(communicator.ran().size(), 8u);
  gate.open();
  EXPECT_EQ(communicator.wait(), std::vector<int>({0, 1, 2, 10, 11, 3, 10, 11}));
}

TEST(StreamOrder, LiveWorkBeforeTheFirstCaptureCountsForAGraphOnAnotherStream) {
  Communicator communicator;
  gpu::Stream a = make_stream();
  gpu::Stream b = make_stream();
  Gate gate;
  gate.wait(a.handle());
  ASSERT_OK(communicator.launch(1, a.handle()));
  gpu::Graph graph = capture(a.handle(), [&] { ASSERT_OK(communicator.launch(2, a.handle())); });
  ASSERT_OK(machine().launch_graph(graph, 0, b.handle()));
  EXPECT_FALSE(must(machine().query_stream(0, b.handle())));
  EXPECT_EQ(communicator.ran(), std::vector<int>());
  gate.open();
  EXPECT_EQ(communicator.wait(), std::vector<int>({1, 2}));
}

TEST(StreamOrder, GraphsOnTwoStreamsTakeTurns) {
  Communicator communicator;
  gpu::Stream a = make_stream();
  gpu::Stream b = make_stream();
  Gate gate;
  gpu::Graph first =
      capture(a.handle(), [&] { ASSERT_OK(communicator.launch(1, a.handle(), 20)); });
  gpu::Graph second =
      capture(b.handle(), [&] { ASSERT_OK(communicator.launch(2, b.handle(), 20)); });
  gate.wait(a.handle());
  std::vector<int> expected;
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK(machine().launch_graph(first, 0, a.handle()));
    ASSERT_OK(machine().launch_graph(second, 0, b.handle()));
    expected.insert(expected.end(), {1, 2});
  }
  // Their replays go on without them.
  first.reset();
  second.reset();
  EXPECT_EQ(communicator.ran(), std::vector<int>());
  gate.open();
  EXPECT_EQ(communicator.wait(), expected);
  EXPECT_EQ(communicator.overlaps(), 0);
}

TEST(StreamOrder, StreamsOfOneCaptureAreChained) {
  Communicator communicator;
  gpu::Stream a = make_stream();
  gpu::Stream b = make_stream();
  gpu::Event fork = must(machine().create_event(0, false));
  gpu::Event join = must(machine().create_event(0, false));
  Gate gate;
  gpu::Graph graph = capture(a.handle(), [&] {
    ASSERT_OK(machine().record_event(fork, 0, a.handle()));
    ASSERT_OK(machine().wait_event(0, b.handle(), fork));
    gate.wait(b.handle());  // not in the way of `a`, but for the operation that follows it
    ASSERT_OK(communicator.launch(1, b.handle()));
    ASSERT_OK(communicator.launch(2, a.handle()));
    ASSERT_OK(communicator.launch(3, b.handle()));
    ASSERT_OK(machine().record_event(join, 0, b.handle()));
    ASSERT_OK(machine().wait_event(0, a.handle(), join));
  });
  ASSERT_OK(machine().launch_graph(graph, 0, a.handle()));
  ASSERT_OK(communicator.launch(4, b.handle()));
  EXPECT_EQ(communicator.ran(), std::vector<int>());
  gate.open();
  EXPECT_EQ(communicator.wait(), std::vector<int>({1, 2, 3, 4}));
}

// A launch may begin early only where the communicator's last one is all that it comes after.
TEST(StreamOrder, KnowsACapturedOperationThatFollowsTheLastOneAndNothingElse) {
  Communicator communicator;
  gpu::Stream a = make_stream();
  gpu::Stream b = make_stream();
  gpu::Event event = must(machine().create_event(0, false));
  Gate gate;
  gate.open();
  const auto follows = [&](StreamHandle stream) {
    EXPECT_TRUE(communicator.launch(0, stream).is_ok());
    return communicator.order->follows_last();
  };
  EXPECT_FALSE(follows(a.handle()));
  EXPECT_FALSE(follows(a.handle())) << "live operations: nobody knows what stands between";
  gpu::Graph graph = capture(a.handle(), [&] {
    EXPECT_FALSE(follows(a.handle())) << "the first of a capture";
    EXPECT_TRUE(follows(a.handle()));
    gate.wait(a.handle());
    EXPECT_FALSE(follows(a.handle())) << "behind a kernel of the program";
    EXPECT_TRUE(follows(a.handle()));
    ASSERT_OK(machine().record_event(event, 0, a.handle()));
    ASSERT_OK(machine().wait_event(0, b.handle(), event));
    EXPECT_TRUE(follows(b.handle())) << "on a stream that comes after it alone";
    gate.wait(a.handle());
    EXPECT_FALSE(follows(a.handle())) << "behind a kernel of the program and the last operation";
    ASSERT_OK(machine().record_event(event, 0, b.handle()));
    ASSERT_OK(machine().wait_event(0, a.handle(), event));
  });
  EXPECT_FALSE(follows(a.handle()));
  EXPECT_EQ(communicator.wait().size(), 3u);
}

TEST(StreamOrder, OperationsMayAlternateBetweenTwoCaptures) {
  Communicator communicator;
  gpu::Stream a = make_stream();
  gpu::Stream b = make_stream();
  ASSERT_OK(machine().begin_capture(0, a.handle()));
  ASSERT_OK(machine().begin_capture(0, b.handle()));
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(communicator.launch(10 + i, a.handle()));
    ASSERT_OK(communicator.launch(20 + i, b.handle()));
  }
  gpu::Graph first = must(machine().end_capture(0, a.handle()));
  gpu::Graph second = must(machine().end_capture(0, b.handle()));
  Gate gate;
  gate.wait(b.handle());
  ASSERT_OK(machine().launch_graph(second, 0, b.handle()));
  ASSERT_OK(machine().launch_graph(first, 0, a.handle()));
  EXPECT_EQ(communicator.ran(), std::vector<int>());
  gate.open();
  EXPECT_EQ(communicator.wait(), std::vector<int>({20, 21, 22, 10, 11, 12}));
}

size_t nodes_of(Communicator& communicator, int operations) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  size_t nodes = 0;
  EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  for (int i = 0; i < operations; ++i) EXPECT_TRUE(communicator.launch(i, stream).is_ok());
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  return nodes;
}

TEST(StreamOrder, AGraphHasTwoNodesBesideItsOperationsHoweverManyThereAre) {
  Communicator communicator;
  EXPECT_EQ(nodes_of(communicator, 1), 3u);
  EXPECT_EQ(nodes_of(communicator, 40), 42u);
}

TEST(StreamOrder, AGraphThatDoesNotMixHoldsItsOperationsOnly) {
  Communicator communicator(/*graphs_mix=*/false);
  EXPECT_EQ(nodes_of(communicator, 40), 40u);
}

TEST(StreamOrder, AnOperationWithoutWorkLeavesTheOrderAsItIs) {
  Communicator communicator;
  gpu::Stream a = make_stream();
  gpu::Stream b = make_stream();
  const auto launch_nothing = [&](StreamHandle stream) {
    ASSERT_OK(communicator.order->before(stream));
    ASSERT_OK(communicator.order->after(stream));
  };
  Gate gate;
  gpu::Graph graph = capture(a.handle(), [&] {
    launch_nothing(a.handle());
    ASSERT_OK(communicator.launch(2, a.handle()));
    launch_nothing(a.handle());
    ASSERT_OK(communicator.launch(3, a.handle()));
    launch_nothing(a.handle());
  });
  gate.wait(a.handle());
  ASSERT_OK(communicator.launch(1, a.handle()));
  launch_nothing(b.handle());
  ASSERT_OK(machine().launch_graph(graph, 0, b.handle()));
  EXPECT_EQ(communicator.ran(), std::vector<int>());
  gate.open();
  EXPECT_EQ(communicator.wait(), std::vector<int>({1, 2, 3}));
}

TEST(StreamOrder, AnInvalidCaptureIsAnErrorAndNoMore) {
  Communicator communicator;
  gpu::Stream stream = make_stream();
  ASSERT_OK(machine().begin_capture(0, stream.handle()));
  ASSERT_OK(communicator.launch(1, stream.handle()));
  EXPECT_FALSE(machine().synchronize_stream(0, stream.handle()).is_ok());
  EXPECT_EQ(communicator.launch(2, stream.handle()).code(), Code::CudaError);
  EXPECT_FALSE(machine().end_capture(0, stream.handle()).is_ok());
  ASSERT_OK(communicator.launch(3, stream.handle()));
  // A capture that goes away with its stream.
  {
    gpu::Stream gone = make_stream();
    ASSERT_OK(machine().begin_capture(0, gone.handle()));
    ASSERT_OK(communicator.launch(4, gone.handle()));
  }
  ASSERT_OK(communicator.launch(5, stream.handle()));
  EXPECT_EQ(communicator.wait(), std::vector<int>({3, 5}));
}

TEST(StreamOrder, DrainingDisturbsNoCapture) {
  Communicator communicator;
  gpu::Stream stream = make_stream();
  gpu::Stream other = make_stream();
  ASSERT_OK(communicator.launch(1, other.handle()));
  gpu::Graph graph = capture(stream.handle(), [&] {
    ASSERT_OK(communicator.launch(2, stream.handle()));
    EXPECT_EQ(communicator.wait(), std::vector<int>({1}));
  });
  ASSERT_OK(machine().launch_graph(graph, 0, stream.handle()));
  EXPECT_EQ(communicator.wait(), std::vector<int>({1, 2}));
}

TEST(StreamOrder, AGraphMayOutliveTheOrder) {
  Communicator communicator;
  gpu::Stream stream = make_stream();
  gpu::Graph graph =
      capture(stream.handle(), [&] { ASSERT_OK(communicator.launch(1, stream.handle())); });
  communicator.order.reset();
  ASSERT_OK(machine().launch_graph(graph, 0, stream.handle()));
  ASSERT_OK(machine().synchronize_stream(0, stream.handle()));
  graph.reset();
  EXPECT_EQ(communicator.ran(), std::vector<int>({1}));
}

// ---- any program

/// A random program of two communicators over user streams that come and go, the special streams,
/// captures, and graphs that are launched again and again and destroyed in flight.
class Program {
 public:
  explicit Program(unsigned seed) : random_(seed) {
    for (size_t i = 0; i < kStreams; ++i) streams_.push_back(make_stream());
  }
  ~Program() {
    gate_.open();
    for (Capture& capture : captures_) end(capture);
  }

  void run(int steps) {
    gate_.wait(streams_[0].handle());
    for (int i = 0; i < steps && !testing::Test::HasFatalFailure(); ++i) {
      if (i == steps / 2) gate_.open();
      step();
    }
    gate_.open();
    for (Capture& capture : captures_) end(capture);
    captures_.clear();
    for (size_t i = 0; i < kCommunicators; ++i) {
      EXPECT_EQ(communicators_[i].wait(), expected_[i]) << "communicator " << i;
      EXPECT_EQ(communicators_[i].overlaps(), 0) << "communicator " << i;
    }
  }

 private:
  static constexpr size_t kStreams = 5;
  static constexpr size_t kCommunicators = 2;
  using Order = std::vector<int>;

  struct Graph {
    gpu::Graph graph;
    Order operations[kCommunicators] = {};
  };
  struct Capture {
    size_t origin;
    std::vector<size_t> streams;  // those in it, the origin first
    Order operations[kCommunicators] = {};
  };

  size_t below(size_t limit) {
    return std::uniform_int_distribution<size_t>(0, limit - 1)(random_);
  }

  Capture* capture_of(size_t stream) {
    for (Capture& capture : captures_)
      for (size_t member : capture.streams)
        if (member == stream) return &capture;
    return nullptr;
  }
  // A stream that is not capturing; the legacy one waits for no stream that captures here.
  StreamHandle live_stream() {
    std::vector<StreamHandle> choice{kLegacy, reinterpret_cast<StreamHandle>(1), kPerThread};
    for (size_t i = 0; i < kStreams; ++i)
      if (capture_of(i) == nullptr) choice.push_back(streams_[i].handle());
    return choice[below(choice.size())];
  }

  void delay(StreamHandle stream) {
    const size_t steps = below(50);
    ASSERT_OK(machine().launch(0, stream, std::make_shared<FunctionKernel>([steps] {
                                 return [left = steps]() mutable {
                                   return left-- > 0 ? Progress::Advanced : Progress::Done;
                                 };
                               })));
  }
  void operate(StreamHandle stream, Order (&order)[kCommunicators]) {
    if (below(2) == 0) delay(stream);
    const size_t i = below(kCommunicators);
    const int name = next_++;
    ASSERT_OK(communicators_[i].launch(name, stream, static_cast<int>(1 + below(8))));
    order[i].push_back(name);
  }

  void begin() {
    const size_t origin = below(kStreams);
    if (capture_of(origin) != nullptr || captures_.size() == 2) return;
    ASSERT_OK(machine().begin_capture(0, streams_[origin].handle()));
    captures_.push_back({.origin = origin, .streams = {origin}});
  }
  void fork(Capture& capture) {
    const size_t stream = below(kStreams);
    if (capture_of(stream) != nullptr) return;
    const size_t from = capture.streams[below(capture.streams.size())];
    link(from, stream);
    capture.streams.push_back(stream);
  }
  void link(size_t from, size_t to) {
    gpu::Event event = must(machine().create_event(0, false));
    ASSERT_OK(machine().record_event(event, 0, streams_[from].handle()));
    ASSERT_OK(machine().wait_event(0, streams_[to].handle(), event));
  }
  void end(Capture& capture) {
    for (size_t i = 1; i < capture.streams.size(); ++i) link(capture.streams[i], capture.origin);
    Graph graph{.graph = must(machine().end_capture(0, streams_[capture.origin].handle()))};
    std::copy(std::begin(capture.operations), std::end(capture.operations), graph.operations);
    graphs_.push_back(std::move(graph));
  }

  void step() {
    const size_t what = below(100);
    if (what < 40) {
      if (below(4) == 0) {  // another thread, whose own default stream ends with it
        std::thread([this] { operate(kPerThread, expected_); }).join();
      } else {
        operate(live_stream(), expected_);
      }
    } else if (what < 60) {
      if (captures_.empty()) return begin();
      Capture& capture = captures_[below(captures_.size())];
      operate(streams_[capture.streams[below(capture.streams.size())]].handle(),
              capture.operations);
    } else if (what < 65) {
      begin();
    } else if (what < 70) {
      if (!captures_.empty()) fork(captures_[below(captures_.size())]);
    } else if (what < 75) {
      if (captures_.empty()) return;
      const auto which = captures_.begin() + static_cast<ptrdiff_t>(below(captures_.size()));
      end(*which);
      captures_.erase(which);
    } else if (what < 92) {
      if (graphs_.empty()) return;
      Graph& graph = graphs_[below(graphs_.size())];
      ASSERT_OK(machine().launch_graph(graph.graph, 0, live_stream()));
      for (size_t i = 0; i < kCommunicators; ++i)
        expected_[i].insert(expected_[i].end(), graph.operations[i].begin(),
                            graph.operations[i].end());
    } else if (what < 95) {
      if (graphs_.size() > 2) graphs_.erase(graphs_.begin());  // perhaps in flight
    } else {
      const size_t stream = below(kStreams);
      if (capture_of(stream) == nullptr) streams_[stream] = make_stream();
    }
  }

  std::mt19937 random_;
  Gate gate_;
  Communicator communicators_[kCommunicators];
  Order expected_[kCommunicators];
  std::vector<gpu::Stream> streams_;
  std::vector<Capture> captures_;
  std::vector<Graph> graphs_;
  int next_ = 0;
};

TEST(StreamOrder, RandomProgramsRunInTheHostsOrder) {
  constexpr unsigned kPrograms = 150;
  for (unsigned seed = 1; seed <= kPrograms && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Program(seed).run(200);
  }
}

}  // namespace
}  // namespace niccolite::operations
