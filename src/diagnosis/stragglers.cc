#include "diagnosis/stragglers.h"

#include <algorithm>
#include <map>

#include "observe/clock.h"
#include "schedule/schedule.h"

namespace niccolite::diagnosis {
namespace {

constexpr size_t kMostTold = 3;
constexpr uint64_t kMostUncertain = uint64_t{1} << 60;

bool is_collective(const observe::Event& event) {
  return event.kind == observe::EventKind::Called && event.number != 0 &&
         event.collective != static_cast<uint8_t>(schedule::Collective::PointToPoint);
}

std::string duration(uint64_t nanoseconds) {
  if (nanoseconds >= 1'000'000'000)
    return fmt::format("{:.1f} s", static_cast<double>(nanoseconds) / 1e9);
  if (nanoseconds >= 1'000'000)
    return fmt::format("{:.1f} ms", static_cast<double>(nanoseconds) / 1e6);
  return fmt::format("{:.0f} us", static_cast<double>(nanoseconds) / 1e3);
}

}  // namespace

Bytes Arrivals::encode() const {
  Writer writer;
  writer.u64(now);
  writer.u64(uncertainty);
  writer.u32(static_cast<uint32_t>(collectives.size()));
  for (const One& one : collectives) {
    writer.u64(one.number);
    writer.u64(one.time);
  }
  return std::move(writer).take();
}

Result<Arrivals> Arrivals::decode(std::span<const std::byte> bytes, int rank) {
  Reader reader(bytes, "a rank's arrivals");
  Arrivals arrivals;
  arrivals.now = reader.u64();
  arrivals.uncertainty = std::min(reader.u64(), kMostUncertain);
  const uint32_t count = reader.count(kMost, 2 * sizeof(uint64_t));
  for (uint32_t i = 0; i < count; ++i) {
    One one;
    one.number = reader.u64();
    one.time = reader.u64();
    if (!arrivals.collectives.empty() && one.number <= arrivals.collectives.back().number)
      reader.reject("collectives out of order");
    arrivals.collectives.push_back(one);
  }
  TRY(reader.finish().with_context("rank {}", rank));
  return arrivals;
}

Arrivals arrivals_of(const observe::Recorder& recorder, uint64_t after) {
  const std::vector<observe::Event> events = recorder.events();
  std::map<uint64_t, uint64_t> begun;  // by launch: ticks
  for (const observe::Event& event : events)
    if (event.kind == observe::EventKind::Begun) begun.emplace(event.launch, event.time);
  std::map<uint64_t, uint64_t> arrived;  // by number: ticks
  for (const observe::Event& event : events) {
    if (!is_collective(event) || event.number <= after) continue;
    const auto found = begun.find(event.launch);
    // A machine that reports the begin of some launches reports all: other launches have not begun.
    if (found != begun.end())
      arrived[event.number] = found->second;
    else if (recorder.progress().begun == 0)
      arrived[event.number] = event.time;
  }
  while (arrived.size() > Arrivals::kMost) arrived.erase(arrived.begin());
  const observe::Clock clock;
  Arrivals arrivals;
  arrivals.now = clock.nanoseconds(observe::ticks());
  arrivals.uncertainty = recorder.uncertainty();
  for (const auto& [number, ticks] : arrived)
    arrivals.collectives.push_back({.number = number, .time = clock.nanoseconds(ticks)});
  return arrivals;
}

uint64_t Stragglers::counted() const {
  std::lock_guard lock(mutex_);
  return counted_;
}

uint64_t Stragglers::operations() const {
  std::lock_guard lock(mutex_);
  return operations_;
}

std::vector<Stragglers::OfRank> Stragglers::of_ranks() const {
  std::lock_guard lock(mutex_);
  return of_ranks_;
}

void Stragglers::add(std::span<const Arrivals> of_ranks) {
  std::map<uint64_t, std::vector<uint64_t>> times;  // by number, then by rank
  for (size_t rank = 0; rank < of_ranks.size(); ++rank)
    for (const Arrivals::One& one : of_ranks[rank].collectives) {
      std::vector<uint64_t>& of_number = times[one.number];
      if (of_number.size() == rank) of_number.push_back(one.time);
    }
  std::lock_guard lock(mutex_);
  for (const auto& [number, of_number] : times) {
    if (number <= counted_ || of_number.size() != of_ranks_.size()) continue;
    counted_ = number;
    ++operations_;
    const auto [first, last] = std::minmax_element(of_number.begin(), of_number.end());
    for (size_t rank = 0; rank < of_number.size(); ++rank) {
      const uint64_t lateness = of_number[rank] - *first;
      const auto bin = std::upper_bound(kEnds.begin(), kEnds.end(), lateness);
      ++of_ranks_[rank].bins[static_cast<size_t>(bin - kEnds.begin())];
    }
    const uint64_t lateness = *last - *first;
    const auto late_rank = static_cast<size_t>(last - of_number.begin());
    const auto first_rank = static_cast<size_t>(first - of_number.begin());
    const uint64_t uncertainty = of_ranks[late_rank].uncertainty + of_ranks[first_rank].uncertainty;
    if (lateness < kWorthTelling + uncertainty) continue;
    OfRank& late = of_ranks_[late_rank];
    ++late.times_last;
    late.lateness += lateness;
    if (lateness <= late.worst) continue;
    late.worst = lateness;
    late.worst_number = number;
  }
}

std::string Stragglers::describe(uint64_t communicator) const {
  std::lock_guard lock(mutex_);
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < of_ranks_.size(); ++rank)
    if (of_ranks_[rank].times_last > 0) ranks.push_back(rank);
  std::ranges::stable_sort(
      ranks, [&](size_t a, size_t b) { return of_ranks_[a].lateness > of_ranks_[b].lateness; });
  if (ranks.size() > kMostTold) ranks.resize(kMostTold);
  std::string text;
  for (const size_t rank : ranks) {
    const OfRank& late = of_ranks_[rank];
    text += fmt::format(
        "communicator 0x{:x}: rank {} came last to {} of {} collectives, {} after the first rank "
        "on average, {} at most (collective #{})\n",
        communicator, rank, late.times_last, operations_, duration(late.lateness / late.times_last),
        duration(late.worst), late.worst_number);
  }
  return text;
}

void Stragglers::describe(observe::Json& json) const {
  std::lock_guard lock(mutex_);
  json.begin_list("arrivals");
  for (size_t rank = 0; rank < of_ranks_.size(); ++rank) {
    const OfRank& of = of_ranks_[rank];
    json.begin_object().number("rank", rank).number("times_last", of.times_last);
    json.number("lateness_ns", of.lateness).number("worst_ns", of.worst);
    json.number("worst_collective", of.worst_number);
    // Up to 10 us, 100 us, 1 ms, 10 ms, 100 ms, 1 s, and more.
    json.begin_list("histogram");
    for (const uint64_t count : of.bins) json.number({}, count);
    json.end_list();
    json.end_object();
  }
  json.end_list();
}

}  // namespace niccolite::diagnosis
