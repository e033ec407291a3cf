#include "waiting.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "library.h"

namespace nb = nanobind;

namespace niccolite::python {
namespace {

using namespace std::chrono_literals;

// The pauses of a wait that polls. At first the thread only yields, because sleeping takes longer
// than a small operation. Then it sleeps, and each sleep is a quarter longer than the last one, up
// to a millisecond. So the wait notices the end of an operation late by at most a quarter of the
// operation's time, and by at most a millisecond.
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

// Calls `is_done`, which needs no GIL, until it returns true. The main thread looks for signals
// meanwhile; `describe` says who waits for whom.
template <typename IsDone, typename Describe>
void poll(IsDone&& is_done, Describe&& describe) {
  constexpr auto kBetweenSignals = 20ms;
  auto next_look = std::chrono::steady_clock::now() + kBetweenSignals;
  for (BackOff back_off;;) {
    if (is_done()) return;
    back_off.pause();
    if (!back_off.is_sleeping()) continue;
    if (const auto now = std::chrono::steady_clock::now(); now >= next_look) {
      next_look = now + kBetweenSignals;
      const nb::gil_scoped_acquire acquired;
      throw_if_interrupted(describe(), false);
    }
  }
}

}  // namespace

void throw_if_interrupted(const std::string& wait, bool is_aborted) {
  if (PyErr_CheckSignals() == 0) return;
  nb::python_error raised;  // takes the exception over
  const nb::handle kind = raised.type();
  const nb::object arguments = raised.value().attr("args");
  if (kind.is(PyExc_KeyboardInterrupt) && nb::len(nb::handle(arguments)) == 0) {
    const std::string text = wait + (is_aborted ? ". Its communicator was aborted" : "") +
                             ". NCCL_DEBUG=INFO names the rank that is late, after about a second.";
    PyErr_SetString(PyExc_KeyboardInterrupt, text.c_str());
    throw nb::python_error();
  }
  throw raised;
}

void throw_if_interrupted(std::span<Communicator* const> communicators) {
  std::string waits;
  bool is_aborted = false;
  for (Communicator* communicator : communicators) {
    if (communicator->handle != nullptr) continue;
    waits += (waits.empty() ? "" : "; ") + communicator->describe_wait();
    is_aborted = true;
  }
  if (waits.empty() && !communicators.empty()) waits = communicators.front()->describe_wait();
  try {
    throw_if_interrupted(waits.empty() ? "this thread waited in a call" : waits, is_aborted);
  } catch (...) {
    for (Communicator* communicator : communicators)
      if (communicator->handle == nullptr) communicator->forget(Communicator::End::Aborted);
    throw;
  }
}

void wait_settled(Communicator& communicator) {
  library().CommGetAsyncError.loaded();
  ncclResult_t state = ncclInProgress;
  {
    const nb::gil_scoped_release released;
    poll([&] { return (state = ask_async_error(communicator.handle)) != ncclInProgress; },
         [&] { return communicator.describe_wait(); });
  }
  check(state);
}

void wait_finished(Communicator& communicator, Stream stream,
                   std::span<Communicator* const> group) {
  const CurrentDevice current(communicator.ask_device());
  Devices& all = devices();
  library().CommGetAsyncError.loaded();
  run(communicator, [&] {
    // It polls, because a synchronization would not return: the stream of a failed communicator
    // stays blocked.
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
  Communicator* const one[] = {&communicator};
  throw_if_interrupted(one);
  throw_invalid("the communicator was aborted during the call");
}

void wait_idle(int device, Stream stream) {
  const CurrentDevice current(device);
  Devices& all = devices();
  const nb::gil_scoped_release released;
  if (is_main_thread())
    poll([&] { return all.is_idle(stream); },
         [&] { return "this thread waited for a stream of device " + std::to_string(device); });
  else
    all.wait_idle(stream);
}

}  // namespace niccolite::python
