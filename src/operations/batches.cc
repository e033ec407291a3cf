#include "operations/batches.h"

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "algorithms/point_to_point.h"
#include "planner/choice/list_choice.h"

namespace niccolite::operations {
namespace {

using executor::Protocol;
using planner::Collective;
using planner::Plan;
using planner::Planner;

// Above this, an operation fills the links by itself and gains nothing from company.
constexpr size_t kMostJoinedBytes = 512 << 10;
// The longest operation of a direct list of two ranks, as far as has been measured: operations of a
// list do not wait for one another, so even operations that fill the links by themselves gain. With
// more ranks the bound is lower: bytes that some rank does not see are sent to each of the others,
// one-shot.
constexpr size_t kMostListedBytes = 16 << 20;
// Messages to so many distances have no more works than a program has, with sends and receives, and
// one to the own rank.
constexpr int kDistancesInBatch = 16;
static_assert(2 * kDistancesInBatch <= executor::kMaxWorks);
// Returns the most workers of messages in one CTA. A CTA has 16 warps; with Simple, one of them
// serves the others.
constexpr int most_workers_of_messages(Protocol protocol) {
  return protocol == Protocol::Simple ? 15 : 16;
}
// Layers of one turn, if all its messages are to have workers in one CTA.
constexpr int kMostLayers = most_workers_of_messages(Protocol::LL) / 2;

/// The properties, beside their program, that operations of one launch share; equal on all ranks,
/// as batches must be.
using Kernel = std::tuple<bool, executor::DataType, executor::ReduceOp, double, double, int64_t>;
Kernel kernel_of(const Plan& plan) {
  const executor::Reduction& r = plan.reduction;
  return {plan.reduces, plan.type, r.op, r.input_scale, r.finish_scale, r.finish_divisor};
}

/// A scalar is its rank's own, and a launch has one: such operations stay alone. So do those with
/// settings of their own, or an event of the launch.
bool may_share(const calls::Task& task, size_t most_bytes, const planner::Settings& settings) {
  const planner::Request& request = task.call.request;
  return request.bytes() <= most_bytes && settings.nranks > 1 && !request.op.scales() &&
         request.settings == nullptr && task.launched == nullptr;
}

/// Each call's stream once, the first call's first.
void collect_streams(Batch& batch) {
  std::vector<gpu::StreamHandle> streams;
  const auto add = [&](gpu::StreamHandle stream) {
    if (std::find(streams.begin(), streams.end(), stream) == streams.end())
      streams.push_back(stream);
  };
  for (const calls::Task* task : batch.tasks) add(task->stream);
  for (const gpu::StreamHandle stream : batch.streams) add(stream);
  batch.streams = std::move(streams);
}

/// A collective on its way to a batch.
struct Candidate {
  const calls::Task* task = nullptr;
  std::optional<Plan> alone{};  // how it goes by itself, where somebody has asked
  bool goes_by_team = false;    // then
};

/// Collectives that may share launches, in the order of the calls; or one by itself.
struct Bin {
  enum class Kind : uint8_t { Alone, List, Joined } kind = Kind::Alone;
  std::vector<const calls::Task*> tasks{};
  std::vector<Plan> plans{};  // by task: of a list; of one by itself, where it is known
};

/// Only operations that may share are planned here, and only where there are several of them.
class Binning {
 public:
  explicit Binning(Planner& planner) : planner_(planner) {}

  void add_alone(Candidate one) {
    Bin& bin = bins_.emplace_back(Bin{.kind = Bin::Kind::Alone, .tasks = {one.task}});
    if (one.alone) bin.plans.push_back(*std::move(one.alone));
  }

  Status add(const calls::Task& task) {
    const planner::Request& request = task.call.request;
    std::optional<Plan> listed = TRY(planner_.listed(request));
    Key key;
    if (listed) {
      // A list has one program.
      const int root = schedule::has_root(request.collective) ? request.root : 0;
      key.list = {request.collective, root, kernel_of(*listed)};
    } else if (schedule::reduces(request.collective)) {
      key.reduction = {request.type, request.op.operation};
    }
    const auto [place, is_new] = bin_of_.try_emplace(key, bins_.size());
    if (is_new) bins_.push_back({.kind = listed ? Bin::Kind::List : Bin::Kind::Joined});
    Bin& bin = bins_[place->second];
    bin.tasks.push_back(&task);
    if (listed) bin.plans.push_back(*std::move(listed));
    return {};
  }

  std::vector<Bin> take() { return std::move(bins_); }  // in the order of their first calls

 private:
  /// Joined operations that reduce alike have the same kernel, unless their algorithms differ,
  /// which depends on how many they are: add_joined().
  struct Key {
    std::optional<std::tuple<Collective, int, Kernel>> list{};
    std::optional<std::pair<executor::DataType, planner::Operation>> reduction{};
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  Planner& planner_;
  std::map<Key, size_t> bin_of_;
  std::vector<Bin> bins_;
};

/// In as few batches of at most `most` as there can be, which are of about one length. `plans`: by
/// task, or none.
void add_batches(std::span<const calls::Task* const> tasks, std::vector<Plan> plans, size_t most,
                 const Batch& like, std::vector<Batch>& batches) {
  const size_t count = (tasks.size() + most - 1) / most;
  for (size_t i = 0; i < count; ++i) {
    const auto begin = static_cast<std::ptrdiff_t>(i * tasks.size() / count);
    const auto end = static_cast<std::ptrdiff_t>((i + 1) * tasks.size() / count);
    Batch& batch = batches.emplace_back(like);
    batch.tasks.assign(tasks.begin() + begin, tasks.begin() + end);
    batch.outputs = batch.tasks;
    if (plans.empty()) continue;
    batch.plans.assign(std::make_move_iterator(plans.begin() + begin),
                       std::make_move_iterator(plans.begin() + end));
  }
}

/// Operations that may share a direct list.
struct ListedKind {
  Collective collective;
  std::vector<const calls::Task*> tasks{};  // in the order of the calls
  std::vector<Plan> plans{};                // by task
  size_t small = 0;                         // of them, so many could also be joined,
  size_t small_bytes = 0;                   // with so many bytes;
  double gain = 0;                          // and the others are faster by so many microseconds
};

bool pays(const ListedKind& kind, const planner::Settings& settings, bool is_captured) {
  return kind.gain > planner::predict_direct_list(settings) ||
         planner::pays_direct_list(settings, kind.collective, kind.small, kind.small_bytes,
                                   is_captured);
}

/// Makes batches of the `candidates` that are faster in direct lists, and returns them.
Result<std::set<const calls::Task*>> add_direct_lists(std::span<Candidate* const> candidates,
                                                      Planner& planner, bool is_captured,
                                                      std::vector<Batch>& batches) {
  std::vector<ListedKind> kinds;  // in the order of their first calls
  std::map<std::tuple<Collective, int, Kernel>, size_t> kind_of;
  for (Candidate* const candidate : candidates) {
    const planner::Request& request = candidate->task->call.request;
    std::optional<Plan> plan = TRY(planner.listed_directly(request));
    if (!plan) continue;
    const bool is_small = request.bytes() <= kMostJoinedBytes;
    double gain = 0;
    if (!is_small) {
      candidate->alone = TRY(planner.collective(request));
      gain = candidate->alone->microseconds - plan->microseconds;
    }
    if (gain < 0) continue;
    const int root = schedule::has_root(request.collective) ? request.root : 0;
    const auto [place, is_new] =
        kind_of.try_emplace({request.collective, root, kernel_of(*plan)}, kinds.size());
    if (is_new) kinds.push_back({.collective = request.collective});
    ListedKind& kind = kinds[place->second];
    kind.tasks.push_back(candidate->task);
    kind.plans.push_back(*std::move(plan));
    kind.gain += gain;
    if (!is_small) continue;
    ++kind.small;
    kind.small_bytes += request.bytes();
  }
  std::set<const calls::Task*> taken;
  for (ListedKind& kind : kinds) {
    if (kind.tasks.size() < 2 || !pays(kind, planner.settings(), is_captured)) continue;
    add_batches(kind.tasks, std::move(kind.plans), executor::kMostDirectListWorks,
                {.is_list = true, .goes_direct = true}, batches);
    taken.insert(kind.tasks.begin(), kind.tasks.end());
  }
  return taken;
}

/// Each of them has its share of the channels, and chooses its protocol for that many.
Status add_joined(const Bin& bin, Planner& planner, std::vector<Batch>& batches) {
  const planner::Settings& settings = planner.settings();
  const auto count = static_cast<int>(std::min<size_t>(bin.tasks.size(), executor::kMaxWorks));
  const int usual = planner::usual_channels(settings);
  const int share = std::max(1, usual / count);
  std::map<std::pair<Protocol, Kernel>, Bin> alike;
  for (const calls::Task* task : bin.tasks) {
    Plan plan = TRY(planner.collective(task->call.request, share));
    Bin& of = alike[{plan.protocol, kernel_of(plan)}];
    of.tasks.push_back(task);
    of.plans.push_back(std::move(plan));
  }
  const int most_by_workers = executor::kMaxWorkers / most_workers(settings.nranks);
  for (auto& [kind, of] : alike) {
    const auto protocol = static_cast<size_t>(kind.first);
    const int most_by_channels =
        std::min(static_cast<int>(settings.shapes[protocol].channels), usual) / share;
    const int most = std::min({most_by_channels, most_by_workers, executor::kMaxWorks});
    add_batches(of.tasks, std::move(of.plans), static_cast<size_t>(std::max(1, most)),
                {.most_channels = share}, batches);
  }
  return {};
}

Status add_collectives(std::span<const calls::Task> tasks, Planner& planner, bool is_captured,
                       std::vector<Batch>& batches) {
  const planner::Settings& settings = planner.settings();
  std::vector<Candidate> left;
  for (const calls::Task& task : tasks)
    if (!task.call.is_message()) left.push_back({.task = &task});
  // An operation by a team has the team's slots for itself.
  for (Candidate& one : left) {
    if (settings.team_ranks == 0) break;
    Plan plan = TRY(planner.collective(one.task->call.request));
    if (plan.choice.by_team) one.alone = std::move(plan);
    one.goes_by_team = one.alone.has_value();
  }
  std::vector<Candidate*> candidates;
  for (Candidate& one : left)
    if (!one.goes_by_team &&
        may_share(*one.task,
                  kMostListedBytes / static_cast<size_t>(std::max(1, settings.nranks - 1)),
                  settings))
      candidates.push_back(&one);
  if (candidates.size() > 1) {
    const std::set<const calls::Task*> taken =
        TRY(add_direct_lists(candidates, planner, is_captured, batches));
    std::erase_if(left, [&](const Candidate& one) { return taken.contains(one.task); });
  }
  const auto may_join = [&](const Candidate& one) {
    return !one.goes_by_team && may_share(*one.task, kMostJoinedBytes, settings);
  };
  const auto joining = std::ranges::count_if(left, may_join);
  Binning binning(planner);
  for (Candidate& one : left) {
    if (joining > 1 && may_join(one)) {
      TRY(binning.add(*one.task));
    } else {
      binning.add_alone(std::move(one));
    }
  }
  for (Bin& bin : binning.take()) {
    if (bin.tasks.size() == 1) {
      // The operation of a list goes otherwise than the same by itself.
      if (bin.kind == Bin::Kind::List) bin.plans.clear();
      add_batches(bin.tasks, std::move(bin.plans), 1, {}, batches);
    } else if (bin.kind == Bin::Kind::List) {
      add_batches(bin.tasks, std::move(bin.plans), executor::kMostListWorks, {.is_list = true},
                  batches);
    } else {
      TRY(add_joined(bin, planner, batches));
    }
  }
  return {};
}

/// One end of a message, or a message to the own rank, and its place in the order of all.
struct End {
  const calls::Task* task = nullptr;
  const calls::Task* output = nullptr;           // as Batch::outputs
  std::optional<gpu::StreamHandle> self_stream;  // of the receive from the own rank
  int turn = 0;
  Protocol protocol = Protocol::Simple;
  int distance = 0;
  int layer = 0;

  auto order() const { return std::tuple(turn, protocol, distance, layer, !task->call.is_send); }
  auto kind() const { return std::tuple(turn, protocol, distance / kDistancesInBatch); }
};

/// Gives the messages of each pair their turns and layers, one after the other.
class Turns {
 public:
  explicit Turns(Planner& planner) : planner_(planner) {}

  Result<End> next(const calls::Task& task, Protocol protocol) {
    const calls::Call& call = task.call;
    const int nranks = planner_.settings().nranks;
    const int ahead = call.is_send ? call.peer - planner_.rank() : planner_.rank() - call.peer;
    End end{.task = &task,
            .output = &task,
            .self_stream = std::nullopt,
            .protocol = protocol,
            .distance = (ahead + nranks) % nranks};
    const executor::Partition partition =
        planner_.partition_of_message(call.request.bytes(), end.protocol, call.goes_direct);
    const uint32_t depth =
        shape_of(planner_.settings(), schedule::Collective::PointToPoint, end.protocol).depth;
    Last& last = last_[{call.peer, call.is_send}];
    const bool joins = last.turn >= 0 && end.protocol == last.protocol &&
                       end.protocol != Protocol::Simple && last.layer + 1 < kMostLayers &&
                       partition.channels == last.channels &&
                       last.steps + partition.rounds <= depth;
    last = joins ? Last{last.turn, last.layer + 1, end.protocol, partition.channels,
                        last.steps + partition.rounds}
                 : Last{last.turn + 1, 0, end.protocol, partition.channels, partition.rounds};
    end.turn = last.turn;
    end.layer = last.layer;
    return end;
  }

 private:
  struct Last {
    int turn = -1;
    int layer = 0;
    Protocol protocol = Protocol::Simple;
    uint32_t channels = 0;  // of each message of the turn
    uint32_t steps = 0;     // of all of them
  };
  Planner& planner_;
  std::map<std::pair<int, bool>, Last> last_;  // by peer, and whether it is sent to
};

/// Returns the protocol of a message to the own rank, on which no other rank has to agree: the
/// protocol of other messages that are launched at once, unless a launch of its own is faster.
Result<Protocol> protocol_of_copy(const calls::Call& call, std::span<const End> others,
                                  Planner& planner) {
  constexpr double kLaunchMicroseconds = 4;
  const size_t bytes = call.request.bytes();
  // Beyond the shortest, whose latency the others have anyway.
  const auto time_of = [&](Protocol protocol) {
    return planner.time_of_copy(bytes, protocol, call.goes_direct);
  };
  const Protocol own = TRY(planner.protocol_of_copy(bytes, call.goes_direct));
  Protocol best = own;
  double least = time_of(own) + kLaunchMicroseconds;
  for (const End& end : others) {
    if (end.turn > 0) continue;
    if (end.protocol == own) return own;
    const double time = time_of(end.protocol);
    if (time >= least) continue;
    best = end.protocol;
    least = time;
  }
  return best;
}

Result<std::vector<End>> find_ends(std::span<const calls::Task> tasks, Planner& planner) {
  const int rank = planner.rank();
  Turns turns(planner);
  std::vector<End> ends;
  std::deque<const calls::Task*> self_sends, self_receives;
  for (const calls::Task& task : tasks) {
    if (!task.call.is_message()) continue;
    const calls::Call& call = task.call;
    if (call.peer != rank) {
      const size_t bytes = call.request.bytes();
      const Protocol protocol = TRY(planner.protocol_of_message(bytes, call.goes_direct));
      ends.push_back(TRY(turns.next(task, protocol)));
    } else {
      (call.is_send ? self_sends : self_receives).push_back(&task);
    }
  }
  if (self_sends.size() != self_receives.size())
    return Status::invalid_usage(
        "rank {} sends {} messages to itself and receives {}: both ends of a message to the own "
        "rank belong into one group",
        rank, self_sends.size(), self_receives.size());
  const size_t to_others = ends.size();
  for (size_t i = 0; i < self_sends.size(); ++i) {
    const calls::Task &send = *self_sends[i], &receive = *self_receives[i];
    if (send.call.request.bytes() != receive.call.request.bytes())
      return Status::invalid_usage("rank {} sends {} bytes to itself by {} and receives {} by {}",
                                   rank, send.call.request.bytes(), describe(send.call),
                                   receive.call.request.bytes(), describe(receive.call));
    // Nothing to be copied, and something to be launched.
    if (send.call.request.count == 0 && !ends.empty()) continue;
    const Protocol protocol =
        TRY(protocol_of_copy(send.call, std::span(ends).first(to_others), planner));
    End end = TRY(turns.next(send, protocol));
    end.output = &receive;
    end.self_stream = receive.stream;
    ends.push_back(end);
  }
  return ends;
}

/// Arranges the ends for Planner::messages(): layer by layer, the sends first.
Batch batch_of(std::span<const End> ends) {
  Batch batch;
  batch.protocol = ends.front().protocol;
  std::vector<const End*> by_layer;
  for (const End& end : ends) by_layer.push_back(&end);
  std::stable_sort(by_layer.begin(), by_layer.end(), [](const End* a, const End* b) {
    return std::pair(a->layer, !a->task->call.is_send) <
           std::pair(b->layer, !b->task->call.is_send);
  });
  int layer = -1;
  for (const End* end : by_layer) {
    if (std::exchange(layer, end->layer) != end->layer) batch.layers.push_back(0);
    ++batch.layers.back();
    batch.tasks.push_back(end->task);
    batch.outputs.push_back(end->output);
    if (end->self_stream) batch.streams.push_back(*end->self_stream);
  }
  return batch;
}

/// Marks the batches that run side by side, each with a protocol of its own.
void set_beside(std::span<Batch> messages) {
  std::array<bool, executor::kProtocols> running{};
  for (Batch& batch : messages) {
    bool& is_running = running[static_cast<size_t>(batch.protocol)];
    batch.is_beside = &batch != &messages.front() && !is_running;
    if (!batch.is_beside) running.fill(false);
    is_running = true;
  }
}

Status add_messages(std::span<const calls::Task> tasks, Planner& planner,
                    std::vector<Batch>& batches) {
  const size_t collectives = batches.size();
  std::vector<End> ends = TRY(find_ends(tasks, planner));
  std::stable_sort(ends.begin(), ends.end(),
                   [](const End& a, const End& b) { return a.order() < b.order(); });
  for (size_t first = 0; first < ends.size();) {
    std::map<int, int> workers;  // by pattern channel
    const int most = most_workers_of_messages(ends[first].protocol);
    size_t next = first;
    for (; next < ends.size() && next - first < executor::kMaxWorks; ++next) {
      if (ends[next].kind() != ends[first].kind()) break;
      if (++workers[algorithms::channel_of_distance(ends[next].distance)] > most) break;
    }
    batches.push_back(batch_of(std::span(ends).subspan(first, next - first)));
    first = next;
  }
  if (batches.size() > collectives) set_beside(std::span(batches).subspan(collectives));
  return {};
}

}  // namespace

Result<std::vector<Batch>> make_batches(std::span<const calls::Task> tasks, Planner& planner,
                                        bool is_captured) {
  std::vector<Batch> batches;
  TRY(add_collectives(tasks, planner, is_captured, batches));
  TRY(add_messages(tasks, planner, batches));
  for (Batch& batch : batches) collect_streams(batch);
  return batches;
}

}  // namespace niccolite::operations
