#include "diagnosis/mismatch.h"

#include <algorithm>

namespace niccolite::diagnosis {
namespace {

constexpr const char* kRule =
    "all ranks of a communicator must make the same calls in the same order";

std::string call_of(const calls::LoggedCall* logged) {
  if (logged == nullptr) return "something else, which its log does not tell";
  std::string text = describe(logged->call);
  if (logged->is_captured()) {
    text += " in a graph";
  } else if (!logged->call.is_message()) {
    text += fmt::format(" as its collective #{}", logged->number);
  }
  return text;
}

std::string describe_calls(const Account& a, const calls::LoggedCall* call_of_a, const Account& b,
                           const calls::LoggedCall* call_of_b) {
  return fmt::format("rank {} called {} while rank {} called {}: {}", a.rank, call_of(call_of_a),
                     b.rank, call_of(call_of_b), kRule);
}

bool are_two_ends(const Account& a, const calls::Call& of_a, const Account& b,
                  const calls::Call& of_b) {
  return of_a.is_message() && of_b.is_message() && of_a.is_send != of_b.is_send &&
         of_a.peer == b.rank && of_b.peer == a.rank;
}

std::string describe_message(int sender, const calls::Call& send, int receiver,
                             const calls::Call& receive) {
  return fmt::format(
      "rank {} sends {} bytes to rank {} ({}), which receives {} ({}): both ends of a message must "
      "have the same size",
      sender, send.request.bytes(), receiver, describe(send), receive.request.bytes(),
      describe(receive));
}

/// Calls with a number, of one kind, in order.
template <typename Filter>
std::vector<const calls::LoggedCall*> numbered(const Account& account, uint64_t most,
                                               Filter&& filter) {
  std::vector<const calls::LoggedCall*> calls;
  for (const calls::LoggedCall& logged : account.log.calls)
    if (!logged.is_captured() && logged.number <= most && filter(logged.call))
      calls.push_back(&logged);
  return calls;
}

using Pair = std::pair<const calls::LoggedCall*, const calls::LoggedCall*>;

/// The first two calls of one number that do not match.
std::optional<Pair> first_difference(const std::vector<const calls::LoggedCall*>& a,
                                     const std::vector<const calls::LoggedCall*>& b) {
  auto left = a.begin(), right = b.begin();
  while (left != a.end() && right != b.end()) {
    if ((*left)->number < (*right)->number) {
      ++left;
    } else if ((*left)->number > (*right)->number) {
      ++right;
    } else if (!calls_match((*left)->call, (*right)->call)) {
      return Pair{*left, *right};
    } else {
      ++left;
      ++right;
    }
  }
  return std::nullopt;
}

/// One direction: `sender` gave its account to the receiver, and the other way round.
std::optional<std::string> compare_direction(const Account& sender, const Account& receiver) {
  const uint64_t most = std::min(sender.log.sends.provable, receiver.log.receives.provable);
  const auto sends = numbered(sender, most, [&](const calls::Call& call) {
    return call.is_message() && call.is_send && call.peer == receiver.rank;
  });
  const auto receives = numbered(receiver, most, [&](const calls::Call& call) {
    return call.is_message() && !call.is_send && call.peer == sender.rank;
  });
  const auto difference = first_difference(sends, receives);
  if (!difference) return std::nullopt;
  return describe_message(sender.rank, difference->first->call, receiver.rank,
                          difference->second->call);
}

enum class Kind : uint8_t { Unknown, Collective, Message };

/// Unknown also when the tag stands for calls of both kinds, as happens once in 65,536.
Kind kind_of_wait(const Account& account) {
  Kind kind = Kind::Unknown;
  for (const calls::LoggedCall& logged : account.log.calls) {
    if (tag_of(logged.call) != account.wait->tag) continue;
    const Kind found = logged.call.is_message() ? Kind::Message : Kind::Collective;
    if (kind != Kind::Unknown && kind != found) return Kind::Unknown;
    kind = found;
  }
  return kind;
}

/// Both wait in a message that was launched alone, `a` for `b`. Can they not be two ends of one?
bool are_different_messages(const Account& a, const Account& b) {
  if (a.wait->is_joined || b.wait->is_joined) return false;  // the other end may be there, too
  if (b.wait->peer != a.rank) return true;
  return a.wait->kind == b.wait->kind && a.wait->kind != executor::ReportKind::Waiting;
}

/// True if the operations in which `a` and `b` wait, `a` for `b`, must be different, whatever else
/// was launched with the known calls. Messages and collectives are never launched together.
bool are_different(const Account& a, const Account& b) {
  const Kind of_a = kind_of_wait(a), of_b = kind_of_wait(b);
  if (of_a != of_b) return true;
  if (of_a == Kind::Message) return are_different_messages(a, b);
  return a.wait->tag != b.wait->tag && !(a.wait->is_joined && b.wait->is_joined);
}

std::string describe_wait(const Account& account) {
  return fmt::format("rank {} waits in {} for rank {}", account.rank,
                     call_of(find_waiting(account)), account.wait->peer);
}

std::string describe_waits(const Account& a, const Account& b) {
  return fmt::format("{} while {}, and neither can go on: {}", describe_wait(a), describe_wait(b),
                     kRule);
}

constexpr size_t kMostNamed = 8;  // of the ranks of a long cycle

std::string and_others(size_t ranks) {
  return ranks <= kMostNamed ? "" : fmt::format(", and so on for {} ranks", ranks - kMostNamed);
}

std::string describe_messages(std::span<const Waiter> cycle) {
  std::string text;
  for (size_t i = 0; i < std::min(cycle.size(), kMostNamed); ++i)
    text += (i == 0 ? "" : ", ") + describe_wait(cycle[i].account);
  return text + and_others(cycle.size()) +
         ", and none can go on: make one of them call the other end first, or put its sends and "
         "receives between ncclGroupStart and ncclGroupEnd";
}

/// Does it end on no rank before all ranks have begun it?
bool needs_all_ranks(planner::Collective collective) {
  return !schedule::has_root(collective) && collective != planner::Collective::PointToPoint;
}

/// The calls of this kind that a rank has made, and can be told by their numbers: it has captured
/// none.
std::optional<uint64_t> countable(const calls::Numbers& numbers) {
  return numbers.provable == ~uint64_t{0} ? std::optional(numbers.count) : std::nullopt;
}

/// Has `other` called its end of `logged`, which `account` may be waiting in?
bool has_called_end_of(const calls::LoggedCall& logged, const Account& account,
                       const Account& other) {
  const auto reaches = [&](const calls::Numbers& own, const calls::Numbers& others) {
    return countable(own) && countable(others).value_or(0) >= logged.number;
  };
  if (logged.is_captured()) return false;
  if (!logged.call.is_message()) return reaches(account.log.collectives, other.log.collectives);
  return logged.call.is_send ? reaches(account.log.sends, other.log.receives)
                             : reaches(account.log.receives, other.log.sends);
}

/// Could the wait be in this call?
bool may_wait_in(const Account& account, const calls::LoggedCall& logged) {
  if (tag_of(logged.call) != account.wait->tag) return false;
  return !logged.call.is_message() || logged.call.peer == account.wait->peer;
}

// True if data of an operation that `from` has left behind may still be on their way over a
// network, or may have come after `to` was seen to wait for them. Without a network nothing takes
// time. Credit for a message comes from the peer's proxy, which has said that there is none: later
// credit belongs to the peer's present operation.
bool may_have_come(const Waiter& from, const Waiter& to) {
  constexpr std::chrono::milliseconds kSeen{
      250};  // from a proxy's acknowledgement until a kernel sees the data
  constexpr std::chrono::milliseconds kCreditTravels{500};
  if (!from.account.network) return false;
  const Account& waiting = to.account;
  if (waiting.wait && waiting.wait->kind == executor::ReportKind::WaitingForCredit &&
      waiting.network) {
    const transport::Traffic* const sent = waiting.network->find(from.account.rank);
    if (sent != nullptr && sent->waits_for_room())
      return to.earliest_look < from.under_way + kCreditTravels;
  }
  const auto since =
      std::chrono::ceil<std::chrono::milliseconds>(from.told - to.earliest_look) + kSeen;
  return from.account.network->may_have_reached(to.account.rank, since);
}

}  // namespace

const calls::LoggedCall* find_waiting(const Account& account) {
  const WaitReport& wait = *account.wait;
  // The wait is in the last launch that the stream has come to.
  if (account.progress.is_running) {
    for (const calls::LoggedCall& logged : account.log.calls)
      if (logged.launch == account.progress.begun && may_wait_in(account, logged)) return &logged;
  }
  const bool is_known = wait.kind != executor::ReportKind::Waiting;
  const bool is_send = executor::is_wait_of_sender(wait.kind);
  for (size_t i = account.log.calls.size(); is_known && i-- > 0;) {
    const calls::LoggedCall& logged = account.log.calls[i];
    if (logged.call.is_message() && logged.call.peer == wait.peer &&
        logged.call.is_send == is_send && tag_of(logged.call) == wait.tag)
      return &logged;
  }
  return account.find(wait.tag, wait.peer);
}

bool calls_match(const calls::Call& a, const calls::Call& b) {
  const planner::Request &of_a = a.request, &of_b = b.request;
  if (of_a.collective != of_b.collective) return false;
  if (a.is_message()) return a.is_send != b.is_send && of_a.bytes() == of_b.bytes();
  if (of_a.count != of_b.count || of_a.type != of_b.type) return false;
  if (a.settings_tag != b.settings_tag) return false;
  if (schedule::reduces(of_a.collective) && of_a.op.operation != of_b.op.operation) return false;
  return !schedule::has_root(of_a.collective) || of_a.root == of_b.root;
}

std::optional<std::string> compare_collectives(const Account& a, const Account& b) {
  const uint64_t most = std::min(a.log.collectives.provable, b.log.collectives.provable);
  const auto is_collective = [](const calls::Call& call) { return !call.is_message(); };
  const auto difference =
      first_difference(numbered(a, most, is_collective), numbered(b, most, is_collective));
  if (!difference) return std::nullopt;
  return describe_calls(a, difference->first, b, difference->second);
}

std::optional<std::string> compare_final(const Account& a, const Account& b) {
  if (!a.is_final || !b.is_final) return std::nullopt;
  const auto& fewer = a.log.collectives.count < b.log.collectives.count ? a : b;
  const auto& more = &fewer == &a ? b : a;
  const calls::Numbers &few = fewer.log.collectives, &many = more.log.collectives;
  // A replay of a captured call may stand for the missing call.
  if (few.count == many.count || few.provable <= few.count || many.provable <= many.count)
    return std::nullopt;
  const calls::LoggedCall* next = nullptr;
  for (const calls::LoggedCall& logged : more.log.calls)
    if (!logged.call.is_message() && logged.number == few.count + 1) next = &logged;
  return fmt::format("rank {} called {}, which rank {} did not: it leaves after {} collectives: {}",
                     more.rank,
                     next != nullptr ? call_of(next) : fmt::format("{} collectives", many.count),
                     fewer.rank, few.count, kRule);
}

std::optional<std::string> compare_messages(const Account& a, const Account& b) {
  if (auto difference = compare_direction(a, b)) return difference;
  return compare_direction(b, a);
}

std::string describe_difference(const Account& a, uint16_t a_tag, const Account& b,
                                uint16_t b_tag) {
  // The first difference in the logs says more than the noticed one.
  if (auto text = compare_collectives(a, b)) return *text;
  if (auto text = compare_messages(a, b)) return *text;
  const calls::LoggedCall* const of_a = a.find(a_tag, b.rank);
  const calls::LoggedCall* const of_b = b.find(b_tag, a.rank);
  if (of_a != nullptr && of_b != nullptr && are_two_ends(a, of_a->call, b, of_b->call))
    return of_a->call.is_send ? describe_message(a.rank, of_a->call, b.rank, of_b->call)
                              : describe_message(b.rank, of_b->call, a.rank, of_a->call);
  return describe_calls(a, of_a, b, of_b);
}

std::optional<std::string> judge_cycle(std::span<const Waiter> cycle) {
  bool all_collective = true, all_messages = true;
  size_t different = 0;
  const Waiter* first = nullptr;
  for (size_t i = 0; i < cycle.size(); ++i) {
    const Waiter& waiter = cycle[i];
    const Waiter& awaited = cycle[(i + 1) % cycle.size()];
    // The wait may have begun, and the other rank may have done its part, after the accounts were
    // made.
    if (waiter.earliest_look < awaited.under_way || may_have_come(awaited, waiter))
      return std::nullopt;
    const Kind kind = kind_of_wait(waiter.account);
    if (kind == Kind::Unknown) return std::nullopt;
    all_collective = all_collective && kind == Kind::Collective;
    all_messages = all_messages && kind == Kind::Message;
    if (!are_different(waiter.account, awaited.account)) continue;
    ++different;
    if (first == nullptr) first = &waiter;
  }
  if (first == nullptr) return std::nullopt;
  // Where messages are involved, ranks in one operation may go on as soon as a third one comes.
  if (!all_collective && different != cycle.size()) return std::nullopt;
  if (all_messages) return describe_messages(cycle);
  const size_t next = static_cast<size_t>(first - cycle.data() + 1) % cycle.size();
  return describe_waits(first->account, cycle[next].account);
}

Made has_made_end_of(const calls::LoggedCall& logged, const Account& waiting, const Account& late) {
  // Among equal calls the waiting one is known if the executor tells which launch has begun, or if
  // all of them have been made, or none.
  const bool is_exact = waiting.progress.is_running && waiting.progress.begun == logged.launch;
  const auto of_all_equal = [&](auto&& made_end_of) {
    std::optional<Made> all;
    for (const calls::LoggedCall& other : waiting.log.calls) {
      if (!may_wait_in(waiting, other) || (is_exact && other.launch != logged.launch)) continue;
      const Made made = made_end_of(other);
      if (all && *all != made) return Made::NotKnown;
      all = made;
    }
    return all.value_or(Made::NotKnown);
  };
  if (!logged.call.is_message())
    return of_all_equal([&](const calls::LoggedCall& other) {
      const std::optional<uint64_t> made = countable(late.log.collectives);
      if (other.is_captured() || !countable(waiting.log.collectives) || !made)
        return Made::NotKnown;
      return *made >= other.number ? Made::Yes : Made::No;
    });
  // Accounts count messages with the asking rank; the log has messages with every rank.
  uint64_t most = 0;
  bool has_captured = false;
  for (const calls::LoggedCall& other : late.log.calls) {
    if (!other.call.is_message() || other.call.peer != waiting.rank ||
        other.call.is_send == logged.call.is_send)
      continue;
    has_captured = has_captured || other.is_captured();
    most = std::max(most, other.number);
  }
  if (has_captured || (most == 0 && late.log.calls.size() >= calls::CallLog::kKept))
    return Made::NotKnown;
  return of_all_equal([&](const calls::LoggedCall& other) {
    if (other.is_captured()) return Made::NotKnown;
    return most >= other.number ? Made::Yes : Made::No;
  });
}

bool has_done_end_of(const calls::LoggedCall& logged, const Account& waiting, const Account& late) {
  if (late.progress.begun == 0 || logged.is_captured()) return false;
  const auto is_its_end = [&](const calls::LoggedCall& other) {
    if (other.number != logged.number) return false;
    if (!logged.call.is_message()) return !other.call.is_message();
    return other.call.is_message() && other.call.peer == waiting.rank &&
           other.call.is_send != logged.call.is_send;
  };
  const auto found = std::ranges::find_if(late.log.calls, is_its_end);
  if (found == late.log.calls.end() || found->launch > late.progress.begun) return false;
  return found->launch < late.progress.begun || !late.progress.is_running;
}

bool is_held_up(std::span<const Waiter> path, const Waiter& held) {
  for (size_t i = 0; i < path.size(); ++i) {
    const Waiter& awaited = i + 1 < path.size() ? path[i + 1] : held;
    // The condition of judge_cycle().
    if (path[i].earliest_look < awaited.under_way || may_have_come(awaited, path[i])) return false;
  }
  const Account& first = path.front().account;
  const bool is_direct = path.size() == 1;
  const auto is_collective = [](const Waiter& waiter) {
    return kind_of_wait(waiter.account) == Kind::Collective;
  };
  if (!is_direct && !std::all_of(path.begin(), path.end(), is_collective)) return false;
  // Which of equal calls waits is not known: it must hold for all of them.
  bool was_found = false;
  for (const calls::LoggedCall& logged : first.log.calls) {
    if (!may_wait_in(first, logged)) continue;
    was_found = true;
    if (!is_direct && !needs_all_ranks(logged.call.request.collective)) return false;
    if (!has_called_end_of(logged, first, held.account)) return false;
  }
  return was_found;
}

std::string describe_circle(std::span<const Stuck> circle) {
  const Stuck& first = circle.front();
  std::string text = fmt::format("rank {} waits in {} of communicator 0x{:x} for rank {}",
                                 first.rank, describe(first.call), first.communicator, first.peer);
  for (const Stuck& next : circle.first(std::min(circle.size(), kMostNamed)).subspan(1))
    text += fmt::format(", whose stream waits in {} of communicator 0x{:x} as rank {} for rank {}",
                        describe(next.call), next.communicator, next.rank, next.peer);
  return text + and_others(circle.size()) +
         ", and none can go on: on one stream, make the calls of several communicators in the same "
         "order on all ranks, or give each communicator a stream of its own";
}

}  // namespace niccolite::diagnosis
