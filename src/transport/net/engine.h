// Engine: a thread of a proxy. It runs an event loop, and between events it looks at the counters
// of FIFOs as often as that is worth while:
//
// Kernels of virtual GPUs ring a doorbell when they have moved a counter, and the thread sleeps
// until then. Kernels of GPUs cannot ring. So the thread looks all the time while something moves
// and a little longer, and then rests between looks. The launch of a kernel rings the doorbell; a
// replay of a graph does not. Plug-ins have nothing that wakes the thread, either.
//
// With virtual GPUs and sockets the thread does only the work for which nobody waits. A kernel that
// rings the doorbell and finds the thread asleep does the thread's work itself. A kernel's worker
// that has nothing to do waits for the sockets, and serves them (gpu::EventSource). So a message
// wakes only the thread that waits for it. While this goes on, and a little longer, the thread
// leaves the sockets to kernels and workers, and checks every millisecond that they still serve:
//
//   state    the thread waits for          state ends when
//   asleep   everything                    a kernel rings, or a worker serves  ->  aside
//   aside    tasks, timers and 1 ms        nobody has served since the last look  ->  asleep
//
// While a worker waits for the sockets, looks are up to 16 ms apart. If nobody has served anything
// before a look, the thread serves the events that it finds: the worker that should have done so
// may have no core.
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
#include "gpu/devices.h"
#include "gpu/event_source.h"
#include "transport/network_state.h"
#include "transport/observer.h"
#include "wire/event_loop.h"

namespace niccolite::transport::net {

class Engine final : private gpu::EventSource {
 public:
  struct Options {
    gpu::Kind machine = gpu::Kind::Virtual;  // whose kernels move the counters
    // The workers that serve the sockets; null: none do.
    gpu::EventWorkers* workers = nullptr;
    // A kernel's thread that has rung sends the chunk by itself if the chunk has at most this many
    // bytes.
    uint64_t most_by_kernels = 0;
    const char* name = "";  // of the thread
    bool has_plugin = false;
    Observer* observer = nullptr;      // outlives the engine; may be null
    std::function<bool()> progress{};  // makes all possible progress; true if anything has moved
    // Tells peers news that they may need soon. progress() leaves this to the thread that has
    // nothing more urgent to do; empty: progress() tells all news itself.
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
  /// Asks the thread to answer, unless it still owes an answer, and tells for how long it has not
  /// answered. A caller that suspects the thread asks more than once. Waits for nothing.
  ProxyThread probe();
  /// In a child made by fork() the thread does not exist, and the loop is the parent's, too: lets
  /// go of the loop without touching it.
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
  bool is_left_out_ = false;        // not in the workers' wait; for the serving thread
  // A kernel's thread or a worker has done this thread's work, and peers have not been told.
  // relaxed: the thread that serves reads its own store; the engine's thread tells the news of
  // others at its next look.
  std::atomic<bool> has_untold_{false};
  bool sleeps_for_good_ = false;  // the thread: until something happens
  // True while a worker waits for the sockets, and how long the engine's thread stands aside. Both
  // are seq_cst. When one ends and the other begins at the same time, either the engine's thread
  // sees that nobody serves any more, or the worker sees that the thread is about to sleep for
  // long.
  std::atomic<bool> is_served_{false};
  std::atomic<Clock::duration> aside_{Clock::duration::zero()};
  Clock::time_point active_at_{};     // of GPUs: something moved, or was launched
  std::atomic<int64_t> number_{0};    // of the thread, as /proc has it; 0: it has not begun
  std::atomic<Clock::rep> asked_{0};  // set by probe(), until the answer; 0: no probe is open
  // core time of the thread when probe() set asked_, in milliseconds
  std::atomic<int64_t> used_{0};
  Thread thread_;  // last: joined first
};

}  // namespace niccolite::transport::net
