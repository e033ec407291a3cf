// Who looks after a communicator while it lives, and what they see of it: the watch, the survey of
// late ranks, the flight recorder, and the status that the whole job is asked for.
#include <algorithm>

#include "base/log.h"
#include "base/parameters.h"
#include "comm/communicator.h"
#include "diagnosis/snapshot.h"
#include "diagnosis/stragglers.h"
#include "diagnosis/watchdog.h"
#include "observe/dumps.h"
#include "observe/profiler.h"
#include "profiling/profiling.h"
#include "transport/endpoint.h"

namespace niccolite::comm {
namespace {

constexpr std::chrono::seconds kFarewellTime{2};  // for a peer to say what it has called

}  // namespace

Status Communicator::start_watch() {
  const bool is_profiled = observe::Profiler::has_plugin();
  if (machine_.kind() == gpu::Kind::Cuda && (is_profiled || parameters::kernel_marks() != 0)) {
    const uint32_t columns = is_profiled ? observe::kMarkedCtas : 1;
    log_->recorder()->read_marks(TRY(control_.allocate_marks(columns)));
  }
  diagnosis::Watch::Hooks hooks;
  hooks.device = device();
  hooks.communicator = id_hash();
  watchdog_ = TRY(diagnosis::Watchdog::instance());
  // Weakly: whoever asks may do so while this communicator lets go of its watchdog.
  hooks.find_holder = [this, weak = std::weak_ptr(watchdog_)](uint64_t stream) {
    const std::shared_ptr<diagnosis::Watchdog> watchdog = weak.lock();
    return watchdog == nullptr ? std::nullopt : watchdog->find_holder(*watch_, device(), stream);
  };
  hooks.now = &Deadline::Clock::now;
  hooks.ask = [this](int peer, std::chrono::milliseconds patience) -> Result<diagnosis::Account> {
    const Bytes bytes = TRY(ask(Question::Account, peer, {}, Deadline::after(patience)));
    return diagnosis::Account::decode(bytes, peer);
  };
  hooks.say_farewell = [this](int peer,
                              const diagnosis::Account& mine) -> Result<diagnosis::Account> {
    const Bytes bytes = TRY(ask(Question::Farewell, peer, mine.encode(),
                                Deadline::after(kFarewellTime), bootstrap::Patience::WhileItRuns));
    return diagnosis::Account::decode(bytes, peer);
  };
  hooks.silences = watchdog_->silences();
  hooks.has_left = [this](int peer) { return member_->has_left(peer); };
  hooks.run_state = [this](int peer) {
    return membership_.is_remote(peer) ? RunState::Unknown : run_state(member_->process(peer));
  };
  if (ways_.needs_network()) hooks.network = [this] { return endpoint_->network_state(); };
  hooks.awake_since = &diagnosis::Watchdog::awake_since;
  hooks.describe = [this](int rank) { return member_->describe(rank); };
  hooks.propose = [this](int peer, const diagnosis::Verdict& verdict,
                         std::chrono::milliseconds patience) -> Status {
    TRY(ask(Question::Decide, peer, verdict.encode(), Deadline::after(patience)));
    return {};
  };
  hooks.publish = [this](const diagnosis::Verdict& verdict) {
    Writer writer;
    writer.u8(static_cast<uint8_t>(Question::Verdict));
    writer.raw(verdict.encode());
    for (int peer = 0; peer < nranks(); ++peer)
      if (peer != rank() && !member_->has_left(peer)) tell(peer, writer);
  };
  hooks.stall_warning = std::chrono::seconds(parameters::stall_warning());
  hooks.has_failed = [this] { return lifetime_.has_failed(); };
  if (rank() == 0) {
    stragglers_ = std::make_unique<diagnosis::Stragglers>(nranks());
    hooks.survey = [this] { survey_arrivals(); };
  }
  hooks.fail_all = [this](const Status& status) { fail_all(with_id(status), Printed::No); };
  watch_ = std::make_unique<diagnosis::Watch>(rank(), nranks(), *log_, *control_.words(),
                                              std::move(hooks));
  watchdog_->add(*watch_);
  record_flight();
  return {};
}

// All at once, but those of other machines, whose clocks differ: those one by one, so that the time
// of the answer tells by how much.
void Communicator::survey_arrivals() {
  constexpr auto kPatience = std::chrono::milliseconds(200);  // a slow answer is asked for again
  for (int peer = 1; peer < nranks(); ++peer)
    if (member_->has_left(peer)) return;
  const uint64_t after = stragglers_->counted();
  std::vector<diagnosis::Arrivals> of_ranks(static_cast<size_t>(nranks()));
  of_ranks[0] = diagnosis::arrivals_of(*log_->recorder(), after);
  if (of_ranks[0].collectives.empty()) return;
  Writer writer;
  writer.u64(after);
  const Bytes question = std::move(writer).take();
  std::vector<bootstrap::Query> near;
  for (int peer = 1; peer < nranks(); ++peer)
    if (!membership_.is_remote(peer)) near.push_back({.peer = peer, .message = question});
  const std::vector<Result<Bytes>> answers =
      ask(Question::Arrivals, near, Deadline::after(kPatience));
  for (size_t i = 0; i < near.size(); ++i) {
    if (!answers[i].is_ok()) return;
    Result<diagnosis::Arrivals> arrivals =
        diagnosis::Arrivals::decode(answers[i].value(), near[i].peer);
    if (!arrivals.is_ok()) return;
    of_ranks[static_cast<size_t>(near[i].peer)] = std::move(arrivals).take();
  }
  for (int peer = 1; peer < nranks(); ++peer) {
    if (!membership_.is_remote(peer)) continue;
    const auto now = [] { return observe::Clock().nanoseconds(observe::ticks()); };
    const uint64_t asked = now();
    const Result<Bytes> answer =
        ask(Question::Arrivals, peer, question, Deadline::after(kPatience));
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

void Communicator::record_flight() {
  note(observe::EventKind::Ready);
  observe::Dumps& dumps = observe::Dumps::of_process();
  if (!dumps.are_on()) return;
  const auto describe = [this](observe::Json& json) {
    const Status failed = lifetime_.failure();
    const diagnosis::SnapshotOf of{
        .communicator = id_hash(),
        .rank = rank(),
        .nranks = nranks(),
        .device = device(),
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
    if (rank() == 0 || !membership_.is_remote(0) || member_->has_left(0)) return;
    Writer writer;
    writer.u8(static_cast<uint8_t>(Question::Dump));
    writer.text(name);
    writer.raw(std::as_bytes(std::span(text)));
    tell(0, writer);
  };
  flight_ = dumps.add({.describe = describe, .forward = forward});
}

void Communicator::show_status() {
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
                                                     .nranks = nranks(),
                                                     .rank = rank()});
}

diagnosis::RankStatus Communicator::status() const {
  using schedule::Collective;
  diagnosis::RankStatus status{.communicator = id_hash(),
                               .nranks = nranks(),
                               .rank = rank(),
                               .device = device(),
                               .async_error = static_cast<int>(lifetime_.failure().code()),
                               .finalized = lifetime_.state() == State::Finalized,
                               .aborted = lifetime_.aborted_by_user().raised(),
                               .verdict = {},
                               .stragglers = {}};
  if (log_ == nullptr) return status;
  if (const std::optional<diagnosis::Verdict> verdict = watch_->standing_verdict())
    status.verdict = verdict->describe(id_hash(), member_->describe(verdict->rank));
  if (stragglers_ != nullptr) status.stragglers = stragglers_->describe(id_hash());
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

void Communicator::note(observe::EventKind kind) {
  const std::shared_ptr<calls::CallLog> log =
      shared_log();  // another thread may end the communicator
  if (log == nullptr) return;
  observe::Event event;
  event.time = observe::ticks();
  event.kind = kind;
  log->recorder()->add(event);
}

std::shared_ptr<calls::CallLog> Communicator::shared_log() const {
  std::lock_guard lock(log_mutex_);
  return log_;
}

const char* Communicator::last_function() const {
  const std::shared_ptr<calls::CallLog> log = shared_log();
  const char* const last = log != nullptr ? log->last_function() : nullptr;
  return last != nullptr ? last : membership_.function();
}

}  // namespace niccolite::comm
