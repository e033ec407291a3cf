#include "operations/message_agreement.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"

namespace niccolite::operations {
namespace {

// Messages that a receiver may begin while a proposal is on its way, without waiting for the
// answer.
constexpr uint64_t kMessagesAhead = 64;

constexpr std::chrono::milliseconds kLookForAnswer{5};  // at the abort, while an answer is awaited

}  // namespace

Bytes MessageAgreement::Message::encode() const {
  Writer writer;
  writer.u8(is_answer ? 1 : 0);
  writer.u8(goes_direct ? 1 : 0);
  writer.u64(proposal);
  writer.u64(from);
  return std::move(writer).take();
}

Result<MessageAgreement::Message> MessageAgreement::Message::decode(
    std::span<const std::byte> bytes, int peer) {
  const std::string origin = fmt::format("rank {}", peer);
  Reader reader(bytes, origin);
  Message message;
  const uint8_t kind = reader.u8();
  if (kind > 1) reader.reject("no message about plans");
  message.is_answer = kind == 1;
  message.goes_direct = reader.u8() != 0;
  message.proposal = reader.u64();
  message.from = reader.u64();
  TRY(reader.finish());
  return message;
}

MessageAgreement::MessageAgreement(int rank, const Kinds& kinds, const Abort& abort, Tell tell)
    : rank_(rank), abort_(abort), tell_(std::move(tell)), streams_(2 * kinds.sent.size()) {
  for (size_t peer = 0; peer < kinds.sent.size(); ++peer) {
    for (const bool is_send : {false, true}) {
      Stream& of = stream(static_cast<int>(peer), is_send);
      of.kind = (is_send ? kinds.sent : kinds.received)[peer];
      of.peer = static_cast<int>(peer);
      of.is_send = is_send;
      of.goes_direct = of.kind == Kind::Direct;
    }
  }
}

Status MessageAgreement::begin(std::span<calls::Task> tasks) {
  for (Stream* of : begun_) of->is_begun = false;
  begun_.clear();
  for (calls::Task& task : tasks) {
    if (!task.call.is_message()) continue;
    Stream& of = stream(task.call.peer, task.call.is_send);
    task.call.goes_direct = of.goes_direct;
    if (of.kind != Kind::Agreed) continue;
    if (!of.is_begun) {
      of.is_begun = true;
      of.begun = of.launched;
      begun_.push_back(&of);
    }
    ++of.begun;
  }
  bool changes_any = false;
  for (Stream* of : begun_) {
    of->next = of->launched;
    of->begun_seen.store(of->begun, std::memory_order_seq_cst);
    of->changes_now = of->next_change.load(std::memory_order_seq_cst) < of->begun;
    if (of->changes_now) TRY(pass_changes(*of));
    changes_any |= of->changes_now;
  }
  if (!changes_any) return {};
  for (calls::Task& task : tasks) {
    if (!task.call.is_message()) continue;
    Stream& of = stream(task.call.peer, task.call.is_send);
    if (of.kind == Kind::Agreed && of.changes_now)
      task.call.goes_direct = goes_direct(of, of.next++);
  }
  return {};
}

// Waits until all changes are agreed on that are for messages which have begun, and makes those
// that are for all of them.
Status MessageAgreement::pass_changes(Stream& of) const {
  std::unique_lock lock(of.mutex);
  const auto is_open = [&](const Change& change) {
    return !change.is_agreed && change.from < of.begun;
  };
  while (!of.changes.empty() && is_open(of.changes.back())) {
    if (abort_.raised()) return abort_.reason();
    of.agreed.wait_for(lock, kLookForAnswer);
  }
  while (!of.changes.empty() && of.changes.front().is_agreed &&
         of.changes.front().from <= of.launched) {
    const Change change = of.changes.front();
    of.changes.pop_front();
    of.goes_direct = change.goes_direct;
    LOG(Info, Tuning, "rank {}: messages {} rank {} from number {} on have plans for {}", rank_,
        of.is_send ? "to" : "from", of.peer, change.from,
        change.goes_direct ? "the receiver's buffers" : "slots");
  }
  publish_next_change(of);
  return {};
}

bool MessageAgreement::goes_direct(Stream& of, uint64_t number) {
  std::lock_guard lock(of.mutex);
  bool result = of.goes_direct;
  for (const Change& change : of.changes)
    if (change.is_agreed && change.from <= number) result = change.goes_direct;
  return result;
}

void MessageAgreement::launched() {
  for (Stream* of : begun_) of->launched = of->begun;
}

void MessageAgreement::publish_next_change(Stream& of) {
  of.next_change.store(of.changes.empty() ? kNever : of.changes.front().from,
                       std::memory_order_seq_cst);
}

void MessageAgreement::note_use(int sender, const ReachHistory::Use& use) {
  Stream& of = stream(sender, /*is_send=*/false);
  of.history.note(use);
  const bool wish = of.history.wishes_reach();
  if (wish == of.proposed) return;
  Message message{.is_answer = false, .goes_direct = wish};
  {
    std::lock_guard lock(of.mutex);
    if (of.awaits_answer) return;  // the next message's note is early enough
    of.awaits_answer = true;
    of.last_from = std::max(of.last_from, of.begun) + kMessagesAhead;
    message.from = of.last_from;
    message.proposal = ++of.proposals;
    of.changes.push_back({.from = message.from, .goes_direct = wish, .is_agreed = false});
    publish_next_change(of);
  }
  of.proposed = wish;
  tell_(sender, message.encode());
}

Status MessageAgreement::note(int peer, std::span<const std::byte> bytes) {
  if (peer == rank_ || peer < 0 || 2 * static_cast<size_t>(peer) >= streams_.size())
    return Status::remote_error("rank {} has no messages for rank {}", peer, rank_);
  const Message message = TRY(Message::decode(bytes, peer));
  Stream& of = stream(peer, /*is_send=*/!message.is_answer);
  if (of.kind != Kind::Agreed)
    return Status::remote_error("rank {} tells rank {} about plans of messages that have one way",
                                peer, rank_);
  if (message.is_answer) return take_answer(of, message);
  const Message answer = TRY(take_proposal(of, message));
  tell_(peer, answer.encode());
  return {};
}

// Takes a proposal of a receiver to this rank, the sender.
Result<MessageAgreement::Message> MessageAgreement::take_proposal(Stream& of,
                                                                  const Message& message) const {
  std::lock_guard lock(of.mutex);
  if (message.proposal != of.proposals + 1 || message.from < of.last_from)
    return Status::remote_error("rank {} proposes plans of messages to rank {} out of turn",
                                of.peer, rank_);
  of.proposals = message.proposal;
  Change& change = of.changes.emplace_back(
      Change{.from = message.from, .goes_direct = message.goes_direct, .is_agreed = true});
  // begin() may overtake this until it sees the change; then it waits for the mutex.
  for (;;) {
    publish_next_change(of);
    const uint64_t begun = of.begun_seen.load(std::memory_order_seq_cst);
    if (begun <= change.from) break;
    change.from = begun;
  }
  of.last_from = change.from;
  return Message{.is_answer = true,
                 .goes_direct = message.goes_direct,
                 .proposal = message.proposal,
                 .from = change.from};
}

Status MessageAgreement::take_answer(Stream& of, const Message& message) const {
  std::lock_guard lock(of.mutex);
  if (!of.awaits_answer || message.proposal != of.proposals || message.from < of.last_from)
    return Status::remote_error("rank {} answers a proposal that it has not got", of.peer);
  of.awaits_answer = false;
  of.last_from = message.from;
  of.changes.back().from = message.from;
  of.changes.back().is_agreed = true;
  publish_next_change(of);
  of.agreed.notify_all();
  return {};
}

}  // namespace niccolite::operations
