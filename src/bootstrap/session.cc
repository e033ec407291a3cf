#include "bootstrap/session.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "base/interfaces.h"
#include "base/log.h"
#include "base/parameters.h"
#include "bootstrap/root.h"
#include "bootstrap/session_registry.h"

namespace niccolite::bootstrap {
namespace {

using namespace std::chrono_literals;

// The root speaks when a deadline passes, and its word names who is missing: waited for this long.
constexpr auto kRootsWord = 2s;
// A process that breaks off during the rendezvous is reported by the root with its ranks; we only
// see a broken link.
constexpr auto kGrace = 1s;
constexpr auto kFarewell = 5s;
constexpr auto kFarewellAfterFailure = 300ms;

messages::Origin origin_of_this_process() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host = {'?'};
  return {.pid = static_cast<uint64_t>(getpid()), .host = host.data()};
}

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
      origin_(origin_of_this_process()),
      gathers_(roster_,
               [this](uint32_t process, auto frame) { transmit(process, std::move(frame)); }),
      mailroom_(
          roster_, service_,
          [this](uint32_t process, auto frame) { transmit(process, std::move(frame)); },
          [this](uint32_t process) { loop_->post([this, process] { mesh_->probe(process); }); }) {}

Result<std::shared_ptr<Session>> Session::create(const UniqueId& id) {
  std::shared_ptr<Session> session(new Session(id));
  session->loop_ = TRY(EventLoop::create());
  EventLoop& loop = *session->loop_;
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
          .placed = [self](const messages::Place& place) { self->placed(place); },
          .refused =
              [self](const messages::Refused& refused) {
                self->fail(Status::error(refused.code, "{}", refused.text).with_peer(refused.peer),
                           refused.missing);
              },
          .failed = [self](Status status) { self->fail(std::move(status)); },
          .over = [self] { self->stop_if_over(); }});
  loop.post([self] { self->root_->start(self->id_.root()); });
  session->thread_ = TRY(Thread::start("nccl-bootstrap", [self] { self->loop_->run(); }));
  return session;
}

Session::~Session() {
  if (thread_.running()) shut_down(EventLoop::Clock::duration::zero());
}

bool Session::belongs_to_this_process() const { return process_ == getpid(); }

Result<std::pair<std::shared_ptr<Session>, std::shared_ptr<Local>>> Session::enter(
    const JoinOptions& options) {
  TRY(authentication::initialize());
  if (options.id.origin() == UniqueId::Origin::Environment && options.rank == 0)
    TRY(Root::start_for(options.id, options.deadline, options.abort));
  const auto local = std::make_shared<Local>(options.rank, options.nranks, options.abort);
  std::shared_ptr<Session> session = TRY(enter_session(options.id, local, options.deadline));
  if (local->abort != nullptr)
    local->abort_listener = local->abort->listen([weak = std::weak_ptr<Session>(session), local] {
      const std::shared_ptr<Session> alive = weak.lock();
      if (alive == nullptr) return;
      const Roster::Lock lock = alive->roster_.lock();
      local->aborted = true;
      local->changed.notify_all();
    });
  return std::pair(std::move(session), local);
}

Status Session::wait_ready(const std::shared_ptr<Local>& local, Deadline deadline) {
  const auto start = Deadline::Clock::now();
  Roster::Lock lock = roster_.lock();
  const auto decided = [this] { return phase_ == Phase::Ready || phase_ == Phase::Failed; };
  auto outcome = roster_.wait(lock, *local, deadline, decided);
  if (outcome == Roster::Outcome::TimedOut && phase_ == Phase::Joining && root_knows_)
    outcome = roster_.wait(lock, *local, Deadline::after(kRootsWord), decided);
  if (outcome == Roster::Outcome::Aborted) {
    Status reason = Roster::why_aborted(*local);
    fail_locked(Status::remote_error("rank {} ({}) gave up during initialization: {}", local->rank,
                                     origin_.text(), reason.message())
                    .with_peer(local->rank),
                {});
    return reason;
  }
  if (outcome == Roster::Outcome::TimedOut) fail_locked(describe_silence(*local, start), {});
  return phase_ == Phase::Ready ? Status() : describe_failure(*local, start);
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

void Session::leave(const std::shared_ptr<Local>& local) {
  if (local->abort != nullptr) local->abort->forget(local->abort_listener);
  Roster::Lock lock = roster_.lock();
  if (local->left) return;
  local->left = true;
  local->changed.notify_all();
  if (!service_.is_current()) local->changed.wait(lock, [&] { return local->in_service == 0; });
  local->handler = nullptr;
  local->peer_lost = nullptr;
  mailroom_.local_left(*local);
  roster_.remove(*local);
  std::erase_if(joining_, [&](const auto& entry) { return entry.first == local; });
  const bool last = roster_.locals().empty();
  const auto patience =
      phase_ == Phase::Ready ? EventLoop::Clock::duration(kFarewell) : kFarewellAfterFailure;
  if (phase_ == Phase::Ready) {
    roster_.mark_left(local->rank);
    gathers_.local_left();
    roster_.wake_all();
    if (!last && !shut_down_) {
      const auto frame =
          std::make_shared<const Bytes>(messages::Left{.ranks = {local->rank}}.encode());
      loop_->post([this, frame] { mesh_->broadcast(frame); });
    }
  }
  lock.unlock();
  if (last) shut_down(patience);
}

void Session::shut_down(EventLoop::Clock::duration patience) {
  {
    const Roster::Lock lock = roster_.lock();
    if (std::exchange(shut_down_, true)) return;
  }
  loop_->post([this, patience] {
    stopping_ = true;
    loop_->after(patience, [this] { loop_->stop(); });
    Roster::Lock lock = roster_.lock();
    const bool ready = phase_ == Phase::Ready;
    lock.unlock();
    if (ready) {
      mesh_->farewell(patience);
    } else {
      mesh_is_over_ = true;  // not gracefully: whoever has a link to us shall see it break
    }
    stop_if_over();
  });
  thread_.join();
  service_.stop();
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

// Where others reach this process: the interface that the user chose, else the one that has just
// reached the root.
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
  if (!status.is_ok()) return fail(std::move(status));
  announced_.clear();
  Roster::Lock lock = roster_.lock();
  root_knows_ = true;
  const auto joining = joining_;
  lock.unlock();
  for (const auto& [rank, deadline] : joining) announce(rank, deadline);
}

void Session::placed(const messages::Place& place) {
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
    if (process != self) mesh_->introduce(process, table[process].address, table[process].number);
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
  switch (type) {
    case MessageType::Gather:
    case MessageType::GatherAbsent:
      return gathers_.take(reader, type, payload);
    case MessageType::Lost: {
      messages::Lost message = TRY(messages::Lost::decode(reader));
      if (message.process >= roster_.nprocesses() || message.process == roster_.self())
        return Status::remote_error("process number {} is said to be lost", message.process);
      lock.unlock();
      lost(std::move(message));
      return {};
    }
    case MessageType::Data:
    case MessageType::Request:
    case MessageType::Response:
    case MessageType::Left:
      break;
    default:
      return Status::remote_error("{} sent a message of type {}", origin, static_cast<int>(type));
  }
  if (!introduced_) {
    deferred_.emplace_back(process, Bytes(payload.begin(), payload.end()));
    return {};
  }
  if (type != MessageType::Left) return mailroom_.take(reader, type, process);
  const messages::Left left = TRY(messages::Left::decode(reader));
  for (int32_t rank : left.ranks) {
    if (rank >= roster_.nranks() || roster_.process_of(rank) != process)
      return Status::remote_error("{} says that rank {} of another process has left", origin, rank);
    roster_.mark_left(rank);
  }
  roster_.wake_all();
  return {};
}

void Session::mesh_linked(uint32_t process) {
  const Roster::Lock lock = roster_.lock();
  if (phase_ != Phase::Ready) return;
  messages::Left left;
  for (int32_t rank : roster_.process(roster_.self()).ranks)
    if (roster_.find(rank) == nullptr) left.ranks.push_back(rank);
  if (!left.ranks.empty() && !roster_.locals().empty())
    mesh_->send(process, std::make_shared<const Bytes>(left.encode()));
}

void Session::mesh_departed(uint32_t process) {
  const Roster::Lock lock = roster_.lock();
  roster_.mark_departed(process, Status());
  if (!roster_.has_table()) return;
  gathers_.process_departed(process);
  roster_.wake_all();
}

void Session::mesh_lost(uint32_t process, Status reason) {
  lost({.process = process, .rank = -1, .who = {}, .why = reason.message()});
}

void Session::mesh_unreachable(uint32_t process, Status reason) {
  Roster::Lock lock = roster_.lock();
  if (phase_ == Phase::Placed)
    return fail_locked(
        Status::remote_error(
            "a process of the communicator cannot be reached from {}: {}; is the interface "
            "right (NCCL_SOCKET_IFNAME)?",
            origin_.text(), reason.message()),
        {});
  if (phase_ != Phase::Ready) return;
  roster_.mark_departed(process, std::move(reason));
  gathers_.process_departed(process);
  roster_.wake_all();
}

void Session::lost(messages::Lost loss) {
  Roster::Lock lock = roster_.lock();
  const uint32_t process = loss.process;
  if (roster_.is_gone(process)) return;
  roster_.mark_lost(process, Status::remote_error("{}", loss.why));
  if (roster_.has_table()) {
    loss.rank = roster_.process(process).ranks.front();
    loss.who = roster_.describe(process);
  }
  const auto frame = std::make_shared<const Bytes>(loss.encode());
  for (uint32_t neighbor : mesh_->neighbors())
    if (neighbor != process) transmit(neighbor, frame);
  const Status why =
      Status::remote_error("{} ended unexpectedly: {}",
                           loss.who.empty() ? "a process of the communicator" : loss.who, loss.why)
          .with_peer(loss.rank);
  LOG(Info, Bootstrap, "Bootstrap: {}", why.message());
  gathers_.fail_all(why);
  roster_.wake_all();
  if (phase_ != Phase::Ready) {
    if (grace_ == 0)
      grace_ = loop_->after(kGrace, [this, text = why.message(), rank = loss.rank] {
        fail(Status::remote_error("{}", text).with_peer(rank));
      });
    return;
  }
  const auto locals = roster_.locals();
  lock.unlock();
  for (const auto& local : locals) tell_lost(local, process);
}

void Session::on_peer_lost(const std::shared_ptr<Local>& local,
                           std::function<void(int, const Status&)> callback) {
  Roster::Lock lock = roster_.lock();
  local->peer_lost = std::move(callback);
  const auto lost = roster_.lost();
  lock.unlock();
  for (const auto& [process, why] : lost) tell_lost(local, process);
}

void Session::tell_lost(std::shared_ptr<Local> local, uint32_t process) {
  service_.post([this, local = std::move(local), process] {
    Roster::Lock lock = roster_.lock();
    const std::vector<int32_t> ranks = roster_.process(process).ranks;
    for (int32_t rank : ranks) {
      if (local->left || !local->peer_lost || !local->told_lost.insert(rank).second) continue;
      const auto callback = local->peer_lost;
      const Status why = roster_.why_gone(rank);
      ++local->in_service;
      lock.unlock();
      const Status thrown = guarded([&]() -> Status {
        callback(rank, why);
        return {};
      });
      if (!thrown.is_ok()) log::error(thrown, "bootstrap: callback about a lost peer");
      lock.lock();
      --local->in_service;
      local->changed.notify_all();
    }
  });
}

}  // namespace niccolite::bootstrap
