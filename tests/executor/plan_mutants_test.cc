// Executors run the plan that is proved: they take the ways of connections and the plans of workers
// that lowering made, and refuse each plan that the checker refuses, before anything runs.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "executor/cuda/launch/kernel_launch.h"
#include "executor/host/plan.h"
#include "executor/list_schedule.h"
#include "lowering/check.h"
#include "planner/form.h"
#include "schedule/check.h"

namespace niccolite::executor {
namespace {

using lowering::AccessPlan;
using lowering::lower;
using lowering::LoweredConnection;
using lowering::LoweredWorker;
using lowering::Mover;
using lowering::Tiles;
using lowering::Way;
using lowering::WorkerPlan;
using schedule::Schedule;

/// An executor, with the facilities that it states.
struct Executor {
  const char* name;
  lowering::Facilities facilities;
  Status (*prepare)(const Launch& launch, const std::vector<WorkerPlan>& plans);
};
const Executor kExecutors[] = {
    {"CUDA",
     {.has_bulk_copies = true, .has_stages = true},
     [](const Launch& launch, const std::vector<WorkerPlan>& plans) {
       return cuda::prepare(launch, plans, cuda::Specialisation::Off,
                            cuda::kMaxSharedBytesWithStages)
           .status()
           .copy();
     }},
    {"virtual",
     {.has_bulk_copies = true, .has_stages = true, .threads_pass_on_puts = true},
     [](const Launch& launch, const std::vector<WorkerPlan>& plans) {
       return host::Plan::create(launch, plans).status().copy();
     }},
};

/// Launches of all ranks, whose connections have memory that nobody may touch.
class Launches {
 public:
  explicit Launches(const Schedule& schedule) : schedule_(schedule) {
    const FifoShape shape{.channels = 1, .depth = 2, .slot_bytes = 512};
    for (int rank = 0; rank < schedule.nranks; ++rank) {
      Launch& launch = launches_.emplace_back();
      launch.program = std::make_shared<const Program>(compile(schedule, rank).take());
      launch.shape = shape;
      launch.control = launch.control_device = &control_;
      Work& work = launch.works.emplace_back();
      work.partition = make_partition(1000, 1, static_cast<uint32_t>(schedule.nblocks),
                                      {.max_channels = 1, .slot_data_bytes = shape.slot_bytes});
      set_ports(launch,
                std::vector<PortAddress>(launch.program->ports.size(), {.slots = slots_,
                                                                        .control = &block_,
                                                                        .remote_control = &block_,
                                                                        .can_put = true,
                                                                        .can_get = true}));
    }
    for (int c = 0; c < static_cast<int>(schedule.connections.size()); ++c) {
      const schedule::Connection& of = schedule.connections[static_cast<size_t>(c)];
      connections_[{of.sender, of.receiver, of.tag, of.channel}] = c;
    }
  }

  const Launch& of(int rank) const { return launches_[static_cast<size_t>(rank)]; }

  /// Does an executor refuse the plan on some rank?
  Status prepare(const Executor& executor, const AccessPlan& plan) const {
    for (int rank = 0; rank < schedule_.nranks; ++rank) {
      Launch launch = of(rank);
      for (size_t p = 0; p < launch.ports.size(); ++p) {
        const Port& port = launch.program->ports[p];
        const int sender = port.is_send ? rank : port.peer;
        const int receiver = port.is_send ? port.peer : rank;
        const int connection = connections_.at({sender, receiver, port.tag, port.channel});
        launch.ports[p].way = plan.connections[static_cast<size_t>(connection)].way;
      }
      std::vector<WorkerPlan> plans;
      for (const auto& channel : plan.workers[static_cast<size_t>(rank)])
        for (const LoweredWorker& lowered : channel) plans.push_back(lowered.plan);
      TRY(executor.prepare(launch, plans));
    }
    return {};
  }

 private:
  const Schedule& schedule_;
  ControlWords control_{};
  ControlBlock block_{};
  std::byte slots_[1]{};
  std::vector<Launch> launches_;
  std::map<std::tuple<int, int, int, int>, int> connections_;
};

constexpr const char* kTakesPuts = "takes puts";

struct WorkerMutation {
  const char* name;
  void (*apply)(WorkerPlan& plan);
};
const WorkerMutation kWorkerMutations[] = {
    {"other tiles",
     [](WorkerPlan& plan) {
       plan.tiles = plan.tiles == Tiles::Fixed ? Tiles::Dynamic : Tiles::Fixed;
     }},
    {"another mover",
     [](WorkerPlan& plan) {
       plan.mover = plan.mover == Mover::Threads ? Mover::BulkCopies : Mover::Threads;
     }},
    {"only waits", [](WorkerPlan& plan) { plan.only_advertises = !plan.only_advertises; }},
    {kTakesPuts, [](WorkerPlan& plan) { plan.takes_puts = !plan.takes_puts; }},
    {"serves pulls", [](WorkerPlan& plan) { plan.serves_pulls = !plan.serves_pulls; }},
};

struct ConnectionMutation {
  const char* name;
  LoweredConnection connection;
};
const ConnectionMutation kConnectionMutations[] = {
    {"goes through slots", {}},
    {"is put", {.way = Way::DirectPut, .has_advertisement = true}},
    {"is put in any order", {.way = Way::DirectPut, .is_final = true, .has_advertisement = true}},
    {"is got", {.way = Way::DirectGet, .has_advertisement = true, .is_get = true}},
};

/// How many mutants of each kind the checker refused, for all algorithms together.
using Refused = std::map<std::string, int>;

void try_mutant(const Executor& executor, const Launches& launches, AccessPlan plan,
                const char* name, Refused& refused) {
  SCOPED_TRACE(testing::Message() << "whose plan has a place that " << name);
  write_steps(plan);
  const Status proof = check(plan, {.with_aborts = false});
  const Status prepared = launches.prepare(executor, plan);
  refused[name] += proof.is_ok() ? 0 : 1;
  if (!proof.is_ok()) {
    EXPECT_FALSE(prepared.is_ok()) << "the executor would run it; the checker: " << proof.message();
    EXPECT_EQ(prepared.code(), Code::InternalError);
  }
}

void try_mutants(const Executor& executor, const Schedule& schedule, Refused& refused) {
  const AccessPlan plan = lower(schedule, {.facilities = executor.facilities}).take();
  const Launches launches(schedule);
  ASSERT_EQ(check(plan, {.with_aborts = false}).message(), "");
  ASSERT_EQ(launches.prepare(executor, plan).message(), "");
  for (size_t rank = 0; rank < plan.workers.size(); ++rank)
    for (size_t channel = 0; channel < plan.workers[rank].size(); ++channel)
      for (size_t worker = 0; worker < plan.workers[rank][channel].size(); ++worker)
        for (const WorkerMutation& mutation : kWorkerMutations) {
          AccessPlan mutant = plan;
          mutation.apply(mutant.workers[rank][channel][worker].plan);
          try_mutant(executor, launches, std::move(mutant), mutation.name, refused);
        }
  for (size_t connection = 0; connection < plan.connections.size(); ++connection)
    for (const ConnectionMutation& mutation : kConnectionMutations) {
      if (mutation.connection.way == plan.connections[connection].way) continue;
      AccessPlan mutant = plan;
      mutant.connections[connection] = mutation.connection;
      try_mutant(executor, launches, std::move(mutant), mutation.name, refused);
    }
}

TEST(PlanMutants, AreRefusedByExecutorsAsByTheChecker) {
  for (const Executor& executor : kExecutors) {
    Refused refused;
    for (const planner::Form& algorithm : planner::forms())
      for (const int nranks : {2, 3}) {
        SCOPED_TRACE(testing::Message()
                     << executor.name << " " << algorithm.name << " "
                     << schedule::name_of(algorithm.collective) << " of " << nranks);
        const Schedule schedule = algorithm.build(nranks, {.root = 1}).take();
        ASSERT_NO_FATAL_FAILURE(try_mutants(executor, schedule, refused));
      }
    for (const auto& [name, count] : refused) {
      const bool is_always_safe = name == kTakesPuts && executor.facilities.threads_pass_on_puts;
      EXPECT_EQ(count == 0, is_always_safe)
          << executor.name << ": of all that " << name << ", " << count << " are refused";
    }
  }
}

/// A direct list: the accesses of its ranks, and the operation that they are to carry out.
struct List {
  ListAccess access;
  ListOperation operation;
};

Status prove_both_ways(const List& list) {
  const Schedule direct = list_schedule(list.access, list.operation);
  TRY(schedule::check(direct, {.depth = 1}));
  const AccessPlan plan = TRY(lower_list(direct));
  TRY(check(plan, {.with_aborts = false}));
  return schedule::check(list_schedule_in_slots(list.access, list.operation), {.depth = 1});
}

/// One bit, the form, the collective or the root is another one.
std::vector<List> mutants_of(const List& list) {
  using schedule::Collective;
  std::vector<List> mutants;
  for (int rank = 0; rank < list.operation.nranks; ++rank) {
    mutants.push_back(list);
    mutants.back().access.inputs ^= static_cast<uint8_t>(1u << rank);
    mutants.push_back(list);
    mutants.back().access.outputs ^= static_cast<uint8_t>(1u << rank);
    if (!schedule::has_root(list.operation.collective) || rank == list.operation.root) continue;
    mutants.push_back(list);
    mutants.back().operation.root = rank;
  }
  for (const ListForm form : {ListForm::Whole, ListForm::Scatter, ListForm::Gather}) {
    if (form == list.access.form) continue;
    mutants.push_back(list);
    mutants.back().access.form = form;
  }
  for (const Collective collective :
       {Collective::AllReduce, Collective::Reduce, Collective::Broadcast, Collective::AllGather,
        Collective::ReduceScatter, Collective::AllToAll}) {
    if (collective == list.operation.collective) continue;
    mutants.push_back(list);
    mutants.back().operation.collective = collective;
  }
  return mutants;
}

/// Two operations of the list, over connections whose memory nobody may touch.
class ListLaunch {
 public:
  explicit ListLaunch(int nranks) {
    constexpr uint32_t kSlotBytes = 640;
    const Schedule schedule =
        planner::one_step(schedule::Collective::AllReduce)->build(nranks, {}).take();
    launch_.program = std::make_shared<const Program>(compile(schedule, /*rank=*/0).take());
    launch_.protocol = Protocol::LL;
    launch_.shape = {.channels = 1, .depth = 2, .slot_bytes = kSlotBytes};
    launch_.control = launch_.control_device = &control_;
    launch_.list_channels = 1;
    for (int work = 0; work < 2; ++work)
      launch_.works.emplace_back().partition = make_partition(
          1000, 1, /*nblocks=*/1,
          {.max_channels = 1, .slot_data_bytes = data_bytes(Protocol::LL, kSlotBytes)});
    set_ports(launch_, std::vector<PortAddress>(
                           launch_.program->ports.size(),
                           {.slots = slots_, .control = &block_, .remote_control = &block_}));
  }

  Launch of(const List& list) const {
    Launch launch = launch_;
    launch.list_access = list.access;
    launch.list_operation = list.operation;
    return launch;
  }

 private:
  ControlWords control_{};
  ControlBlock block_{};
  std::byte slots_[1]{};
  Launch launch_;
};

TEST(ListMutants, AreRefusedByExecutorsAsByTheChecker) {
  using schedule::Collective;
  for (const int nranks : {2, 3, 4}) {
    const ListLaunch launches(nranks);
    for (const Collective collective :
         {Collective::AllReduce, Collective::Reduce, Collective::Broadcast, Collective::AllGather,
          Collective::ReduceScatter}) {
      SCOPED_TRACE(testing::Message() << schedule::name_of(collective) << " of " << nranks);
      const ListOperation operation{.collective = collective,
                                    .nranks = nranks,
                                    .root = schedule::has_root(collective) ? 1 : 0};
      const List right{*list_access_of(operation), operation};
      const auto expect = [&](const List& list, bool is_right) {
        EXPECT_EQ(prove_both_ways(list).is_ok(), is_right);
        const Launch launch = launches.of(list);
        for (const Status& prepared :
             {cuda::prepare(launch).status().copy(), host::Plan::create(launch).status().copy()}) {
          EXPECT_EQ(prepared.is_ok(), is_right) << prepared.message();
          if (!is_right) {
            EXPECT_EQ(prepared.code(), Code::InternalError);
          }
        }
      };
      expect(right, true);
      for (const List& mutant : mutants_of(right)) expect(mutant, false);
    }
  }
}

// A route belongs to a tag, and its form to the connections inside machines: those between machines
// go through slots, whatever the form of their workers.
TEST(Programs, AreCompiledOfSchedulesOfSeveralMachines) {
  const std::vector<int> machines{0, 0, 1, 1};
  for (const planner::Form& algorithm : planner::forms()) {
    const auto schedule = algorithm.build(4, {.root = 3, .machines = machines});
    if (!schedule.is_ok()) continue;
    const lowering::Routes routes = lowering::routes_of(schedule.value(), machines);
    for (int rank = 0; rank < 4; ++rank) {
      const Result<Program> program = compile(schedule.value(), rank, routes);
      EXPECT_TRUE(program.is_ok())
          << algorithm.name << " rank " << rank << ": " << program.status().message();
    }
  }
}

TEST(PlanOfLaunch, IsThatOfTheCheckedPlan) {
  for (const Executor& executor : kExecutors)
    for (const planner::Form& algorithm : planner::forms())
      for (const int nranks : {2, 3, 4}) {
        SCOPED_TRACE(testing::Message()
                     << executor.name << " " << algorithm.name << " "
                     << schedule::name_of(algorithm.collective) << " of " << nranks);
        const Schedule schedule = algorithm.build(nranks, {.root = 1}).take();
        const AccessPlan plan = lower(schedule, {.facilities = executor.facilities}).take();
        const Launches launches(schedule);
        for (int rank = 0; rank < nranks; ++rank) {
          const Launch& launch = launches.of(rank);
          std::vector<WorkerPlan> wanted;
          for (const auto& channel : plan.workers[static_cast<size_t>(rank)])
            for (const LoweredWorker& lowered : channel) wanted.push_back(lowered.plan);
          lowering::Facilities facilities = executor.facilities;
          facilities.reduces = schedule::reduces(schedule.collective);
          facilities.has_counter = !launch.ports.empty();
          EXPECT_EQ(plan_workers(launch, facilities), wanted) << "rank " << rank;
        }
      }
}

}  // namespace
}  // namespace niccolite::executor
