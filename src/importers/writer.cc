#include "importers/writer.h"

#include <fmt/core.h>

#include <algorithm>
#include <climits>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "schedule/builder.h"
#include "schedule/check.h"
#include "schedule/index.h"

namespace niccolite::importers {
namespace {

using schedule::at;
using schedule::BlockReference;
using schedule::Buffer;
using schedule::Collective;
using schedule::Instruction;
using schedule::length;

/// Side by side in one CTA there are at most as many workers as it has warps.
constexpr int kMostWorkers = 16;

/// The worker that each thread block becomes, by flat number, counted on each rank.
std::vector<int> workers_of(const Program& program, const Order& order, const Places& places) {
  std::vector<int> parent(order.blocks().size());
  std::iota(parent.begin(), parent.end(), 0);
  const auto root = [&](int flat) {
    while (at(parent, flat) != flat) flat = at(parent, flat) = at(parent, at(parent, flat));
    return flat;
  };
  const auto unite = [&](int a, int b) { at(parent, root(b)) = root(a); };
  struct Users {
    std::vector<int> blocks;
    bool is_written = false;
  };
  std::map<std::pair<int, Place>, Users> users;
  for (int flat = 0; flat < length(order.blocks()); ++flat) {
    const auto& [rank, block] = at(order.blocks(), flat);
    for (const Step& step : block->steps) {
      for (const Wait& wait : step.waits) unite(order.flat(rank, wait.block), flat);
      const auto use = [&, rank = rank](const Place& first, bool is_write) {
        for_each_chunk(places, rank, first, step.count, [&](const Place& place) {
          Users& of = users[{rank, place}];
          of.is_written |= is_write;
          if (of.blocks.empty() || of.blocks.back() != flat) of.blocks.push_back(flat);
        });
      };
      if (reads_source(step.action)) use(step.source, false);
      if (writes_target(step.action)) use(step.target, true);
    }
  }
  for (const auto& [place, of] : users)
    if (of.is_written)
      for (const int flat : of.blocks) unite(of.blocks.front(), flat);
  // Where there are too many, the last take turns with the first.
  std::vector<int> workers(order.blocks().size());
  for (int rank = 0; rank < program.nranks; ++rank) {
    std::map<int, int> numbers;
    for (int i = 0; i < length(at(program.ranks, rank).blocks); ++i) {
      const int flat = order.flat(rank, i);
      if (at(order.blocks(), flat).block->steps.empty()) continue;
      const int next = length(numbers) % kMostWorkers;
      at(workers, flat) = numbers.emplace(root(flat), next).first->second;
    }
  }
  return workers;
}

class Writer {
 public:
  /// In the order of the program, or block by block. Blocks have nothing to do with each other, so
  /// that each order is right; the second one needs few FIFO slots, and the first one lets blocks
  /// overtake each other as their author meant.
  enum class Arrangement : unsigned char { AsWritten, BlockByBlock };

  Writer(const Program& program, const Order& order, const Places& places, Arrangement arrangement)
      : is_by_blocks_(arrangement == Arrangement::BlockByBlock),
        program_(program),
        order_(order),
        places_(places),
        workers_(workers_of(program, order, places)),
        state_(static_cast<size_t>(program.nranks)) {}

  Result<schedule::Schedule> write() {
    for (const auto& [flat, number] : order_.order()) TRY(write_step(flat, number));
    for (int rank = 0; rank < program_.nranks; ++rank) {
      store_rest(rank);
      copy_own_block(rank);
    }
    return finish();
  }

 private:
  /// A connection: its other end, and the FIFO of the program.
  struct Connection {
    FifoKey fifo;
    int channel;    // pattern channel
    int block = 0;  // block by block: each has its own order
    friend auto operator<=>(const Connection&, const Connection&) = default;
  };
  /// A chunk that has arrived, and that no instruction has taken yet.
  struct Arrival {
    Place place;
    Connection from;
    int worker;
  };
  struct Content {
    SharedValue value;
    BlockReference home{};
    bool is_arrival = false;    // among arrivals; it has no home yet
    bool was_consumed = false;  // an arrival that went into a sum, and was stored nowhere
  };
  struct Rank {
    std::map<Place, Content> contents;
    std::map<std::pair<Place, int>, int> scratch;  // by pattern channel: numbers of blocks
    std::deque<Arrival> arrivals;
  };
  /// An instruction with connections that have no number yet.
  struct Draft {
    std::vector<Connection> receives{};
    std::optional<BlockReference> source{};
    int source_position = 0;
    std::optional<BlockReference> target{};
    std::optional<Connection> send{};
    bool finish = false;
    int block = 0;
  };
  struct WorkerKey {
    int rank;
    int channel;
    int worker;
    friend auto operator<=>(const WorkerKey&, const WorkerKey&) = default;
  };

  Status fail(const Step& step, std::string_view what) const {
    return Status::invalid_usage("line {}: {}", step.line, what);
  }

  Content* find(int rank, const Place& place) {
    Rank& of = at(state_, rank);
    if (const auto found = of.contents.find(place); found != of.contents.end())
      return &found->second;
    const auto initial = places_.initial(rank, place);
    if (!initial) return nullptr;
    Content content{.value = std::make_shared<const Value>(initial->first),
                    .home = initial->second};
    return &of.contents.emplace(place, std::move(content)).first->second;
  }

  Result<Content*> read(int rank, const Step& step, const Place& place) {
    Content* const content = find(rank, place);
    if (content == nullptr)
      return fail(step, fmt::format("reads chunk {} of {} on gpu {}, which nobody has written",
                                    place.chunk, name_of(place.buffer), rank));
    if (content->was_consumed)
      return fail(step,
                  fmt::format("reads chunk {} of {} on gpu {} again, which was received and added "
                              "to another chunk; a schedule receives it only once",
                              place.chunk, name_of(place.buffer), rank));
    return content;
  }

  /// The memory that holds `value` at `place` from now on.
  BlockReference home_of(int rank, const Place& place, const Value& value) {
    if (const auto output = places_.output(rank, place, value)) return *output;
    auto& numbers = at(state_, rank).scratch;
    const auto [found, is_new] =
        numbers.try_emplace({place, value.index}, static_cast<int>(numbers.size()));
    scratch_blocks_ = std::max(scratch_blocks_, found->second + 1);
    return schedule::scratch(found->second);
  }

  void store(int rank, const Place& place, SharedValue value, BlockReference home) {
    drop_arrival(rank, place);
    at(state_, rank).contents[place] = {.value = std::move(value), .home = home};
  }

  /// What arrives is overwritten before anybody has read it: it is taken all the same.
  void drop_arrival(int rank, const Place& place) {
    const auto found = at(state_, rank).contents.find(place);
    if (found != at(state_, rank).contents.end() && found->second.is_arrival)
      take_until(rank, place, /*is_stored=*/true);
  }

  void add(int rank, int channel, int worker, Draft draft) {
    if (is_by_blocks_) worker = draft.block % kGroups;
    drafts_[{rank, channel, worker}].push_back(std::move(draft));
  }

  /// Stores all chunks that arrived before the one of `place` by its connection, and this one, if
  /// `is_stored`.
  Connection take_until(int rank, const Place& place, bool is_stored) {
    Rank& of = at(state_, rank);
    const auto is_it = [&](const Arrival& arrival) { return arrival.place == place; };
    const Connection from = std::ranges::find_if(of.arrivals, is_it)->from;
    for (auto arrival = of.arrivals.begin(); arrival != of.arrivals.end();) {
      if (arrival->from != from) {
        ++arrival;
        continue;
      }
      const bool is_last = is_it(*arrival);
      Content& content = of.contents.at(arrival->place);
      content.is_arrival = false;
      if (!is_last || is_stored) {
        content.home = home_of(rank, arrival->place, *content.value);
        add(rank, from.channel, arrival->worker,
            {.receives = {from}, .target = content.home, .block = content.value->block});
      } else {
        content.was_consumed = true;
      }
      arrival = of.arrivals.erase(arrival);
      if (is_last) break;
    }
    return from;
  }
  /// Before another chunk of this connection is taken.
  void store_earlier(int rank, const Connection& from) {
    while (true) {
      const std::deque<Arrival>& arrivals = at(state_, rank).arrivals;
      const auto found =
          std::ranges::find_if(arrivals, [&](const Arrival& each) { return each.from == from; });
      if (found == arrivals.end()) return;
      take_until(rank, Place(found->place), /*is_stored=*/true);
    }
  }
  void store_rest(int rank) {
    while (!at(state_, rank).arrivals.empty())
      store_earlier(rank, Connection(at(state_, rank).arrivals.front().from));
  }

  /// Operands are in the order of the first ranks whose contributions they have.
  static int position_of(const Value& source, const Value& received) {
    return std::ranges::find(source.ranks, true) - source.ranks.begin() <
                   std::ranges::find(received.ranks, true) - received.ranks.begin()
               ? 0
               : 1;
  }

  Result<SharedValue> sum(const Step& step, const Value& a, const Value& b) const {
    Result<SharedValue> value = importers::sum(a, b);
    if (!value.is_ok()) return fail(step, value.status().message());
    return value;
  }

  Status write_step(int flat, int number) {
    const auto& [rank, block] = at(order_.blocks(), flat);
    const Step& step = at(block->steps, number);
    if (step.action == Action::Nothing) return {};
    std::vector<SharedValue> received;
    if (receives(step.action)) {
      auto& fifo = fifos_[{block->receive_from, rank, block->channel}];
      received = std::move(fifo.front());
      fifo.pop_front();
      if (length(received) != step.count)
        return fail(step, fmt::format("takes {} chunks of a message of {} from gpu {}", step.count,
                                      received.size(), block->receive_from));
    }
    std::vector<SharedValue> sent;
    for (int i = 0; i < step.count; ++i) {
      SharedValue value = received.empty() ? nullptr : at(received, i);
      const Place source = places_.plain(rank, {step.source.buffer, step.source.chunk + i});
      const Place target = places_.plain(rank, {step.target.buffer, step.target.chunk + i});
      value = TRY(write_chunk(flat, step, source, target, std::move(value)));
      if (sends(step.action)) sent.push_back(std::move(value));
    }
    if (sends(step.action))
      fifos_[{rank, block->send_to, block->channel}].push_back(std::move(sent));
    return {};
  }

  /// One chunk of a step. Returns its value.
  Result<SharedValue> write_chunk(int flat, const Step& step, const Place& source,
                                  const Place& target, SharedValue received) {
    const auto& [rank, block] = at(order_.blocks(), flat);
    const int worker = at(workers_, flat);
    if (step.action == Action::Reduce) return write_sum(rank, worker, step, source, target);
    SharedValue value = received;
    Draft draft;
    if (reads_source(step.action)) {
      const Content* content = TRY(read(rank, step, source));
      if (content->is_arrival) {
        take_until(rank, source, /*is_stored=*/true);
        content = TRY(read(rank, step, source));
      }
      draft.source = content->home;
      value = received == nullptr ? content->value : TRY(sum(step, *content->value, *received));
      draft.finish = received != nullptr && value->is_complete;
      if (received != nullptr) draft.source_position = position_of(*content->value, *received);
    }
    draft.block = value->block;
    const int channel = value->index;
    if (received != nullptr) {
      const Connection from{
          {block->receive_from, rank, block->channel}, channel, is_by_blocks_ ? value->block : 0};
      draft.receives = {from};
      // Only to be added later, perhaps.
      if (step.action == Action::Receive && !places_.output(rank, target, *value) &&
          schedule::reduces(program_.collective)) {
        drop_arrival(rank, target);
        at(state_, rank).contents[target] = {.value = value, .is_arrival = true};
        at(state_, rank).arrivals.push_back({target, from, worker});
        return value;
      }
      store_earlier(rank, from);
    }
    if (sends(step.action))
      draft.send = Connection{
          {rank, block->send_to, block->channel}, channel, is_by_blocks_ ? value->block : 0};
    if (writes_target(step.action)) {
      draft.target = home_of(rank, target, *value);
      store(rank, target, value, *draft.target);
    }
    add(rank, channel, worker, std::move(draft));
    return value;
  }

  /// target = target + source, both of this rank's memory: one of them has to be on its way still.
  Result<SharedValue> write_sum(int rank, int worker, const Step& step, const Place& source,
                                const Place& target) {
    Content* const a = TRY(read(rank, step, source));
    Content* const b = TRY(read(rank, step, target));
    SharedValue value = TRY(sum(step, *b->value, *a->value));
    Draft draft{.finish = value->is_complete, .block = value->block};
    if (!a->is_arrival && !b->is_arrival)
      return fail(step,
                  "adds two chunks that both lie in the memory of the gpu; a schedule adds "
                  "what it receives to one of them");
    const Content* const kept = a->is_arrival ? b : a;
    if (a->is_arrival) draft.receives.push_back(take_until(rank, source, /*is_stored=*/false));
    if (b->is_arrival) draft.receives.push_back(take_until(rank, target, /*is_stored=*/false));
    if (draft.receives.size() < 2) {
      draft.source = kept->home;
      const Content* const taken = kept == a ? b : a;
      draft.source_position = position_of(*kept->value, *taken->value);
    }
    if (draft.receives.size() == 2 && draft.receives[0] == draft.receives[1])
      return fail(step, "adds two chunks that came from one gpu on one channel");
    draft.target = home_of(rank, target, *value);
    store(rank, target, value, *draft.target);
    add(rank, value->index, worker, std::move(draft));
    return value;
  }

  /// Out of place, a program that is written for in place lacks the copy of the rank's own block.
  void copy_own_block(int rank) {
    const Collective collective = program_.collective;
    if (!program_.is_in_place ||
        (collective != Collective::AllGather && collective != Collective::AllToAll &&
         !(collective == Collective::Broadcast && rank == program_.root)))
      return;
    std::map<int, std::set<int>> written;  // blocks of the output, by channel
    for (const auto& [key, drafts] : drafts_)
      if (key.rank == rank)
        for (const Draft& draft : drafts)
          if (draft.target && draft.target->buffer == Buffer::Output)
            written[key.channel].insert(draft.target->block);
    const bool is_broadcast = collective == Collective::Broadcast;
    for (int channel = 0; channel < places_.channels(); ++channel)
      for (int block = 0; block < (is_broadcast ? program_.chunks : 1); ++block) {
        const int output = is_broadcast ? block : rank;
        const int input = collective == Collective::AllGather ? 0 : output;
        if (written[channel].contains(output)) continue;
        add(rank, channel, 0,
            {.source = schedule::input(input),
             .target = schedule::output(output),
             .block = output});
      }
  }

  int tag_of(const Connection& connection) const {
    const int channel = std::get<2>(connection.fifo);
    return is_by_blocks_ ? channel * kGroups + connection.block % kGroups : channel;
  }

  Result<schedule::Schedule> finish() {
    const bool is_cut = schedule::cuts_one_buffer(program_.collective);
    schedule::Builder builder({.collective = program_.collective,
                               .algorithm = program_.name,
                               .nranks = program_.nranks,
                               .nblocks = is_cut ? program_.chunks : program_.nranks,
                               .root = program_.root,
                               .scratch_blocks = scratch_blocks_,
                               .partial_sums = schedule::reduces(program_.collective),
                               .nchannels = places_.channels()});
    for (const auto& [key, drafts] : drafts_) {
      std::vector<const Draft*> ordered;
      for (const Draft& draft : drafts) ordered.push_back(&draft);
      if (is_by_blocks_) std::ranges::stable_sort(ordered, {}, &Draft::block);
      schedule::WorkerBuilder worker = builder.add_worker(key.rank, key.channel);
      for (const Draft* const each_draft : ordered) {
        const Draft& draft = *each_draft;
        Instruction instruction{.source = draft.source,
                                .source_position = draft.source_position,
                                .reduce = draft.receives.size() + (draft.source ? 1 : 0) > 1,
                                .target = draft.target,
                                .finish = draft.finish};
        for (const Connection& each : draft.receives)
          for (const int index : worker.from(std::get<0>(each.fifo), tag_of(each)))
            instruction.receive_from.push_back(index);
        if (draft.send)
          instruction.send_to = worker.to(std::get<1>(draft.send->fifo), tag_of(*draft.send));
        if (is_cut) instruction.chunk_of = draft.block;
        worker.add(std::move(instruction));
      }
    }
    return std::move(builder).take();
  }

  static constexpr int kGroups = 8;  // of blocks, each with a worker

  const bool is_by_blocks_;
  const Program& program_;
  const Order& order_;
  const Places& places_;
  const std::vector<int> workers_;
  std::vector<Rank> state_;
  std::map<FifoKey, std::deque<std::vector<SharedValue>>> fifos_;
  std::map<WorkerKey, std::vector<Draft>> drafts_;
  int scratch_blocks_ = 0;
};

}  // namespace

Result<schedule::Schedule> write_schedule(const Program& program, const Order& order,
                                          const Places& places) {
  constexpr int kUsualSlots = 2;
  using enum Writer::Arrangement;
  Result<schedule::Schedule> as_written = Writer(program, order, places, AsWritten).write();
  const auto depth_of = [](Result<schedule::Schedule>& schedule) {
    if (!schedule.is_ok()) return INT_MAX;
    const Result<int> depth = schedule::least_depth(*schedule);
    return depth.is_ok() ? depth.value() : INT_MAX;
  };
  const int depth = depth_of(as_written);
  if (depth <= kUsualSlots) return as_written;
  Result<schedule::Schedule> by_blocks = Writer(program, order, places, BlockByBlock).write();
  return depth_of(by_blocks) < depth ? std::move(by_blocks) : std::move(as_written);
}

}  // namespace niccolite::importers
