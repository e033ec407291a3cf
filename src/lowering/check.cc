#include "lowering/check.h"

#include <algorithm>

#include "lowering/execution.h"
#include "schedule/check_form.h"
#include "schedule/index.h"

namespace niccolite::lowering {
namespace {

using schedule::at;
using schedule::length;
using schedule::Schedule;

using Taker = std::function<int(int worker, int tile)>;

/// Choices of the taker of each of two tiles. In the first four, all workers choose alike, so that
/// each meets the other in the same channel; the others choose by the bits of the worker's number,
/// since any two workers differ in some bit.
std::vector<Taker> takers(int workers) {
  std::vector<Taker> all{[](int, int tile) { return tile; }, [](int, int tile) { return 1 - tile; },
                         [](int, int) { return 0; }, [](int, int) { return 1; }};
  for (int bit = 0; 1 << bit < workers; ++bit) {
    all.emplace_back([bit](int worker, int tile) { return (worker >> bit & 1) ^ tile; });
    all.emplace_back([bit](int worker, int tile) { return (worker >> bit & 1) ^ tile ^ 1; });
    all.emplace_back([bit](int worker, int) { return worker >> bit & 1; });
  }
  return all;
}

class Prover {
 public:
  Prover(const AccessPlan& plan, std::vector<schedule::Ends> ends, const CheckOptions& options)
      : plan_(plan), ends_(std::move(ends)), options_(options) {}

  Status run() const {
    for (int channel = 0; channel < length(plan_.schedule.ranks.front()); ++channel) {
      for (const auto place : {schedule::Placement::OutOfPlace, schedule::Placement::InPlace}) {
        if (place == schedule::Placement::InPlace &&
            !schedule::can_be_in_place(plan_.schedule.collective)) {
          continue;
        }
        TRY(run_takers({.place = place, .channel = channel, .depth = options_.depth}));
      }
    }
    return {};
  }

 private:
  Status run_takers(Scenario scenario) const {
    int workers = 0;
    bool shares_tiles = false;
    for (const auto& of_rank : plan_.workers) {
      workers += length(at(of_rank, scenario.channel));
      for (const LoweredWorker& lowered : at(of_rank, scenario.channel)) {
        shares_tiles |= std::ranges::any_of(
            lowered.steps, [](const Step& step) { return step.tiles == Tiles::Dynamic; });
      }
    }
    if (!shares_tiles) return run_one(scenario);
    scenario.channels = 2;
    for (const Taker& taker : takers(workers)) {
      scenario.taker = taker;
      TRY(run_one(scenario));
    }
    return {};
  }

  Status run_one(Scenario& scenario) const {
    Execution execution(plan_, ends_, scenario);
    TRY(execution.run());
    TRY(execution.check_result());
    if (!options_.with_aborts) return {};
    for (int rank = 0; rank < plan_.schedule.nranks; ++rank)
      for (int after = 0; after < execution.steps_of(rank); ++after)
        for (const bool rank_goes_first : {true, false}) {
          scenario.abort = Abort{rank, after, rank_goes_first};
          Execution aborted(plan_, ends_, scenario);
          TRY(aborted.run().with_context("rank {} is aborted after {} steps", rank, after));
        }
    scenario.abort.reset();
    return {};
  }

  const AccessPlan& plan_;
  const std::vector<schedule::Ends> ends_;
  const CheckOptions& options_;
};

uint32_t next_random(uint32_t& state) {  // xorshift
  state ^= state << 13;
  state ^= state >> 17;
  return state ^= state << 5;
}

/// The connections whose buffers cannot be reached, in some ways: of none, of all, of one rank
/// after the other, of some.
std::vector<std::vector<bool>> refusals(const Schedule& schedule, const Routes& routes,
                                        uint32_t seed) {
  const size_t count = schedule.connections.size();
  std::vector<std::vector<bool>> all{std::vector<bool>(count, false)};
  if (routes.are_all_slots()) return all;
  all.emplace_back(count, true);
  // With more ranks the roles repeat.
  constexpr int kMostRanks = 4;
  for (int rank = 0; rank < std::min(schedule.nranks, kMostRanks); ++rank) {
    std::vector<bool>& of_rank = all.emplace_back(count, false);
    for (size_t i = 0; i < count; ++i) {
      const schedule::Connection& c = schedule.connections[i];
      const bool is_get = routes.of(c.tag).way == Way::DirectGet;
      of_rank[i] = (is_get ? c.sender : c.receiver) == rank;
    }
  }
  std::vector<bool>& some = all.emplace_back(count, false);
  for (size_t i = 0; i < count; ++i) some[i] = (next_random(seed) >> 16 & 1) != 0;
  // All ranks of a team pass the same window, or none: all stores are refused, or all loads.
  for (size_t each = 2; each < all.size(); ++each)
    for (size_t i = 0; i < count; ++i)
      if (const Way way = routes.of(schedule.connections[i].tag).way; uses_team(way))
        all[each][i] = is_load_of_team(way) == (each % 2 == 0);
  return all;
}

/// Executors check their plans so, too.
Status check_all_workers(const AccessPlan& plan) {
  const std::vector<Route> routes = planned_routes(plan);
  for (int rank = 0; rank < plan.schedule.nranks; ++rank) {
    const std::vector<WorkerShape> shapes = shapes_of(plan.schedule, rank);
    std::vector<WorkerPlan> plans;
    for (const std::vector<LoweredWorker>& workers : at(plan.workers, rank))
      for (const LoweredWorker& lowered : workers) plans.push_back(lowered.plan);
    TRY(check_workers(shapes, routes, plans, facilities_of(plan.schedule, shapes, plan.facilities))
            .with_context("rank {}", rank));
  }
  return {};
}

}  // namespace

Status check(const AccessPlan& plan, const CheckOptions& options) {
  if (options.depth < 1) return Status::invalid_argument("a FIFO has {} slots", options.depth);
  const std::vector<schedule::Ends> ends = TRY(schedule::check_form(plan.schedule));
  TRY(Prover(plan, ends, options).run());
  return check_all_workers(plan);
}

Status check_all(const Schedule& schedule, const CheckOptions& options, uint32_t seed) {
  struct Kind {
    const char* what;
    Facilities facilities;
    bool pulls = false;
    bool has_team = false;
    bool has_windows = false;
  };
  const Kind kinds[] = {
      {"bulk copies", {.has_bulk_copies = true, .has_stages = true}},
      {"bulk copies and pulls", {.has_bulk_copies = true, .has_stages = true}, true},
      {"stages within the GPU", {.has_stages = true}},
      {"threads", {}},
      {"a virtual GPU",
       {.has_bulk_copies = true, .has_stages = true, .threads_pass_on_puts = true}},
      {"a team", {.has_stages = true}, false, true},
      {"a team that reaches windows", {.has_stages = true}, false, true, true},
      {"a team that stores words", {.publishes_chunks = false}, false, true},
  };
  for (const Kind& kind : kinds) {
    const Routes routes =
        routes_of(schedule, options.machines, kind.has_team, kind.facilities.publishes_chunks);
    if (kind.has_team && !routes.use_team()) continue;
    if (kind.has_windows && !routes.allow_windows()) continue;
    const bool adds_nothing =
        !kind.has_team &&
        (routes.are_all_slots() || (kind.pulls && !schedule::reduces(schedule.collective)));
    if (adds_nothing && &kind != &kinds[0]) continue;
    // Words go to slots, whatever is reached.
    const std::vector<std::vector<bool>> all_refusals = kind.facilities.publishes_chunks
                                                            ? refusals(schedule, routes, seed)
                                                            : std::vector<std::vector<bool>>{{}};
    for (const std::vector<bool>& refused : all_refusals) {
      const AccessPlan plan = TRY(lower(schedule, {.facilities = kind.facilities,
                                                   .links = {},
                                                   .refused = refused,
                                                   .machines = options.machines,
                                                   .pulls = kind.pulls,
                                                   .has_team = kind.has_team,
                                                   .has_windows = kind.has_windows}));
      TRY(check(plan, options)
              .with_context("moved by {}, {} of {} buffers not reached", kind.what,
                            std::ranges::count(refused, true), refused.size()));
    }
  }
  return {};
}

}  // namespace niccolite::lowering
