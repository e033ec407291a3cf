#include "bootstrap/mailroom.h"

#include <algorithm>

#include "bootstrap/absences.h"

namespace niccolite::bootstrap {
namespace {

// After this time without a message, a probe asks a process without a link for a sign of life.
constexpr auto kProbeAfter = std::chrono::milliseconds(500);

Status timed_out(const Local& local, int32_t peer, std::string_view what,
                 Deadline::Clock::time_point start) {
  const double waited = std::chrono::duration<double>(Deadline::Clock::now() - start).count();
  return Status::remote_error("rank {} of {} waited {:.1f} s for {} rank {}", local.rank,
                              local.nranks, waited, what, peer)
      .with_peer(peer);
}

}  // namespace

Status Mailroom::send(const Local& local, int32_t peer, uint32_t tag,
                      std::span<const std::byte> content) {
  TRY(roster_.why_gone(peer));
  const uint32_t process = roster_.process_of(peer);
  if (process == roster_.self()) {
    deliver(local.rank, peer, tag, Bytes(content.begin(), content.end()));
  } else {
    const messages::Data data{.from = local.rank, .to = peer, .tag = tag, .content = content};
    transmit_(process, std::make_shared<const Bytes>(data.encode()));
  }
  return {};
}

void Mailroom::deliver(int32_t from, int32_t to, uint32_t tag, Bytes content) {
  const std::shared_ptr<Local> local = roster_.find(to);
  if (local == nullptr) return;  // it has left: nobody will read it
  local->inbox[{from, tag}].push_back(std::move(content));
  local->changed.notify_all();
}

Result<Bytes> Mailroom::receive(Roster::Lock& lock, Local& local, int32_t peer, uint32_t tag,
                                Deadline deadline) {
  const auto start = Deadline::Clock::now();
  const std::pair key(peer, tag);
  const auto arrived = [&] { return local.inbox.contains(key) || !roster_.why_gone(peer).is_ok(); };
  const Deadline first = Deadline::after(kProbeAfter);
  auto outcome = roster_.wait(lock, local, first.at() < deadline.at() ? first : deadline, arrived);
  if (outcome == Roster::Outcome::TimedOut) {
    if (roster_.process_of(peer) != roster_.self()) probe_(roster_.process_of(peer));
    outcome = roster_.wait(lock, local, deadline, arrived);
  }
  // A message that has arrived is good, also if its sender has ended since.
  if (const auto box = local.inbox.find(key);
      box != local.inbox.end() && outcome != Roster::Outcome::Aborted) {
    Bytes content = std::move(box->second.front());
    box->second.pop_front();
    if (box->second.empty()) local.inbox.erase(box);
    return content;
  }
  if (outcome == Roster::Outcome::Aborted) return Roster::why_aborted(local);
  if (outcome == Roster::Outcome::TimedOut) return timed_out(local, peer, "a message of", start);
  return roster_.why_gone(peer);
}

void Mailroom::serve(Local& local, Member::Handler handler) {
  local.handler = std::move(handler);
  for (size_t i = 0; i < local.calls.size(); ++i)
    post_([this, rank = local.rank] { run_next_call(rank); });
}

std::vector<Result<Bytes>> Mailroom::request(Roster::Lock& lock, Local& local,
                                             std::span<const Query> queries, const Limits& limits) {
  const auto start = Deadline::Clock::now();
  const uint64_t first = next_call_;
  next_call_ += queries.size();
  // A rank of this process whose handler can be called here and now: no thread need wake up.
  const auto is_at_hand = [&](int32_t peer) {
    const std::shared_ptr<Local> other =
        roster_.process_of(peer) == roster_.self() ? roster_.find(peer) : nullptr;
    return other != nullptr && other->handler && other->calls.empty();
  };
  std::vector<size_t> at_hand;
  for (size_t i = 0; i < queries.size(); ++i) {
    const Query& query = queries[i];
    pending_[first + i].caller = roster_.find(local.rank);
    if (is_at_hand(query.peer)) {
      at_hand.push_back(i);
    } else if (roster_.why_gone(query.peer).is_ok()) {  // else await() tells
      call(local, query.peer, first + i, query.message);
    }
  }
  for (const size_t i : at_hand) {
    if (local.left || (local.aborted && limits.cancel == nullptr)) break;
    const Query& query = queries[i];
    const std::shared_ptr<Local> other = roster_.find(query.peer);
    if (other == nullptr || other->left) continue;  // gone meanwhile: await() tells
    run_call(lock, other,
             {.from = local.rank,
              .process = roster_.self(),
              .number = first + i,
              .content = Bytes(query.message.begin(), query.message.end())});
  }
  std::vector<Result<Bytes>> answers;
  for (size_t i = 0; i < queries.size() && (i == 0 || answers.back().is_ok()); ++i)
    answers.push_back(await(lock, local, queries.subspan(i), first + i, limits, start));
  // Drops the other queries: nobody waits for their answers.
  for (size_t i = answers.size(); i < queries.size(); ++i) pending_.erase(first + i);
  return answers;
}

// True if the peer of the first query is absent. Looks at the processes of all unanswered queries.
bool Mailroom::is_absent(Roster::Lock& lock, std::span<const Query> queries, uint64_t number) {
  std::vector<uint32_t> awaited;
  for (size_t i = 0; i < queries.size(); ++i)
    if (!pending_[number + i].answer.has_value())
      awaited.push_back(roster_.process_of(queries[i].peer));
  std::ranges::sort(awaited);
  awaited.erase(std::unique(awaited.begin(), awaited.end()), awaited.end());
  const uint32_t first = roster_.process_of(queries.front().peer);
  lock.unlock();
  bool answer = false;
  for (const uint32_t process : awaited)
    if (presence_.is_absent(process) && process == first) answer = true;
  lock.lock();
  return answer;
}

// Waits until `happened`, or whatever else ends a wait; true: the peer's process is absent.
template <typename Condition>
bool Mailroom::is_given_up(Roster::Lock& lock, Local& local, std::span<const Query> queries,
                           uint64_t number, Deadline deadline, Condition happened) {
  // Looks at the first peer alone; otherwise a rank that asks many peers in turn would look at all
  // of them for each.
  bool given_up =
      !happened() && presence_.are_some_absent() && is_absent(lock, queries.first(1), number);
  while (!given_up && !happened()) {
    const Deadline next = Deadline::after(Absences::kLookInterval);
    if (deadline.at() <= next.at() ||
        roster_.wait(lock, local, next, happened) != Roster::Outcome::TimedOut)
      return false;
    given_up = is_absent(lock, queries, number);
  }
  return !happened();
}

Result<Bytes> Mailroom::await(Roster::Lock& lock, Local& local, std::span<const Query> queries,
                              uint64_t number, const Limits& limits,
                              Deadline::Clock::time_point start) {
  const int32_t peer = queries.front().peer;
  const auto is_cancelled = [&] { return limits.cancel != nullptr && limits.cancel->raised(); };
  const auto happened = [&] {
    return pending_[number].answer.has_value() || !roster_.why_gone(peer).is_ok() || is_cancelled();
  };
  if (limits.patience == Patience::WhileItRuns &&
      is_given_up(lock, local, queries, number, limits.deadline, happened)) {
    pending_.erase(number);
    return Status::remote_error("rank {} does not answer: its process is stopped", peer)
        .with_peer(peer);
  }
  const auto at_abort = limits.cancel == nullptr ? Roster::AtAbort::Ends : Roster::AtAbort::GoesOn;
  const auto outcome = roster_.wait(lock, local, limits.deadline, happened, at_abort);
  auto node = pending_.extract(number);  // a later answer finds nobody
  std::optional<Result<Bytes>>& answer = node.mapped().answer;
  if (answer.has_value()) return std::move(*answer);
  if (outcome == Roster::Outcome::Aborted) return Roster::why_aborted(local);
  if (outcome == Roster::Outcome::TimedOut) return timed_out(local, peer, "an answer of", start);
  if (is_cancelled()) return limits.cancel->reason();
  return roster_.why_gone(peer);
}

Status Mailroom::notify(const Local& local, int32_t peer, std::span<const std::byte> content) {
  TRY(roster_.why_gone(peer));
  call(local, peer, kUnanswered, content);
  return {};
}

void Mailroom::call(const Local& local, int32_t peer, uint64_t number,
                    std::span<const std::byte> content) {
  const uint32_t process = roster_.process_of(peer);
  if (process == roster_.self()) {
    take_call(peer, {.from = local.rank,
                     .process = process,
                     .number = number,
                     .content = Bytes(content.begin(), content.end())});
  } else {
    const messages::Request message{
        .from = local.rank, .to = peer, .call = number, .content = content};
    transmit_(process, std::make_shared<const Bytes>(message.encode()));
  }
}

Status Mailroom::take(Reader& reader, MessageType type, uint32_t process) {
  const auto lives_there = [&](int32_t rank) {
    return rank < roster_.nranks() && roster_.process_of(rank) == process;
  };
  switch (type) {
    case MessageType::Data: {
      const messages::Data data = TRY(messages::Data::decode(reader));
      if (!lives_there(data.from))
        return Status::remote_error("a message in the name of rank {}", data.from);
      deliver(data.from, data.to, data.tag, Bytes(data.content.begin(), data.content.end()));
      return {};
    }
    case MessageType::Request: {
      const messages::Request request = TRY(messages::Request::decode(reader));
      if (!lives_there(request.from))
        return Status::remote_error("a request in the name of rank {}", request.from);
      take_call(request.to, {.from = request.from,
                             .process = process,
                             .number = request.call,
                             .content = Bytes(request.content.begin(), request.content.end())});
      return {};
    }
    default: {
      const messages::Response response = TRY(messages::Response::decode(reader));
      if (response.succeeded) {
        finish(response.call, Bytes(response.content.begin(), response.content.end()));
      } else {
        finish(response.call, response.failure.status());
      }
      return {};
    }
  }
}

void Mailroom::take_call(int32_t to, Call call) {
  const std::shared_ptr<Local> local = roster_.find(to);
  if (local == nullptr) {
    answer(call.process, call.number,
           Status::remote_error("rank {} has left the communicator", to).with_peer(to));
    return;
  }
  local->calls.push_back(std::move(call));
  if (local->handler) post_([this, to] { run_next_call(to); });
}

void Mailroom::run_next_call(int32_t rank) {
  Roster::Lock lock = roster_.lock();
  const std::shared_ptr<Local> local = roster_.find(rank);
  if (local == nullptr || local->calls.empty()) return;
  const Call call = std::move(local->calls.front());
  local->calls.pop_front();
  run_call(lock, local, call);
}

// Has `local` answer; the lock is released meanwhile, and leave() waits.
void Mailroom::run_call(Roster::Lock& lock, const std::shared_ptr<Local>& local, const Call& call) {
  const Member::Handler handler = local->handler;
  ++local->in_service;
  lock.unlock();
  std::optional<Result<Bytes>> result;
  const Status thrown = guarded([&]() -> Status {
    result.emplace(handler(call.from, call.content));
    return {};
  });
  lock.lock();
  --local->in_service;
  local->changed.notify_all();
  if (!thrown.is_ok()) {
    answer(call.process, call.number, thrown.copy());
  } else if (result->is_ok() && result->value().size() > kMaxMessage) {
    answer(call.process, call.number,
           Status::internal("the answer of rank {} has {} bytes, at most {} are allowed",
                            local->rank, result->value().size(), kMaxMessage));
  } else {
    answer(call.process, call.number, std::move(*result));
  }
}

void Mailroom::answer(uint32_t process, uint64_t number, Result<Bytes> result) {
  if (number == kUnanswered) return;
  if (process == roster_.self()) return finish(number, std::move(result));
  messages::Response response{
      .call = number, .succeeded = result.is_ok(), .failure = {}, .content = {}};
  if (result.is_ok()) {
    response.content = result.value();
  } else {
    response.failure = messages::Failed::of(result.status());
  }
  transmit_(process, std::make_shared<const Bytes>(response.encode()));
}

void Mailroom::finish(uint64_t number, Result<Bytes> result) {
  const auto pending = pending_.find(number);
  if (pending == pending_.end()) return;
  pending->second.answer.emplace(std::move(result));
  if (pending->second.caller != nullptr) pending->second.caller->changed.notify_all();
}

void Mailroom::local_left(Local& local) {
  const std::deque<Call> calls = std::move(local.calls);
  local.calls.clear();
  for (const Call& call : calls)
    answer(call.process, call.number,
           Status::remote_error("rank {} has left the communicator", local.rank)
               .with_peer(local.rank));
}

}  // namespace niccolite::bootstrap
