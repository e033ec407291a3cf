#include "comm/supervision.h"

#include <algorithm>

#include "base/log.h"
#include "base/parameters.h"
#include "bootstrap/member.h"
#include "comm/control.h"
#include "comm/correspondence.h"
#include "comm/membership.h"
#include "comm/shared_log.h"
#include "diagnosis/snapshot.h"
#include "diagnosis/stragglers.h"
#include "diagnosis/watch.h"
#include "diagnosis/watchdog.h"
#include "observe/dumps.h"
#include "observe/profiler.h"
#include "transport/endpoint.h"

namespace niccolite::comm {
namespace {

constexpr std::chrono::seconds kFarewellTime{2};  // for a peer to describe its last call

}  // namespace

Supervision::Supervision(const Membership& membership, const Lifetime& lifetime, SharedLog& log,
                         Correspondence& peers)
    : membership_(membership), lifetime_(lifetime), log_(log), peers_(peers) {}

Supervision::~Supervision() = default;

Status Supervision::start(const Watched& watched) {
  member_ = &watched.member;
  fail_all_ = watched.fail_all;
  const int rank = membership_.rank(), nranks = membership_.nranks();
  const bool is_profiled = observe::Profiler::has_plugin();
  if (watched.kind == gpu::Kind::Cuda && (is_profiled || parameters::kernel_marks() != 0)) {
    const uint32_t columns = is_profiled ? observe::kMarkedCtas : 1;
    log_->recorder()->read_marks(TRY(watched.control.allocate_marks(columns)));
  }
  diagnosis::Watch::Hooks hooks;
  hooks.device = membership_.device();
  hooks.communicator = membership_.hash();
  watchdog_ = TRY(diagnosis::Watchdog::instance());
  // Weakly: whoever asks may do so while this communicator lets go of its watchdog.
  hooks.find_holder = [this, weak = std::weak_ptr(watchdog_)](uint64_t stream) {
    const std::shared_ptr<diagnosis::Watchdog> watchdog = weak.lock();
    return watchdog == nullptr ? std::nullopt
                               : watchdog->find_holder(*watch_, membership_.device(), stream);
  };
  hooks.now = &Deadline::Clock::now;
  hooks.ask = [this](int peer, std::chrono::milliseconds patience) -> Result<diagnosis::Account> {
    const Bytes bytes = TRY(peers_.ask(Question::Account, peer, {}, Deadline::after(patience)));
    return diagnosis::Account::decode(bytes, peer);
  };
  hooks.say_farewell = [this](int peer,
                              const diagnosis::Account& mine) -> Result<diagnosis::Account> {
    const Bytes bytes =
        TRY(peers_.ask(Question::Farewell, peer, mine.encode(), Deadline::after(kFarewellTime),
                       bootstrap::Patience::WhileItRuns));
    return diagnosis::Account::decode(bytes, peer);
  };
  hooks.silences = watchdog_->silences();
  hooks.has_left = [this](int peer) { return member_->has_left(peer); };
  hooks.run_state = [this](int peer) {
    return membership_.is_remote(peer) ? RunState::Unknown : run_state(member_->process(peer));
  };
  if (watched.network != nullptr)
    hooks.network = [endpoint = watched.network] { return endpoint->network_state(); };
  hooks.awake_since = &diagnosis::Watchdog::awake_since;
  hooks.describe = [this](int rank) { return member_->describe(rank); };
  hooks.propose = [this](int peer, const diagnosis::Verdict& verdict,
                         std::chrono::milliseconds patience) -> Status {
    TRY(peers_.ask(Question::Decide, peer, verdict.encode(), Deadline::after(patience)));
    return {};
  };
  hooks.publish = [this](const diagnosis::Verdict& verdict) {
    const Bytes message = verdict.encode();
    for (int peer = 0; peer < membership_.nranks(); ++peer)
      if (peer != membership_.rank() && !member_->has_left(peer))
        peers_.tell(peer, Question::Verdict, message);
  };
  hooks.stall_warning = std::chrono::seconds(parameters::stall_warning());
  hooks.has_failed = [this] { return lifetime_.has_failed(); };
  if (rank == 0) {
    stragglers_ = std::make_unique<diagnosis::Stragglers>(nranks);
    hooks.survey = [this] { survey_arrivals(); };
  }
  hooks.awaited_leaver = watched.awaited_leaver;
  hooks.fail_all = [this](const Status& status) { fail_all_(with_id(status), Printed::No); };
  watch_ = std::make_unique<diagnosis::Watch>(rank, nranks, *log_, *watched.control.words(),
                                              std::move(hooks));
  watchdog_->add(*watch_);
  record_flight();
  return {};
}

// Asks all ranks of this machine at once. Ranks of other machines, whose clocks differ, are asked
// one by one, so that the time of the answer tells by how much.
void Supervision::survey_arrivals() {
  constexpr auto kPatience = std::chrono::milliseconds(200);  // before a slow peer is asked again
  for (int peer = 1; peer < membership_.nranks(); ++peer)
    if (member_->has_left(peer)) return;
  const uint64_t after = stragglers_->counted();
  std::vector<diagnosis::Arrivals> of_ranks(static_cast<size_t>(membership_.nranks()));
  of_ranks[0] = diagnosis::arrivals_of(*log_->recorder(), after);
  if (of_ranks[0].collectives.empty()) return;
  Writer writer;
  writer.u64(after);
  const Bytes question = std::move(writer).take();
  std::vector<bootstrap::Query> near;
  for (int peer = 1; peer < membership_.nranks(); ++peer)
    if (!membership_.is_remote(peer)) near.push_back({.peer = peer, .message = question});
  const std::vector<Result<Bytes>> answers =
      peers_.ask(Question::Arrivals, near, Deadline::after(kPatience));
  for (size_t i = 0; i < near.size(); ++i) {
    if (!answers[i].is_ok()) return;
    Result<diagnosis::Arrivals> arrivals =
        diagnosis::Arrivals::decode(answers[i].value(), near[i].peer);
    if (!arrivals.is_ok()) return;
    of_ranks[static_cast<size_t>(near[i].peer)] = std::move(arrivals).take();
  }
  for (int peer = 1; peer < membership_.nranks(); ++peer) {
    if (!membership_.is_remote(peer)) continue;
    const auto now = [] { return observe::Clock().nanoseconds(observe::ticks()); };
    const uint64_t asked = now();
    const Result<Bytes> answer =
        peers_.ask(Question::Arrivals, peer, question, Deadline::after(kPatience));
    const uint64_t middle = asked + (now() - asked) / 2;
    if (!answer.is_ok()) return;
    Result<diagnosis::Arrivals> decoded = diagnosis::Arrivals::decode(answer.value(), peer);
    if (!decoded.is_ok()) return;
    diagnosis::Arrivals arrivals = std::move(decoded).take();
    for (diagnosis::Arrivals::One& one : arrivals.collectives) one.time += middle - arrivals.now;
    of_ranks[static_cast<size_t>(peer)] = std::move(arrivals);
  }
  stragglers_->add(of_ranks);
}

void Supervision::record_flight() {
  log_.note(observe::EventKind::Ready);
  observe::Dumps& dumps = observe::Dumps::of_process();
  if (!dumps.are_on()) return;
  const auto describe = [this](observe::Json& json) {
    const Status failed = lifetime_.failure();
    const diagnosis::SnapshotOf of{
        .communicator = membership_.hash(),
        .rank = membership_.rank(),
        .nranks = membership_.nranks(),
        .device = membership_.device(),
        .state = lifetime_.is_revoked()       ? "revoked"
                 : lifetime_.waits().raised() ? "ending"
                                              : "ready",
        .failure = failed.is_ok() ? "" : failed.message(),
        .failure_rank = failed.is_ok() ? -1 : failed.peer(),
        .describe = [this](int other) { return member_->describe(other); }};
    describe_snapshot(json, of, *log_, *watch_);
    if (stragglers_ != nullptr) stragglers_->describe(json);
  };
  const auto forward = [this](std::string_view name, std::string_view text) {
    if (membership_.rank() == 0 || !membership_.is_remote(0) || member_->has_left(0)) return;
    Writer writer;
    writer.text(name);
    writer.raw(std::as_bytes(std::span(text)));
    peers_.tell(0, Question::Dump, writer.bytes());
  };
  flight_ = dumps.add({.describe = describe, .forward = forward});
}

void Supervision::show(bootstrap::Member* member) {
  member_ = member;
  const auto name_of = [this](int other) -> diagnosis::ProcessName {
    if (member_ == nullptr) return {.host = "localhost", .pid = this_process().number};
    return {.host = member_->host(other), .pid = member_->process(other).number};
  };
  const auto device_of = [this](int other) { return membership_.device_of(other); };
  const auto is_lost = [this](int other) {
    std::lock_guard lock(lost_mutex_);
    return lost_.contains(other);
  };
  const auto is_stopped = [this](int other) {
    return member_ != nullptr && !membership_.is_remote(other) &&
           run_state(member_->process(other)) == RunState::Stopped;
  };
  const auto ask_process = [this](int other, const Deadline& deadline,
                                  Abort& cancel) -> Result<Bytes> {
    const auto question = static_cast<std::byte>(Question::Status);
    return member_->request(other, {&question, 1}, deadline, cancel);
  };
  shown_ = diagnosis::StatusBoard::of_process().add({.describe = [this] { return status(); },
                                                     .name_of = name_of,
                                                     .device_of = device_of,
                                                     .is_lost = is_lost,
                                                     .is_stopped = is_stopped,
                                                     .ask = ask_process,
                                                     .nranks = membership_.nranks(),
                                                     .rank = membership_.rank()});
}

diagnosis::RankStatus Supervision::status() const {
  using schedule::Collective;
  diagnosis::RankStatus status{.communicator = membership_.hash(),
                               .nranks = membership_.nranks(),
                               .rank = membership_.rank(),
                               .device = membership_.device(),
                               .async_error = static_cast<int>(lifetime_.failure().code()),
                               .finalized = lifetime_.state() == State::Finalized,
                               .aborted = lifetime_.aborted_by_user().raised(),
                               .verdict = {},
                               .stragglers = {}};
  if (!log_.is_open()) return status;
  if (const std::optional<diagnosis::Verdict> verdict = watch_->standing_verdict())
    status.verdict = verdict->describe(membership_.hash(), member_->describe(verdict->rank));
  if (stragglers_ != nullptr) status.stragglers = stragglers_->describe(membership_.hash());
  const auto set = [&](diagnosis::Counted counted, Collective collective) {
    status.counts[static_cast<size_t>(counted)] = log_->count(collective);
  };
  set(diagnosis::Counted::Broadcast, Collective::Broadcast);
  set(diagnosis::Counted::Reduce, Collective::Reduce);
  set(diagnosis::Counted::AllGather, Collective::AllGather);
  set(diagnosis::Counted::ReduceScatter, Collective::ReduceScatter);
  set(diagnosis::Counted::AllReduce, Collective::AllReduce);
  return status;
}

Status Supervision::with_id(const Status& status) const {
  return Status::error(status.code(), "{} (communicator 0x{:x})", status.message(),
                       membership_.hash());
}

Status Supervision::compare_before_leaving() {
  if (watch_ == nullptr || std::exchange(has_compared_, true)) return {};
  if (const auto difference = watch_->compare_before_leaving())
    fail_all_(with_id(Status::invalid_usage("{}", *difference)), Printed::Yes);
  return lifetime_.failure();
}

void Supervision::note_lost(int peer) {
  std::lock_guard lock(lost_mutex_);
  lost_.insert(peer);
}

void Supervision::stop_recording() {
  if (!flight_) return;
  observe::Dumps::of_process().write_requested();
  observe::Dumps::of_process().remove(*flight_);
  flight_.reset();
}

void Supervision::hide() {
  if (shown_) diagnosis::StatusBoard::of_process().remove(*shown_);
  shown_.reset();
}

void Supervision::stop_watching() {
  if (watchdog_ != nullptr) watchdog_->remove(*watch_);
  watchdog_.reset();
}

void Supervision::release() { watch_.reset(); }

}  // namespace niccolite::comm
