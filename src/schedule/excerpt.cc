#include "schedule/excerpt.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "schedule/index.h"

namespace niccolite::schedule {
namespace {

constexpr int kWholeRanks = 8;  // so many are readable with all that they do
constexpr int kMostRanks = 8, kMostWorkers = 5, kMostSteps = 20;
constexpr int kHeadRanks = 3, kHeadWorkers = 2, kHeadSteps = 2;

/// How block numbers go from a rank to the next: they count on as the ranks do, or stay.
enum class Blocks { CountOn, Stay };

int blocks_of(const Schedule& schedule, int rank, Buffer buffer) {
  switch (buffer) {
    case Buffer::Input:
      return input_blocks(schedule, rank);
    case Buffer::Output:
      return output_blocks(schedule, rank);
    case Buffer::Scratch:
      break;
  }
  return schedule.scratch_blocks;
}

/// Is what `rank` does what the rank before it does, with peers counted on by one?
class Likeness {
 public:
  Likeness(const Schedule& schedule, Blocks blocks) : schedule_(schedule), blocks_(blocks) {}

  bool operator()(int rank) const {
    return std::ranges::equal(at(schedule_.ranks, rank - 1), at(schedule_.ranks, rank),
                              [&](const Channel& before, const Channel& after) {
                                return std::ranges::equal(before.workers, after.workers,
                                                          [&](const Worker& a, const Worker& b) {
                                                            return are_alike(a, b, rank);
                                                          });
                              });
  }

 private:
  bool are_alike(const Worker& before, const Worker& after, int rank) const {
    return std::ranges::equal(
        before.instructions, after.instructions,
        [&](const Instruction& a, const Instruction& b) { return are_alike(a, b, rank); });
  }

  bool are_alike(const Instruction& before, const Instruction& after, int rank) const {
    return before.reduce == after.reduce && before.finish == after.finish &&
           are_alike(before.source, after.source, rank) &&
           are_alike(before.target, after.target, rank) &&
           peers(before.receive_from, rank - 1) == peers(after.receive_from, rank) &&
           peers(before.send_to, rank - 1) == peers(after.send_to, rank);
  }

  bool are_alike(const std::optional<BlockReference>& before,
                 const std::optional<BlockReference>& after, int rank) const {
    if (!before || !after) return before.has_value() == after.has_value();
    if (before->buffer != after->buffer) return false;
    // Scratch blocks have no name outside of their rank.
    if (before->buffer == Buffer::Scratch) return true;
    const int count = blocks_of(schedule_, rank, after->buffer);
    const int shift = blocks_ == Blocks::CountOn ? 1 : 0;
    return blocks_of(schedule_, rank - 1, before->buffer) == count &&
           (before->block + shift) % count == after->block;
  }

  /// Returns for each connection the distance of its peer on the ring of ranks, and its tag. They
  /// are sorted, because connections do not differ by their order: sums are reduced in the order of
  /// the ranks.
  std::vector<std::pair<int, int>> peers(const std::vector<int>& connections, int rank) const {
    std::vector<std::pair<int, int>> result;
    for (const int index : connections) {
      const Connection& connection = at(schedule_.connections, index);
      const int peer = connection.sender == rank ? connection.receiver : connection.sender;
      result.emplace_back((peer - rank + schedule_.nranks) % schedule_.nranks, connection.tag);
    }
    std::ranges::sort(result);
    return result;
  }

  const Schedule& schedule_;
  const Blocks blocks_;
};

std::vector<bool> alike_ranks(const Schedule& schedule, Blocks blocks) {
  const Likeness is_alike(schedule, blocks);
  std::vector<bool> alike(schedule.ranks.size());
  for (int rank = 1; rank < schedule.nranks; ++rank)
    alike[static_cast<size_t>(rank)] = is_alike(rank);
  return alike;
}

using Shape = std::array<int, 6>;
Shape shape_of(const Instruction& instruction) {
  return {instruction.source.has_value(),
          instruction.target.has_value(),
          instruction.reduce,
          instruction.finish,
          length(instruction.send_to),
          length(instruction.receive_from)};
}

const std::vector<Instruction>* list_of(const Channel& channel, int worker) {
  return worker < length(channel.workers) ? &at(channel.workers, worker).instructions : nullptr;
}

/// Have workers of the ranks that are shown the shape of the workers before them?
std::vector<bool> alike_workers(const Schedule& schedule, const Axis& ranks, int count) {
  std::vector<bool> alike(static_cast<size_t>(count));
  const auto is_alike = [](const Channel& channel, int worker) {
    const std::vector<Instruction>*before = list_of(channel, worker - 1),
          *after = list_of(channel, worker);
    if (before == nullptr || after == nullptr) return before == after;
    return std::ranges::equal(*before, *after, {}, shape_of, shape_of);
  };
  for (int worker = 1; worker < count; ++worker) {
    bool all = true;
    for (int rank = 0; rank < schedule.nranks; ++rank)
      if (ranks.shows(rank))
        for (const Channel& channel : at(schedule.ranks, rank)) all &= is_alike(channel, worker);
    alike[static_cast<size_t>(worker)] = all;
  }
  return alike;
}

/// The visible parts of a step: positions of instructions, and their shapes.
using Step = std::vector<std::pair<std::array<int, 3>, Shape>>;

std::vector<bool> alike_steps(const Schedule& schedule, const Timeline& timeline, const Axis& ranks,
                              const Axis& workers) {
  std::vector<Step> steps(static_cast<size_t>(timeline.steps));
  for (const Event& event : timeline.events) {
    const Position& p = event.position;
    if (!ranks.shows(p.rank) || !workers.shows(p.worker)) continue;
    const Channel& channel = at(at(schedule.ranks, p.rank), p.channel);
    const Instruction& instruction = at(at(channel.workers, p.worker).instructions, p.instruction);
    at(steps, event.step).push_back({{p.channel, p.rank, p.worker}, shape_of(instruction)});
  }
  for (Step& step : steps) std::ranges::sort(step);
  std::vector<bool> alike(steps.size());
  for (size_t step = 1; step < steps.size(); ++step) alike[step] = steps[step] == steps[step - 1];
  return alike;
}

std::string range_of(const char* one, const char* many, const Axis::Entry& gap) {
  return gap.first == gap.last ? fmt::format("{} {}", one, gap.first)
                               : fmt::format("{} {} to {}", many, gap.first, gap.last);
}

/// "Ranks 3 to 62 do what rank 2 does", "worker 4 is left out".
std::string describe_gaps(const Axis& axis, const char* one, const char* many, const char* as) {
  std::string text;
  for (const Axis::Entry& entry : axis.entries()) {
    if (!entry.is_gap) continue;
    const bool is_one = entry.first == entry.last;
    text += (text.empty() ? "" : "; ") + range_of(one, many, entry);
    text += entry.is_alike
                ? fmt::format(" {} {} {}", is_one ? "is as" : "are as", one, entry.first - 1)
                : (is_one ? " is left out" : " are left out");
    if (entry.is_alike) text += as;
  }
  return text;
}

std::vector<std::string> notes_of(const Schedule& schedule, const Excerpt& excerpt, Blocks blocks) {
  std::vector<std::string> notes;
  const std::string ranks = describe_gaps(
      excerpt.ranks, "rank", "ranks",
      blocks == Blocks::CountOn ? ", peers and blocks counted on" : ", peers counted on");
  notes.push_back(
      fmt::format("{} of {} ranks are shown: {}", excerpt.ranks.shown(), schedule.nranks, ranks));
  const std::string workers = describe_gaps(excerpt.workers, "worker", "workers", "");
  if (!workers.empty()) notes.push_back(workers);
  notes.push_back("short arrows: from and to what is not shown, with its ranks");
  return notes;
}

}  // namespace

Axis Axis::whole(int count) { return of(std::vector<bool>(static_cast<size_t>(count)), 1, count); }

Axis Axis::of(const std::vector<bool>& alike, int head, int most) {
  const int count = length(alike);
  std::vector<bool> shows(alike.size(), true);
  int begin = 0;  // of the run
  for (int i = 1; i < count; ++i) {
    if (!alike[static_cast<size_t>(i)]) begin = i;
    const bool ends = i + 1 == count || !alike[static_cast<size_t>(i + 1)];
    // A gap needs the room of one thing, so it must omit more than one.
    const int length_of_run = i - begin + 1;
    if (ends && length_of_run > head + 2)
      for (int k = begin + head; k < i; ++k) shows[static_cast<size_t>(k)] = false;
  }
  int shown = 0;
  for (int i = 0; i + 1 < count; ++i) {
    if (!shows[static_cast<size_t>(i)]) continue;
    if (++shown >= most) shows[static_cast<size_t>(i)] = false;
  }
  Axis axis(std::move(shows));
  for (int i = 0; i < count; ++i) {
    if (axis.shows(i)) {
      axis.entries_.push_back({i, i});
    } else if (!axis.entries_.empty() && axis.entries_.back().is_gap) {
      axis.entries_.back().last = i;
      axis.entries_.back().is_alike &= alike[static_cast<size_t>(i)];
    } else {
      axis.entries_.push_back(
          {.first = i, .last = i, .is_gap = true, .is_alike = alike[static_cast<size_t>(i)]});
    }
  }
  return axis;
}

int Axis::shown() const { return static_cast<int>(std::ranges::count(shows_, true)); }

Excerpt excerpt_of(const Schedule& schedule, const Timeline& timeline) {
  int workers = 1;
  for (const std::vector<Channel>& channels : schedule.ranks)
    for (const Channel& channel : channels) workers = std::max(workers, length(channel.workers));
  Excerpt excerpt{.ranks = Axis::whole(schedule.nranks),
                  .workers = Axis::whole(workers),
                  .steps = Axis::whole(timeline.steps),
                  .notes = {}};
  if (schedule.nranks <= kWholeRanks) return excerpt;
  std::vector<bool> alike = alike_ranks(schedule, Blocks::CountOn);
  const std::vector<bool> staying = alike_ranks(schedule, Blocks::Stay);
  Blocks blocks = Blocks::CountOn;
  if (std::ranges::count(staying, true) > std::ranges::count(alike, true)) {
    alike = staying;
    blocks = Blocks::Stay;
  }
  excerpt.ranks = Axis::of(alike, kHeadRanks, kMostRanks);
  excerpt.workers =
      Axis::of(alike_workers(schedule, excerpt.ranks, workers), kHeadWorkers, kMostWorkers);
  excerpt.steps = Axis::of(alike_steps(schedule, timeline, excerpt.ranks, excerpt.workers),
                           kHeadSteps, kMostSteps);
  excerpt.notes = notes_of(schedule, excerpt, blocks);
  return excerpt;
}

}  // namespace niccolite::schedule
