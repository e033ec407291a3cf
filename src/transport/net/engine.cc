#include "transport/net/engine.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/process.h"

namespace niccolite::transport::net {

using std::chrono::seconds;
using wire::EventLoop;

namespace {

// Measured by bench/sockets on two cores: a message costs about 15 us more with 0 looks, and also
// with 20.
constexpr int kLooks = 5;
// Between looks whether kernels' workers still do the thread's work; while one waits for the
// sockets, doubled each time.
constexpr auto kAside = std::chrono::milliseconds(1);
constexpr auto kLongestAside = std::chrono::milliseconds(16);
// Most callbacks take less, and a proxy that is left out of the wait costs five system calls.
constexpr auto kMoment = std::chrono::microseconds(20);
constexpr int kLooksAtPlugins = 200;  // 0.1 ms or a little more
constexpr int kLongerRests = 50;      // of 20 us, 40 us, ...

EventLoop::Clock::duration rest_between_looks(int looks) {
  return std::chrono::microseconds(20) * std::clamp(looks - kLooksAtPlugins, 1, kLongerRests);
}

// Limits of the rests when GPUs move the counters. A look costs about 0.2 us of the thread's core;
// a rest delays the first chunk that arrives in it by the rest's remaining time. After a second
// without work the program is assumed to do other things.
constexpr auto kAwake = std::chrono::microseconds(300);
constexpr auto kShortRest = std::chrono::microseconds(20);
constexpr auto kShortRests = std::chrono::milliseconds(2);
constexpr auto kRest = std::chrono::microseconds(100);
constexpr auto kRests = seconds(1);
constexpr auto kLongRest = std::chrono::milliseconds(1);
constexpr int kLooksPerYield = 16;

// A round takes microseconds; plug-ins may take their time in a call.
constexpr auto kStuckAfter = std::chrono::milliseconds(600);

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(Options options) {
  std::unique_ptr<Engine> engine(new Engine(std::move(options)));
  engine->loop_ = TRY(EventLoop::create());
  if (engine->options_.workers != nullptr) {
    TRY(engine->loop_->share());
    engine->loop_->on_return([workers = engine->options_.workers] { workers->wake(); });
  }
  TRY(engine->watch_bell());
  return engine;
}

Engine::Engine(Options options)
    : options_(std::move(options)),
      bell_(ring, this, /*wakes_kernels=*/options_.workers != nullptr) {}

Engine::~Engine() = default;

void Engine::withdraw() {
  if (options_.workers != nullptr) options_.workers->detach(*this);
}

// A kernel has moved a counter, and the bell says that the thread does not know.
void Engine::ring(void* self, uint64_t bytes) {
  auto& engine = *static_cast<Engine*>(self);
  if (bytes > engine.options_.most_by_kernels || engine.options_.workers == nullptr ||
      !engine.loop_->try_borrow([&] { engine.work_for_thread(); }))
    engine.ring_thread();
}

void Engine::ring_thread() {
  const uint64_t one = 1;
  // Cannot fail but by a full counter, which wakes as well.
  if (::write(rung_.get(), &one, sizeof one) < 0) return;
}

// Does the thread's work, in a thread that has borrowed the loop. The doorbell is left as a
// sleeping thread leaves it.
//
// Kernels go on before peers get news of arrived or consumed data, because the news is a system
// call that wakes the peer. Mostly a kernel or the program then sends something, and the news
// travels behind it (frame.h).
void Engine::work_for_thread() {
  turns_.fetch_add(1, std::memory_order_relaxed);
  do bell_.go_to_sleep();
  while (progress());
  has_untold_.store(true, std::memory_order_relaxed);
  // The thread must wake up to settle the news that is kept back.
  if (std::exchange(sleeps_for_good_, false)) ring_thread();
}

// The thread that has the loop is mostly done in a moment, but it may have lost its core.
bool Engine::serve(std::span<const epoll_event> ready) {
  const auto serve_all = [&] {
    if (ready.empty())
      loop_->serve_shared();
    else
      loop_->serve_shared(ready);
    work_for_thread();
  };
  bool is_served = loop_->try_borrow(serve_all);
  if (!is_served && !is_left_out_)
    for (const Clock::time_point end = Clock::now() + kMoment; !is_served && Clock::now() < end;)
      is_served = loop_->try_borrow(serve_all);
  is_left_out_ = !is_served && !loop_->borrow_or_hear(serve_all);
  return !is_left_out_;
}

void Engine::before_wait() {
  if (!has_untold_.load(std::memory_order_relaxed)) return;
  // Another thread that has the loop may just have looked for news for the last time.
  if (!loop_->try_borrow([this] { tell_soon(); })) ring_thread();
}

// Called with the loop borrowed.
void Engine::tell_soon() {
  has_untold_.store(false, std::memory_order_relaxed);
  if (options_.tell) options_.tell();
}

void Engine::begin_serving() { is_served_.store(true); }

void Engine::end_serving() {
  turns_.fetch_add(1, std::memory_order_relaxed);
  is_served_.store(false);
  if (aside_.load() > kAside) ring_thread();
}

Status Engine::start() {
  loop_->set_poller([this] {
    const Clock::duration rest = poll();
    if (rest > EventLoop::kYield && !std::exchange(is_asleep_, true)) tell(ProxyState::Sleep);
    return rest;
  });
  thread_ = TRY(Thread::start(options_.name, [this] {
    // (gettid() itself came with the C library 2.30.) relaxed: a number to look up, no more
    number_.store(syscall(SYS_gettid), std::memory_order_relaxed);
    loop_->run();
  }));
  if (options_.workers != nullptr) TRY(options_.workers->attach(*this));
  return {};
}

// relaxed throughout: the numbers are compared with clocks, and publish nothing.
ProxyThread Engine::probe() {
  ProxyThread told{.name = options_.name, .number = number_.load(std::memory_order_relaxed)};
  const Clock::time_point now = Clock::now();
  Clock::rep asked = 0;
  if (asked_.compare_exchange_strong(asked, now.time_since_epoch().count(),
                                     std::memory_order_relaxed)) {
    const std::optional<ThreadTime> time = thread_time(told.number);
    used_.store(time ? time->used.count() : 0, std::memory_order_relaxed);
    loop_->post([this] { asked_.store(0, std::memory_order_relaxed); });
    return told;
  }
  told.unanswered = std::max(std::chrono::floor<std::chrono::milliseconds>(
                                 now - Clock::time_point(Clock::duration(asked))),
                             std::chrono::milliseconds(1));
  const std::optional<ThreadTime> time = thread_time(told.number);
  if (!time) return told;
  told.state = time->state;
  if (told.unanswered < kStuckAfter) return told;
  // One that runs, or would if it had a core, is stuck when it has had one and has not come round.
  const std::chrono::milliseconds used =
      time->used - std::chrono::milliseconds(used_.load(std::memory_order_relaxed));
  told.is_stuck = time->state != 'R' || used > told.unanswered / 2;
  return told;
}

void Engine::abandon() { static_cast<void>(loop_.release()); }

Status Engine::watch_bell() {
  rung_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!rung_.valid())
    return Status::from_errno(errno, "cannot create an eventfd (limit: ulimit -n)");
  rung_.withhold();
  return loop_
      ->watch(rung_.get(), EPOLLIN,
              [this](uint32_t) {
                uint64_t count;
                // poll() follows in any case.
                if (read(rung_.get(), &count, sizeof count) < 0) return;
                active_at_ = Clock::now();
              })
      .status();
}

bool Engine::progress() {
  const bool moves = options_.progress();
  if (std::exchange(is_asleep_, false)) tell(ProxyState::Wakeup);
  if (moves == was_idle_) tell(moves ? ProxyState::Active : ProxyState::Idle);
  was_idle_ = !moves;
  return moves;
}

bool Engine::progress_and_tell() {
  const bool moves = progress();
  tell_soon();
  return moves;
}

// Called before the thread waits. A wait that a bell or a socket ends costs more than a look round,
// so it looks round some times first: others of the machine have the processor meanwhile.
EventLoop::Clock::duration Engine::poll() {
  constexpr auto kNow = Clock::duration::zero();
  if (options_.is_finished()) loop_->stop();
  if (options_.machine == gpu::Kind::Cuda) return poll_for_gpus();
  sleeps_for_good_ = false;
  const uint64_t turns = turns_.load(std::memory_order_relaxed);
  const bool has_turned = std::exchange(turns_seen_, turns) != turns;
  const bool is_aside = is_served_.load() || has_turned;
  if (options_.workers != nullptr) loop_->leave_shared(is_aside);
  // If no worker has served anything since the last look, the worker may have no core, or be
  // stopped. A worker that serves is left alone: two threads that serve the same sockets wake each
  // other.
  if (options_.workers != nullptr && is_aside && !has_turned) loop_->serve_shared();
  if (progress_and_tell()) {
    if (options_.workers != nullptr) options_.workers->wake();
    looks_ = 0;
    return kNow;
  }
  looks_ = std::min(looks_ + 1, kLooksAtPlugins + kLongerRests);
  // Plug-ins have nothing that wakes: looks on, ever less often.
  if (!is_aside && looks_ < (options_.has_plugin ? kLooksAtPlugins : kLooks))
    return EventLoop::kYield;
  bell_.go_to_sleep();
  if (progress_and_tell()) {
    if (options_.workers != nullptr) options_.workers->wake();
    bell_.wake_up();
    looks_ = 0;
    return kNow;
  }
  if (options_.settle) options_.settle();
  if (options_.has_plugin) return rest_between_looks(looks_);
  sleeps_for_good_ = !is_aside;
  aside_.store(!is_aside ? Clock::duration::zero()
               : is_served_.load()
                   ? std::clamp<Clock::duration>(2 * aside_.load(), kAside, kLongestAside)
                   : Clock::duration(kAside));
  if (!is_aside) return Clock::duration::max();
  return is_served_.load() ? aside_.load() : Clock::duration(kAside);
}

EventLoop::Clock::duration Engine::poll_for_gpus() {
  constexpr auto kNow = Clock::duration::zero();
  const Clock::time_point now = Clock::now();
  if (progress()) active_at_ = now;
  const Clock::duration idle = now - active_at_;
  if (idle < kAwake) {
    looks_ = (looks_ + 1) % kLooksPerYield;
    if (looks_ == 0) sched_yield();
    return kNow;
  }
  bell_.go_to_sleep();
  if (progress()) {
    bell_.wake_up();
    active_at_ = now;
    return kNow;
  }
  if (options_.settle) options_.settle();
  return idle < kShortRests ? kShortRest : idle < kRests ? kRest : kLongRest;
}

}  // namespace niccolite::transport::net
