#include "importers/flow.h"

#include <fmt/core.h>

#include <algorithm>
#include <climits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "schedule/check.h"
#include "schedule/index.h"

namespace niccolite::importers {
namespace {

using schedule::at;
using schedule::BlockReference;
using schedule::Buffer;
using schedule::Instruction;
using schedule::length;

constexpr int kNone = -1;

/// The content of a place from one move to the next one.
struct Version {
  SharedValue value;
  int rank;
  Place place;                            // plain
  std::optional<BlockReference> input{};  // of the schedule: nobody moved it here
  std::vector<int> reads{};               // moves
  bool is_result = false;
};

/// The versions that moves read and write, and whether a result needs them.
class Analysis {
 public:
  Analysis(const Flow& flow, const Places& places)
      : flow_(flow), places_(places), operands_(flow.moves.size()), made_(flow.moves.size()) {}

  Status run() {
    for (int move = 0; move < length(flow_.moves); ++move) TRY(add(move));
    add_initial_results();
    for (const auto& [where, version] : current_) {
      Version& of = at(versions_, version);
      of.is_result = places_.output(of.rank, of.place, *of.value).has_value();
    }
    for (int move = length(flow_.moves) - 1; move >= 0; --move)
      if (is_needed(at(versions_, at(made_, move))))
        for (const int operand : at(operands_, move)) at(versions_, operand).reads.push_back(move);
    return {};
  }

  const std::vector<Version>& versions() const { return versions_; }
  const std::vector<int>& operands(int move) const { return at(operands_, move); }
  int made(int move) const { return at(made_, move); }
  static bool is_needed(const Version& version) {
    return version.is_result || !version.reads.empty();
  }

 private:
  Status refuse(const Move& move, std::string_view what) const {
    return Status::invalid_usage("line {}: {}", move.line, what);
  }

  /// The version at a place, or nullopt.
  std::optional<int> find(int rank, const Place& place) {
    const auto known = current_.find({rank, place});
    if (known != current_.end()) return known->second;
    const auto first = places_.initial(rank, place);
    if (!first) return {};
    const int version = length(versions_);
    versions_.push_back({.value = std::make_shared<const Value>(first->first),
                         .rank = rank,
                         .place = place,
                         .input = first->second});
    current_.emplace(std::pair(rank, place), version);
    return version;
  }

  Status add(int index) {
    const Move& move = at(flow_.moves, index);
    if (move.operands.size() > 1 && !schedule::reduces(flow_.layout.collective))
      return refuse(move, fmt::format("adds chunks, and {} only moves data",
                                      name_of(flow_.layout.collective)));
    SharedValue value;
    for (const Operand& operand : move.operands) {
      const Place place = places_.plain(operand.rank, operand.place);
      const std::optional<int> found = find(operand.rank, place);
      if (!found)
        return refuse(
            move, fmt::format("reads chunk {} of {} on gpu {}, which nobody wrote",
                              operand.place.chunk, name_of(operand.place.buffer), operand.rank));
      at(operands_, index).push_back(*found);
      const SharedValue& other = at(versions_, *found).value;
      if (value == nullptr) {
        value = other;
        continue;
      }
      Result<SharedValue> added = sum(*value, *other);
      if (!added.is_ok()) return refuse(move, added.status().message());
      value = std::move(added).take();
    }
    const Place target = places_.plain(move.rank, move.target);
    at(made_, index) = length(versions_);
    current_[{move.rank, target}] = length(versions_);
    versions_.push_back({.value = std::move(value), .rank = move.rank, .place = target});
    return {};
  }

  /// In place, a rank's own block may be a result as it is, and out of place it has to be copied.
  void add_initial_results() {
    if (!flow_.layout.is_in_place) return;
    for (int rank = 0; rank < flow_.layout.nranks; ++rank)
      for (int chunk = 0; chunk < flow_.layout.chunks; ++chunk)
        static_cast<void>(find(rank, {Buffer::Output, chunk}));
  }

  const Flow& flow_;
  const Places& places_;
  std::vector<Version> versions_;
  std::vector<std::vector<int>> operands_;  // versions, by move
  std::vector<int> made_;                   // version, by move
  std::map<std::pair<int, Place>, int> current_;
};

struct Arrangement {
  bool passes_on_at_once;   // in the instruction that makes a chunk
  bool writes_output_last;  // when nobody needs the rank's input any more
};

class FlowWriter {
 public:
  FlowWriter(const Flow& flow, const Places& places, const Analysis& analysis,
             Arrangement arrangement)
      : flow_(flow),
        places_(places),
        analysis_(analysis),
        arrangement_(arrangement),
        known_(analysis.versions().size()) {}

  Result<schedule::Schedule> write() {
    for (int move = 0; move < length(flow_.moves); ++move)
      if (Analysis::is_needed(version(analysis_.made(move)))) TRY(write_move(move));
    for (int each = 0; each < length(known_); ++each) write_result(each);
    return finish();
  }

 private:
  /// An instruction, which names others where they meet.
  struct Event {
    int rank;
    int channel;
    int block;
    std::vector<int> from{};  // events
    Instruction instruction{};
    std::vector<int> to{};  // events
  };
  /// How a version has been written so far.
  struct Known {
    int event = kNone;                     // that made it
    int sender = kNone;                    // of an input: the event that sends it
    std::optional<BlockReference> home{};  // its memory
    int arrives_from = kNone;              // it is received where it is added; the event that sends
  };
  struct Place2 {
    int rank, channel, worker;
    friend auto operator<=>(const Place2&, const Place2&) = default;
  };

  const Version& version(int index) const { return at(analysis_.versions(), index); }

  int add(int index, Instruction instruction) {
    const Value& value = *version(index).value;
    events_.push_back({.rank = version(index).rank,
                       .channel = value.index,
                       .block = value.block,
                       .instruction = std::move(instruction)});
    return length(events_) - 1;
  }

  std::optional<BlockReference> memory_of(int index) {
    const Version& of = version(index);
    if (of.input) return of.input;
    return at(known_, index).home;
  }

  /// The event that sends a version from now on.
  int sender_of(int index) {
    Known& known = at(known_, index);
    if (version(index).input) {
      if (known.sender == kNone || !arrangement_.passes_on_at_once)
        known.sender = add(index, {.source = version(index).input});
      return known.sender;
    }
    if (arrangement_.passes_on_at_once) return known.event;
    return add(index, {.source = known.home});
  }

  void connect(int sender, int receiver) {
    at(events_, sender).to.push_back(receiver);
    at(events_, receiver).from.push_back(sender);
  }

  BlockReference home_for(int index) {
    const Version& of = version(index);
    if (!arrangement_.writes_output_last)
      if (const auto output = places_.output(of.rank, of.place, *of.value)) return *output;
    auto& numbers = scratch_[{of.rank, of.value->index}];
    const auto found =
        numbers.try_emplace({of.place, of.value->block}, static_cast<int>(numbers.size())).first;
    scratch_blocks_ = std::max(scratch_blocks_, found->second + 1);
    return {Buffer::Scratch, found->second};
  }

  /// A version that comes from another rank only to be added to others there.
  bool is_only_added(int move) const {
    const Version& of = version(analysis_.made(move));
    return analysis_.operands(move).size() == 1 &&
           version(analysis_.operands(move)[0]).rank != of.rank && !of.is_result &&
           of.reads.size() == 1 && at(flow_.moves, of.reads[0]).rank == of.rank &&
           analysis_.operands(of.reads[0]).size() > 1;
  }

  Status write_move(int move) {
    const int made = analysis_.made(move);
    if (is_only_added(move)) {
      at(known_, made).arrives_from = sender_of(analysis_.operands(move)[0]);
      return {};
    }
    // In the order of the first ranks whose contributions they have.
    std::vector<int> operands = analysis_.operands(move);
    std::ranges::stable_sort(operands, {}, [&](int operand) {
      const std::vector<bool>& ranks = version(operand).value->ranks;
      return std::ranges::find(ranks, true) - ranks.begin();
    });
    Instruction instruction{.reduce = operands.size() > 1,
                            .finish = operands.size() > 1 && version(made).value->is_complete};
    std::vector<int> senders;
    for (const int operand : operands) {
      const bool is_here = version(operand).rank == version(made).rank;
      if (at(known_, operand).arrives_from != kNone) {
        senders.push_back(at(known_, operand).arrives_from);
      } else if (!is_here) {
        senders.push_back(sender_of(operand));
      } else if (instruction.source) {
        return Status::invalid_usage(
            "line {}: adds several chunks that lie in the memory of gpu {} already; a schedule "
            "adds "
            "what it receives to one of them",
            at(flow_.moves, move).line, version(made).rank);
      } else {
        instruction.source = memory_of(operand);
        instruction.source_position = length(senders);
      }
    }
    instruction.target = home_for(made);
    at(known_, made).home = instruction.target;
    const int event = add(made, std::move(instruction));
    at(known_, made).event = event;
    for (const int sender : senders) connect(sender, event);
    return {};
  }

  /// Results that are elsewhere are copied to the output.
  void write_result(int index) {
    const Version& of = version(index);
    if (!of.is_result) return;
    const auto output = places_.output(of.rank, of.place, *of.value);
    const std::optional<BlockReference> memory = memory_of(index);
    if (memory == output) return;
    add(index, {.source = memory, .target = output});
  }

  Result<schedule::Schedule> finish() {
    const Layout& layout = flow_.layout;
    const bool is_cut = schedule::cuts_one_buffer(layout.collective);
    schedule::Schedule schedule{.collective = layout.collective,
                                .algorithm = flow_.name,
                                .nranks = layout.nranks,
                                .root = schedule::has_root(layout.collective) ? layout.root : 0,
                                .nblocks = is_cut ? layout.chunks : layout.nranks,
                                .scratch_blocks = scratch_blocks_,
                                .partial_sums = schedule::reduces(layout.collective),
                                .connections = {},
                                .ranks = {}};
    schedule.ranks.assign(static_cast<size_t>(layout.nranks),
                          std::vector<schedule::Channel>(static_cast<size_t>(places_.channels())));
    // Workers, by each eighth block; in each the blocks one after the other.
    std::vector<int> order(events_.size());
    for (int i = 0; i < length(order); ++i) at(order, i) = i;
    std::ranges::stable_sort(order, {}, [&](int i) { return at(events_, i).block; });
    std::map<Place2, int> numbers;
    std::vector<std::pair<int, int>> places(events_.size());  // worker, instruction
    for (const int i : order) {
      Event& event = at(events_, i);
      auto& workers = at(at(schedule.ranks, event.rank), event.channel).workers;
      const auto [known, is_new] =
          numbers.try_emplace({event.rank, event.channel, event.block % kGroups}, length(workers));
      if (is_new) workers.emplace_back();
      std::vector<Instruction>& list = at(workers, known->second).instructions;
      at(places, i) = {known->second, length(list)};
      if (is_cut || !(event.instruction.source || event.instruction.target))
        event.instruction.chunk_of = event.block;
      else if (schedule::chunk_block(event.instruction) >= schedule.nblocks)
        event.instruction.chunk_of = event.block;  // all are of one size
      list.push_back(event.instruction);
    }
    connect_events(schedule, order, places);
    return schedule;
  }

  /// A FIFO of two workers hands over in one order. Where receives are in another order than sends,
  /// there is one more FIFO.
  void connect_events(schedule::Schedule& schedule, const std::vector<int>& order,
                      const std::vector<std::pair<int, int>>& places) const {
    struct Used {
      int connection;
      int sent, taken;  // the last instructions
    };
    std::map<std::pair<Place2, Place2>, std::vector<Used>> used;
    std::map<std::tuple<int, int, int>, int> tags;
    const auto instruction_of = [&](int i) -> Instruction& {
      const Event& event = at(events_, i);
      auto& workers = at(at(schedule.ranks, event.rank), event.channel).workers;
      return at(at(workers, at(places, i).first).instructions, at(places, i).second);
    };
    for (const int receiver : order)
      for (const int sender : at(events_, receiver).from) {
        const Event& from = at(events_, sender);
        const Event& to = at(events_, receiver);
        const auto [sending, sent] = at(places, sender);
        const auto [taking, taken] = at(places, receiver);
        std::vector<Used>& known =
            used[{{from.rank, from.channel, sending}, {to.rank, to.channel, taking}}];
        auto fifo = std::ranges::find_if(known, [&, sent = sent, taken = taken](const Used& each) {
          return each.sent < sent && each.taken < taken;
        });
        if (fifo == known.end()) {
          int& tag = tags[{from.rank, to.rank, from.channel}];
          known.push_back({length(schedule.connections), kNone, kNone});
          schedule.connections.push_back({from.rank, to.rank, from.channel, tag++});
          fifo = known.end() - 1;
        }
        fifo->sent = sent;
        fifo->taken = taken;
        instruction_of(sender).send_to.push_back(fifo->connection);
        instruction_of(receiver).receive_from.push_back(fifo->connection);
      }
  }

  static constexpr int kGroups = 8;  // of blocks, each with a worker

  const Flow& flow_;
  const Places& places_;
  const Analysis& analysis_;
  const Arrangement arrangement_;
  std::vector<Known> known_;  // by version
  std::vector<Event> events_;
  std::map<std::pair<int, int>, std::map<std::pair<Place, int>, int>> scratch_;  // rank, channel
  int scratch_blocks_ = 0;
};

}  // namespace

Result<schedule::File> to_schedule(const Flow& flow) {
  const Places places(flow.layout);
  Analysis analysis(flow, places);
  TRY(analysis.run());
  constexpr int kUsualSlots = 2;
  std::optional<schedule::Schedule> best;
  int least = INT_MAX;
  for (const bool writes_output_last : {false, true})
    for (const bool passes_on_at_once : {true, false}) {
      if (best && (least <= kUsualSlots || (writes_output_last && least < INT_MAX))) continue;
      schedule::Schedule schedule =
          TRY(FlowWriter(flow, places, analysis, {passes_on_at_once, writes_output_last}).write());
      const Result<int> found = schedule::least_depth(schedule);
      const int depth = found.is_ok() ? found.value() : INT_MAX;
      if (best && depth >= least) continue;
      least = depth;
      best = std::move(schedule);
    }
  *best = in_one_order_if_so(std::move(*best));
  return schedule::File{.schedule = std::move(*best), .use = flow.use};
}

}  // namespace niccolite::importers
