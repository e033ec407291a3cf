// The checker refuses every broken copy of every lowered plan, and names the place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <tuple>

#include "lowering/check.h"
#include "planner/form.h"

namespace niccolite::lowering {
namespace {

using schedule::Collective;
using schedule::Schedule;
using testing::AnyOf;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr const char* kAfterTheEnd = "whose kernel may have ended";
constexpr const char* kRace = "with no order between them";
constexpr const char* kDeadlock = "deadlock: ";
constexpr const char* kHang = "an abort hangs: ";
constexpr const char* kNotTold = "that it has not been told of";
constexpr const char* kOtherTile = "which has sent another";
constexpr const char* kNeverWritten = "which nothing was written to";
constexpr const char* kWrongBlock = "block";  // "handles block 0, but ... is of block 1"

struct Mutation {
  const char* name;
  /// Breaks the first place that it finds; false: the plan has none.
  bool (*apply)(AccessPlan& plan);
  std::vector<const char*> expected;  // one of them
  bool is_of_aborts = false;
};

using Steps = std::vector<Step>;

/// Calls break_it(steps or abort steps) for each worker until it is true.
bool break_first(AccessPlan& plan, std::vector<Step> LoweredWorker::*list,
                 const std::function<bool(LoweredWorker&, Steps&)>& break_it) {
  for (auto& channels : plan.workers)
    for (auto& workers : channels)
      for (LoweredWorker& lowered : workers)
        if (break_it(lowered, lowered.*list)) return true;
  return false;
}

bool erase(AccessPlan& plan, std::vector<Step> LoweredWorker::*list,
           const std::function<bool(const LoweredWorker&, const Step&)>& is_it) {
  return break_first(plan, list, [&](LoweredWorker& lowered, Steps& steps) {
    const auto found =
        std::ranges::find_if(steps, [&](const Step& step) { return is_it(lowered, step); });
    if (found == steps.end()) return false;
    steps.erase(found);
    return true;
  });
}

bool erase_event(AccessPlan& plan, Event event) {
  return erase(plan, &LoweredWorker::steps,
               [event](const LoweredWorker&, const Step& step) { return step.event == event; });
}
bool erase_of_abort(AccessPlan& plan, Event event) {
  return erase(plan, &LoweredWorker::abort,
               [event](const LoweredWorker&, const Step& step) { return step.event == event; });
}

/// The step is done before the worker's last move.
bool hasten(AccessPlan& plan, const std::function<bool(const LoweredWorker&, const Step&)>& is_it) {
  return break_first(plan, &LoweredWorker::steps, [&](LoweredWorker& lowered, Steps& steps) {
    const auto move = std::find_if(steps.begin(), steps.end(),
                                   [](const Step& step) { return step.event == Event::Move; });
    const auto found =
        std::find_if(move, steps.end(), [&](const Step& step) { return is_it(lowered, step); });
    if (found == steps.end()) return false;
    std::rotate(move, found, found + 1);
    return true;
  });
}

/// One connection of a team goes by a slot of its own instead.
bool break_access(AccessPlan& plan, Way way, std::vector<Way> Accesses::*list) {
  for (auto& channels : plan.workers)
    for (auto& workers : channels)
      for (LoweredWorker& lowered : workers)
        for (Accesses& accesses : lowered.accesses) {
          if (std::ranges::count(accesses.*list, way) < 2) continue;
          *std::ranges::find(accesses.*list, way) = Way::Slot;
          return true;
        }
  return false;
}

/// Has the buffer a block for each rank?
bool has_blocks(const AccessPlan& plan, schedule::Buffer buffer) {
  const int blocks = buffer == schedule::Buffer::Input ? schedule::input_blocks(plan.schedule, 0)
                                                       : schedule::output_blocks(plan.schedule, 0);
  return blocks == plan.schedule.nranks;
}

/// A rank advertises another block than the others do.
bool move_advertised(AccessPlan& plan, Way way) {
  const int blocks = plan.schedule.nranks;
  return break_first(plan, &LoweredWorker::steps, [&](LoweredWorker&, Steps& steps) {
    const auto found = std::ranges::find_if(steps, [&](const Step& step) {
      return step.event == Event::Advertise && step.memory &&
             plan.connections[static_cast<size_t>(step.connection)].way == way;
    });
    if (found == steps.end() || !has_blocks(plan, found->memory->buffer)) return false;
    found->memory->block = (found->memory->block + 1) % blocks;
    return true;
  });
}

bool has_dynamic_tiles(const LoweredWorker& lowered) {
  return lowered.plan.tiles == Tiles::Dynamic &&
         std::ranges::any_of(lowered.steps, [](const Step& step) { return step.connection >= 0; });
}

const Mutation kMutations[] = {
    {"a_buffer_that_nobody_advertises",
     [](AccessPlan& plan) { return erase_event(plan, Event::Advertise); },
     {kDeadlock}},
    {"an_access_without_an_advertisement",
     [](AccessPlan& plan) { return erase_event(plan, Event::TakeAdvertisement); },
     {kNotTold, kHang, kDeadlock}},
    {"a_put_that_nobody_awaits",
     [](AccessPlan& plan) {
       return erase(plan, &LoweredWorker::steps, [](const LoweredWorker&, const Step& step) {
         return step.event == Event::AwaitArrival && is_put(step.way);
       });
     },
     {kAfterTheEnd, kRace, kNeverWritten}},
    {"a_put_that_nobody_announces",
     [](AccessPlan& plan) {
       return erase(plan, &LoweredWorker::steps, [](const LoweredWorker&, const Step& step) {
         return step.event == Event::Announce && is_put(step.way);
       });
     },
     {kDeadlock}},
    {"a_put_that_is_announced_too_early",
     [](AccessPlan& plan) {
       return hasten(plan, [](const LoweredWorker&, const Step& step) {
         return step.event == Event::Announce && is_put(step.way);
       });
     },
     {kAfterTheEnd, kRace, kNeverWritten}},
    {"a_put_of_another_block",
     [](AccessPlan& plan) {
       return break_first(plan, &LoweredWorker::steps, [&](LoweredWorker&, Steps& steps) {
         for (Step& step : steps) {
           if (step.event != Event::Advertise || !step.memory ||
               step.memory->buffer != schedule::Buffer::Output ||
               schedule::output_blocks(plan.schedule, 0) != plan.schedule.nblocks ||
               plan.schedule.nblocks < 2) {
             continue;
           }
           step.memory->block = (step.memory->block + 1) % plan.schedule.nblocks;
           return true;
         }
         return false;
       });
     },
     {kRace, kAfterTheEnd, kNeverWritten, kWrongBlock}},
    {"a_get_of_another_block",
     [](AccessPlan& plan) {
       return break_first(plan, &LoweredWorker::steps, [&](LoweredWorker&, Steps& steps) {
         for (Step& step : steps) {
           if (step.event != Event::Advertise || !step.memory ||
               step.memory->buffer != schedule::Buffer::Input || plan.schedule.nblocks < 2) {
             continue;
           }
           step.memory->block = (step.memory->block + 1) % plan.schedule.nblocks;
           return true;
         }
         return false;
       });
     },
     {kRace, kWrongBlock, "wrote over it"}},
    {"a_get_that_nobody_releases",
     [](AccessPlan& plan) { return erase_event(plan, Event::Release); },
     {kDeadlock}},
    {"a_get_behind_which_the_owner_goes_on",
     [](AccessPlan& plan) { return erase_event(plan, Event::AwaitRelease); },
     {kAfterTheEnd}},
    {"a_get_after_its_release",
     [](AccessPlan& plan) {
       return hasten(plan, [](const LoweredWorker& lowered, const Step& step) {
         // What was pulled is read from slots.
         const bool is_pull = std::ranges::any_of(lowered.steps, [&](const Step& other) {
           return other.event == Event::Request && other.connection == step.connection;
         });
         const bool is_slot = std::ranges::any_of(lowered.steps, [&](const Step& other) {
           return other.event == Event::GiveCredit && other.connection == step.connection;
         });
         return step.event == Event::Release && !is_pull && !is_slot;
       });
     },
     {kAfterTheEnd, kRace, "wrote over it"}},
    {"a_pull_that_nobody_serves",
     [](AccessPlan& plan) { return erase_event(plan, Event::ServePulls); },
     {kDeadlock}},
    {"a_pull_that_nobody_awaits",
     [](AccessPlan& plan) {
       return erase(plan, &LoweredWorker::steps, [](const LoweredWorker&, const Step& step) {
         return step.event == Event::AwaitArrival && step.way == Way::Pull;
       });
     },
     {kOtherTile}},
    {"a_chunk_that_nobody_awaits",
     [](AccessPlan& plan) {
       return erase(plan, &LoweredWorker::steps, [](const LoweredWorker&, const Step& step) {
         return step.event == Event::AwaitArrival && step.way == Way::Slot;
       });
     },
     {kOtherTile}},
    {"a_chunk_of_a_team_that_nobody_awaits",
     [](AccessPlan& plan) {
       return erase(plan, &LoweredWorker::steps, [](const LoweredWorker&, const Step& step) {
         return step.event == Event::AwaitArrival && uses_team(step.way) && uses_slots(step.way);
       });
     },
     {kOtherTile}},
    {"a_team_load_without_the_own_part",
     [](AccessPlan& plan) { return erase_event(plan, Event::Stage); },
     {"before it has stored its own part"}},
    {"a_team_store_without_the_credit_of_one",
     [](AccessPlan& plan) {
       return erase(plan, &LoweredWorker::steps, [&](const LoweredWorker&, const Step& step) {
         return step.event == Event::AwaitCredit &&
                uses_team(plan.connections[static_cast<size_t>(step.connection)].way);
       });
     },
     {"whose credit it has not awaited"}},
    {"credit_for_a_slot_that_is_not_read",
     [](AccessPlan& plan) {
       return hasten(plan, [&](const LoweredWorker&, const Step& step) {
         return step.event == Event::GiveCredit &&
                plan.connections[static_cast<size_t>(step.connection)].way == Way::Slot;
       });
     },
     {"credit for a slot that it has not read"}},
    {"credit_for_a_slot_of_a_team_that_is_not_read",
     [](AccessPlan& plan) {
       return hasten(plan, [&](const LoweredWorker&, const Step& step) {
         return step.event == Event::GiveCredit &&
                plan.connections[static_cast<size_t>(step.connection)].way == Way::TeamStore;
       });
     },
     {"credit for a slot that it has not read"}},
    {"a_team_store_that_one_is_not_told_of",
     [](AccessPlan& plan) {
       return erase(plan, &LoweredWorker::steps, [](const LoweredWorker&, const Step& step) {
         return step.event == Event::Announce && uses_team(step.way) && uses_slots(step.way);
       });
     },
     {kDeadlock, kWrongBlock}},
    {"a_team_store_to_some_ranks",
     [](AccessPlan& plan) { return break_access(plan, Way::TeamStore, &Accesses::sends); },
     {"not of all ranks of its machine"}},
    {"a_team_load_from_some_ranks",
     [](AccessPlan& plan) { return break_access(plan, Way::TeamLoad, &Accesses::receives); },
     {"not of all ranks of its machine"}},
    {"a_team_load_of_a_part_that_is_overwritten_in_place",
     [](AccessPlan& plan) {
       return break_first(plan, &LoweredWorker::steps, [](LoweredWorker&, Steps& steps) {
         const auto stage = std::ranges::find(steps, Event::Stage, &Step::event);
         if (stage == steps.end()) return false;
         const auto move = std::find_if(stage, steps.end(),
                                        [](const Step& step) { return step.event == Event::Move; });
         std::rotate(stage, stage + 1, move + 1);
         return true;
       });
     },
     {"before it has stored its own part"}},
    {"a_team_put_to_some_ranks",
     [](AccessPlan& plan) { return break_access(plan, Way::TeamPut, &Accesses::sends); },
     {"not of all ranks of its machine"}},
    {"a_team_get_from_some_ranks",
     [](AccessPlan& plan) { return break_access(plan, Way::TeamGet, &Accesses::receives); },
     {"not of all ranks of its machine"}},
    {"a_team_put_to_another_block_of_one_rank",
     [](AccessPlan& plan) { return move_advertised(plan, Way::TeamPut); },
     {"by a team put to output block"}},
    {"a_team_get_of_another_block_of_one_rank",
     [](AccessPlan& plan) { return move_advertised(plan, Way::TeamGet); },
     {"by a team get to input block"}},
    {"tiles_that_two_workers_move",
     [](AccessPlan& plan) {
       return break_first(plan, &LoweredWorker::steps, [](LoweredWorker& lowered, Steps& steps) {
         if (!has_dynamic_tiles(lowered)) return false;
         const auto move = std::ranges::find_if(
             steps, [](const Step& step) { return step.event == Event::Move; });
         Step again = *move;
         again.tiles = Tiles::Fixed;
         steps.insert(move + 1, again);
         return true;
       });
     },
     {kRace, kOtherTile, "wrote over it"}},
    {"tiles_that_cross_channels_of_what_is_passed_on",
     [](AccessPlan& plan) {
       bool is_passed_on = false;  // some put
       for (const auto& [tag, route] : plan.routes.of_tags())
         is_passed_on |= route.way == Way::DirectPut && !route.is_final;
       return is_passed_on &&
              break_first(plan, &LoweredWorker::steps, [](LoweredWorker& lowered, Steps& steps) {
                if (steps.front().event != Event::TakeAdvertisement ||
                    std::ranges::any_of(steps, [](const Step& step) {
                      return step.event == Event::AwaitArrival || step.event == Event::AwaitCredit;
                    })) {
                  return false;
                }
                lowered.plan.tiles = Tiles::Dynamic;
                for (Step& step : steps)
                  if (step.event == Event::Move) step.tiles = Tiles::Dynamic;
                return true;
              });
     },
     {kRace, kNeverWritten}},
    {"an_abort_that_ends_while_its_buffer_is_used",
     [](AccessPlan& plan) { return erase_of_abort(plan, Event::AwaitLeave); },
     {kAfterTheEnd},
     /*is_of_aborts=*/true},
    {"an_abort_that_withdraws_nothing",
     [](AccessPlan& plan) { return erase_of_abort(plan, Event::Withdraw); },
     {kHang},
     /*is_of_aborts=*/true},
    {"an_abort_that_does_not_leave",
     [](AccessPlan& plan) { return erase_of_abort(plan, Event::Leave); },
     {kHang},
     /*is_of_aborts=*/true},
    {"an_access_to_what_was_left",
     [](AccessPlan& plan) {
       return break_first(plan, &LoweredWorker::abort, [](LoweredWorker& lowered, Steps& steps) {
         if (steps.empty() || steps.front().event != Event::Leave ||
             std::ranges::any_of(lowered.steps, [](const Step& step) {
               return step.event == Event::AwaitArrival;
             })) {
           return false;
         }
         const auto move = std::ranges::find_if(
             lowered.steps, [](const Step& step) { return step.event == Event::Move; });
         steps.push_back(*move);
         return true;
       });
     },
     {kAfterTheEnd, kNotTold, kRace, "wrote over it"},
     /*is_of_aborts=*/true},
};

struct Case {
  const Mutation* mutation;
  const planner::Form* algorithm;
  int nranks;
  bool pulls;
  bool has_team;
  bool has_windows;
  bool is_of_words;  // by a team
  std::vector<int> machines{};
};
std::string name_of(const Case& c) {
  return fmt::format("{}_{}_{}_{}{}{}{}", c.mutation->name,
                     schedule::name_of(c.algorithm->collective), c.algorithm->name, c.nranks,
                     c.machines.empty() ? "" : "_on_machines", c.pulls ? "_pulls" : "",
                     c.has_windows   ? "_windows"
                     : c.is_of_words ? "_words"
                     : c.has_team    ? "_team"
                                     : "");
}
void PrintTo(const Case& c, std::ostream* out) { *out << name_of(c); }

AccessPlan plan_of(const Case& c) {
  const Schedule schedule =
      c.algorithm->build(c.nranks, {.root = 1, .machines = c.machines}).take();
  Capabilities capabilities{.machines = c.machines,
                            .pulls = c.pulls,
                            .has_team = c.has_team,
                            .has_windows = c.has_windows};
  if (c.is_of_words) capabilities.facilities = {.publishes_chunks = false};
  return lower(schedule, capabilities).take();
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const Mutation& mutation : kMutations)
    for (const planner::Form& algorithm : planner::forms())
      for (const int nranks : {2, 3})
        for (const auto& [pulls, has_team, has_windows, is_of_words] :
             {std::tuple(false, false, false, false),
              {true, false, false, false},
              {false, true, false, false},
              {false, true, true, false},
              {false, true, false, true}}) {
          if (pulls && !schedule::reduces(algorithm.collective)) continue;
          const Case c{&mutation, &algorithm, nranks, pulls, has_team, has_windows, is_of_words};
          AccessPlan plan = plan_of(c);
          if (has_team && !plan.routes.use_team()) continue;
          if (has_windows && !plan.routes.allow_windows()) continue;
          if (mutation.apply(plan)) result.push_back(c);
        }
  // Teams of several machines, on windows.
  for (const Mutation& mutation : kMutations)
    for (const planner::Form& algorithm : planner::forms())
      for (const std::vector<int>& machines : {std::vector{0, 0, 1, 1}, {0, 0, 0, 1, 1, 1}}) {
        const Case c{.mutation = &mutation,
                     .algorithm = &algorithm,
                     .nranks = static_cast<int>(machines.size()),
                     .pulls = false,
                     .has_team = true,
                     .has_windows = true,
                     .is_of_words = false,
                     .machines = machines};
        AccessPlan plan = plan_of(c);
        if (plan.routes.allow_windows() && mutation.apply(plan)) result.push_back(c);
      }
  return result;
}

class EveryLoweredMutant : public testing::TestWithParam<Case> {};

TEST_P(EveryLoweredMutant, IsRefused) {
  AccessPlan plan = plan_of(GetParam());
  const CheckOptions options{.with_aborts = GetParam().mutation->is_of_aborts};
  ASSERT_TRUE(check(plan, options).is_ok());
  ASSERT_TRUE(GetParam().mutation->apply(plan));
  const Status status = check(plan, options);
  ASSERT_FALSE(status.is_ok()) << "the checker accepts it";
  EXPECT_EQ(status.code(), Code::InvalidUsage);
  const auto is_expected = [&](const char* text) {
    return status.message().find(text) != std::string::npos;
  };
  EXPECT_TRUE(std::ranges::any_of(GetParam().mutation->expected, is_expected)) << status.message();
  EXPECT_THAT(status.message(), ContainsRegex("rank [0-9]+ channel 0"));
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryLoweredMutant, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& test) {
                           return name_of(test.param);
                         });

/// By hand: the input of a one-shot all-reduce is got, though the worker that sends it goes on to
/// write its sum, in place over that input.
TEST(LoweredMutations, AGetAfterTheOwnerMayOverwriteIsRefusedInPlace) {
  const Schedule schedule =
      planner::find_form(Collective::AllReduce, "one_shot")->build(2, {}).take();
  AccessPlan plan = lower(schedule, {}).take();
  ASSERT_TRUE(check(plan).is_ok());
  int connection = -1;  // from rank 0 to rank 1
  for (int i = 0; i < 2; ++i)
    if (schedule.connections[static_cast<size_t>(i)].sender == 0) connection = i;
  const auto drop = [&](LoweredWorker& lowered, Event event) {
    std::erase_if(lowered.steps, [&](const Step& step) {
      return step.event == event && step.connection == connection;
    });
  };
  LoweredWorker& sender = plan.workers[0][0][0];
  drop(sender, Event::AwaitCredit);
  drop(sender, Event::Announce);
  sender.accesses[0].sends[0] = Way::DirectGet;
  sender.steps.insert(sender.steps.begin(),
                      {.event = Event::Advertise,
                       .connection = connection,
                       .memory = schedule::BlockReference{schedule::Buffer::Input, 0}});
  sender.steps.push_back({.event = Event::AwaitRelease, .connection = connection});
  LoweredWorker& receiver = plan.workers[1][0][0];
  for (Step& step : receiver.steps) {
    if (step.connection != connection) continue;
    if (step.event == Event::AwaitArrival) step.event = Event::TakeAdvertisement;
    if (step.event == Event::GiveCredit) step.event = Event::Release;
  }
  receiver.accesses[1].receives[0] = Way::DirectGet;
  const Status status = check(plan, {.with_aborts = false});
  ASSERT_FALSE(status.is_ok());
  EXPECT_THAT(status.message(), AnyOf(HasSubstr(kRace), HasSubstr("wrote over it")));
  EXPECT_THAT(status.message(), HasSubstr("(in place)"));
}

TEST(LoweredMutations, EachBreaksSomePlan) {
  const std::vector<Case> all = cases();
  for (const Mutation& mutation : kMutations) {
    EXPECT_TRUE(std::ranges::any_of(all, [&](const Case& c) { return c.mutation == &mutation; }))
        << mutation.name;
  }
}

}  // namespace
}  // namespace niccolite::lowering
