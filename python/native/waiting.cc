#include "waiting.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "library.h"

namespace nb = nanobind;

namespace niccolite::python {
namespace {

using namespace std::chrono_literals;

// The pauses of a wait that asks again and again. At first the thread only yields: falling asleep
// and being woken takes longer than a small operation. Then it sleeps, each time a quarter longer,
// so that what takes long is noticed late by about a quarter of its time, or by a millisecond where
// that is less.
class BackOff {
 public:
  bool is_sleeping() const { return yields_ == kYields; }
  void pause() {
    if (!is_sleeping()) {
      ++yields_;
      std::this_thread::yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min<std::chrono::nanoseconds>(sleep_ * 5 / 4, kLongest);
  }

 private:
  static constexpr int kYields = 100;
  static constexpr std::chrono::nanoseconds kLongest = 1ms;
  int yields_ = 0;
  std::chrono::nanoseconds sleep_ = 5us;
};

// Asks `is_done`, which needs no GIL, until it says so. The main thread looks for signals
// meanwhile.
template <typename IsDone>
void poll(IsDone&& is_done) {
  constexpr auto kBetweenSignals = 20ms;
  auto next_look = std::chrono::steady_clock::now() + kBetweenSignals;
  for (BackOff back_off;;) {
    if (is_done()) return;
    back_off.pause();
    if (!back_off.is_sleeping()) continue;
    if (const auto now = std::chrono::steady_clock::now(); now >= next_look) {
      next_look = now + kBetweenSignals;
      const nb::gil_scoped_acquire acquired;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }
}

}  // namespace

void wait_settled(Communicator& communicator) {
  library().CommGetAsyncError.loaded();
  ncclResult_t state = ncclInProgress;
  {
    const nb::gil_scoped_release released;
    poll([&] { return (state = ask_async_error(communicator.handle)) != ncclInProgress; });
  }
  check(state);
}

void wait_finished(Communicator& communicator, Stream stream,
                   std::span<Communicator* const> group) {
  const CurrentDevice current(communicator.ask_device());
  Devices& all = devices();
  library().CommGetAsyncError.loaded();
  run(communicator, [&] {
    // Not synchronized with: the stream of a communicator that has failed goes on waiting.
    for (BackOff back_off; !all.is_idle(stream); back_off.pause()) {
      if (!back_off.is_sleeping()) continue;
      for (Communicator* member : group) {
        const ncclResult_t state = ask_async_error(member->handle);
        if (state != ncclSuccess && state != ncclInProgress) return state;
      }
    }
    return ncclSuccess;
  });
  if (communicator.handle != nullptr) [[likely]]
    return;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  throw_invalid("the communicator was aborted during the call");
}

void wait_idle(int device, Stream stream) {
  const CurrentDevice current(device);
  Devices& all = devices();
  const nb::gil_scoped_release released;
  if (is_main_thread())
    poll([&] { return all.is_idle(stream); });
  else
    all.wait_idle(stream);
}

}  // namespace niccolite::python
