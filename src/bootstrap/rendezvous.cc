#include "bootstrap/rendezvous.h"

#include <algorithm>

#include "base/log.h"
#include "base/process.h"
#include "bootstrap/root.h"

namespace niccolite::bootstrap {
namespace {

// How long a failed rendezvous stays, and how long the present ranks may take to read about the
// failure.
constexpr auto kLinger = std::chrono::seconds(10);
// A rank that could not come in tries again within this time.
constexpr auto kUntilOthersHear = std::chrono::milliseconds(1500);
// The log names the missing ranks after this time, after twice this time, and so on.
constexpr auto kFirstReminder = std::chrono::seconds(10);

}  // namespace

Rendezvous::Rendezvous(wire::EventLoop& loop, Options options)
    : loop_(loop), options_(std::move(options)) {}

Rendezvous::~Rendezvous() {
  loop_.cancel(deadline_timer_);
  loop_.cancel(linger_timer_);
  loop_.cancel(reminder_);
  loop_.cancel(looker_);
}

void Rendezvous::welcome(std::unique_ptr<wire::Link> link) {
  link->set_owner(*this);
  wire::Link* key = link.get();
  guests_[key].link = std::move(link);
}

// Ranks that come from now on hear of it, too. The ranks of the root's own process hear it last,
// because their program may end, and the root with it.
void Rendezvous::exhausted(const Status& why) {
  if (seats_.empty() || (phase_ != Phase::Gathering && phase_ != Phase::Placing)) return;
  is_exhausted_ = true;
  fail({.code = why.code(),
        .peer = host_ranks_.empty() ? -1 : host_ranks_.front(),
        .text = fmt::format("{}, which made the unique id, lets no more ranks in: {}",
                            options_.host.text(), why.message()),
        .missing = {}},
       HostHears::Last);
}

bool Rendezvous::owes_word() const {
  if (!is_exhausted_ || phase_ != Phase::Failed) return false;
  // A guest closes when it has read the failure.
  const bool is_read =
      std::ranges::all_of(guests_, [this](const auto& guest) { return is_of_host(guest.second); });
  return !is_read || static_cast<int32_t>(told_.size()) < nranks_;
}

void Rendezvous::link_frame(wire::Link& link, std::span<const std::byte> payload) {
  const auto guest = guests_.find(&link);
  if (guest == guests_.end()) return;
  const Status status = take(guest->second, payload);
  if (!status.is_ok()) fail(status);
}

Status Rendezvous::take(Guest& guest, std::span<const std::byte> payload) {
  const std::string origin =
      guest.ranks.empty()
          ? guest.link->peer_address().text()
          : fmt::format("{} ({})", describe_ranks(guest.ranks), guest.join.origin.text());
  Reader reader(payload, origin);
  switch (static_cast<MessageType>(reader.u8())) {
    case MessageType::Join: {
      messages::Join join = TRY(messages::Join::decode(reader));
      return take_join(guest, std::move(join));
    }
    case MessageType::Ready:
      TRY(reader.finish());
      guest.ready = true;
      guest.link->finish();
      finish_if_over();
      return {};
    case MessageType::Failed: {
      const messages::Failed failed = TRY(messages::Failed::decode(reader));
      if (failed.peer >= 0) return failed.status();  // says whose it is
      // The text for the other ranks must not read like a failure of their own.
      Status status = Status::error(failed.code, "{}: {}", origin, failed.text);
      return std::move(status).with_peer(guest.ranks.empty() ? -1 : guest.ranks.front());
    }
    default:
      return Status::remote_error("{} sent a message that the root does not expect", origin);
  }
}

Status Rendezvous::take_join(Guest& guest, messages::Join join) {
  if (phase_ == Phase::Failed) {
    told_.insert(join.rank);
    guest.join = std::move(join);
    guest.link->send(refusal_.encode());
    return {};
  }
  if (phase_ != Phase::Gathering) {
    // Too late to stop the others, and no reason to: all ranks have come already.
    messages::Refused refused{
        .code = Code::InvalidUsage,
        .peer = join.rank,
        .text = fmt::format("rank {} ({}) came after all {} ranks had joined with this "
                            "unique id; does each communicator have an id of its own?",
                            join.rank, join.origin.text(), nranks_),
        .missing = {}};
    guest.link->send(refused.encode());
    return {};
  }
  TRY(check(join));
  if (nranks_ == 0) {
    nranks_ = join.nranks;
    first_rank_ = join.rank;
    reminder_ = loop_.after(kFirstReminder, [this] { remind(kFirstReminder); });
    looker_ = loop_.after(messages::kLongWait, [this] { look_for_missing(); });
  }
  const int32_t rank = join.rank;
  seats_[rank] = {.origin = join.origin, .link = guest.link.get()};
  guest.ranks.push_back(rank);
  if (join.milliseconds_left < uint64_t{1} << 40) {
    const auto deadline =
        wire::EventLoop::Clock::now() + std::chrono::milliseconds(join.milliseconds_left);
    if (deadline < deadline_) {
      deadline_ = deadline;
      loop_.cancel(deadline_timer_);
      deadline_timer_ = loop_.at(deadline_, [this] { deadline_passed(); });
    }
  }
  LOG(Info, Bootstrap, "Bootstrap: root at {}: rank {} has come, {} of {}", options_.address.text(),
      rank, seats_.size(), nranks_);
  const bool is_host = join.origin == options_.host;
  if (guest.ranks.size() == 1) {
    guest.join = std::move(join);
    guest.link->end_with(guest.join.origin.process);
  }
  // Tells it before anybody has a place, because a rank with a place may wait for the root's
  // process, too.
  if (is_host) {
    host_ranks_.insert(std::ranges::lower_bound(host_ranks_, rank), rank);
    tell_host();
  } else if (guest.ranks.size() == 1) {
    guest.link->send(messages::Host{.origin = options_.host, .ranks = host_ranks_}.encode());
  }
  if (static_cast<int32_t>(seats_.size()) == nranks_) place();
  return {};
}

// Tells the guests the root's process and ranks now: if the process ends, no root is left to name
// it.
void Rendezvous::tell_host() {
  const Bytes message = messages::Host{.origin = options_.host, .ranks = host_ranks_}.encode();
  for (auto& [link, guest] : guests_)
    if (!guest.ranks.empty()) link->send(message);
}

// Once: programs may start their processes one after the other.
void Rendezvous::look_for_missing() {
  tell_awaited({.why = messages::Awaited::Why::NotJoined, .ranks = missing_ranks(), .origin = {}});
}

// Ranks that have come gather a table among themselves, for which none may be missing.
void Rendezvous::look_for_stopped() {
  for (auto& [link, guest] : guests_) {
    if (guest.ready || guest.ranks.empty() || guest.told_stopped ||
        run_state(guest.join.origin.process) != RunState::Stopped)
      continue;
    guest.told_stopped = true;
    messages::Awaited awaited{
        .why = messages::Awaited::Why::Stopped, .ranks = guest.ranks, .origin = guest.join.origin};
    std::ranges::sort(awaited.ranks);
    tell_awaited(awaited);
  }
  looker_ = loop_.after(messages::kLongWait, [this] { look_for_stopped(); });
}

void Rendezvous::tell_awaited(const messages::Awaited& awaited) {
  const Bytes message = awaited.encode();
  for (auto& [link, guest] : guests_)
    if (!guest.ranks.empty()) link->send(message);
}

void Rendezvous::remind(wire::EventLoop::Clock::duration waited) {
  const std::vector<int32_t> missing = missing_ranks();
  LOG(Warn, All,
      "{} of {} ranks of a communicator have come after {} s; {} did not join yet. Are they "
      "started with the same unique id, and can they reach {} (NCCL_SOCKET_IFNAME)?",
      seats_.size(), nranks_, std::chrono::duration_cast<std::chrono::seconds>(waited).count(),
      describe_ranks(missing), options_.address.text());
  reminder_ = loop_.after(waited, [this, waited] { remind(2 * waited); });
}

std::vector<int32_t> Rendezvous::missing_ranks() const {
  std::vector<int32_t> missing;
  for (int32_t rank = 0; rank < nranks_; ++rank)
    if (!seats_.contains(rank)) missing.push_back(rank);
  return missing;
}

Status Rendezvous::check(const messages::Join& join) const {
  if (join.version != kProtocolVersion)
    return Status::invalid_usage(
               "rank {} ({}) runs another version of the library (bootstrap version {}, the root's "
               "is {}); use one version "
               "everywhere",
               join.rank, join.origin.text(), join.version, kProtocolVersion)
        .with_peer(join.rank);
  if (nranks_ != 0 && join.nranks != nranks_)
    return Status::invalid_usage(
               "rank {} ({}) was called with {} ranks, rank {} ({}) with {}; make nranks equal on "
               "all ranks",
               join.rank, join.origin.text(), join.nranks, first_rank_,
               seats_.at(first_rank_).origin.text(), nranks_)
        .with_peer(join.rank);
  if (join.rank < 0 || join.rank >= join.nranks || join.nranks > static_cast<int32_t>(kMaxRanks))
    return Status::invalid_usage("{} claims to be rank {} of {}", join.origin.text(), join.rank,
                                 join.nranks)
        .with_peer(join.rank);
  if (const auto seat = seats_.find(join.rank); seat != seats_.end())
    return Status::invalid_usage(
               "two callers claim rank {} of {}: {} and {}; give each rank once, and "
               "each communicator a unique id of its own",
               join.rank, nranks_, seat->second.origin.text(), join.origin.text())
        .with_peer(join.rank);
  return {};
}

void Rendezvous::place() {
  phase_ = Phase::Placing;
  loop_.cancel(reminder_);
  loop_.cancel(looker_);
  looker_ = loop_.after(messages::kLongWait, [this] { look_for_stopped(); });
  // In order of lowest rank: one process after the other as `seats_` is walked.
  std::vector<Guest*> order;
  std::map<wire::Link*, uint32_t> place_of;
  for (const auto& [rank, seat] : seats_)
    if (place_of.emplace(seat.link, static_cast<uint32_t>(order.size())).second)
      order.push_back(&guests_.at(seat.link));
  const auto nprocesses = static_cast<uint32_t>(order.size());
  for (uint32_t process = 0; process < nprocesses; ++process) {
    messages::Assignment place{
        .process = process, .nprocesses = nprocesses, .nranks = nranks_, .neighbors = {}};
    for (uint32_t neighbor : neighbors_of(process, nprocesses))
      place.neighbors.push_back({.process = neighbor,
                                 .number = order[neighbor]->join.number,
                                 .address = order[neighbor]->join.session});
    order[process]->link->send(place.encode());
  }
  LOG(Info, Bootstrap, "Bootstrap: root at {}: all {} ranks have come, in {} processes",
      options_.address.text(), nranks_, nprocesses);
  options_.decided();
}

void Rendezvous::deadline_passed() {
  if (phase_ == Phase::Placing) return fail(describe_unready());
  messages::Refused refused{.code = Code::RemoteError, .peer = -1, .text = {}, .missing = {}};
  refused.missing = missing_ranks();
  refused.peer = refused.missing.empty() ? -1 : refused.missing.front();
  refused.text = fmt::format("{} did not come to the root at {} in time",
                             describe_ranks(refused.missing), options_.address.text());
  fail(std::move(refused));
}

// Names stopped processes alone if there are any, because a stopped process holds up all others.
Status Rendezvous::describe_unready() const {
  std::vector<int32_t> unready, stopped;
  std::string origins;
  for (const auto& [link, guest] : guests_) {
    if (guest.ready || guest.ranks.empty()) continue;
    unready.insert(unready.end(), guest.ranks.begin(), guest.ranks.end());
    if (run_state(guest.join.origin.process) != RunState::Stopped) continue;
    stopped.insert(stopped.end(), guest.ranks.begin(), guest.ranks.end());
    origins += (origins.empty() ? "" : ", ") + guest.join.origin.text();
  }
  std::ranges::sort(unready);
  std::ranges::sort(stopped);
  if (!stopped.empty())
    return Status::remote_error(
               "{} ({}) did not finish initialization in time: stopped by a signal or a debugger",
               describe_ranks(stopped), origins)
        .with_peer(stopped.front());
  Status status = Status::remote_error(
      "all {} ranks had come, but {} could not exchange addresses with all others in time; can "
      "their processes reach each other (NCCL_SOCKET_IFNAME)?",
      nranks_, describe_ranks(unready));
  const bool is_nobody_ready = static_cast<int32_t>(unready.size()) == nranks_;
  return is_nobody_ready ? std::move(status) : std::move(status).with_peer(unready.front());
}

void Rendezvous::fail(const Status& status) {
  fail(messages::Refused{
      .code = status.code(), .peer = status.peer(), .text = status.message(), .missing = {}});
}

void Rendezvous::fail(messages::Refused refused, HostHears host) {
  if (phase_ == Phase::Failed || phase_ == Phase::Over) return;
  phase_ = Phase::Failed;
  refusal_ = std::move(refused);
  LOG(Info, Bootstrap, "Bootstrap: root at {}: {}", options_.address.text(), refusal_.text);
  loop_.cancel(deadline_timer_);
  loop_.cancel(reminder_);
  loop_.cancel(looker_);
  for (const auto& [rank, seat] : seats_) told_.insert(rank);
  const Bytes message = refusal_.encode();
  const auto tell = [this, message](bool is_host) {
    for (auto& [link, guest] : guests_)
      if (is_of_host(guest) == is_host) link->send(message);
  };
  tell(false);
  if (host == HostHears::AtOnce) {
    tell(true);
  } else {
    reminder_ = loop_.after(kUntilOthersHear, [tell] { tell(true); });
  }
  linger_timer_ = loop_.after(kLinger, [this] { finish(); });
  options_.decided();
}

void Rendezvous::link_ended(wire::Link& link, wire::Link::End, Status reason) {
  const auto found = guests_.find(&link);
  if (found == guests_.end()) return;
  Guest& guest = found->second;
  if (!guest.ready && !guest.ranks.empty() &&
      (phase_ == Phase::Gathering || phase_ == Phase::Placing)) {
    std::sort(guest.ranks.begin(), guest.ranks.end());
    const int32_t rank = guest.ranks.front();
    fail(Status::remote_error("{} ({}) ended unexpectedly during initialization: {}",
                              describe_ranks(guest.ranks), guest.join.origin.text(),
                              reason.message())
             .with_peer(rank));
  }
  dismiss(link);
  finish_if_over();
}

void Rendezvous::dismiss(wire::Link& link) {
  auto node = guests_.extract(&link);
  if (!node.empty()) wire::Link::bury(loop_, std::move(node.mapped().link));
}

void Rendezvous::finish_if_over() {
  if (phase_ == Phase::Failed && !options_.waits_for_late && guests_.empty()) return finish();
  if (phase_ != Phase::Placing) return;
  const bool waiting = std::any_of(guests_.begin(), guests_.end(), [](const auto& entry) {
    return !entry.second.ready && !entry.second.ranks.empty();
  });
  if (!waiting) finish();
}

void Rendezvous::finish() {
  if (phase_ == Phase::Over) return;
  phase_ = Phase::Over;
  options_.over();
}

}  // namespace niccolite::bootstrap
