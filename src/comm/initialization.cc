// How a communicator becomes ready: its ranks join, tell each other their properties and how they
// reach each other, and each prepares its operations.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <utility>

#include "base/log.h"
#include "base/parameters.h"
#include "base/product_version.h"
#include "comm/communicator.h"
#include "comm/gpu_direct.h"
#include "comm/machine_graph.h"
#include "comm/network_reduction.h"
#include "comm/version.h"
#include "diagnosis/stragglers.h"
#include "diagnosis/watch.h"
#include "diagnosis/watchdog.h"
#include "gpu/machine.h"
#include "gpu/virtual/tasks.h"
#include "observe/network_events.h"
#include "operations/buffer_comparison.h"
#include "operations/launch_order.h"
#include "operations/launcher.h"
#include "operations/message_agreement.h"
#include "operations/one_sided.h"
#include "operations/plan_agreement.h"
#include "operations/team_trial.h"
#include "operations/tuning.h"
#include "planner/prices/price.h"
#include "profiling/connection_events.h"
#include "profiling/profiling.h"
#include "registry/buffer_exports.h"
#include "registry/buffer_imports.h"
#include "registry/device_comms.h"
#include "registry/gins.h"
#include "registry/team_buffers.h"
#include "registry/windows.h"
#include "transport/carrier.h"
#include "transport/endpoint.h"
#include "transport/net/network.h"
#include "transport/net/user_buffers.h"
#include "transport/team.h"

namespace niccolite::comm {
namespace {

/// Returns the file from which this code was loaded.
std::string own_file() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_file), &info) == 0 || info.dli_fname == nullptr)
    return "an unknown file";
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(info.dli_fname, error);
  return error ? info.dli_fname : file.string();
}

// Makes a failure here fail on all ranks, which learn of it instead of waiting for this one.
Status or_give_up(const bootstrap::JoinOptions& join, Status status) {
  if (!status.is_ok()) bootstrap::Member::give_up(join, status);
  return status;
}

// On one machine a name in NCCL_NET that no network has costs nothing yet: a word, once in a
// process.
void check_unneeded_network(const transport::net::Network::Wish& wish) {
  static std::atomic_flag is_told;
  if (parameters::net().empty() || is_told.test(std::memory_order_relaxed)) return;
  const Status status = transport::net::Network::choose(wish).status();
  if (status.is_ok() || is_told.test_and_set(std::memory_order_relaxed)) return;
  LOG(Warn, Init, "{}. One machine needs none; ranks on several will fail", status.message());
}

// Null: sockets. Plug-ins are opened where they are needed, or asked for by the program.
Result<std::shared_ptr<transport::net::Network>> choose_network(
    bool is_needed, const Configuration& configuration, uint64_t communicator, size_t number,
    gpu::Machine* machine = nullptr, int device = 0) {
  const transport::net::Network::Wish wish{.name = configuration.network,
                                           .traffic_class = configuration.traffic_class,
                                           .communicator = communicator,
                                           .number = number,
                                           .machine = machine,
                                           .device = device};
  std::shared_ptr<transport::net::Network> network;
  if (is_needed || !configuration.network.empty())
    network = TRY(transport::net::Network::choose(wish));
  else
    check_unneeded_network(wish);
  if (network == nullptr)
    LOG(Info, Init, "Using network Socket");
  else
    LOG(Info, Init, "Using network {} ({}, device {})", network->name(), network->origin(),
        network->properties().device);
  return network;
}

// Where all ranks of other processes can map each other's memory.
operations::MessageAgreement::Kinds kinds_of_messages(int rank, const bootstrap::Member& member,
                                                      const transport::Reach& reach) {
  using Kind = operations::MessageAgreement::Kind;
  operations::MessageAgreement::Kinds kinds;
  for (int peer = 0; peer < std::ssize(reach.out); ++peer) {
    const auto at = static_cast<size_t>(peer);
    const bool is_here = peer == rank || member.same_process(peer);
    const auto kind_of = [&](bool reaches) {
      return !is_here ? Kind::Agreed : reaches || peer == rank ? Kind::Direct : Kind::Slots;
    };
    kinds.sent.push_back(kind_of(reach.out[at]));
    kinds.received.push_back(kind_of(reach.in[at]));
  }
  return kinds;
}

}  // namespace

Status Communicator::initialize(const Meeting& meeting) {
  const log::ScopedDevice speaks_for(device());
  const InUse in_use = use(membership_.function());
  Status status;
  {
    Abort* const of_parent =
        meeting.parent != nullptr ? &meeting.parent->lifetime_.waits() : nullptr;
    const int listener =
        of_parent != nullptr
            ? of_parent->listen([this, of_parent] { lifetime_.waits().raise(of_parent->reason()); })
            : 0;
    status = guarded([&] { return join_and_connect(meeting); });
    if (of_parent != nullptr) of_parent->forget(listener);
  }
  if (!status.is_ok()) {
    status = std::move(status).with_context("{}: rank {} of {}", membership_.function(), rank(),
                                            nranks());
    // The peers learn of it now, not at their deadline.
    leave();
    release();
    // A blocking call prints the status that it returns.
    fail(status.copy(), configuration_.blocking ? Printed::Yes : Printed::No);
    return status;
  }
  if (configuration_.blocking && !lifetime_.change(State::InProgress, State::Ready))
    return lifetime_.failure();
  return {};
}

Status Communicator::join_and_connect(const Meeting& meeting) {
  // All ranks of the parent grow.
  const std::shared_ptr<calls::CallLog> of_parent =
      meeting.parent != nullptr ? meeting.parent->log_.share() : nullptr;
  const calls::CallLog::HostCallScope in_call(of_parent.get(), membership_.function());
  const auto start = std::chrono::steady_clock::now();
  const gpu::DeviceInfo info = TRY(machine_.device_info(device()));
  const int driver = machine_.driver_version();
  const std::string version = fmt::format("{}.{}.{}", kMajor, kMinor, kPatch);
  log::version_line(
      fmt::format("NCCL version {}+cuda{}.{}", version, driver / 1000, driver % 1000 / 10),
      fmt::format("Niccolite {}, NCCL {}, loaded from {}, on {} GPUs", kProductVersion, version,
                  own_file(), machine_.kind() == gpu::Kind::Virtual ? "virtual" : "real"),
      rank() == 0);
  static std::once_flag once;
  std::call_once(once, parameters::tell_of_those_without_effect);
  const bootstrap::UniqueId id = TRY(meeting.find_id(time_for_all_ranks(), lifetime_.waits()));
  membership_.set_hash(id.hash());
  LOG(Info, Init, "[Rank {}] {} {} nvmlDev {} busId {} commId 0x{:x} - Init START", rank(),
      membership_.function(), describe(), nvml_device(machine_, device()), info.bus_id, id_hash());
  TRY(control_.allocate(machine_));
  const Deadline deadline = time_for_all_ranks();
  const bootstrap::JoinOptions join{.id = id,
                                    .nranks = nranks(),
                                    .rank = rank(),
                                    .deadline = deadline,
                                    .abort = &lifetime_.waits()};
  if (nranks() > 1) TRY(or_give_up(join, operations::load_kernels(machine_, device())));
  Result<planner::Settings> made =
      make_own_settings(machine_.kind(), nranks(), configuration_.limits);
  if (!made.is_ok()) return or_give_up(join, made.status().copy());
  planner::Settings settings = std::move(made).take();
  settings.least_of_reducer = configuration_.least_of_reducer;
  // One rank joins too: the rendezvous point that its id opened ends when all ranks have come.
  member_ = TRY(bootstrap::Member::join(join));
  if (nranks() > 1) {
    member_->explain_waits(fmt::format("communicator 0x{:x}: initialization", id_hash()));
    const RankInfo self =
        TRY(describe_this_rank(machine_, device(), rank(), settings, configuration_.limits));
    const std::vector<RankInfo> ranks = TRY(exchange(self, *member_, deadline));
    settings = ranks[0].settings.value();
    if (const std::optional<int> most = most_ctas_of_sharers(ranks))
      planner::bound_ctas(settings, *most);
    std::vector<int> devices;
    for (const RankInfo& of_rank : ranks) devices.push_back(of_rank.device);
    membership_.set_ranks(machines_of(ranks), std::move(devices), gpu_of(ranks));
    if (most_ctas_of_sharers(ranks)) membership_.set_shares_gpus();
    settings.gpu = membership_.gpu();
    ways_ = TRY(Ways::find({.machine = machine_,
                            .membership = membership_,
                            .member = *member_,
                            .ranks = ranks,
                            .deadline = deadline}));
    TRY(choose_own_network());
    TRY(find_machine_graph(ranks, deadline));
    TRY(ways_.apply(settings, membership_));
    planner::set_reach(settings, ways_.reach().is_whole);
    std::unique_ptr<transport::Team> team = TRY(make_team(settings, deadline));
    TRY(serve_peers(settings, std::move(team)));
    TRY(connect_reducer(settings, deadline));
    // Nobody returns before everybody has checked: an error on one rank is an error on all.
    TRY(member_->barrier(deadline));
    member_->explain_waits({});
  } else {
    TRY(choose_network(/*is_needed=*/false, configuration_, id_hash(), /*number=*/0).status());
    member_.reset();
    TRY(find_machine_graph({}, deadline));
  }
  make_operations(settings);
  // Ranks that are ready may tell others about buffers to compare.
  if (comparison_ != nullptr) TRY(member_->barrier(deadline));
  supervision_.show(member_.get());
  LOG(Info, Init, "{} {} nvmlDev {} busId {} commId 0x{:x} - Init COMPLETE", membership_.function(),
      describe(), nvml_device(machine_, device()), info.bus_id, id_hash());
  const std::chrono::duration<double> total = std::chrono::steady_clock::now() - start;
  LOG(Info, Init, "Init timings - {}: rank {} nranks {} total {:.2f}", membership_.function(),
      rank(), nranks(), total.count());
  return {};
}

Status Communicator::choose_own_network() {
  std::shared_ptr<transport::net::Network> network =
      TRY(choose_network(ways_.needs_network(), configuration_, id_hash(),
                         membership_.place_on_network().number, &machine_, device()));
  if (ways_.needs_network()) network_ = std::move(network);
  return {};
}

Status Communicator::find_machine_graph(std::span<const RankInfo> ranks, const Deadline& deadline) {
  const bool is_asked_for = ranks.empty() ? asks_for_machine_graph()
                                          : std::ranges::any_of(ranks, &RankInfo::asks_for_graph);
  // Over NVLink alone every order of ranks is as good as any other, as it is of virtual GPUs; of
  // two ranks there is but one.
  const bool has_other_links =
      nranks() > 2 && !ways_.torn_link().empty() && machine_.kind() == gpu::Kind::Cuda;
  if (!is_asked_for && !has_other_links && !membership_.spans_machines()) return {};
  membership_.set_graph(TRY(make_machine_graph(
      {.devices = machine_,
       .device = device(),
       .rank = rank(),
       .host = ranks.empty() ? "" : ranks[static_cast<size_t>(rank())].host,
       .member = member_.get(),
       .ports =
           network_ != nullptr ? network_->ports() : std::vector<transport::net::Network::Port>(),
       .deadline = deadline})));
  return {};
}

std::string Communicator::team_refusal() const {
  if (parameters::nvls_enable() == 0) return "NCCL_NVLS_ENABLE=0";
  if (ways_.lacks_access()) return "some GPUs of its machine have no peer access to each other";
  if (membership_.shares_gpus()) return "some ranks share a GPU";
  return {};
}

// Communicators of the same ranks that can share a team. Each further one takes addresses alone.
constexpr int kMostSharingTeam = 8;

// The driver of GPUs that are to do without a team is not called.
Result<std::unique_ptr<transport::Team>> Communicator::make_team(
    planner::Settings& settings, const Deadline& deadline,
    std::shared_ptr<transport::TeamRange> shared) {
  using transport::Team;
  // The planner takes a team only where the user names one, or where it knows its price.
  if (!planner::wants_team(settings)) {
    if (rank() == 0 && machine_.kind() == gpu::Kind::Cuda && parameters::nvls_enable() != 0 &&
        machine_.multicast().has_multicast(device()))
      LOG(Info, Nvls,
          "the GPU can be in a multicast team: NCCL_NVLS_ENABLE=1 makes one, and tries it");
    return std::unique_ptr<Team>();
  }
  // All ranks know so much without asking each other.
  const int most = planner::largest_team(membership_.machines());
  if (most == 0) return std::unique_ptr<Team>();
  Team::Outcome outcome = TRY(Team::make({.machine = machine_,
                                          .device = device(),
                                          .member = *member_,
                                          .machines = membership_.machines(),
                                          .refusal = team_refusal(),
                                          .slots = planner::team_slots_for(settings, most),
                                          .parts = kMostSharingTeam,
                                          .shared = std::move(shared),
                                          .try_step = operations::try_team,
                                          .deadline = deadline}));
  if (outcome.team != nullptr) {
    has_team_ = true;
    planner::set_team(settings, most);
    LOG(Info, Nvls, "NVLS multicast support is available on dev {} ({} channels{})", device(),
        settings.team_slots.chunks.channels,
        outcome.is_shared ? ", by the team of the communicator that it is made from" : "");
  } else if (rank() == 0 && outcome.has_failed) {
    LOG(Warn, Nvls, "no NVLS multicast, so operations go other ways: {}", outcome.obstacle);
  } else if (rank() == 0) {
    LOG(Info, Nvls, "NVLS multicast support is not available: {}", outcome.obstacle);
  }
  return std::move(outcome.team);
}

// Says which NICs may read and write memory of this rank's GPU.
void Communicator::permit_direct() {
  const std::vector<transport::net::Network::Port> ports = network_->ports();
  if (ports.empty()) return;
  const GpuDirect direct = choose_gpu_direct(
      machine_.kind(), gpu_direct_level(), ports,
      [this](const std::string& port) { return membership_.distance_to_port(port); });
  if (!direct.obstacle.empty()) LOG(Info, Net, "NET/{} : {}", network_->name(), direct.obstacle);
  network_->permit_direct(direct.ports);
}

// Null: the network reaches no memory of this rank's GPU.
std::shared_ptr<transport::net::UserBuffers> Communicator::make_user_buffers() {
  using transport::net::UserBuffers;
  if (network_ == nullptr ||
      (!network_->is_direct(/*is_send=*/true) && !network_->is_direct(/*is_send=*/false)))
    return nullptr;
  auto made = std::make_shared<UserBuffers>(UserBuffers::Options{
      .network = network_,
      .allocations = machine_,
      .is_registered = [this](const void* memory,
                              size_t bytes) { return buffers_.is_registered(memory, bytes); },
      .registers_ahead = machine_.kind() == gpu::Kind::Cuda});
  buffers_.share(made);
  return made;
}

Status Communicator::serve_peers(const planner::Settings& settings,
                                 std::unique_ptr<transport::Team> team) {
  peers_.begin(*member_, describe());
  member_->on_peer_lost([this](int peer, const Status& why) {
    supervision_.note_lost(peer);
    fail(why.copy());
  });
  transport::Carrier carrier = membership_.place_on_network();
  if (network_ != nullptr) {
    network_->prefer(carrier.nearest);
    permit_direct();
  }
  carrier.network = network_;
  carrier.user_buffers = make_user_buffers();
  log_.open(nranks());
  connection_events_ = std::make_shared<profiling::ConnectionEvents>(log_->recorder());
  one_sided_ = make_one_sided();
  gins_ = make_gins();
  endpoint_ = std::make_unique<transport::Endpoint>(
      machine_, device(), *member_, transport::Shapes{settings.shapes, settings.message_shapes},
      ways_.reach(),
      [this](std::span<const bootstrap::Query> queries, const Deadline& until) {
        return peers_.ask(Question::Connect, queries, until);
      },
      [this](Status why) { network_failed(std::move(why)); }, std::move(carrier),
      connection_events_, std::move(team),
      transport::PutSinks{
          .puts = [this](int peer, std::span<const std::byte> chunk) { return land(peer, chunk); },
          .gin = [this](int peer,
                        std::span<const std::byte> chunk) { return land_gin(peer, chunk); }});
  share_buffers(settings.maps_captured);
  start_tuning(settings);
  TRY(supervision_.start(
      {.kind = machine_.kind(),
       .member = *member_,
       .control = control_,
       .network = ways_.needs_network() ? endpoint_.get() : nullptr,
       .awaited_leaver =
           [this] {
             return one_sided_->awaited([this](int peer) { return member_->has_left(peer); });
           },
       .fail_all = [this](const Status& status, Printed printed) { fail_all(status, printed); }}));
  member_->serve(
      [this](int from, std::span<const std::byte> request) { return answer(from, request); });
  return {};
}

Status Communicator::connect_reducer(planner::Settings& settings, const Deadline& deadline) {
  const std::shared_ptr<transport::net::Network> network = std::exchange(network_, nullptr);
  if (settings.least_of_reducer == 0 || !membership_.spans_machines() ||
      planner::machines_in(settings) < settings.least_of_reducer)
    return {};
  const bool is_virtual = machine_.kind() == gpu::Kind::Virtual;
  const auto is_registered = [this](const void* memory, size_t bytes) {
    return buffers_.registrations().covers(memory, bytes);
  };
  const auto export_memory = [this](const void* memory, size_t bytes) {
    return machine_.export_range(memory, bytes);
  };
  FoundReducer found = TRY(find_reducer(
      {.member = *member_,
       .network = network,
       .machines = settings.machines,
       .communicator = id_hash(),
       .kernels_ring = is_virtual,
       .fail =
           [this](const Status& why) {
             Status status = why.copy().with_context("rank {}: network reduction", rank());
             if (is_left_to_graphs_.load(std::memory_order_relaxed))
               network_failed(std::move(status));
             else
               fail_all(status);
           },
       .is_registered =
           is_virtual ? ReducerSearch::IsRegistered(is_registered) : ReducerSearch::IsRegistered(),
       .export_memory = is_virtual ? ReducerSearch::Export(export_memory) : nullptr,
       .deadline = deadline}));
  settings.reducible = found.reducible;
  if (found.reducer != nullptr) {
    buffers_.share(found.reducer);
    endpoint_->set_reducer(std::move(found.reducer));
  }
  return {};
}

// Buffers of this rank's user with ranks of other processes, and theirs with this one.
void Communicator::share_buffers(bool of_captured) {
  using registry::BufferExports;
  std::vector<BufferExports::Reach> reach;
  bool maps_any = false;
  for (int peer = 0; peer < nranks(); ++peer) {
    const auto at = static_cast<size_t>(peer);
    const bool is_here = peer == rank() || member_->same_process(peer);
    const bool maps = !is_here && ways_.reach().windows[at];
    maps_any |= maps;
    reach.push_back(maps ? BufferExports::Reach::Mapping
                    : peer == rank() || (is_here && ways_.reach().in[at])
                        ? BufferExports::Reach::SameAddress
                        : BufferExports::Reach::None);
    if (maps) ways_.add_reaching(peer);
  }
  // Each buffer would be mapped by each rank of the other processes: with a thousand ranks, these
  // are more mappings than a process may have (vm.max_map_count). Equal on all ranks.
  constexpr int kMostSharing = 256;
  const auto tell_of = [this](Question question) {
    return [this, question](int peer, std::span<const std::byte> message) {
      peers_.tell(peer, question, message);
    };
  };
  const auto agree_on_plans = [&](bool reached) {
    agreement_ = std::make_unique<operations::PlanAgreement>(
        rank(), nranks(), reached, lifetime_.waits(), tell_of(Question::Plans));
  };
  // In one process all memory is reached, except memory that the driver keeps to a device; virtual
  // GPUs have none of that.
  if (!maps_any && ways_.reach().is_whole && machine_.kind() == gpu::Kind::Cuda)
    agree_on_plans(/*reached=*/true);
  if (!maps_any || nranks() > kMostSharing) return;
  auto imports = std::make_shared<registry::BufferImports>(
      machine_, machine_, device(), [this](int peer, const registry::MapAnswer& answer) {
        peers_.tell(peer, Question::BufferMapped, answer.encode());
      });
  auto exports = std::make_shared<BufferExports>(
      machine_,
      BufferExports::Options{
          .device = device(),
          .reach = std::move(reach),
          .tell =
              [this](int peer, BufferExports::Message message, std::span<const std::byte> bytes) {
                return peers_.tell(peer,
                                   message == BufferExports::Message::Map ? Question::MapBuffer
                                                                          : Question::UnmapBuffer,
                                   bytes);
              },
          .has_left = [this](int peer) { return member_->has_left(peer); },
          .mark = [this] { return operations_->mark(); },
          .registrations = &buffers_.registrations(),
          .captures = of_captured,
          .most_kept = static_cast<size_t>(parameters::buffer_cache()),
          .abort = &lifetime_.waits()});
  buffers_.share(std::move(exports), std::move(imports));
  if (!of_captured || !ways_.reach().has_whole_windows) return;
  agree_on_plans(/*reached=*/false);
  message_agreement_ = std::make_unique<operations::MessageAgreement>(
      rank(), kinds_of_messages(rank(), *member_, ways_.reach()), lifetime_.waits(),
      tell_of(Question::MessagePlans));
}

void Communicator::make_operations(const planner::Settings& settings) {
  start_tuning(settings);
  start_profiling();
  operations_ = std::make_unique<operations::OperationQueue>(operations::OperationQueue::Parts{
      .machine = machine_,
      .device = device(),
      .rank = rank(),
      .settings = settings,
      .endpoint = endpoint_.get(),
      .control = control_.words(),
      .log = log_.get(),
      .graphs_mix = configuration_.graphs_mix,
      .graphs = graphs_,
      .exports = buffers_.exports().get(),
      .agreement = agreement_.get(),
      .message_agreement = message_agreement_.get(),
      .tuning = tuning_.get(),
      .profiling = profiling_.get(),
      .orders_launches = configuration_.orders_launches && nranks() > 1 && log_.is_open()});
  std::vector<int> neighbours;
  for (int peer = 0; nranks() > 1 && peer < nranks(); ++peer)
    if (!membership_.is_remote(peer)) neighbours.push_back(peer);
  auto windows = std::make_unique<registry::Windows>(
      machine_, device(), member_.get(),
      registry::Windows::Options{.team_ranks = ways_.load_store_ranks(membership_),
                                 .are_possible = ways_.has_windows(),
                                 .neighbours = std::move(neighbours)});
  std::string refusal = team_refusal();
  if (refusal.empty() && machine_.kind() == gpu::Kind::Cuda && parameters::nvls_enable() != 1)
    refusal =
        "multicast has never run on real switches: NCCL_NVLS_ENABLE=1 makes a team, and tries it";
  windows->set_multicast_terms({.refusal = std::move(refusal), .try_step = operations::try_team});
  if (gins_ == nullptr) gins_ = make_gins();
  auto device_comms =
      std::make_unique<registry::DeviceComms>(machine_, device(), member_.get(), *windows, *gins_);
  buffers_.open_windows(std::move(windows), std::move(device_comms));
  if (team_may_reach_windows()) make_comparison(settings.maps_captured);
  if (one_sided_ == nullptr) one_sided_ = make_one_sided();
}

// All ranks have the same settings.
void Communicator::make_comparison(bool of_captured) {
  buffers_.share(std::make_shared<registry::TeamBuffers>(machine_, *member_, *buffers_.windows(),
                                                         buffers_.registrations(),
                                                         [this] { return operations_->mark(); }));
  operations_->reach_by_team(*buffers_.of_team());
  comparison_ =
      std::make_unique<operations::BufferComparison>(operations::BufferComparison::Options{
          .machine = machine_,
          .device = device(),
          .rank = rank(),
          .nranks = nranks(),
          .abort = lifetime_.waits(),
          .tell =
              [this](int peer, std::span<const std::byte> message) {
                peers_.tell(peer, Question::TeamBuffers, message);
              },
          .buffers = *buffers_.of_team(),
          .reach =
              [this] {
                reach_windows_by_team();
                open_windows_of_team();
                return team_windows_ == TeamWindows::Reached;
              },
          .of_captured = of_captured});
}

void Communicator::start_tuning(const planner::Settings& settings) {
  if (!settings.is_tuned || tuning_ != nullptr) return;
  std::shared_ptr<planner::Tuner> tuner;
  if (rank() == 0)
    tuner = planner::Tuner::open(
        {.id = id_hash(), .ranks = nranks(), .machines = membership_.machines()});
  std::function<Result<Bytes>(std::span<const std::byte>)> ask_first;
  if (rank() != 0)
    ask_first = [this](std::span<const std::byte> question) -> Result<Bytes> {
      return peers_.ask(Question::Tune, 0, question, Deadline::after(kConnectTime));
    };
  tuning_ = std::make_unique<operations::Tuning>(settings, std::move(tuner), std::move(ask_first));
}

void Communicator::start_profiling() {
  const auto profiler = observe::Profiler::open({.id = id_hash(),
                                                 .name = configuration_.name,
                                                 .nodes = membership_.count_machines(),
                                                 .ranks = nranks(),
                                                 .rank = rank()});
  if (profiler == nullptr) return;
  transport::net::Network::tell_events_to(&observe::NetworkEvents::hear);
  profiling_ = std::make_shared<profiling::Profiling>(profiler, rank());
  if (log_.is_open()) {
    log_->recorder()->set_listener(profiling_);
    connection_events_->tell(profiling_->proxies());
    if (const observe::KernelMarks& marks = log_->recorder()->marks())
      profiling_->read_marks(marks).ignore("channels of kernels are missing from the profile");
  }
}

}  // namespace niccolite::comm
