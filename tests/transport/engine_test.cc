// Engine: a thread that moves what it finds at its looks, rung for or not.
#include "transport/net/engine.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/fd.h"
#include "base/wait.h"
#include "gpu/virtual/driver.h"
#include "gpu/virtual/tasks.h"

namespace niccolite::transport::net {
namespace {

using std::chrono::seconds;

class Engines : public testing::TestWithParam<gpu::Kind> {
 protected:
  void SetUp() override {
    engine = Engine::create({.machine = GetParam(),
                             .name = "test",
                             .progress =
                                 [this] {
                                   if (work.load() == moved.load()) return false;
                                   ++moved;
                                   return true;
                                 },
                             .is_finished = [this] { return is_over.load(); }})
                 .take();
    ASSERT_TRUE(engine->start().is_ok());
  }
  void TearDown() override {
    is_over = true;
    engine->loop().post([] {});
    engine->join();
  }
  bool is_moved() {
    for (const Deadline deadline = Deadline::after(seconds(30)); !deadline.passed();
         std::this_thread::yield())
      if (work.load() == moved.load()) return true;
    return false;
  }

  std::atomic<int> work{0};
  std::atomic<int> moved{0};
  std::atomic<bool> is_over{false};
  std::unique_ptr<Engine> engine;
};

TEST_P(Engines, MoveWhatTheyAreRungFor) {
  for (int i = 0; i < 1000; ++i) {
    ++work;
    engine->bell().announce();
    ASSERT_TRUE(is_moved()) << i;
  }
}

TEST_P(Engines, OfGpusFindWhatNobodyRingsFor) {
  if (GetParam() != gpu::Kind::Cuda) GTEST_SKIP() << "kernels of virtual GPUs ring";
  for (int i = 0; i < 1000; ++i) {
    ++work;
    ASSERT_TRUE(is_moved()) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(, Engines, testing::Values(gpu::Kind::Virtual, gpu::Kind::Cuda),
                         [](const auto& kind) {
                           return std::string(kind.param == gpu::Kind::Cuda ? "Cuda" : "Virtual");
                         });

gpu::virtual_::VirtualMachine& gpus() {
  return *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion);
}

/// An engine that workers of virtual GPUs serve, with one socket: numbers come by it.
struct ServedEngine {
  ServedEngine() {
    engine = Engine::create({.workers = &gpus(),
                             .name = "test",
                             .progress = [] { return false; },
                             .tell = [this] { told.store(arrived.load()); },
                             .is_finished = [this] { return is_over.load(); }})
                 .take();
    const auto read_all = [this](uint32_t) {
      uint64_t count = 0;
      if (::read(socket.get(), &count, sizeof count) == ssize_t{sizeof count})
        arrived += static_cast<int>(count);
    };
    EXPECT_TRUE(engine->loop().watch_shared(socket.get(), EPOLLIN, read_all).is_ok());
    EXPECT_TRUE(engine->start().is_ok());
  }
  ~ServedEngine() {
    engine->withdraw();
    is_over = true;
    engine->loop().post([] {});
    engine->join();
  }
  void send() const {
    const uint64_t one = 1;
    ASSERT_EQ(::write(socket.get(), &one, sizeof one), ssize_t{sizeof one});
  }

  Fd socket{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::atomic<int> arrived{0};
  std::atomic<int> told{0};  // of those, peers
  std::atomic<bool> is_over{false};
  std::unique_ptr<Engine> engine;
};

struct AwaitingKernel final : gpu::virtual_::Kernel {
  struct Awaiting final : gpu::virtual_::Task {
    explicit Awaiting(AwaitingKernel& kernel) : of(kernel) {}
    gpu::virtual_::Progress step() override {
      if (of.number < of.wanted) return gpu::virtual_::Progress::WouldBlock;
      of.is_done = true;
      return gpu::virtual_::Progress::Done;
    }
    bool is_woken() const override { return true; }
    AwaitingKernel& of;
  };
  AwaitingKernel(std::atomic<int>& awaited, int least) : number(awaited), wanted(least) {}
  std::unique_ptr<gpu::virtual_::Task> start() override {
    return std::make_unique<Awaiting>(*this);
  }
  bool await_end() const {
    for (const Deadline deadline = Deadline::after(seconds(30)); !deadline.passed();
         std::this_thread::yield())
      if (is_done) return true;
    return false;
  }

  std::atomic<int>& number;
  const int wanted;
  std::atomic<bool> is_done{false};
};

// What has come moves kernels first; peers hear of it before anybody sleeps.
TEST(EnginesOfOneProcess, TellBeforeTheyWait) {
  ServedEngine engine;
  const gpu::Stream stream = gpus().create_stream(0).take();
  for (int i = 2; i <= 200; i += 2) {
    const auto kernel = std::make_shared<AwaitingKernel>(engine.arrived, i);
    ASSERT_TRUE(gpus().launch(0, stream.handle(), kernel).is_ok());
    engine.send();  // the kernel waits for another
    for (const Deadline deadline = Deadline::after(seconds(30)); engine.told < i - 1;
         std::this_thread::yield())
      ASSERT_FALSE(deadline.passed()) << "number " << i;
    engine.send();
    ASSERT_TRUE(gpus().synchronize_stream(0, stream.handle()).is_ok());
  }
}

// As a debugger stops a thread, or the lack of a core.
TEST(EnginesOfOneProcess, AreServedWhileTheThreadOfOneIsHeldInACallback) {
  ServedEngine held, other;
  const gpu::Stream stream = gpus().create_stream(0).take();
  const auto launch = [&](std::atomic<int>& number, int wanted) {
    const auto kernel = std::make_shared<AwaitingKernel>(number, wanted);
    EXPECT_TRUE(gpus().launch(0, stream.handle(), kernel).is_ok());
    return kernel;
  };
  std::atomic<bool> is_held{false}, may_go{false};
  held.engine->loop().post([&] {
    is_held = true;
    is_held.notify_all();
    may_go.wait(false);
  });
  is_held.wait(false);
  bool are_served = true;
  for (int i = 1; i <= 100 && are_served; ++i) {
    held.send();
    const auto kernel = launch(other.arrived, i);
    other.send();
    are_served = kernel->await_end();
    EXPECT_TRUE(are_served) << "number " << i;
  }
  EXPECT_EQ(held.arrived, 0);
  const auto last = launch(held.arrived, 100);
  may_go = true;
  may_go.notify_all();
  if (are_served) {
    EXPECT_TRUE(last->await_end());
  } else {
    held.arrived = 100;
  }
  EXPECT_TRUE(gpus().synchronize_stream(0, stream.handle()).is_ok());
}

}  // namespace
}  // namespace niccolite::transport::net
