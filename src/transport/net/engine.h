// Engine: a thread of a proxy. It runs an event loop, and looks at the counters of FIFOs in
// between, as often as it is worth while:
//
// Kernels of virtual GPUs ring when they have moved a counter, and the thread sleeps until then.
// Those of GPUs cannot: the thread looks all the time while something moves and a little longer,
// then rests between looks. Whoever launches a kernel rings for it; replays of graphs do not.
// Plug-ins have nothing that wakes, either.
//
// Of virtual GPUs' sockets the thread is there for what nobody waits for. Whoever rings finds the
// thread asleep and does its work; and a kernel's worker that has nothing to do waits for the
// sockets itself, and serves them (gpu::EventSource). So a message takes no thread to be
// woken but the one that waits for it. While that goes on, and a little longer, the thread leaves
// the sockets to them, and looks every millisecond whether it still does:
//
//   asleep   waits for everything          a kernel rings, or a worker serves  ->  it is rung for
//   aside    for tasks, timers and 1 ms    nobody did since the last look      ->  asleep
//
// While a worker waits for the sockets, looks are up to 16 ms apart. At a look before
// which nobody has served anything the thread serves what it finds: whoever should have done so may
// have no core.
//
// Thread safety: loop().post(), bell(), probe(), stand_aside(), withdraw() and join() from any
// thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "base/fd.h"
#include "base/thread.h"
#include "executor/protocol/relay.h"
#include "gpu/event_source.h"
#include "gpu/machine.h"
#include "transport/network_state.h"
#include "transport/observer.h"
#include "wire/event_loop.h"

namespace niccolite::transport::net {

class Engine final : private gpu::EventSource {
 public:
  struct Options {
    gpu::Kind machine = gpu::Kind::Virtual;  // whose kernels move the counters
    // Whose workers serve the sockets; null: none do.
    gpu::EventWorkers* workers = nullptr;
    // What whoever rings has written at most, if it is to send that itself.
    uint64_t most_by_kernels = 0;
    const char* name = "";  // of the thread
    bool has_plugin = false;
    Observer* observer = nullptr;      // outlives the engine; may be null
    std::function<bool()> progress{};  // moves what can be moved: true when that was something
    // Tells peers what they may need soon, which progress() leaves to whoever has nothing more
    // urgent to do; empty: progress() leaves nothing of that.
    std::function<void()> tell{};
    std::function<void()> settle{};       // tells peers all that the two may leave for later
    std::function<bool()> is_finished{};  // nothing will move any more: the thread ends
  };
  /// The thread runs from start() on.
  static Result<std::unique_ptr<Engine>> create(Options options);
  Status start();
  ~Engine();
  /// Workers serve no longer. Before join().
  void withdraw();

  wire::EventLoop& loop() { return *loop_; }
  executor::relay::Bell& bell() { return bell_; }
  /// Adds a connection, on the thread.
  template <typename Add>
  void append(Add&& add) {
    tell(ProxyState::Append);
    add();
    tell(ProxyState::AppendEnd);
  }
  /// Waits until the thread has ended: is_finished(), or loop().stop().
  void join() { thread_.join(); }
  bool is_running() const { return thread_.running(); }
  /// Asks the thread to come round, if it has done so since it was last asked, and tells how long
  /// it has not. Whoever suspects it asks more than once. Waits for nothing.
  ProxyThread probe();
  /// In a child made by fork() the thread does not exist, and the loop is the parent's, too: lets
  /// go of it untouched.
  void abandon();

 private:
  using Clock = wire::EventLoop::Clock;

  explicit Engine(Options options);
  Status watch_bell();
  void tell(ProxyState state) {
    if (options_.observer != nullptr && options_.observer->wants_state())
      options_.observer->state(state);
  }
  bool progress();
  bool progress_and_tell();
  void tell_soon();
  Clock::duration poll();
  Clock::duration poll_for_gpus();
  static void ring(void* self, uint64_t bytes);
  void ring_thread();
  void work_for_thread();
  void work_for_kernels();
  int descriptor() const override { return loop_->shared_descriptor(); }
  bool serve(std::span<const epoll_event> ready) override;
  void before_wait() override;
  void begin_serving() override;
  void end_serving() override;

  const Options options_;
  std::unique_ptr<wire::EventLoop> loop_;
  Fd rung_;  // eventfd
  executor::relay::Bell bell_;
  bool was_idle_ = true;            // at the last look
  bool is_asleep_ = false;          // as far as the observer knows
  int looks_ = 0;                   // in a row that found nothing to do; of GPUs: since it yielded
  std::atomic<uint64_t> turns_{0};  // by kernels' workers; a hint
  uint64_t turns_seen_ = 0;         // by the thread
  bool is_left_out_ = false;        // of the workers' wait; whoever serves
  // Whoever has done the thread's work has told peers nothing. relaxed: whoever serves reads what
  // it has written itself; of what others have done the thread tells at its next look.
  std::atomic<bool> has_untold_{false};
  bool sleeps_for_good_ = false;  // the thread: until something happens
  // A worker waits for the sockets; how long the thread stands aside. Both seq_cst: where one ends
  // and the other begins at the same time, either the thread sees that nobody serves any more, or
  // the worker that the thread means to sleep for long.
  std::atomic<bool> is_served_{false};
  std::atomic<Clock::duration> aside_{Clock::duration::zero()};
  Clock::time_point active_at_{};     // of GPUs: something moved, or was launched
  std::atomic<int64_t> number_{0};    // of the thread, as /proc has it; 0: it has not begun
  std::atomic<Clock::rep> asked_{0};  // by probe(), and no answer yet; 0: none is due
  std::atomic<int64_t> used_{0};      // of a core, in milliseconds, when it was asked
  Thread thread_;                     // last: joined first
};

}  // namespace niccolite::transport::net
