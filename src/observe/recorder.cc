#include "observe/recorder.h"

#include <algorithm>
#include <unordered_map>

namespace niccolite::observe {

namespace {

// Time between looks of the launching thread. At this distance the cost of a look, a cache miss,
// does not count.
constexpr double kLookInterval = 100'000;  // ns

}  // namespace

Recorder::Recorder() { Clock::begin(); }

EventRing& Recorder::ring_of(EventKind kind) {
  switch (kind) {
    case EventKind::Called:
      return calls_;
    case EventKind::Begun:
    case EventKind::Ended:
      return launches_;
    case EventKind::Sent:
    case EventKind::Received:
      break;
    default:
      return others_;
  }
  // acquire: pairs with the release below.
  if (EventRing* const steps = steps_.load(std::memory_order_acquire)) return *steps;
  std::lock_guard lock(mutex_);
  if (made_steps_ == nullptr) {
    made_steps_ = std::make_unique<EventRing>(kKeptSteps);
    steps_.store(made_steps_.get(), std::memory_order_release);
  }
  return *made_steps_;
}

void Recorder::add_captured_call(uint64_t order, const Event& event) {
  const auto is_equal = [&](const Event& other) {
    return other.collective == event.collective && other.type == event.type &&
           other.operation == event.operation && other.is_send == event.is_send &&
           other.peer == event.peer && other.value == event.value;
  };
  size_t place = 0;  // of an equal one, of nothing, or of the oldest
  uint64_t oldest = ~uint64_t{0};
  for (size_t slot = 0; slot < captured_.size(); ++slot) {
    EventRing::Entry entry;
    const bool is_there = captured_.read(slot, entry);
    if (is_there && entry.ticket >= oldest && !is_equal(entry.event)) continue;
    place = slot;
    if (!is_there || is_equal(entry.event)) break;
    oldest = entry.ticket;
  }
  captured_.write(place, order, event);
}

Recorder::Progress Recorder::progress() const {
  if (marks_) return marks_.progress();
  // acquire: pairs with mark(). The ends are read first: a launch that ends meanwhile still counts
  // as running.
  const uint64_t ends = ended_.count.load(std::memory_order_acquire);
  const uint64_t begins = begun_.count.load(std::memory_order_acquire);
  return {.begun = begun_.last.load(std::memory_order_relaxed), .is_running = begins != ends};
}

// relaxed: a hint, which orders nothing.
bool Recorder::has_begun(uint64_t launch, uint32_t ctas) const {
  if (marks_) return marks_.have_all_begun(launch, ctas);
  return begun_.last.load(std::memory_order_relaxed) >= launch;
}

void Recorder::look() {
  if (!marks_) return;
  const KernelStamp last = marks_.last();
  const uint64_t now = ticks();
  const Clock clock;
  std::lock_guard lock(mutex_);
  clock_.emplace(clock);
  if (last.time != 0) gpu_clock_.came_before(now, last.time, clock);
}

// Every launch has a CTA 0, which is done when the stream is. One cache line, where look() reads
// all; and no clock of its own, which a young process would have to wait for.
void Recorder::look_at_first_cta(uint64_t now) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || !clock_) return;
  if (static_cast<double>(now - looked_) < kLookInterval * clock_->ticks_per_nanosecond()) return;
  looked_ = now;
  const KernelStamp stamp = KernelMarks::read(*marks_.newest());
  if (stamp.time != 0) gpu_clock_.came_before(ticks(), stamp.time, *clock_);
}

uint64_t Recorder::uncertainty() const {
  if (!marks_) return 0;
  const Clock clock;
  std::lock_guard lock(mutex_);
  return gpu_clock_.uncertainty(clock);
}

// Adds the kernels' marks as events. The kernels' times become times of the host, whose calls give
// the order of events.
void Recorder::add_marks(std::vector<Event>& events) const {
  std::unordered_map<uint64_t, uint64_t> called;  // by launch that no graph holds: ticks
  for (const Event& event : events)
    if (event.kind == EventKind::Called && event.number != 0)
      called.emplace(event.launch, event.time);
  const Clock clock;
  std::vector<KernelSpan> spans;
  for (uint64_t row = 0; row < kMarkedLaunches; ++row) {
    const KernelSpan& span = *marks_.spans_of(row);
    spans.push_back({.begin = KernelMarks::read(span.begin), .end = KernelMarks::read(span.end)});
  }
  const uint64_t now = ticks();
  std::lock_guard lock(mutex_);
  for (const KernelSpan& span : spans) {
    if (span.begin.launch == 0) continue;
    gpu_clock_.came_before(now, span.begin.time, clock);
    if (const auto found = called.find(span.begin.launch); found != called.end())
      gpu_clock_.came_after(found->second, span.begin.time, clock);
  }
  const auto add = [&](EventKind kind, const KernelStamp& stamp) {
    const std::optional<uint64_t> time = gpu_clock_.ticks_of(stamp.time, clock);
    if (!time) return;
    Event event;
    event.time = *time;
    event.launch = stamp.launch;
    event.kind = kind;
    events.push_back(event);
  };
  for (const KernelSpan& span : spans) {
    if (span.begin.launch == 0) continue;
    add(EventKind::Begun, span.begin);
    if (span.end.launch == span.begin.launch && span.end.time >= span.begin.time)
      add(EventKind::Ended, span.end);
  }
}

std::vector<Event> Recorder::events() const {
  std::vector<Event> events;
  // acquire: pairs with ring_of().
  const EventRing* const steps = steps_.load(std::memory_order_acquire);
  for (const EventRing* ring : {&calls_, &captured_, &launches_, &others_, steps})
    if (ring != nullptr)
      for (const EventRing::Entry& entry : ring->entries()) events.push_back(entry.event);
  if (marks_) add_marks(events);
  std::ranges::stable_sort(events, {}, &Event::time);
  return events;
}

}  // namespace niccolite::observe
