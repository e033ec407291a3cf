#include "waiting.h"

#include <chrono>
#include <thread>

#include "library.h"

namespace nb = nanobind;

namespace niccolite::python {
namespace {

using namespace std::chrono_literals;

constexpr int kSpins = 100;  // times that a wait asks before it sleeps

// Asks `is_done`, which needs no GIL, until it says so: at once, then more and more seldom. The
// main thread looks for signals meanwhile.
template <typename IsDone>
void poll(IsDone&& is_done) {
  constexpr auto kLongest = 500us;
  constexpr auto kBetweenSignals = 20ms;
  auto next_look = std::chrono::steady_clock::now() + kBetweenSignals;
  auto pause = 5us;
  for (int asked = 0;; ++asked) {
    if (is_done()) return;
    if (asked < kSpins) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::duration_cast<decltype(pause)>(kLongest));
    if (const auto now = std::chrono::steady_clock::now(); now >= next_look) {
      next_look = now + kBetweenSignals;
      const nb::gil_scoped_acquire acquired;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }
}

}  // namespace

void wait_settled(Communicator& communicator) {
  const ncclComm_t handle = communicator.handle;
  const auto& ask = library().CommGetAsyncError.loaded();
  ncclResult_t state = ncclInProgress;
  {
    const nb::gil_scoped_release released;
    poll([&] { return ask(handle, &state) != ncclSuccess || state != ncclInProgress; });
  }
  check(state);
}

void wait_finished(Communicator& communicator, Stream stream) {
  const CurrentDevice current(communicator.ask_device());
  Devices& all = devices();
  run(communicator, [&] {
    // Falling asleep and being woken takes longer than a small operation.
    for (int asked = 0; asked < kSpins; ++asked) {
      if (all.is_idle(stream)) return ncclSuccess;
      std::this_thread::yield();
    }
    all.wait_idle(stream);
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
