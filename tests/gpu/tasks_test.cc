// Kernels on virtual GPUs: resumable tasks that wait for one another.
#include "gpu/virtual/tasks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "base/wait.h"
#include "gpu/virtual/driver.h"

namespace niccolite::gpu::virtual_ {
namespace {

VirtualMachine& machine() { return *open(kInterfaceVersion); }

class FunctionTask : public Task {
 public:
  explicit FunctionTask(std::function<Progress()> body) : body_(std::move(body)) {}
  Progress step() override { return body_(); }

 private:
  std::function<Progress()> body_;
};

// Each execution gets a body of its own from `make`.
class FunctionKernel : public Kernel {
 public:
  explicit FunctionKernel(std::function<std::function<Progress()>()> make)
      : make_(std::move(make)) {}
  std::unique_ptr<Task> start() override { return std::make_unique<FunctionTask>(make_()); }

 private:
  std::function<std::function<Progress()>()> make_;
};

std::shared_ptr<Kernel> kernel(std::function<std::function<Progress()>()> make) {
  return std::make_shared<FunctionKernel>(std::move(make));
}
std::shared_ptr<Kernel> once(std::function<void()> work) {
  return kernel([work] {
    return [work] {
      work();
      return Progress::Done;
    };
  });
}

std::vector<Stream> make_streams(int count) {
  std::vector<Stream> streams;
  for (int i = 0; i < count; ++i) {
    Result<Stream> stream = machine().create_stream(i % machine().device_count());
    EXPECT_TRUE(stream.is_ok());
    streams.push_back(std::move(stream).take());
  }
  return streams;
}
int device_of(int stream) { return stream % machine().device_count(); }

// A token goes `rounds` times round `tasks` kernels, each of which can move only when it has the
// token.
struct Ring {
  explicit Ring(int size, int count) : tasks(size), rounds(count) {}
  const int tasks;
  const int rounds;
  std::atomic<int> token{0};  // place in the ring's order, counted on through all rounds

  std::shared_ptr<Kernel> kernel_of(int place) {
    return kernel([this, place] {
      return [this, place, round = 0]() mutable {
        // acquire pairs with the release below: what earlier holders did is visible.
        if (token.load(std::memory_order_acquire) != round * tasks + place)
          return Progress::WouldBlock;
        token.store(round * tasks + place + 1, std::memory_order_release);
        return ++round == rounds ? Progress::Done : Progress::Advanced;
      };
    });
  }
};

TEST(Tasks, AThousandKernelsThatWaitForEachOtherInARingComplete) {
  constexpr int kTasks = 1000;
  for (const bool against_queue_order : {false, true}) {
    Ring ring(kTasks, 3);
    std::vector<Stream> streams = make_streams(kTasks);
    for (int i = 0; i < kTasks; ++i) {
      const int place = against_queue_order ? kTasks - 1 - i : i;
      ASSERT_TRUE(
          machine()
              .launch(device_of(i), streams[static_cast<size_t>(i)].handle(), ring.kernel_of(place))
              .is_ok());
    }
    for (int i = 0; i < kTasks; ++i)
      ASSERT_TRUE(machine()
                      .synchronize_stream(device_of(i), streams[static_cast<size_t>(i)].handle())
                      .is_ok());
    EXPECT_EQ(ring.token.load(), kTasks * 3);
  }
}

// The worker that polled went to sleep still counted as the poller: the next one left the polling
// to it, and a kernel that waited for another process was never looked at again.
TEST(Tasks, AKernelThatWaitsIsLookedAtForAsLongAsItWaits) {
  std::vector<Stream> streams = make_streams(2);
  const auto queue = [&](int stream, std::shared_ptr<Kernel> work) {
    ASSERT_TRUE(machine()
                    .launch(device_of(stream), streams[static_cast<size_t>(stream)].handle(),
                            std::move(work))
                    .is_ok());
  };
  for (int repetition = 0; repetition < 200; ++repetition) {
    std::atomic<bool> arrived{false};  // what another process would write
    std::atomic<int> looks{0};
    queue(0, kernel([&] {
            return [&] {
              looks.fetch_add(1);
              return arrived.load() ? Progress::Done : Progress::WouldBlock;
            };
          }));
    // Work that comes and goes meanwhile, each time after the workers have begun to rest.
    for (int i = 0; i < 3; ++i) {
      const int seen = looks.load();
      const Deadline deadline = Deadline::after(std::chrono::seconds(20));
      while (looks.load() < seen + 40 + repetition % 7 && !deadline.passed())
        std::this_thread::yield();
      ASSERT_GE(looks.load(), seen + 40) << "repetition " << repetition;
      queue(1, once([] {}));
    }
    arrived = true;
    ASSERT_TRUE(machine().synchronize_stream(device_of(0), streams[0].handle()).is_ok());
    ASSERT_TRUE(machine().synchronize_stream(device_of(1), streams[1].handle()).is_ok());
  }
}

TEST(Tasks, KernelsOfOneStreamRunOneAfterTheOther) {
  std::vector<Stream> streams = make_streams(4);
  std::vector<int> order[4];  // each touched by one stream's kernels only
  std::atomic<int> running[4] = {};
  std::atomic<bool> overlapped{false};
  for (int i = 0; i < 400; ++i) {
    const int s = i % 4;
    auto work = kernel([&, s, i] {
      return [&, s, i, steps = 0]() mutable {
        if (steps == 0 && running[s].fetch_add(1) != 0) overlapped = true;
        if (++steps < 3) return steps == 1 ? Progress::Advanced : Progress::WouldBlock;
        order[s].push_back(i);
        running[s].fetch_sub(1);
        return Progress::Done;
      };
    });
    ASSERT_TRUE(
        machine().launch(device_of(s), streams[static_cast<size_t>(s)].handle(), work).is_ok());
  }
  for (int s = 0; s < 4; ++s) {
    ASSERT_TRUE(machine()
                    .synchronize_stream(device_of(s), streams[static_cast<size_t>(s)].handle())
                    .is_ok());
    ASSERT_EQ(order[s].size(), 100u);
    for (size_t i = 0; i < 100; ++i) EXPECT_EQ(order[s][i], static_cast<int>(4 * i) + s);
  }
  EXPECT_FALSE(overlapped);
}

TEST(Tasks, BlockedKernelsLeaveTheWorkersToOthers) {
  std::atomic<bool> release{false};
  std::vector<Stream> streams = make_streams(201);
  for (size_t i = 0; i < 200; ++i) {
    auto blocked = kernel([&release] {
      return [&release] {
        return release.load(std::memory_order_acquire) ? Progress::Done : Progress::WouldBlock;
      };
    });
    ASSERT_TRUE(
        machine().launch(device_of(static_cast<int>(i)), streams[i].handle(), blocked).is_ok());
  }
  // Work of the last stream ends while all others are blocked.
  int done = 0;
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(
        machine().launch(device_of(200), streams[200].handle(), once([&done] { ++done; })).is_ok());
    ASSERT_TRUE(machine().synchronize_stream(device_of(200), streams[200].handle()).is_ok());
    ASSERT_EQ(done, i + 1);
  }
  release.store(true, std::memory_order_release);
  for (int i = 0; i < 200; ++i)
    ASSERT_TRUE(machine()
                    .synchronize_stream(device_of(i), streams[static_cast<size_t>(i)].handle())
                    .is_ok());
}

TEST(Tasks, AKernelWaitsForAnotherThreadsWord) {
  // Nobody in the process advances: the workers have gone to rest when the word comes, as from
  // another process.
  Stream stream = std::move(machine().create_stream(0)).take();
  std::atomic<int> polls{0};
  std::atomic<bool> word{false};
  auto waits = kernel([&] {
    return [&] {
      polls.fetch_add(1, std::memory_order_relaxed);
      return word.load(std::memory_order_acquire) ? Progress::Done : Progress::WouldBlock;
    };
  });
  ASSERT_TRUE(machine().launch(0, stream.handle(), waits).is_ok());
  while (polls.load(std::memory_order_relaxed) < 100) std::this_thread::yield();
  word.store(true, std::memory_order_release);
  ASSERT_TRUE(machine().synchronize_stream(0, stream.handle()).is_ok());
}

TEST(Tasks, TheKernelIsGoneWhenTheStreamIsDone) {
  Stream stream = std::move(machine().create_stream(0)).take();
  auto guarded = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = guarded;
  ASSERT_TRUE(machine().launch(0, stream.handle(), once([guarded] {})).is_ok());
  guarded.reset();
  ASSERT_TRUE(machine().synchronize_stream(0, stream.handle()).is_ok());
  EXPECT_TRUE(watch.expired());
}

TEST(Tasks, ACapturedKernelStartsOncePerReplay) {
  Stream stream = std::move(machine().create_stream(0)).take();
  int starts = 0;
  int runs = 0;
  auto captured = std::make_shared<FunctionKernel>([&] {
    ++starts;
    return [&] {
      ++runs;
      return Progress::Done;
    };
  });
  const std::weak_ptr<Kernel> watch = captured;
  ASSERT_TRUE(machine().begin_capture(0, stream.handle()).is_ok());
  ASSERT_TRUE(machine().launch(0, stream.handle(), std::move(captured)).is_ok());
  Result<Graph> graph = machine().end_capture(0, stream.handle());
  ASSERT_TRUE(graph.is_ok()) << graph.status().message();
  EXPECT_EQ(starts, 0);
  for (int i = 0; i < 10; ++i)
    ASSERT_TRUE(machine().launch_graph(graph.value(), 0, stream.handle()).is_ok());
  ASSERT_TRUE(machine().synchronize_stream(0, stream.handle()).is_ok());
  EXPECT_EQ(starts, 10);
  EXPECT_EQ(runs, 10);
  EXPECT_FALSE(watch.expired());
  graph.value().reset();
  EXPECT_TRUE(watch.expired());
}

TEST(Tasks, AGraphDestroyedDuringItsReplayLivesUntilTheEnd) {
  Stream stream = std::move(machine().create_stream(0)).take();
  std::atomic<bool> proceed{false};
  std::atomic<int> released{0};
  ASSERT_TRUE(machine().begin_capture(0, stream.handle()).is_ok());
  ASSERT_TRUE(machine()
                  .launch(0, stream.handle(), kernel([&proceed] {
                            return [&proceed] {
                              return proceed.load() ? Progress::Done : Progress::WouldBlock;
                            };
                          }))
                  .is_ok());
  ASSERT_TRUE(
      machine()
          .keep_in_graph(0, stream.handle(), &released,
                         [](void* count) { static_cast<std::atomic<int>*>(count)->fetch_add(1); })
          .is_ok());
  Result<Graph> graph = machine().end_capture(0, stream.handle());
  ASSERT_TRUE(graph.is_ok());
  ASSERT_TRUE(machine().launch_graph(graph.value(), 0, stream.handle()).is_ok());
  graph.value().reset();
  EXPECT_EQ(released.load(), 0);
  proceed = true;
  ASSERT_TRUE(machine().synchronize_stream(0, stream.handle()).is_ok());
  EXPECT_EQ(released.load(), 1);
}

TEST(Tasks, KernelsOfManyThreadsMeet) {
  // As ranks do: each thread launches its share of one ring again and again, and waits for its own
  // stream only.
  constexpr int kRanks = 16;
  constexpr int kOperations = 30;
  std::vector<std::unique_ptr<Ring>> rings;
  for (int i = 0; i < kOperations; ++i) rings.push_back(std::make_unique<Ring>(kRanks, 4));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&rings, rank] {
      Stream stream = std::move(machine().create_stream(device_of(rank))).take();
      for (auto& ring : rings) {
        EXPECT_TRUE(
            machine().launch(device_of(rank), stream.handle(), ring->kernel_of(rank)).is_ok());
      }
      EXPECT_TRUE(machine().synchronize_stream(device_of(rank), stream.handle()).is_ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& ring : rings) EXPECT_EQ(ring->token.load(), kRanks * 4);
}

}  // namespace
}  // namespace niccolite::gpu::virtual_
