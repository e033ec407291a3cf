// Engine: a thread of a proxy. It runs an event loop, and looks at the counters of FIFOs in
// between, as often as it is worth while:
//
// Kernels of virtual GPUs ring when they have moved a counter, and the thread sleeps until then.
// Those of GPUs cannot: the thread looks all the time while something moves and a little longer,
// then rests between looks. Whoever launches a kernel rings for it; replays of graphs do not.
// Plug-ins have nothing that wakes, either.
//
// Thread safety: loop().post(), bell(), probe() and join() from any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "base/fd.h"
#include "base/thread.h"
#include "bootstrap/event_loop.h"
#include "executor/protocol/relay.h"
#include "gpu/machine.h"
#include "transport/network_state.h"
#include "transport/observer.h"

namespace niccolite::transport::net {

class Engine {
 public:
  struct Options {
    gpu::Kind machine = gpu::Kind::Virtual;  // whose kernels move the counters
    const char* name = "";                   // of the thread
    bool has_plugin = false;
    Observer* observer = nullptr;         // outlives the engine; may be null
    std::function<bool()> progress{};     // moves what can be moved: true when that was something
    std::function<bool()> is_finished{};  // nothing will move any more: the thread ends
  };
  /// The thread runs from start() on.
  static Result<std::unique_ptr<Engine>> create(Options options);
  Status start();
  ~Engine();

  bootstrap::EventLoop& loop() { return *loop_; }
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
  using Clock = bootstrap::EventLoop::Clock;

  explicit Engine(Options options);
  Status watch_bell();
  void tell(ProxyState state) {
    if (options_.observer != nullptr && options_.observer->wants_state())
      options_.observer->state(state);
  }
  bool progress();
  Clock::duration poll();
  Clock::duration poll_for_gpus();

  const Options options_;
  std::unique_ptr<bootstrap::EventLoop> loop_;
  Fd rung_;  // eventfd
  executor::relay::Bell bell_;
  bool was_idle_ = true;              // at the last look
  bool is_asleep_ = false;            // as far as the observer knows
  int looks_ = 0;                     // in a row that found nothing to do
  Clock::time_point active_at_{};     // of GPUs: something moved, or was launched
  std::atomic<int64_t> number_{0};    // of the thread, as /proc has it; 0: it has not begun
  std::atomic<Clock::rep> asked_{0};  // by probe(), and no answer yet; 0: none is due
  std::atomic<int64_t> used_{0};      // of a core, in milliseconds, when it was asked
  Thread thread_;                     // last: joined first
};

}  // namespace niccolite::transport::net
