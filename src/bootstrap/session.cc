#include "bootstrap/session.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/interfaces.h"
#include "base/log.h"
#include "base/parameters.h"
#include "bootstrap/root.h"
#include "bootstrap/session_registry.h"

namespace niccolite::bootstrap {
namespace {

using namespace std::chrono_literals;

// How long a rank waits for the root's word when a deadline passes, because it names the missing
// ranks.
constexpr auto kRootsWord = 2s;
// A process that breaks off during the rendezvous is reported by the root with its ranks; we only
// see a broken link.
constexpr auto kGrace = 1s;
constexpr auto kFarewell = 5s;
constexpr auto kFarewellAfterFailure = 300ms;
// Wait for answers to goodbyes after an abort or a failure. The goodbyes are with the system, and a
// peer whose program is busy reads them there.
constexpr auto kShortAnswer = 10ms;

uint64_t random_number() {
  uint64_t number = 0;
  while (number == 0) authentication::fill_random(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

std::string seconds_since(Deadline::Clock::time_point start) {
  const double seconds = std::chrono::duration<double>(Deadline::Clock::now() - start).count();
  return seconds < 10 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.0f} s", seconds);
}

}  // namespace

Session::Session(const UniqueId& id)
    : id_(id),
      process_(getpid()),
      number_(random_number()),
      origin_(messages::Origin::of_this_process()),
      absences_({.is_visible =
                     [this](uint32_t process) {
                       const Roster::Lock lock = roster_.lock();
                       return !roster_.is_gone(process) &&
                              niccolite::is_visible(roster_.process(process).origin.process,
                                                    origin_.process);
                     },
                 .run_state = [this](uint32_t process) { return run_state_of(process); },
                 .describe =
                     [this](uint32_t process) {
                       const Roster::Lock lock = roster_.lock();
                       return roster_.describe(process);
                     }}),
      all_ranks_(std::make_shared<Group>(Group::kAllRanks, std::vector<uint32_t>(), outside())),
      roster_(all_ranks_->roster()),
      gathers_(all_ranks_->gathers()) {}

Group::Outside Session::outside() {
  return {.mutex = mutex_,
          .service = service_,
          .transmit = [this](uint32_t process, auto frame) { transmit(process, std::move(frame)); },
          .probe =
              [this](uint32_t process) { loop_->post([this, process] { mesh_->probe(process); }); },
          .absences = absences_};
}

RunState Session::run_state_of(uint32_t process) {
  Roster::Lock lock = roster_.lock();
  const ProcessId id = roster_.process(process).origin.process;
  lock.unlock();
  return run_state(id);
}

Result<std::shared_ptr<Session>> Session::create(const UniqueId& id) {
  std::shared_ptr<Session> session(new Session(id));
  session->loop_ = TRY(wire::EventLoop::create());
  wire::EventLoop& loop = *session->loop_;
  Session* self = session.get();  // ends its loop before it ends itself
  session->mesh_.emplace(
      loop, authentication::Identity{.key = id.key("session"), .number = session->number_},
      static_cast<Mesh::Events&>(*self));
  session->root_.emplace(
      loop, id, session->number_,
      RootClient::Events{
          .connected = [self](const Address& local) { self->root_connected(local); },
          .trouble =
              [self](std::string why) {
                const Roster::Lock lock = self->roster_.lock();
                self->root_knows_ = false;
                self->trouble_ = std::move(why);
              },
          .placed = [self](const messages::Assignment& place) { self->placed(place); },
          .refused =
              [self](const messages::Refused& refused) {
                self->fail(Status::error(refused.code, "{}", refused.text).with_peer(refused.peer),
                           refused.missing);
              },
          .failed = [self](Status status) { self->fail(std::move(status)); },
          .over = [self] { self->stop_if_over(); }});
  session->thread_ = TRY(Thread::start("nccl-bootstrap", [self] { self->loop_->run(); }));
  return session;
}

Session::~Session() {
  if (thread_.running()) shut_down({});
}

bool Session::belongs_to_this_process() const { return process_ == getpid(); }

Result<std::pair<std::shared_ptr<Session>, std::shared_ptr<Local>>> Session::enter(
    const JoinOptions& options, const Status& refusal) {
  TRY(authentication::initialize());
  if (options.id.origin() == UniqueId::Origin::Environment && options.rank == 0)
    TRY(Root::start_for(options.id, options.deadline, options.abort));
  const auto local = std::make_shared<Local>(options.rank, options.nranks, options.abort);
  local->refusal = refusal.copy();
  std::shared_ptr<Session> session = TRY(enter_session(options.id, local, options.deadline));
  session->listen_for_abort(local);
  return std::pair(std::move(session), local);
}

void Session::listen_for_abort(const std::shared_ptr<Local>& local) {
  if (local->abort == nullptr) return;
  local->abort_listener = local->abort->listen([weak = weak_from_this(), local] {
    const std::shared_ptr<Session> alive = weak.lock();
    if (alive == nullptr) return;
    const Roster::Lock lock = alive->roster_.lock();
    local->aborted = true;
    local->changed.notify_all();
  });
}

void Session::admit(Group& group, std::shared_ptr<Local> local) {
  group.roster().add(std::move(local));
  ++members_;
}

std::pair<std::shared_ptr<Group>, std::shared_ptr<Local>> Session::derive(
    Group& parent, const DeriveOptions& options) {
  const auto local =
      std::make_shared<Local>(options.rank, static_cast<int>(options.ranks.size()), options.abort);
  std::shared_ptr<Group> group;
  {
    const Roster::Lock lock = roster_.lock();
    std::shared_ptr<Group>& known = derived_[options.id];
    if (known == nullptr) known = make_group(parent, options.id, options.ranks);
    group = known;
    admit(*group, local);
  }
  listen_for_abort(local);
  return {std::move(group), local};
}

// Makes the group from the parent's knowledge, for the first of this process' ranks.
std::shared_ptr<Group> Session::make_group(Group& parent, uint64_t id, std::span<const int> ranks) {
  Roster& from = parent.roster();
  std::map<uint32_t, std::vector<int32_t>> members;  // by the parent's process
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    members[from.process_of(ranks[rank])].push_back(static_cast<int32_t>(rank));
  std::vector<uint32_t> processes;
  std::vector<messages::ProcessEntry> table;
  uint32_t self = 0;
  for (auto& [process, group_ranks] : members) {
    if (process == from.self()) self = static_cast<uint32_t>(processes.size());
    processes.push_back(parent.session_process(process));
    messages::ProcessEntry entry = from.process(process);
    entry.ranks = std::move(group_ranks);
    table.push_back(std::move(entry));
  }
  const auto nprocesses = static_cast<uint32_t>(processes.size());
  auto group = std::make_shared<Group>(id, processes, outside());
  group->roster().set_place(self, nprocesses, static_cast<int32_t>(ranks.size()));
  group->roster().set_table(std::move(table)).ignore("each rank has the parent's one process");
  for (uint32_t process = 0; process < nprocesses; ++process)
    if (const auto end = roster_.end_of(processes[process]))
      end->is_lost ? group->lost(process, end->why.message())
                   : group->departed(process, end->why.copy());
  // Links to the nearest, so that the loss of a process is seen by others of the group. One end
  // dials; a link that is there is used.
  for (const uint32_t neighbor : neighbors_of(self, nprocesses))
    if (neighbor > self)
      loop_->post([this, process = processes[neighbor]] { mesh_->probe(process); });
  return group;
}

Status Session::wait_ready(const std::shared_ptr<Local>& local, Deadline deadline) {
  const auto start = Deadline::Clock::now();
  Roster::Lock lock = roster_.lock();
  const auto decided = [this] { return phase_ == Phase::Ready || phase_ == Phase::Failed; };
  auto outcome = roster_.wait(lock, *local, deadline, decided);
  if (outcome == Roster::Outcome::TimedOut && root_knows_)
    outcome = roster_.wait(lock, *local, Deadline::after(kRootsWord), decided);
  if (outcome == Roster::Outcome::Aborted) {
    Status reason = Roster::why_aborted(*local);
    fail_locked(given_up(*local, reason), {});
    return reason;
  }
  if (outcome == Roster::Outcome::TimedOut) fail_locked(describe_silence(*local, start), {});
  return phase_ == Phase::Ready ? Status() : describe_failure(*local, start);
}

Status Session::given_up(const Local& local, const Status& why) const {
  return Status::error(why.code(), "rank {} ({}) gave up during initialization: {}", local.rank,
                       origin_.text(), why.message())
      .with_peer(local.rank);
}

Status Session::describe_failure(const Local& local, Deadline::Clock::time_point start) {
  if (failure_.missing.empty()) return failure_.status.copy();
  return Status::remote_error(
             "rank {} of {} heard nothing from {} for {}. Are they started with the same unique "
             "id, and can they reach {} "
             "(NCCL_SOCKET_IFNAME)?",
             local.rank, local.nranks, describe_ranks(failure_.missing), seconds_since(start),
             id_.root().text())
      .with_peer(failure_.missing.front());
}

Status Session::describe_silence(const Local& local, Deadline::Clock::time_point start) {
  if (phase_ == Phase::Placed)
    return Status::remote_error(
        "rank {} of {}: all ranks had come, but their processes could not exchange addresses "
        "within "
        "{}; can they reach each other (NCCL_SOCKET_IFNAME)?",
        local.rank, local.nranks, seconds_since(start));
  return Status::remote_error(
      "rank {} of {} could not reach the root of the rendezvous at {} for {}{}{}; does the process "
      "that made the unique id still "
      "run, and is the interface right (NCCL_SOCKET_IFNAME)?",
      local.rank, local.nranks, id_.root().text(), seconds_since(start),
      trouble_.empty() ? "" : ": ", trouble_);
}

uint32_t Session::process_of(Group& group, int32_t rank) {
  const Roster::Lock lock = roster_.lock();
  return group.session_process(group.roster().process_of(rank));
}

void Session::give_up_on(Group& group, int32_t rank) {
  absences_.note_silent(process_of(group, rank));
}

bool Session::is_absent(Group& group, int32_t rank) {
  return absences_.is_absent(process_of(group, rank));
}

void Session::leave(const std::shared_ptr<Group>& group, const std::shared_ptr<Local>& local) {
  if (local->abort != nullptr) local->abort->forget(local->abort_listener);
  Roster::Lock lock = roster_.lock();
  if (local->left) return;
  local->left = true;
  local->changed.notify_all();
  if (!service_.is_current()) local->changed.wait(lock, [&] { return local->in_service == 0; });
  local->handler = nullptr;
  local->peer_lost = nullptr;
  group->mailroom().local_left(*local);
  group->roster().remove(*local);
  std::erase_if(joining_, [&](const auto& entry) { return entry.first == local; });
  const bool last = --members_ == 0;
  const Farewell farewell = farewell_of(*local);
  if (phase_ == Phase::Ready) {
    group->roster().mark_left(local->rank);
    group->gathers().local_left();
    group->survivors().rank_left(local->rank);
    group->roster().wake_all();
    if (!last && !shut_down_) say_left(*group, local->rank);
  }
  lock.unlock();
  if (last) shut_down(farewell);
}

Session::Farewell Session::farewell_of(const Local& local) const {
  if (phase_ != Phase::Ready)
    return {.patience = kFarewellAfterFailure, .answer = kFarewellAfterFailure};
  if (local.aborted) return {.patience = kFarewellAfterFailure, .answer = kShortAnswer};
  return {.patience = kFarewell, .answer = kFarewell};
}

void Session::say_left(Group& group, int32_t rank) {
  const auto frame =
      group.wrap(std::make_shared<const Bytes>(messages::Left{.ranks = {rank}}.encode()));
  std::vector<uint32_t> processes;
  for (uint32_t process = 0; process < group.roster().nprocesses(); ++process)
    if (process != group.roster().self()) processes.push_back(group.session_process(process));
  if (!processes.empty())
    loop_->post([this, frame, processes = std::move(processes)] {
      for (const uint32_t process : processes) mesh_->tell(process, frame);
    });
  if (group.id() == Group::kAllRanks || !group.roster().locals().empty()) return;
  if (group.gathers_no_more()) {
    derived_.erase(group.id());
  } else {
    group.gathers().say_over([this, id = group.id()] { derived_.erase(id); });
  }
}

std::vector<std::shared_ptr<Group>> Session::groups() {
  std::vector<std::shared_ptr<Group>> groups = {all_ranks_};
  for (const auto& [id, group] : derived_) groups.push_back(group);
  return groups;
}

void Session::shut_down(Farewell farewell) {
  {
    const Roster::Lock lock = roster_.lock();
    if (std::exchange(shut_down_, true)) return;
  }
  loop_->post([this, farewell] {
    stopping_ = true;
    loop_->after(farewell.patience, [this] { loop_->stop(); });
    Roster::Lock lock = roster_.lock();
    const bool ready = phase_ == Phase::Ready;
    lock.unlock();
    if (ready) {
      mesh_->farewell(farewell.patience, farewell.answer);
      leave_absent_behind();
    } else {
      mesh_is_over_ = true;  // not gracefully: peers with a link to us must see it break
    }
    stop_if_over();
  });
  thread_.join();
  service_.stop();
}

void Session::count_all_as_departed() {
  const Roster::Lock lock = roster_.lock();
  for (const std::shared_ptr<Group>& group : groups())
    for (uint32_t process = 0; process < group->roster().nprocesses(); ++process)
      if (process != group->roster().self()) group->departed(process, {});
}

// Leaves absent processes behind. Their goodbyes are with the system, and nobody waits for an
// answer.
void Session::leave_absent_behind() {
  if (mesh_is_over_) return;
  if (waits_for_answers_ || absences_.are_there())
    for (const uint32_t process : mesh_->linked())
      if (absences_.is_absent(process)) mesh_->leave_behind(process);
  waits_for_answers_ = true;
  if (!mesh_is_over_) loop_->after(Absences::kLookInterval, [this] { leave_absent_behind(); });
}

void Session::stop_if_over() {
  if (stopping_ && mesh_is_over_ && root_->idle()) loop_->stop();
}

void Session::mesh_over() {
  mesh_is_over_ = true;
  stop_if_over();
}

void Session::transmit(uint32_t process, std::shared_ptr<const Bytes> frame) {
  loop_->post([this, process, frame = std::move(frame)] { mesh_->send(process, frame); });
}

void Session::fail(Status status, std::vector<int32_t> missing) {
  const Roster::Lock lock = roster_.lock();
  fail_locked(std::move(status), std::move(missing));
}

void Session::fail_locked(Status status, std::vector<int32_t> missing) {
  if (phase_ == Phase::Ready || phase_ == Phase::Failed) return;
  phase_ = Phase::Failed;
  const Bytes message = messages::Failed::of(status).encode();
  failure_ = {.status = std::move(status), .missing = std::move(missing)};
  roster_.wake_all();
  loop_->post([this, message] {
    root_->finish(message);
    stop_if_over();
  });
}

void Session::announce(const std::shared_ptr<Local>& local, Deadline deadline) {
  if (!root_->connected() || !listening_ || !announced_.insert(local.get()).second) return;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline.at() - Deadline::Clock::now()).count();
  const messages::Join join{.rank = local->rank,
                            .nranks = local->nranks,
                            .milliseconds_left = static_cast<uint64_t>(std::max<int64_t>(left, 0)),
                            .session = mesh_->address(),
                            .number = number_,
                            .origin = origin_};
  root_->send(join.encode());
}

// Listens where others reach this process: at the interface that the user chose, or at the
// interface that has just reached the root.
Status Session::listen(const Address& local) {
  if (listening_) return {};
  Address address = local;
  std::string name = "auto";
  const std::vector<Interface> present = TRY(list_interfaces());
  for (const Interface& interface : present)
    if (interface.address == local.with_port(0)) name = interface.name;
  if (!parameters::socket_ifname().empty()) {
    const Interface chosen = TRY(choose_interface(present, {.filter = parameters::socket_ifname(),
                                                            .family = parameters::socket_family(),
                                                            .reaches = id_.root()}));
    name = chosen.name;
    address = chosen.address;
  }
  TRY(mesh_->listen(address));
  listening_ = true;
  LOG(Info, Bootstrap, "Bootstrap: Using {}:{}<0>", name, address.host());
  return {};
}

void Session::root_connected(const Address& local) {
  Status status = listen(local);
  announced_.clear();
  Roster::Lock lock = roster_.lock();
  if (!status.is_ok()) {
    // The root does not know yet who this is.
    if (!joining_.empty()) status = given_up(*joining_.front().first, status);
    return fail_locked(std::move(status), {});
  }
  root_knows_ = true;
  const auto joining = joining_;
  lock.unlock();
  for (const auto& [rank, deadline] : joining) announce(rank, deadline);
}

void Session::placed(const messages::Assignment& place) {
  messages::ProcessEntry mine{
      .number = number_, .address = mesh_->address(), .origin = origin_, .ranks = {}};
  {
    const Roster::Lock lock = roster_.lock();
    if (phase_ != Phase::Joining) return;
    phase_ = Phase::Placed;
    roster_.set_place(place.process, place.nprocesses, place.nranks);
    for (const auto& [local, deadline] : joining_) mine.ranks.push_back(local->rank);
  }
  std::sort(mine.ranks.begin(), mine.ranks.end());
  mesh_->place(place);
  {
    const Roster::Lock lock = roster_.lock();
    gathers_.gather_table(mine, [this](auto table) { table_complete(std::move(table)); });
  }
  introduce_if_ready();
}

void Session::table_complete(Result<std::vector<messages::ProcessEntry>> table) {
  if (phase_ != Phase::Placed) return;
  if (!table.is_ok()) return fail_locked(std::move(table).status(), {});
  Status status = roster_.set_table(std::move(table.value()));
  if (!status.is_ok()) return fail_locked(std::move(status), {});
  phase_ = Phase::Ready;
  note_used(id_);
  joining_.clear();
  roster_.wake_all();
}

// Called without the lock after whatever may have completed the table, on the loop's thread: before
// any frame that a member posts from now on.
void Session::introduce_if_ready() {
  Roster::Lock lock = roster_.lock();
  if (phase_ != Phase::Ready || introduced_) return;
  introduced_ = true;
  const uint32_t nprocesses = roster_.nprocesses(), self = roster_.self();
  std::vector<messages::ProcessEntry> table;
  for (uint32_t process = 0; process < nprocesses; ++process)
    table.push_back(roster_.process(process));
  lock.unlock();
  for (uint32_t process = 0; process < nprocesses; ++process)
    if (process != self) {
      mesh_->introduce(process, table[process].address, table[process].number);
      mesh_->identify(process, table[process].origin.process);
    }
  root_->finish(messages::encode_type(MessageType::Ready));
  const auto deferred = std::exchange(deferred_, {});
  for (const auto& [process, frame] : deferred) mesh_frame(process, frame);
}

void Session::mesh_frame(uint32_t process, std::span<const std::byte> payload) {
  const Status status = take_frame(process, payload);
  if (!status.is_ok()) lost({.process = process, .rank = -1, .who = {}, .why = status.message()});
  introduce_if_ready();
}

Status Session::take_frame(uint32_t process, std::span<const std::byte> payload) {
  const std::string origin = fmt::format("process number {}", process);
  Reader reader(payload, origin);
  const auto type = static_cast<MessageType>(reader.u8());
  Roster::Lock lock = roster_.lock();
  if (type == MessageType::Lost) {
    messages::Lost message = TRY(messages::Lost::decode(reader));
    if (message.process >= roster_.nprocesses() || message.process == roster_.self())
      return Status::remote_error("process number {} is said to be lost", message.process);
    lock.unlock();
    lost(std::move(message));
    return {};
  }
  const bool gathers = type == MessageType::Gather || type == MessageType::GatherAbsent;
  if (!introduced_ && !gathers) {
    deferred_.emplace_back(process, Bytes(payload.begin(), payload.end()));
    return {};
  }
  if (type != MessageType::InGroup) return all_ranks_->take(process, payload);
  const messages::InGroup message = TRY(messages::InGroup::decode(reader));
  const auto found = derived_.find(message.group);
  if (found == derived_.end()) return {};              // of the past
  const std::shared_ptr<Group> group = found->second;  // may end with this message
  const auto in_group = group->process_of(process);
  if (!in_group.has_value())
    return Status::remote_error("{} sent a message to a group that it is not in", origin);
  return group->take(*in_group, message.frame);
}

void Session::mesh_linked(uint32_t process) {
  const Roster::Lock lock = roster_.lock();
  if (phase_ != Phase::Ready || members_ == 0) return;
  for (const std::shared_ptr<Group>& group : groups()) {
    if (!group->process_of(process).has_value()) continue;
    const messages::Left left = group->what_left();
    if (!left.ranks.empty())
      mesh_->send(process, group->wrap(std::make_shared<const Bytes>(left.encode())));
  }
}

void Session::mesh_departed(uint32_t process) {
  const Roster::Lock lock = roster_.lock();
  departed(process, Status());
}

void Session::departed(uint32_t process, const Status& why) {
  for (const std::shared_ptr<Group>& group : groups())
    if (const auto in_group = group->process_of(process)) group->departed(*in_group, why.copy());
}

void Session::mesh_lost(uint32_t process, Status reason) {
  lost({.process = process, .rank = -1, .who = {}, .why = reason.message()});
}

// While ranks join, this is the end of the session; afterwards only calls that need the connection
// fail.
void Session::mesh_exhausted(const Status& why) {
  Roster::Lock lock = roster_.lock();
  if (phase_ != Phase::Ready) return fail_locked(why.copy(), {});
  lock.unlock();
  if (std::exchange(told_shortage_, true)) return;
  LOG(Warn, Bootstrap, "descriptors are too few for the connections between ranks: {}",
      why.message());
}

void Session::mesh_unreachable(uint32_t process, Status reason) {
  Roster::Lock lock = roster_.lock();
  if (phase_ == Phase::Placed)
    return fail_locked(
        Status::remote_error(
            "a process of the communicator cannot be reached from {}: {}. Are these interfaces on "
            "one network (NCCL_SOCKET_IFNAME on both hosts), and does a firewall let TCP through?",
            origin_.text(), reason.message()),
        {});
  if (phase_ != Phase::Ready) return;
  departed(process, reason);
}

void Session::lost(messages::Lost loss) {
  Roster::Lock lock = roster_.lock();
  const uint32_t process = loss.process;
  if (roster_.is_end_explained(process)) return;
  if (roster_.has_table()) {
    loss.rank = roster_.process(process).ranks.front();
    loss.who = roster_.describe(process);
  }
  const auto frame = std::make_shared<const Bytes>(loss.encode());
  for (uint32_t neighbor : mesh_->neighbors())
    if (neighbor != process) transmit(neighbor, frame);
  const Status why =
      Status::remote_error(
          "{}",
          describe_loss(loss.who.empty() ? "a process of the communicator" : loss.who, loss.why))
          .with_peer(loss.rank);
  std::vector<std::pair<std::shared_ptr<Group>, uint32_t>> concerned;
  for (const std::shared_ptr<Group>& group : groups()) {
    const auto in_group = group->process_of(process);
    if (!in_group.has_value()) continue;
    group->lost(*in_group, loss.why);
    concerned.emplace_back(group, *in_group);
    if (group->id() != Group::kAllRanks && group->roster().locals().empty())
      derived_.erase(group->id());
  }
  if (phase_ == Phase::Ready) {
    for (const auto& [group, in_group] : concerned)
      for (const auto& local : group->roster().locals()) group->tell_lost(local, in_group);
  } else if (grace_ == 0) {
    grace_ = loop_->after(kGrace, [this, text = why.message(), rank = loss.rank] {
      fail(Status::remote_error("{}", text).with_peer(rank));
    });
  }
  lock.unlock();
  LOG(Info, Bootstrap, "Bootstrap: {}", why.message());
}

void Session::on_peer_lost(const std::shared_ptr<Group>& group, const std::shared_ptr<Local>& local,
                           std::function<void(int, const Status&)> callback) {
  const Roster::Lock lock = roster_.lock();
  local->peer_lost = std::move(callback);
  for (const auto& [process, why] : group->roster().lost()) group->tell_lost(local, process);
}

}  // namespace niccolite::bootstrap
