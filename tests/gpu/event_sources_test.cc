// Sources of events: what kernels of virtual GPUs wait for from outside.
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <iterator>
#include <thread>

#include "base/epoll.h"
#include "base/fd.h"
#include "base/wait.h"
#include "gpu/virtual/driver.h"
#include "gpu/virtual/event_sources.h"
#include "gpu/virtual/tasks.h"

namespace niccolite::gpu::virtual_ {
namespace {

VirtualMachine& machine() { return *open(kInterfaceVersion); }

// Numbers that come by an eventfd, which the workers wait for itself, or by an epoll that has it.
class Numbers final : public EventSource {
 public:
  static constexpr uint64_t kNumber = 7;
  explicit Numbers(bool in_epoll) : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)) {
    if (in_epoll) {
      epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
      EXPECT_TRUE(epoll_control(epoll_, EPOLL_CTL_ADD, fd_.get(), EPOLLIN, kNumber));
    }
    EXPECT_TRUE(machine().attach(*this).is_ok());
  }
  ~Numbers() { machine().detach(*this); }
  void send() const {
    const uint64_t one = 1;
    ASSERT_EQ(write(fd_.get(), &one, sizeof one), ssize_t{sizeof one});
  }
  int descriptor() const override { return epoll_.valid() ? epoll_.get() : fd_.get(); }
  void before_wait() override { EXPECT_TRUE(is_served); }
  bool serve(std::span<const epoll_event> ready) override {
    EXPECT_TRUE(is_served);
    for (const epoll_event event : ready) EXPECT_EQ(event.data.u64, kNumber);
    ++served;
    if (is_held) return false;
    uint64_t one;
    if (read(fd_.get(), &one, sizeof one) == ssize_t{sizeof one}) ++arrived;
    return true;
  }
  void begin_serving() override { EXPECT_FALSE(is_served.exchange(true)); }
  void end_serving() override { EXPECT_TRUE(is_served.exchange(false)); }

  std::atomic<int> arrived{0};
  std::atomic<bool> is_served{false};
  std::atomic<bool> is_held{false};  // by another thread, that is
  std::atomic<int> served{0};

 private:
  Fd fd_;
  Fd epoll_;
};

// Brings nothing.
struct Silent : EventSource {
  explicit Silent(int descriptor) : fd(descriptor) {}
  int descriptor() const override { return fd.get(); }
  void before_wait() override {}
  bool serve(std::span<const epoll_event>) override { return true; }
  void begin_serving() override {}
  void end_serving() override {}
  const Fd fd;
};

class WaitingKernel final : public Kernel {
 public:
  WaitingKernel(std::atomic<int>& number, int wanted, std::atomic<int>& steps)
      : number_(number), wanted_(wanted), steps_(steps) {}
  std::unique_ptr<Task> start() override { return std::make_unique<Waiting>(*this); }

 private:
  struct Waiting final : Task {
    explicit Waiting(WaitingKernel& of) : kernel(of) {}
    Progress step() override {
      ++kernel.steps_;
      return kernel.number_ >= kernel.wanted_ ? Progress::Done : Progress::WouldBlock;
    }
    bool is_woken() const override { return true; }
    WaitingKernel& kernel;
  };
  std::atomic<int>& number_;
  const int wanted_;
  std::atomic<int>& steps_;
};

class EventSourcesTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override { stream = machine().create_stream(0).take(); }
  void launch(std::atomic<int>& number, int wanted) {
    ASSERT_TRUE(
        machine()
            .launch(0, stream.handle(), std::make_shared<WaitingKernel>(number, wanted, steps))
            .is_ok());
  }
  void await(const std::function<bool()>& condition) {
    for (const Deadline deadline = Deadline::after(std::chrono::seconds(30)); !condition();
         std::this_thread::yield())
      ASSERT_FALSE(deadline.passed());
  }
  Status synchronize() { return machine().synchronize_stream(0, stream.handle()); }

  Stream stream;
  std::atomic<int> steps{0};
};

TEST_P(EventSourcesTest, AreServedForKernelsThatNobodyWaitsFor) {
  Numbers numbers{GetParam()};
  for (int i = 1; i <= 200; ++i) {
    launch(numbers.arrived, i);
    if (i % 2 == 0) await([&] { return numbers.is_served.load(); });
    numbers.send();
    await([&] { return numbers.arrived == i; });
    ASSERT_TRUE(synchronize().is_ok());
  }
}

// Most of these are stepped by this thread alone.
TEST_P(EventSourcesTest, AreServedByWhoWaitsForTheKernel) {
  Numbers numbers{GetParam()};
  std::thread sender([&] {
    for (int i = 1; i <= 1000; ++i) {
      await([&] { return steps > 0; });
      steps = 0;
      numbers.send();
      await([&] { return numbers.arrived == i; });
    }
  });
  for (int i = 1; i <= 1000; ++i) {
    launch(numbers.arrived, i);
    ASSERT_TRUE(synchronize().is_ok());
  }
  sender.join();
  EXPECT_FALSE(numbers.is_served);
}

// Who waits may hold a lock that others' operations take when they end.
TEST_P(EventSourcesTest, AreNoReasonToStepWhatOthersWaitFor) {
  struct Stepped final : Kernel {
    struct Once final : Task {
      explicit Once(Stepped& of) : kernel(of) {}
      Progress step() override {
        kernel.by = std::this_thread::get_id();
        return Progress::Done;
      }
      Stepped& kernel;
    };
    std::unique_ptr<Task> start() override { return std::make_unique<Once>(*this); }
    std::thread::id by;
  };
  Numbers numbers{GetParam()};
  Stream other = machine().create_stream(0).take();
  const auto kernel = std::make_shared<Stepped>();
  const std::thread::id waiter = std::this_thread::get_id();
  for (int i = 1; i <= 200; ++i) {
    steps = 0;
    std::thread thread([&] {
      await([&] { return steps > 0 && numbers.is_served; });
      EXPECT_TRUE(machine().launch(0, other.handle(), kernel).is_ok());
      EXPECT_TRUE(machine().synchronize_stream(0, other.handle()).is_ok());
      EXPECT_NE(kernel->by, waiter);
      numbers.send();
    });
    launch(numbers.arrived, i);
    EXPECT_TRUE(synchronize().is_ok());
    thread.join();
  }
}

// Who has always waited for its operations, and then does not, finds them run all the same.
TEST_P(EventSourcesTest, RunWhatTheThreadThatSubmitsDoesNotWaitFor) {
  Numbers numbers{GetParam()};
  std::atomic<int> there{1};
  for (int repetition = 0; repetition < 50; ++repetition) {
    for (int i = 0; i < 20; ++i) {
      launch(there, 1);
      ASSERT_TRUE(synchronize().is_ok());
    }
    const int before = steps;
    launch(there, 1);
    await([&] { return steps > before; });
  }
  ASSERT_TRUE(synchronize().is_ok());
}

TEST_P(EventSourcesTest, EndTheWaitForWhatAnotherThreadHasDone) {
  Numbers numbers{GetParam()};
  std::atomic<int> other{0};
  for (int i = 1; i <= 100; ++i) {
    launch(other, i);
    await([&] { return numbers.is_served.load(); });
    other = i;
    machine().wake();
    ASSERT_TRUE(synchronize().is_ok());
  }
}

// A thread that polls steps its kernel as often as it can; one that is woken looks once a
// millisecond whether it was aborted.
TEST_P(EventSourcesTest, LetWaitingKernelsSleep) {
  Numbers numbers{GetParam()};
  launch(numbers.arrived, 1);
  await([&] { return numbers.is_served.load(); });
  steps = 0;
  const auto start = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const int seen = steps;
  const auto passed = std::chrono::steady_clock::now() - start;
  EXPECT_LE(seen, 2 * (passed / std::chrono::milliseconds(1)) + 10);
  numbers.send();
  ASSERT_TRUE(synchronize().is_ok());
}

TEST_P(EventSourcesTest, AreServedWhileAnotherIsInOthersHands) {
  Numbers held{GetParam()};
  Numbers numbers{GetParam()};
  std::atomic<int> other{0};
  for (int i = 1; i <= 100; ++i) {
    held.is_held = true;
    held.served = 0;
    held.send();
    launch(numbers.arrived, i);
    await([&] { return held.served > 0; });
    numbers.send();
    ASSERT_TRUE(synchronize().is_ok());
    EXPECT_EQ(held.arrived, i - 1);
    // Whoever had it lets go. Its data are there already.
    launch(held.arrived, i);
    held.is_held = false;
    machine().wake();
    ASSERT_TRUE(synchronize().is_ok());
  }
}

// The wait for the others does not end because of it.
TEST_P(EventSourcesTest, SleepThoughAnotherIsInOthersHands) {
  Numbers held{GetParam()};
  held.is_held = true;
  held.send();
  launch(held.arrived, 1);
  await([&] { return held.served > 0; });
  held.served = 0;
  const auto start = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const int seen = held.served;
  const auto passed = std::chrono::steady_clock::now() - start;
  EXPECT_LE(seen, 2 * (passed / std::chrono::milliseconds(1)) + 10);
  held.is_held = false;
  machine().wake();
  ASSERT_TRUE(synchronize().is_ok());
}

TEST_P(EventSourcesTest, MayComeAndGoWhileKernelsWait) {
  std::atomic<int> other{0};
  launch(other, 1);
  for (int i = 0; i < 200; ++i) {
    Numbers numbers{GetParam()};
    if (i % 10 == 0) await([&] { return numbers.is_served.load(); });
    numbers.send();
  }
  other = 1;
  machine().wake();
  ASSERT_TRUE(synchronize().is_ok());
}

int open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<int>(std::distance(begin(files), end(files)));
}

// Also if somebody waits for them at that moment.
TEST_P(EventSourcesTest, LeaveNoDescriptorBehind) {
  std::atomic<int> other{0};
  launch(other, 1);
  const int files = open_files();
  for (int i = 0; i < 200; ++i) {
    {
      Numbers numbers{GetParam()};
      if (i % 2 == 0) await([&] { return numbers.is_served.load(); });
      if (i % 4 == 0) await([&, before = steps.load()] { return steps > before; });
    }
    ASSERT_EQ(open_files(), files);
  }
  other = 1;
  machine().wake();
  ASSERT_TRUE(synchronize().is_ok());
}

// What it brings may be what kernels wait for: they are stepped before anybody waits again.
TEST(WaitForSources, IsNotBegunWhereOneThatWasLeftOutHasBeenServed) {
  struct Held final : Silent {
    Held() : Silent(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)) {}  // readable
    bool serve(std::span<const epoll_event>) override { return !is_held; }
    std::atomic<bool> is_held{true};
  };
  EventSources sources;
  Held held;
  ASSERT_TRUE(sources.attach(held).is_ok());
  std::atomic<bool> waits{true};
  std::thread poller([&] {
    sources.begin();
    EXPECT_TRUE(sources.wait(std::chrono::seconds(60)));  // it is left out
    held.is_held = false;
    uint64_t count = 0;
    EXPECT_EQ(read(held.fd.get(), &count, sizeof count), 8);  // and not readable any more
    EXPECT_TRUE(sources.wait(std::chrono::seconds(60)));
    waits = false;
    sources.end();
  });
  for (const Deadline deadline = Deadline::after(std::chrono::seconds(20));
       waits && !deadline.passed();)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(waits);
  sources.wake();
  poller.join();
  sources.detach(held);
}

// Whoever lets go of it waits until nobody is in the wait: a poller that went into the next one
// before that thread has the lock would keep it there for as long as kernels wait.
TEST(WaitForSources, EndsForGoodWithTheLastSource) {
  struct Last final : Silent {
    Last() : Silent(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
    void end_serving() override { has_gone = true; }  // under the lock, while detach() goes on
    std::atomic<bool> has_gone{false};
  };
  int waits_for_none = 0;
  for (int i = 0; i < 200; ++i) {
    EventSources sources;
    Last last;
    ASSERT_TRUE(sources.attach(last).is_ok());
    std::atomic<bool> waits{false};
    std::thread poller([&] {
      sources.begin();
      for (;;) {
        const bool is_for_none = last.has_gone;
        waits = true;
        if (!sources.wait(std::chrono::milliseconds(10))) break;
        waits_for_none += is_for_none;
      }
      sources.end();
    });
    while (!waits) std::this_thread::yield();
    sources.detach(last);
    poller.join();
  }
  EXPECT_EQ(waits_for_none, 0);
}

// What wakes, and what goes and comes, beside a kernel that waits: under tsan.
TEST_P(EventSourcesTest, MayGoWhileOthersWakeTheWorkers) {
  std::atomic<int> other{0};
  std::atomic<bool> is_over{false};
  launch(other, 1);
  std::thread waker([&] {
    while (!is_over) machine().wake();
  });
  for (int i = 0; i < 200; ++i) {
    Numbers numbers{GetParam()};
    Numbers more{GetParam()};
    if (i % 4 == 0) await([&] { return more.is_served.load(); });
  }
  is_over = true;
  waker.join();
  other = 1;
  ASSERT_TRUE(synchronize().is_ok());
}

INSTANTIATE_TEST_SUITE_P(, EventSourcesTest, testing::Bool(), [](const auto& in_epoll) {
  return std::string(in_epoll.param ? "InAnEpoll" : "ByItself");
});

// The source's own thread waits for the epoll, too, while nobody serves.
TEST(WakesOfSources, AreNotLeftInTheEpollOfTheOnlyOne) {
  struct Alone final : Silent {
    Alone() : Silent(epoll_create1(EPOLL_CLOEXEC)) {}
    bool is_readable() const {
      epoll_event event;
      return epoll_wait(fd.get(), &event, 1, 0) == 1;
    }
  };
  EventSources sources;
  Alone alone;
  ASSERT_TRUE(sources.attach(alone).is_ok());
  const auto wake = [&] { std::thread([&] { sources.wake(); }).join(); };  // who serves does not
  sources.begin();
  wake();
  EXPECT_TRUE(alone.is_readable());
  EXPECT_TRUE(sources.wait(std::chrono::seconds(60)));
  EXPECT_FALSE(alone.is_readable());
  wake();
  sources.end();
  EXPECT_FALSE(alone.is_readable());
  wake();
  EXPECT_FALSE(alone.is_readable());
  sources.detach(alone);
}

// Whoever waits for the first alone does not see the second's descriptor.
TEST(WaitForSources, EndsWhereAnotherComes) {
  struct Awaited final : Silent {
    Awaited() : Silent(epoll_create1(EPOLL_CLOEXEC)) {}
    void before_wait() override { waits = true; }
    std::atomic<bool> waits{false};
  };
  for (const bool second_goes_first : {false, true}) {
    EventSources sources;
    Awaited first, second;
    ASSERT_TRUE(sources.attach(first).is_ok());
    std::thread poller([&] {
      sources.begin();
      EXPECT_TRUE(sources.wait(std::chrono::seconds(60)));
      EXPECT_TRUE(sources.wait(std::chrono::seconds(60)));  // for both, until somebody wakes
      sources.end();
    });
    while (!first.waits) std::this_thread::yield();
    ASSERT_TRUE(sources.attach(second).is_ok());
    while (!second.waits) std::this_thread::yield();
    sources.wake();
    poller.join();
    sources.detach(second_goes_first ? second : first);
    sources.detach(second_goes_first ? first : second);
  }
}

}  // namespace
}  // namespace niccolite::gpu::virtual_
