// Recorder: the last things that happened to one communicator on one rank: its calls, launches,
// what the executor and the watch saw of them, and what failed. Records have a fixed size and are
// written without locks, whether anybody will read them or not: 12 ns for each call
// (bench/call_log_bench). The flight recorder's files (dumps.h) are what readers see of it.
// Thread safety: any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "observe/clock.h"

namespace niccolite::observe {

enum class EventKind : uint8_t {
  Called,   // one call of a launch that was queued or captured
  Begun,    // virtual GPUs: the stream has come to the launch
  Ended,    // virtual GPUs: the launch is done
  Waiting,  // an operation has waited for a peer, for so many milliseconds
  Stalled,  // a verdict names this peer as the one that an operation stands still for
  Failed,   // the asynchronous error; its text stands beside the events
  Ready,    // the communicator was made
  Left      // it was aborted or destroyed
};
inline constexpr size_t kEventKinds = 8;

/// One thing that happened. Which fields mean something depends on the kind.
struct Event {
  uint64_t time = 0;    // ticks()
  uint64_t launch = 0;  // its number on this communicator, from 1
  uint64_t number = 0;  // Called: of the call (comm::LoggedCall); 0: captured
  uint64_t value = 0;   // Called: elements; Waiting: milliseconds
  uint64_t stream = 0;  // Called
  int32_t peer = -1;    // of a message, a wait or a verdict; the root of a collective that has one
  uint8_t collective = 0, type = 0, operation = 0;  // Called: of planner::Request
  uint8_t is_send = 0;                              // Called: of a message
  EventKind kind = EventKind::Called;
};

class Recorder {
 public:
  static constexpr size_t kKept = 512;

  /// Hears of each begin and end of a launch, on the thread of the executor that tells of it: must
  /// not wait for executors.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void begun(uint64_t launch) = 0;
    virtual void ended(uint64_t launch) = 0;
  };

  Recorder();
  Recorder(const Recorder&) = delete;

  /// Before the first launch.
  void set_listener(std::shared_ptr<Listener> listener) { listener_ = std::move(listener); }

  void add(const Event& event) { write(reserve(1), event); }
  /// The same of several that are known together: the place of the first, and each by itself.
  uint64_t reserve(size_t events) {
    // relaxed: the slot's own sequence publishes what is in it.
    return next_.fetch_add(events, std::memory_order_relaxed);
  }
  void write(uint64_t place, const Event& event) { write(slots_[place % kKept], place, event); }
  /// What an executor that knows tells. Launches of one communicator begin in the order of their
  /// streams, so that the last is the newest.
  void begin(uint64_t launch) {
    mark(begun_, EventKind::Begun, launch);
    if (listener_ != nullptr) [[unlikely]]
      listener_->begun(launch);
  }
  void end(uint64_t launch) {
    if (listener_ != nullptr) [[unlikely]]
      listener_->ended(launch);
    mark(ended_, EventKind::Ended, launch);
  }
  /// What the stream has come to. A launch in a graph begins and ends again and again.
  struct Progress {
    uint64_t begun = 0;       // the last launch that began; 0: none, or the executor does not tell
    bool is_running = false;  // it has not ended
  };
  Progress progress() const {
    // acquire: pairs with mark(). The ends first: what ends meanwhile still runs.
    const uint64_t ends = ended_.count.load(std::memory_order_acquire);
    const uint64_t begins = begun_.count.load(std::memory_order_acquire);
    return {.begun = begun_.last.load(std::memory_order_relaxed), .is_running = begins != ends};
  }

  /// Oldest first. Of what is being written meanwhile, some may be absent.
  std::vector<Event> events() const;

 private:
  static constexpr size_t kWords = 7;
  // 2 * ticket + 2 when the event of this ticket is there; odd while one is being written.
  struct alignas(64) Slot {
    std::atomic<uint64_t> sequence{0};
    std::array<std::atomic<uint64_t>, kWords> words{};
  };

  struct Mark {
    std::atomic<uint64_t> last{0}, count{0};
  };

  static void write(Slot& slot, uint64_t ticket, const Event& event);
  static bool read(const Slot& slot, uint64_t ticket, Event& event);
  void mark(Mark& mark, EventKind kind, uint64_t launch) {
    Event event;
    event.time = ticks();
    event.launch = launch;
    event.kind = kind;
    add(event);
    mark.last.store(launch, std::memory_order_relaxed);  // published by the count
    // [release] pairs with progress(): whoever sees the count finds the event.
    mark.count.fetch_add(1, std::memory_order_release);
  }

  std::shared_ptr<Listener> listener_;  // nearly always null
  const std::unique_ptr<Slot[]> slots_;
  alignas(64) std::atomic<uint64_t> next_{0};
  Mark begun_, ended_;
};

}  // namespace niccolite::observe
