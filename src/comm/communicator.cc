#include "comm/communicator.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/log.h"
#include "base/parameters.h"
#include "comm/snapshot.h"
#include "comm/version.h"
#include "observe/dumps.h"
#include "observe/network_events.h"
#include "topology/order.h"

namespace niccolite::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kConnectTime = seconds(30);  // a peer's process answers from a thread of its own
constexpr auto kAbortTime = seconds(5);     // kernels see the abort word within microseconds
constexpr auto kAbortsAtOnce = milliseconds(50);  // what takes longer is waiting for peers
constexpr auto kFarewellTime = seconds(2);        // for a peer to say what it has called
constexpr auto kPatience = seconds(20);           // after which a wait says what it waits for
constexpr size_t kMostText = 4096;                // of a failure that a peer tells

/// Differs from communicator to communicator of this process.
uint64_t next_salt() {
  static std::atomic<uint64_t> salt{0};
  return salt.fetch_add(1, std::memory_order_relaxed);  // relaxed: only a number of its own
}

Deadline init_deadline() { return Deadline::after(seconds(parameters::init_timeout())); }

/// Where this code was loaded from.
std::string own_file() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_file), &info) == 0 || info.dli_fname == nullptr)
    return "an unknown file";
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(info.dli_fname, error);
  return error ? info.dli_fname : file.string();
}

// What fails here fails on all ranks, which learn of it instead of waiting for this one.
Status or_give_up(const bootstrap::JoinOptions& join, Status status) {
  if (!status.is_ok()) bootstrap::Member::give_up(join, status);
  return status;
}

// What NCCL has and this library has not: nobody shall believe that it works.
void refuse_variables() {
  if (parameters::oob_net_enable() == 1)
    LOG(Warn, Init, "NCCL_OOB_NET_ENABLE=1 is not served: ranks meet by TCP. Unset it");
  if (!parameters::oob_net_ifname().empty())
    LOG(Warn, Init,
        "NCCL_OOB_NET_IFNAME={} is not served: set NCCL_SOCKET_IFNAME, which chooses the "
        "interfaces by which ranks meet",
        parameters::oob_net_ifname());
  if (!parameters::socket_magic().empty())
    LOG(Warn, Init,
        "NCCL_SOCKET_MAGIC is not served: connections prove the unique id's secret. Unset it");
}

// Null: sockets. Plug-ins are opened where they are needed only.
Result<std::shared_ptr<transport::net::Network>> choose_network(bool is_needed) {
  std::shared_ptr<transport::net::Network> network;
  if (is_needed) network = TRY(transport::net::Network::choose());
  if (network == nullptr)
    LOG(Info, Init, "Using network Socket");
  else
    LOG(Info, Init, "Using network {} ({}, device {})", network->name(), network->origin(),
        network->properties().device);
  return network;
}

}  // namespace

Communicator::Communicator(gpu::Machine& machine, Identity identity, Configuration configuration)
    : machine_(machine),
      meeting_(std::exchange(identity.meeting, {})),
      identity_(std::move(identity)),
      id_hash_(identity_.hash),
      configuration_(std::move(configuration)),
      operators_(next_salt()),
      registrations_(machine) {}

Communicator::~Communicator() = default;

std::string Communicator::describe() const {
  return fmt::format("comm {} rank {} nranks {} cudaDev {}", static_cast<const void*>(this), rank(),
                     nranks(), device());
}

Status Communicator::initialize() {
  const log::ScopedDevice speaks_for(device());
  std::lock_guard in_use(in_use_);
  Status status;
  {
    const Meeting meeting = std::exchange(meeting_, {});
    Abort* const of_parent = meeting.parent != nullptr ? &meeting.parent->abort_ : nullptr;
    const int listener =
        of_parent != nullptr
            ? of_parent->listen([this, of_parent] { abort_.raise(of_parent->reason()); })
            : 0;
    status = guarded([&] { return join_and_connect(meeting); });
    if (of_parent != nullptr) of_parent->forget(listener);
  }
  if (!status.is_ok()) {
    status =
        std::move(status).with_context("{}: rank {} of {}", identity_.function, rank(), nranks());
    // The peers learn of it now, not at their deadline.
    disconnect();
    // A blocking call prints what it returns.
    fail(status.copy(), configuration_.blocking ? Printed::Yes : Printed::No);
    return status;
  }
  if (configuration_.blocking && !change_state(State::InProgress, State::Ready)) return failure();
  return {};
}

std::shared_ptr<CallLog> Communicator::shared_log() const {
  std::lock_guard lock(log_mutex_);
  return log_;
}

Status Communicator::join_and_connect(const Meeting& meeting) {
  // All ranks of the parent grow.
  const std::shared_ptr<CallLog> of_parent =
      meeting.parent != nullptr ? meeting.parent->shared_log() : nullptr;
  const CallLog::HostCallScope in_call(of_parent.get(), identity_.function);
  const auto start = std::chrono::steady_clock::now();
  const gpu::DeviceInfo info = TRY(machine_.device_info(device()));
  const int driver = machine_.driver_version();
  const std::string version = fmt::format("{}.{}.{}", kMajor, kMinor, kPatch);
  log::version_line(
      fmt::format("NCCL version {}+cuda{}.{}", version, driver / 1000, driver % 1000 / 10),
      fmt::format("Niccolite {} loaded from {}, on {} GPUs", version, own_file(),
                  machine_.kind() == gpu::Kind::Virtual ? "virtual" : "real"),
      rank() == 0);
  static std::once_flag once;
  std::call_once(once, refuse_variables);
  const bootstrap::UniqueId id = TRY(meeting.find_id(init_deadline(), abort_));
  id_hash_ = id.hash();
  LOG(Info, Init, "[Rank {}] {} {} nvmlDev {} busId {} commId 0x{:x} - Init START", rank(),
      identity_.function, describe(), device(), info.bus_id, id_hash_);
  TRY(control_.allocate(machine_));
  const Deadline deadline = init_deadline();
  const bootstrap::JoinOptions join{
      .id = id, .nranks = nranks(), .rank = rank(), .deadline = deadline, .abort = &abort_};
  if (nranks() > 1) TRY(or_give_up(join, load_kernels(machine_, device())));
  Result<planner::Settings> made =
      planner::make_settings(machine_.kind(), nranks(), configuration_.limits);
  TRY(or_give_up(join, made.status().copy()));
  planner::Settings settings = std::move(made).take();
  settings.is_tuned = planner::Tuner::is_there();  // rank 0's holds, as of all settings
  // One rank joins too: the rendezvous point that its id opened ends when all ranks have come.
  member_ = TRY(bootstrap::Member::join(join));
  if (nranks() > 1) {
    const std::vector<RankInfo> ranks = TRY(meet(settings, deadline));
    settings = ranks[0].settings.value();
    settings.gpu = gpu_ = gpu_of(ranks);
    machine_of_ = machines_of(ranks);
    for (const RankInfo& of_rank : ranks) {
      process_of_.push_back(of_rank.process);
      device_of_.push_back(of_rank.device);
    }
    TRY(find_machine_graph(ranks, deadline));
    transport::Endpoint::Reach reach = TRY(exchange_links(ranks, settings, deadline));
    planner::set_reach(settings, reach.is_whole);
    TRY(serve_peers(settings, std::move(reach)));
    // Nobody returns before everybody has checked: an error on one rank is an error on all.
    TRY(member_->barrier(deadline));
  } else {
    TRY(choose_network(/*is_needed=*/false).status());
    member_.reset();
    TRY(find_machine_graph({}, deadline));
  }
  make_operations(settings);
  show_status();
  LOG(Info, Init, "{} {} nvmlDev {} busId {} commId 0x{:x} - Init COMPLETE", identity_.function,
      describe(), device(), info.bus_id, id_hash_);
  const std::chrono::duration<double> total = std::chrono::steady_clock::now() - start;
  LOG(Info, Init, "Init timings - {}: rank {} nranks {} total {:.2f}", identity_.function, rank(),
      nranks(), total.count());
  return {};
}

Status Communicator::serve_peers(const planner::Settings& settings,
                                 transport::Endpoint::Reach reach) {
  reach_ = std::move(reach);
  for (int peer = 0; peer < nranks(); ++peer)
    if (reach_.in[static_cast<size_t>(peer)]) reaching_peers_.push_back(peer);
  member_->on_peer_lost([this](int peer, const Status& why) {
    {
      std::lock_guard lock(lost_mutex_);
      lost_.insert(peer);
    }
    fail(why.copy());
  });
  transport::Carrier carrier = place_on_network();
  carrier.network = TRY(choose_network(needs_network()));
  {
    std::lock_guard lock(log_mutex_);
    log_ = std::make_shared<CallLog>(nranks());
  }
  connection_events_ = std::make_shared<ConnectionEvents>(log_->recorder());
  // [release] the log, to fail().
  calls_.store(log_.get(), std::memory_order_release);
  endpoint_ = std::make_unique<transport::Endpoint>(
      machine_, device(), *member_, transport::Shapes{settings.shapes, settings.message_shapes},
      reach_,
      [this](std::span<const bootstrap::Query> queries, const Deadline& until) {
        return ask(Question::Connect, queries, until);
      },
      [this](Status why) { fail(std::move(why)); }, std::move(carrier), connection_events_);
  one_sided_ = make_one_sided();
  share_buffers(settings.maps_captured);
  start_tuning(settings);
  TRY(start_watch());
  member_->serve(
      [this](int from, std::span<const std::byte> request) { return answer(from, request); });
  return {};
}

// Which network device is this rank's own: the one that the machine graph gives it, else that of
// its number among the ranks of its machine.
transport::Carrier Communicator::place_on_network() const {
  transport::Carrier carrier;
  if (!machine_of_.empty())
    carrier.number =
        static_cast<size_t>(std::count(machine_of_.begin(), machine_of_.begin() + rank(),
                                       machine_of_[static_cast<size_t>(rank())]));
  if (machine_graph_ != nullptr) {
    const int node = topology::rails(*machine_graph_).at(static_cast<size_t>(rank()));
    if (node >= 0)
      carrier.nearest_interface = machine_graph_->nodes()[static_cast<size_t>(node)].name;
  }
  return carrier;
}

// Buffers of this rank's user with ranks of other processes, and theirs with this one.
void Communicator::share_buffers(bool of_captured) {
  using registry::BufferExports;
  std::vector<BufferExports::Reach> reach;
  bool maps_any = false;
  for (int peer = 0; peer < nranks(); ++peer) {
    const auto at = static_cast<size_t>(peer);
    const bool is_here = peer == rank() || member_->same_process(peer);
    const bool maps = !is_here && reach_.windows[at];
    maps_any |= maps;
    reach.push_back(maps ? BufferExports::Reach::Mapping
                    : peer == rank() || (is_here && reach_.in[at])
                        ? BufferExports::Reach::SameAddress
                        : BufferExports::Reach::None);
    if (maps) reaching_peers_.push_back(peer);
  }
  if (!maps_any) return;
  imports_ = std::make_unique<registry::BufferImports>(machine_, device());
  exports_ = std::make_shared<BufferExports>(
      machine_,
      BufferExports::Options{
          .device = device(),
          .reach = std::move(reach),
          .tell =
              [this](int peer, BufferExports::Message message, std::span<const std::byte> bytes) {
                Writer writer;
                writer.u8(static_cast<uint8_t>(message == BufferExports::Message::Map
                                                   ? Question::MapBuffer
                                                   : Question::UnmapBuffer));
                writer.raw(bytes);
                tell(peer, writer);
              },
          .mark = [this] { return operations_->mark(); },
          .registrations = &registrations_,
          .captures = of_captured,
          .most_cached = static_cast<size_t>(parameters::buffer_cache()),
          .abort = &abort_});
  if (!of_captured || !reach_.has_whole_windows) return;
  agreement_ = std::make_unique<PlanAgreement>(
      rank(), nranks(), abort_, [this](int peer, std::span<const std::byte> message) {
        Writer writer;
        writer.u8(static_cast<uint8_t>(Question::Plans));
        writer.raw(message);
        tell(peer, writer);
      });
}

void Communicator::make_operations(const planner::Settings& settings) {
  operations_ =
      std::make_unique<OperationQueue>(machine_, device(), rank(), settings, endpoint_.get(),
                                       control_.words(), log_.get(), configuration_.graphs_mix);
  if (exports_ != nullptr) operations_->open_buffers(*exports_);
  if (agreement_ != nullptr) operations_->plan_for_reach(*agreement_);
  start_tuning(settings);
  if (tuning_ != nullptr) operations_->tune(*tuning_);
  if (configuration_.orders_launches && nranks() > 1) {
    // Without it operations are launched as they come.
    Result<std::unique_ptr<LaunchOrder>> order = LaunchOrder::join(machine_, device());
    if (order.is_ok()) operations_->order_launches(std::move(order).take());
  }
  start_profiling();
  windows_ =
      std::make_unique<registry::Windows>(machine_, device(), member_.get(),
                                          /*are_possible=*/!needs_network() && !lacks_access_);
  if (one_sided_ == nullptr) one_sided_ = make_one_sided();
}

void Communicator::start_tuning(const planner::Settings& settings) {
  if (!settings.is_tuned || tuning_ != nullptr) return;
  std::shared_ptr<planner::Tuner> tuner;
  if (rank() == 0)
    tuner = planner::Tuner::open({.id = id_hash_, .ranks = nranks(), .machines = machine_of_});
  std::function<Result<Bytes>(std::span<const std::byte>)> ask_first;
  if (rank() != 0)
    ask_first = [this](std::span<const std::byte> question) -> Result<Bytes> {
      return ask(Question::Tune, 0, question, Deadline::after(kConnectTime));
    };
  tuning_ = std::make_unique<Tuning>(settings, std::move(tuner), std::move(ask_first));
}

void Communicator::start_profiling() {
  const std::set<int> machines(machine_of_.begin(), machine_of_.end());
  const auto profiler =
      observe::Profiler::open({.id = id_hash_,
                               .name = configuration_.name,
                               .nodes = std::max(1, static_cast<int>(machines.size())),
                               .ranks = nranks(),
                               .rank = rank()});
  if (profiler == nullptr) return;
  transport::net::Network::tell_events_to(&observe::NetworkEvents::hear);
  profiling_ = std::make_shared<Profiling>(profiler);
  if (log_ != nullptr) {
    log_->recorder()->set_listener(profiling_);
    connection_events_->tell(profiling_->proxies());
    if (const observe::KernelMarks& marks = log_->recorder()->marks())
      profiling_->read_marks(marks).ignore("channels of kernels are missing from the profile");
  }
  operations_->profile(*profiling_);
}

// Tells all ranks of this one, and checks what they tell; `settings` are this rank's own.
Result<std::vector<RankInfo>> Communicator::meet(const planner::Settings& settings,
                                                 const Deadline& deadline) {
  const RankInfo self =
      TRY(describe_this_rank(machine_, device(), rank(), settings, configuration_.limits));
  const bootstrap::Gathered blobs = TRY(member_->all_gather(encode(self), deadline));
  std::vector<RankInfo> ranks = TRY(decode_and_check(blobs));
  if (rank() == 0) warn_of_differences(ranks);
  return ranks;
}

Status Communicator::find_machine_graph(std::span<const RankInfo> ranks, const Deadline& deadline) {
  const bool is_asked_for = ranks.empty() ? asks_for_machine_graph()
                                          : std::ranges::any_of(ranks, &RankInfo::asks_for_graph);
  if (!is_asked_for && !spans_machines()) return {};
  machine_graph_ =
      TRY(make_machine_graph({.machine = machine_,
                              .device = device(),
                              .rank = rank(),
                              .host = ranks.empty() ? "" : ranks[static_cast<size_t>(rank())].host,
                              .member = member_.get(),
                              .deadline = deadline}));
  return {};
}

// All at once, but those of other machines, whose clocks differ: those one by one, so that the time
// of the answer tells by how much.
void Communicator::survey_arrivals() {
  constexpr auto kPatience = std::chrono::milliseconds(200);  // a slow answer is asked for again
  for (int peer = 1; peer < nranks(); ++peer)
    if (member_->has_left(peer)) return;
  const uint64_t after = stragglers_->counted();
  std::vector<Arrivals> of_ranks(static_cast<size_t>(nranks()));
  of_ranks[0] = arrivals_of(*log_->recorder(), after);
  if (of_ranks[0].collectives.empty()) return;
  Writer writer;
  writer.u64(after);
  const Bytes question = std::move(writer).take();
  std::vector<bootstrap::Query> near;
  for (int peer = 1; peer < nranks(); ++peer)
    if (!is_remote(peer)) near.push_back({.peer = peer, .message = question});
  const std::vector<Result<Bytes>> answers =
      ask(Question::Arrivals, near, Deadline::after(kPatience));
  for (size_t i = 0; i < near.size(); ++i) {
    if (!answers[i].is_ok()) return;
    Result<Arrivals> arrivals = Arrivals::decode(answers[i].value(), near[i].peer);
    if (!arrivals.is_ok()) return;
    of_ranks[static_cast<size_t>(near[i].peer)] = std::move(arrivals).take();
  }
  for (int peer = 1; peer < nranks(); ++peer) {
    if (!is_remote(peer)) continue;
    const auto now = [] { return observe::Clock().nanoseconds(observe::ticks()); };
    const uint64_t asked = now();
    const Result<Bytes> answer =
        ask(Question::Arrivals, peer, question, Deadline::after(kPatience));
    const uint64_t middle = asked + (now() - asked) / 2;
    if (!answer.is_ok()) return;
    Result<Arrivals> decoded = Arrivals::decode(answer.value(), peer);
    if (!decoded.is_ok()) return;
    Arrivals arrivals = std::move(decoded).take();
    for (Arrivals::One& one : arrivals.collectives) one.time += middle - arrivals.now;
    of_ranks[static_cast<size_t>(peer)] = std::move(arrivals);
  }
  stragglers_->add(of_ranks);
}

Status Communicator::start_watch() {
  const bool is_profiled = observe::Profiler::has_plugin();
  if (machine_.kind() == gpu::Kind::Cuda && (is_profiled || parameters::kernel_marks() != 0)) {
    const uint32_t columns = is_profiled ? observe::kMarkedCtas : 1;
    log_->recorder()->read_marks(TRY(control_.allocate_marks(columns)));
  }
  Watch::Hooks hooks;
  hooks.device = device();
  hooks.communicator = id_hash_;
  watchdog_ = TRY(Watchdog::instance());
  // Weakly: whoever asks may do so while this communicator lets go of its watchdog.
  hooks.find_holder = [this, weak = std::weak_ptr(watchdog_)](uint64_t stream) {
    const std::shared_ptr<Watchdog> watchdog = weak.lock();
    return watchdog == nullptr ? std::nullopt : watchdog->find_holder(*watch_, device(), stream);
  };
  hooks.now = &Deadline::Clock::now;
  hooks.ask = [this](int peer, std::chrono::milliseconds patience) -> Result<Account> {
    const Bytes bytes = TRY(ask(Question::Account, peer, {}, Deadline::after(patience)));
    return Account::decode(bytes, peer);
  };
  hooks.say_farewell = [this](int peer, const Account& mine) -> Result<Account> {
    const Bytes bytes =
        TRY(ask(Question::Farewell, peer, mine.encode(), Deadline::after(kFarewellTime)));
    return Account::decode(bytes, peer);
  };
  hooks.has_left = [this](int peer) { return member_->has_left(peer); };
  hooks.run_state = [this](int peer) {
    return is_remote(peer) ? RunState::Unknown : run_state(process_of_[static_cast<size_t>(peer)]);
  };
  if (needs_network()) hooks.network = [this] { return endpoint_->network_state(); };
  hooks.awake_since = &Watchdog::awake_since;
  hooks.describe = [this](int rank) { return member_->describe(rank); };
  hooks.propose = [this](int peer, const Verdict& verdict,
                         std::chrono::milliseconds patience) -> Status {
    TRY(ask(Question::Decide, peer, verdict.encode(), Deadline::after(patience)));
    return {};
  };
  hooks.publish = [this](const Verdict& verdict) {
    Writer writer;
    writer.u8(static_cast<uint8_t>(Question::Verdict));
    writer.raw(verdict.encode());
    for (int peer = 0; peer < nranks(); ++peer)
      if (peer != rank() && !member_->has_left(peer)) tell(peer, writer);
  };
  hooks.has_failed = [this] { return has_failed(); };
  if (rank() == 0) {
    stragglers_ = std::make_unique<Stragglers>(nranks());
    hooks.survey = [this] { survey_arrivals(); };
  }
  hooks.fail_all = [this](const Status& status) { fail_all(with_id(status), Printed::No); };
  watch_ = std::make_unique<Watch>(rank(), nranks(), *log_, *control_.words(), std::move(hooks));
  watchdog_->add(*watch_);
  record_flight();
  return {};
}

void Communicator::record_flight() {
  note(observe::EventKind::Ready);
  observe::Dumps& dumps = observe::Dumps::of_process();
  if (!dumps.are_on()) return;
  const auto describe = [this](observe::Json& json) {
    const Status failed = failure();
    const SnapshotOf of{.communicator = id_hash_,
                        .rank = rank(),
                        .nranks = nranks(),
                        .device = device(),
                        .state = is_revoked()      ? "revoked"
                                 : abort_.raised() ? "ending"
                                                   : "ready",
                        .failure = failed.is_ok() ? "" : failed.message(),
                        .describe = [this](int other) { return member_->describe(other); }};
    describe_snapshot(json, of, *log_, *watch_);
    if (stragglers_ != nullptr) stragglers_->describe(json);
  };
  const auto forward = [this](std::string_view name, std::string_view text) {
    if (rank() == 0 || !is_remote(0) || member_->has_left(0)) return;
    Writer writer;
    writer.u8(static_cast<uint8_t>(Question::Dump));
    writer.text(name);
    writer.raw(std::as_bytes(std::span(text)));
    tell(0, writer);
  };
  flight_ = dumps.add({.describe = describe, .forward = forward});
}

void Communicator::show_status() {
  const auto name_of = [this](int other) -> ProcessName {
    if (member_ == nullptr) return {.host = "localhost", .pid = this_process().number};
    return {.host = member_->host(other), .pid = process_of_[static_cast<size_t>(other)].number};
  };
  const auto device_of = [this](int other) {
    return device_of_.empty() ? device() : device_of_[static_cast<size_t>(other)];
  };
  const auto is_lost = [this](int other) {
    std::lock_guard lock(lost_mutex_);
    return lost_.contains(other);
  };
  const auto is_stopped = [this](int other) {
    return member_ != nullptr && !is_remote(other) &&
           run_state(process_of_[static_cast<size_t>(other)]) == RunState::Stopped;
  };
  const auto ask_process = [this](int other, const Deadline& deadline) -> Result<Bytes> {
    return ask(Question::Status, other, {}, deadline);
  };
  shown_ = StatusBoard::of_process().add({.describe = [this] { return status(); },
                                          .name_of = name_of,
                                          .device_of = device_of,
                                          .is_lost = is_lost,
                                          .is_stopped = is_stopped,
                                          .ask = ask_process,
                                          .nranks = nranks(),
                                          .rank = rank()});
}

RankStatus Communicator::status() const {
  using schedule::Collective;
  RankStatus status{.communicator = id_hash_,
                    .nranks = nranks(),
                    .rank = rank(),
                    .device = device(),
                    .async_error = static_cast<int>(failure().code()),
                    .finalized = state() == State::Finalized,
                    .aborted = is_ended_by_user_.load(std::memory_order_relaxed),
                    .verdict = {},
                    .stragglers = {}};
  if (log_ == nullptr) return status;
  if (const std::optional<Verdict> verdict = watch_->standing_verdict())
    status.verdict = verdict->describe(id_hash_, member_->describe(verdict->rank));
  if (stragglers_ != nullptr) status.stragglers = stragglers_->describe(id_hash_);
  const auto set = [&](Counted counted, Collective collective) {
    status.counts[static_cast<size_t>(counted)] = log_->count(collective);
  };
  set(Counted::Broadcast, Collective::Broadcast);
  set(Counted::Reduce, Collective::Reduce);
  set(Counted::AllGather, Collective::AllGather);
  set(Counted::ReduceScatter, Collective::ReduceScatter);
  set(Counted::AllReduce, Collective::AllReduce);
  return status;
}

void Communicator::note(observe::EventKind kind) {
  const CallLog* const calls = calls_.load(std::memory_order_acquire);  // pairs with start_watch()
  if (calls == nullptr) return;
  observe::Event event;
  event.time = observe::ticks();
  event.kind = kind;
  calls->recorder()->add(event);
}

// Ends all that other ranks and threads of ours may still be doing here, then gives it back.
void Communicator::disconnect() {
  if (flight_) {
    // What was asked for while this communicator was there tells of it.
    observe::Dumps::of_process().write_requested();
    observe::Dumps::of_process().remove(*flight_);
    flight_.reset();
  }
  if (member_ != nullptr) member_->leave();  // answer() and the waits of ask() end
  if (shown_) StatusBoard::of_process().remove(*shown_);
  shown_.reset();
  if (watchdog_ != nullptr) watchdog_->remove(*watch_);
  watchdog_.reset();
  one_sided_.reset();
  windows_.reset();
  {
    std::lock_guard lock(exports_mutex_);
    if (exports_ != nullptr) exports_->close();
    exports_.reset();
  }
  operations_.reset();
  if (profiling_ != nullptr) profiling_->close();
  agreement_.reset();
  tuning_.reset();
  imports_.reset();
  watch_.reset();
  calls_.store(nullptr, std::memory_order_relaxed);  // whoever could call fail() has ended
  {
    std::lock_guard lock(log_mutex_);
    log_.reset();
  }
  endpoint_.reset();
  member_.reset();
}

std::vector<Result<Bytes>> Communicator::ask(Question question,
                                             std::span<const bootstrap::Query> queries,
                                             const Deadline& deadline) {
  std::vector<Bytes> messages;
  std::vector<bootstrap::Query> questions;
  for (const bootstrap::Query& query : queries) {
    Writer writer;
    writer.u8(static_cast<uint8_t>(question));
    writer.raw(query.message);
    messages.push_back(std::move(writer).take());
    questions.push_back({.peer = query.peer, .message = messages.back()});
  }
  return member_->request(questions, deadline);
}

Result<Bytes> Communicator::ask(Question question, int peer, std::span<const std::byte> message,
                                const Deadline& deadline) {
  const bootstrap::Query query{.peer = peer, .message = message};
  return std::move(ask(question, {&query, 1}, deadline).front());
}

// A peer asks. On a service thread or a peer's, at any time between join_and_connect() and
// disconnect().
Result<Bytes> Communicator::answer(int from, std::span<const std::byte> request) {
  const log::ScopedDevice speaks_for(device());
  Reader reader(request, "a peer");
  const auto question = static_cast<Question>(reader.u8());
  switch (question) {
    case Question::Connect:
      return endpoint_->answer(from, reader.rest());
    case Question::Signals:
      return one_sided_->answer(from, reader.rest());
    case Question::Account:
      if (is_revoked()) return revoked();
      TRY(failure());  // all that its waits could say has been said
      return watch_->account(from).encode();
    case Question::Farewell:
      if (is_revoked()) return revoked();
      watch_->keep_farewell(TRY(Account::decode(reader.rest(), from)));
      TRY(failure());
      return watch_->account(from).encode();
    case Question::Invite: {
      const std::span<const std::byte> bytes = reader.raw(bootstrap::UniqueId::kBytes);
      TRY(reader.finish());
      invitation_.put(TRY(bootstrap::UniqueId::parse(bytes.first<bootstrap::UniqueId::kBytes>())));
      return Bytes();
    }
    case Question::Decide:
      watch_->decide(TRY(Verdict::decode(reader.rest(), nranks())));
      return Bytes();
    case Question::Verdict:
      watch_->note(TRY(Verdict::decode(reader.rest(), nranks())));
      return Bytes();
    case Question::Status:
      return StatusBoard::of_process().describe_this_process().encode();
    case Question::Dump: {
      const std::string name = reader.text(kMostText);
      const std::span<const std::byte> text = reader.rest();
      observe::Dumps::of_process().keep(name,
                                        {reinterpret_cast<const char*>(text.data()), text.size()});
      return Bytes();
    }
    case Question::MapBuffer: {
      if (imports_ == nullptr) break;
      const registry::MapAnswer mapped = TRY(imports_->map(from, reader.rest()));
      Writer answer;
      answer.u8(static_cast<uint8_t>(Question::BufferMapped));
      answer.raw(mapped.encode());
      tell(from, answer);
      return Bytes();
    }
    case Question::BufferMapped:
      if (exports_ == nullptr) break;
      TRY(exports_->note_mapped(from, reader.rest()));
      return Bytes();
    case Question::UnmapBuffer:
      if (imports_ == nullptr) break;
      TRY(imports_->unmap(from, reader.rest()));
      return Bytes();
    case Question::Plans:
      if (agreement_ == nullptr) break;
      TRY(agreement_->note(from, reader.rest()));
      return Bytes();
    case Question::Tune:
      if (tuning_ == nullptr) break;
      return tuning_->answer(reader.rest());
    case Question::Arrivals: {
      const uint64_t after = reader.u64();
      TRY(reader.finish());
      return arrivals_of(*log_->recorder(), after).encode();
    }
    case Question::LetGo:
      TRY(reader.finish());
      control_.tell(executor::Command::Leave);
      return Bytes();
    case Question::Fail: {
      const uint8_t code = reader.u8();
      const std::string text = reader.text(kMostText);
      if (code == static_cast<uint8_t>(Code::Ok) || code > static_cast<uint8_t>(Code::RemoteError))
        reader.reject("a failure without a code");
      TRY(reader.finish());
      fail(Status::error(static_cast<Code>(code), "{}", text));
      return Bytes();
    }
  }
  return Status::remote_error("rank {} asks what rank {} does not understand", from, rank());
}

void Communicator::tell(int peer, const Writer& question) {
  const Status told = member_->notify(peer, question.bytes());
  if (!told.is_ok())
    LOG(Info, Init, "{} cannot tell rank {}: {}", describe(), peer, told.message());
}

void Communicator::tell_failure(int peer, const Status& status) {
  Writer writer;
  writer.u8(static_cast<uint8_t>(Question::Fail));
  writer.u8(static_cast<uint8_t>(status.code()));
  writer.text(status.message().substr(0, kMostText));
  tell(peer, writer);
}

// Kernels of other ranks may be using buffers that this rank's user will free
// (executor/protocol/advertisement.h). An operation that an abort does not end at once is waiting
// for them: they let go now. A revoke is no failure of theirs.
void Communicator::stop_reaching_peers() {
  if (reaching_peers_.empty() || operations_ == nullptr) return;
  const Result<bool> is_done = operations_->drain(Deadline::after(kAbortsAtOnce));
  if (is_done.is_ok() && is_done.value()) return;
  const Status status = Status::remote_error("rank {} aborted the communicator", rank());
  Writer let_go;
  let_go.u8(static_cast<uint8_t>(Question::LetGo));
  for (const int peer : reaching_peers_) {
    if (abort_.raised()) tell_failure(peer, status);
    tell(peer, let_go);
  }
}

// A failure that concerns every rank. The others are told first: afterwards this rank's user may
// end the communicator at any time.
void Communicator::fail_all(const Status& status, Printed printed) {
  if (!failure().is_ok()) return;  // then they have been told
  for (int peer = 0; peer < nranks(); ++peer)
    if (peer != rank()) tell_failure(peer, status);
  fail(status.copy(), printed);
}

Status Communicator::run(const Task& task) {
  std::lock_guard in_use(in_use_);
  TRY(check_operable());
  return operations_->run(task, kConnectTime);
}

Result<bool> Communicator::run_known(std::span<const Task> tasks) {
  std::lock_guard in_use(in_use_);
  TRY(check_operable());
  return operations_->run_known(tasks);
}

Result<std::vector<Ready>> Communicator::prepare(std::span<const Task> tasks) {
  std::lock_guard in_use(in_use_);
  TRY(check_operable());
  return operations_->prepare(tasks);
}

Status Communicator::connect(std::span<Ready> launches) {
  std::lock_guard in_use(in_use_);
  TRY(check_operable());
  return operations_->connect(launches, Deadline::after(kConnectTime));
}

Status Communicator::launch(const Ready& ready) {
  std::lock_guard in_use(in_use_);
  TRY(check_operable());
  return operations_->launch(ready);
}

Status Communicator::deregister_range(void* handle) {
  TRY(registrations_.remove(handle));
  std::lock_guard lock(exports_mutex_);  // another thread may end the communicator
  if (exports_ != nullptr) exports_->end_unregistered();
  return {};
}

Result<const void*> Communicator::register_window(void* user, size_t bytes, int flags) {
  std::lock_guard in_use(in_use_);
  if (windows_ == nullptr) return gone();
  const CallLog::HostCallScope in_call(log_.get(), "ncclCommWindowRegister");
  Result<const void*> handle = windows_->add(user, bytes, flags, init_deadline());
  open_windows();
  return handle;
}

// All ranks have registered the same windows, between the same operations of theirs.
void Communicator::open_windows() {
  if (!windows_->had_any() || endpoint_ == nullptr) return;
  endpoint_->open_windows();
  for (int peer = 0; peer < nranks(); ++peer)
    if (reach_.windows[static_cast<size_t>(peer)] && peer != rank() &&
        std::ranges::find(reaching_peers_, peer) == reaching_peers_.end())
      reaching_peers_.push_back(peer);
  operations_->open_windows(*windows_, reach_.has_whole_windows && windows_->had_symmetric());
}

Status Communicator::deregister_window(const void* handle) {
  std::lock_guard in_use(in_use_);
  if (windows_ == nullptr) return gone();
  return windows_->remove(handle);
}

std::shared_ptr<const registry::Window> Communicator::find_window(const void* handle) {
  std::lock_guard in_use(in_use_);
  return windows_ == nullptr ? nullptr : windows_->find(handle);
}

std::shared_ptr<const registry::Window> Communicator::find_window_of(const void* pointer,
                                                                     size_t bytes) {
  std::lock_guard in_use(in_use_);
  return windows_ == nullptr ? nullptr : windows_->containing(pointer, bytes);
}

Status Communicator::run(const OneSidedCall& call) {
  std::lock_guard in_use(in_use_);
  TRY(check_operable());
  TRY(check_reach(call));
  return one_sided_->run(call, Deadline::after(kConnectTime));
}

bool Communicator::spans_machines() const {
  // Numbers are those of the first communicator's machines: a child may lie on its second alone.
  return std::ranges::any_of(machine_of_,
                             [this](int machine) { return machine != machine_of_.front(); });
}

Status Communicator::check_reach(const OneSidedCall& call) const {
  const auto refuse = [&](int peer) -> Status {
    if (reach_.pairs.empty()) return {};
    if (is_remote(peer))
      return Status::invalid_usage(
          "rank {} is on another machine than rank {}: puts and signals stay within one machine",
          peer, rank());
    if (!reach_.pairs[static_cast<size_t>(peer)].has_peer_access())
      return Status::invalid_usage(
          "the GPUs of ranks {} and {} have no peer access to each other, which puts and signals "
          "need",
          rank(), peer);
    return {};
  };
  if (!call.is_wait()) return refuse(call.peer);
  for (const OneSidedCall::Wait& wait : call.waits) TRY(refuse(wait.peer));
  return {};
}

std::unique_ptr<OneSided> Communicator::make_one_sided() {
  return std::make_unique<OneSided>(
      machine_, device(), member_.get(), control_.words(),
      [this](std::span<const bootstrap::Query> queries, const Deadline& until) {
        return ask(Question::Signals, queries, until);
      });
}

Result<double> Communicator::predict(std::span<const Task> tasks) {
  std::lock_guard in_use(in_use_);
  TRY(check_operable());
  return operations_->predict(tasks);
}

// The error of a call that another thread's abort overtook.
Status Communicator::gone() const {
  Status status = failure();
  if (!status.is_ok()) return status;
  return Status::invalid_usage("the communicator of rank {} was aborted", rank());
}

Status Communicator::revoked() const {
  return Status::invalid_usage(
      "the communicator of rank {} was revoked (ncclCommRevoke, or NCCL_SHRINK_ABORT): it takes no "
      "operations any more",
      rank());
}

Status Communicator::check_operable() const {
  if (operations_ == nullptr) return gone();
  // Between the calls of a group and its end, too.
  if (has_failed()) return failure();
  if (is_revoked()) return revoked();
  if (is_suspended_)
    return Status::invalid_usage("the communicator of rank {} is suspended: call ncclCommResume",
                                 rank());
  return {};
}

Status Communicator::check_ready() const {
  if (state() == State::Finalized)
    return Status::invalid_argument(
        "communicator of rank {} was finalized: only ncclCommDestroy may follow", rank());
  return check_usable();
}

Status Communicator::check_usable() const {
  switch (state()) {
    case State::Ready:
    case State::Finalized:
      return {};
    case State::InProgress:
      return Status::invalid_argument(
          "communicator of rank {} is still in progress: poll ncclCommGetAsyncError until it "
          "returns something other than "
          "ncclInProgress",
          rank());
    case State::Failed:
      return has_outlived_failure() ? Status() : failure();
  }
  return Status::internal("communicator in an unknown state");
}

Status Communicator::failure() const {
  std::lock_guard lock(failure_mutex_);
  return failure_.copy();
}

bool Communicator::has_outlived_failure() const {
  std::lock_guard lock(failure_mutex_);
  return !failure_.is_ok() && std::ranges::find(left_out_, failure_.peer()) != left_out_.end();
}

Status Communicator::report_failure() {
  const log::ScopedDevice speaks_for(device());
  Status status = failure();
  log::keep_error(status);
  return status;
}

void Communicator::fail(Status status) { fail(std::move(status), Printed::No); }

void Communicator::fail(Status status, Printed printed) {
  const log::ScopedDevice speaks_for(device());
  // What the user has called last, as far as it is known.
  const CallLog* const calls = calls_.load(std::memory_order_acquire);  // pairs with start_watch()
  const char* const last = calls != nullptr ? calls->last_function() : nullptr;
  {
    std::lock_guard lock(failure_mutex_);
    if (!failure_.is_ok()) return;
    failure_ = status.copy();
    if (std::ranges::find(left_out_, status.peer()) != left_out_.end()) printed = Printed::Yes;
  }
  LOG(Info, Init, "{} fails: {}", describe(), status.message());
  state_.store(State::Failed, std::memory_order_release);  // pairs with state()
  // What goes wrong after an abort is no news.
  if (printed == Printed::No && !abort_.raised())
    log::error(status, last != nullptr ? last : identity_.function);
  note(observe::EventKind::Failed);
  observe::Dumps::of_process().request(status.message());
  abort_.raise(std::move(status));
  if (parameters::end_failed() != 0) control_.tell(executor::Command::End);
}

void Communicator::abort(Status reason) {
  is_ended_by_user_.store(true, std::memory_order_relaxed);  // for status() alone
  note(observe::EventKind::Left);
  std::shared_ptr<Communicator> unborn;
  {
    std::lock_guard lock(unborn_mutex_);
    is_aborted_ = true;
    unborn = unborn_;
  }
  if (unborn != nullptr) unborn->abort(reason.copy());
  abort_.raise(std::move(reason));
  control_.tell(executor::Command::End);
}

// Waits until all operations are done, those in graphs that were launched included, or until a
// failure or an abort. Says what it waits for.
Result<bool> Communicator::are_operations_done(const Deadline& deadline) {
  const bool are_done = TRY(operations_->drain(deadline));
  if (!are_done) return false;
  return one_sided_->drain(deadline);
}

Status Communicator::await_work(const char* function) {
  if (operations_ == nullptr) return {};
  const auto start = Deadline::Clock::now();
  for (bool reported = false; !abort_.raised();) {
    const Deadline look = Deadline::after(milliseconds(100));
    const bool are_done = TRY(are_operations_done(look));
    if (are_done && (endpoint_ == nullptr || endpoint_->await_flush(look))) return {};
    if (reported || Deadline::Clock::now() - start < kPatience) continue;
    reported = true;
    log::write(log::Level::Warn, {__builtin_FILE(), __builtin_LINE()}, function,
               fmt::format("rank {} of {} waits for the work queued on device {} to end. Have all "
                           "ranks queued the same operations?",
                           rank(), nranks(), device()));
  }
  return {};
}

// Ends all operations, whatever they wait for.
Status Communicator::end_work() {
  control_.tell(executor::Command::End);
  if (operations_ == nullptr) return {};
  stop_reaching_peers();
  if (TRY(are_operations_done(Deadline::after(kAbortTime)))) return {};
  return Status::internal("device {} is still busy {} s after the abort", device(),
                          seconds(kAbortTime).count());
}

// Programs have several: the id is that of the lines at its init.
Status Communicator::with_id(const Status& status) const {
  return Status::error(status.code(), "{} (communicator 0x{:x})", status.message(), id_hash_);
}

// The last chance to see that ranks have called different things, for programs that end before the
// watchdog has looked, and whose ranks had nothing to wait for.
Status Communicator::compare_before_leaving() {
  if (watch_ == nullptr || std::exchange(has_compared_, true)) return {};
  // The call that this is part of prints it.
  if (const auto difference = watch_->compare_before_leaving())
    fail_all(with_id(Status::invalid_usage("{}", *difference)), Printed::Yes);
  return failure();
}

Status Communicator::finalize() {
  const log::ScopedDevice speaks_for(device());
  std::lock_guard in_use(in_use_);
  TRY(await_work("ncclCommFinalize"));
  if (!abort_.raised()) TRY(compare_before_leaving());
  // Ready when it blocks its caller, InProgress when it works in the background.
  if (!abort_.raised() && (change_state(State::Ready, State::Finalized) ||
                           change_state(State::InProgress, State::Finalized)))
    return {};
  return has_outlived_failure() ? Status() : gone();
}

Status Communicator::end() {
  const log::ScopedDevice speaks_for(device());
  std::shared_ptr<Thread> background;
  {
    std::lock_guard lock(background_mutex_);
    background = std::exchange(background_, nullptr);
  }
  background.reset();  // joins: what it did has settled, or the abort ends its waits
  Status status = Status::internal("another thread is still inside a call on this communicator");
  if (in_use_.lock_until(Deadline::after(kAbortTime + kAbortTime))) {
    const std::unique_lock in_use(in_use_, std::adopt_lock);
    status = has_ended_ ? Status() : give_back();
    has_ended_ = true;
  }
  if (status.code() != Code::InternalError) return status;
  // A kernel or a thread may still use the memory: losing it is better than pulling it from under
  // them.
  LOG(Warn, All, "{}: its buffers are not given back: {}", describe(), status.message());
  if (watchdog_ != nullptr) watchdog_->remove(*watch_);
  watchdog_.reset();
  keep_for_ever();
  return {};
}

// By whoever holds in_use_.
Status Communicator::give_back() {
  Status status = await_work("ncclCommDestroy");
  // The calls of one that was revoked came to nothing, wherever the ranks were.
  if (status.is_ok() && !abort_.raised() && !is_revoked())
    compare_before_leaving().ignore("it is the failure now");
  if (status.is_ok() && abort_.raised()) status = end_work();
  if (status.code() == Code::InternalError) return status;
  disconnect();
  control_.release();
  LOG(Info, Destroy, "{} - {} COMPLETE", describe(), abort_.raised() ? "Abort" : "Destroy");
  return status;
}

void Communicator::keep_for_ever() {
  static auto* const kept = new std::vector<std::shared_ptr<Communicator>>;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  kept->push_back(shared_from_this());
}

void Communicator::begin_background() {
  change_state(State::Ready, State::InProgress);
  // [release] pairs with state()
  if (has_failed()) works_after_failure_.store(true, std::memory_order_release);
}

void Communicator::settle_background(Status result) {
  if (!result.is_ok()) {
    fail(std::move(result));
  } else {
    change_state(State::InProgress, State::Ready);
  }
  works_after_failure_.store(false, std::memory_order_release);  // as above
}

void Communicator::keep_background(std::shared_ptr<Thread> thread) {
  std::shared_ptr<Thread> previous;  // has settled: a communicator in progress takes no new work
  std::lock_guard lock(background_mutex_);
  previous = std::exchange(background_, std::move(thread));
}

}  // namespace niccolite::comm
