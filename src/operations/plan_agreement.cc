#include "operations/plan_agreement.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>

#include "base/log.h"

namespace niccolite::operations {
namespace {

constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

// Collectives that a rank may begin while a proposal is on its way, without waiting for the
// decision.
constexpr uint64_t kCollectivesAhead = 64;

constexpr std::chrono::milliseconds kLookForDecision{
    5};  // at the abort, while a decision is awaited

}  // namespace

Bytes PlanAgreement::Message::encode() const {
  Writer writer;
  writer.u8(static_cast<uint8_t>(kind));
  writer.u32(kinds);
  writer.u64(number);
  writer.u64(collective);
  return std::move(writer).take();
}

Result<PlanAgreement::Message> PlanAgreement::Message::decode(std::span<const std::byte> bytes,
                                                              int from) {
  const std::string origin = fmt::format("rank {}", from);
  Reader reader(bytes, origin);
  Message message;
  const uint8_t kind = reader.u8();
  if (kind > static_cast<uint8_t>(Kind::Decision)) reader.reject("no message about plans");
  message.kind = static_cast<Kind>(kind);
  message.kinds = reader.u32();
  message.number = reader.u64();
  message.collective = reader.u64();
  TRY(reader.finish());
  return message;
}

PlanAgreement::PlanAgreement(int rank, int nranks, bool reached, const Abort& abort, Tell tell)
    : rank_(rank),
      nranks_(nranks),
      abort_(abort),
      tell_(std::move(tell)),
      for_reach_(reached ? ~Kinds{0} : 0),
      wish_{.for_reach = for_reach_, .number = 0},
      histories_(kKinds, ReachHistory(reached)),
      next_change_(kNever) {
  leader_.wishes.assign(static_cast<size_t>(nranks), wish_);
  leader_.decided = for_reach_;
}

Result<PlanAgreement::Kinds> PlanAgreement::begin(size_t collectives) {
  begun_ = launched_ + collectives;
  begun_seen_.store(begun_, std::memory_order_seq_cst);
  if (launched_ < next_change_.load(std::memory_order_seq_cst)) return for_reach_;
  return pass_changes(launched_);
}

Result<PlanAgreement::Kinds> PlanAgreement::pass_changes(uint64_t first) {
  std::unique_lock lock(mutex_);
  while (!changes_.empty() && changes_.front().from <= first) {
    const Change change = changes_.front();
    if (change.is_decided) {
      if (rank_ == 0) tell_of(change);
      for_reach_ = change.for_reach;
      changes_.pop_front();
      publish_next_change();
      continue;
    }
    if (abort_.raised()) return abort_.reason();
    decided_.wait_for(lock, kLookForDecision);
  }
  return for_reach_;
}

void PlanAgreement::tell_of(const Change& change) const {
  const Kinds gained = change.for_reach & ~for_reach_;
  const Kinds lost = for_reach_ & ~change.for_reach;
  if (gained != 0)
    LOG(Info, Tuning,
        "from collective {} on, plans are those for buffers that all ranks reach: of {} kinds more",
        change.from, std::popcount(gained));
  if (lost != 0)
    LOG(Info, Tuning, "from collective {} on, plans are those for slots: of {} kinds more",
        change.from, std::popcount(lost));
}

void PlanAgreement::publish_next_change() {
  next_change_.store(changes_.empty() ? kNever : changes_.front().from, std::memory_order_seq_cst);
}

void PlanAgreement::note_use(Kinds kind, const ReachHistory::Use& use) {
  ReachHistory& history = histories_[static_cast<size_t>(std::countr_zero(kind))];
  history.note(use);
  if (history.wishes_reach() != ((wish_.for_reach & kind) != 0)) wish(wish_.for_reach ^ kind);
}

void PlanAgreement::wish(Kinds kinds) {
  wish_ = {.for_reach = kinds, .number = wish_.number + 1};
  deliver({{0, {.kind = Kind::Wish, .kinds = wish_.for_reach, .number = wish_.number}}});
}

Status PlanAgreement::note(int from, std::span<const std::byte> bytes) {
  const Message message = TRY(Message::decode(bytes, from));
  const bool is_for_leader = message.kind == Kind::Wish || message.kind == Kind::Answer;
  if (is_for_leader ? rank_ != 0 : from != 0)
    return Status::remote_error("rank {} tells rank {} about plans what it must not", from, rank_);
  Outbox outbox;
  {
    std::lock_guard lock(mutex_);
    TRY(take(from, message, outbox));
  }
  deliver(outbox);
  return {};
}

Status PlanAgreement::take(int from, const Message& message, Outbox& outbox) {
  switch (message.kind) {
    case Kind::Wish:
      take_wish(from, message, outbox);
      return {};
    case Kind::Proposal:
      take_proposal(message, outbox);
      return {};
    case Kind::Answer:
      return take_answer(from, message, outbox);
    case Kind::Decision:
      return take_decision(message);
  }
  return {};
}

void PlanAgreement::take_wish(int from, const Message& message, Outbox& outbox) {
  Wish& wish = leader_.wishes[static_cast<size_t>(from)];
  if (message.number <= wish.number) return;  // one that a later one has overtaken
  wish = {.for_reach = message.kinds, .number = message.number};
  propose(outbox);
}

void PlanAgreement::take_proposal(const Message& message, Outbox& outbox) {
  Change& change = changes_.emplace_back(Change{.proposal = message.number,
                                                .from = message.collective,
                                                .for_reach = message.kinds,
                                                .is_decided = false});
  // Where it comes too late: from the next collective on that this rank has not begun. begin() may
  // overtake this until it sees the change; then it waits for mutex_.
  for (;;) {
    publish_next_change();
    const uint64_t begun = begun_seen_.load(std::memory_order_seq_cst);
    if (begun <= change.from) break;
    change.from = begun;
  }
  outbox.push_back(
      {0, {.kind = Kind::Answer, .number = message.number, .collective = change.from}});
}

Status PlanAgreement::take_decision(const Message& message) {
  const auto decided = std::ranges::find(changes_, message.number, &Change::proposal);
  if (decided == changes_.end() || decided->is_decided || message.collective < decided->from)
    return Status::remote_error("rank 0 decides what rank {} has not agreed to", rank_);
  decided->from = message.collective;
  decided->is_decided = true;
  publish_next_change();
  decided_.notify_all();
  return {};
}

Status PlanAgreement::take_answer(int from, const Message& message, Outbox& outbox) {
  std::optional<Proposed>& proposed = leader_.proposed;
  const auto rank = static_cast<size_t>(from);
  if (!proposed || message.number != proposed->number || proposed->answered[rank])
    return Status::remote_error("rank {} answers a proposal that it has not got", from);
  proposed->answered[rank] = true;
  leader_.last_change = std::max(leader_.last_change, message.collective);
  if (--proposed->answers_missing > 0) return {};
  tell_all({.kind = Kind::Decision, .number = proposed->number, .collective = leader_.last_change},
           outbox);
  leader_.decided = proposed->for_reach;
  proposed.reset();
  propose(outbox);
  return {};
}

// A kind is for reach when all wish it, and for slots as soon as one does.
void PlanAgreement::propose(Outbox& outbox) {
  Kinds wanted = ~Kinds{0};
  for (const Wish& wish : leader_.wishes) wanted &= wish.for_reach;
  if (leader_.proposed || wanted == leader_.decided) return;
  // Beyond the last one that was decided, and what this rank has begun.
  leader_.last_change = std::max(leader_.last_change, begun_seen_.load(std::memory_order_seq_cst)) +
                        kCollectivesAhead;
  leader_.proposed = Proposed{.number = ++leader_.proposals,
                              .for_reach = wanted,
                              .answered = std::vector<bool>(static_cast<size_t>(nranks_)),
                              .answers_missing = nranks_};
  tell_all({.kind = Kind::Proposal,
            .kinds = wanted,
            .number = leader_.proposals,
            .collective = leader_.last_change},
           outbox);
}

void PlanAgreement::tell_all(const Message& message, Outbox& outbox) const {
  for (int peer = 0; peer < nranks_; ++peer) outbox.push_back({peer, message});
}

void PlanAgreement::deliver(const Outbox& outbox) {
  for (const auto& [peer, message] : outbox) {
    const Bytes bytes = message.encode();
    if (peer == rank_) {
      note(rank_, bytes).ignore("this rank sends itself what it understands");
    } else {
      tell_(peer, bytes);
    }
  }
}

}  // namespace niccolite::operations
