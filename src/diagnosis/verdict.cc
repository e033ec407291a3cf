#include "diagnosis/verdict.h"

#include "diagnosis/mismatch.h"

namespace niccolite::diagnosis {
namespace {

using std::chrono::milliseconds;

// Limits for a link. Data are acknowledged within milliseconds if the receiver's proxy runs, and
// bytes of a slow link come all the time.
constexpr milliseconds kStandsStill{750};
constexpr milliseconds kMoves{0};

std::string name(const Verdict& verdict) {
  const calls::LoggedCall& operation = verdict.operation;
  if (!verdict.host_call.empty()) return verdict.host_call;
  std::string text = describe(operation.call);
  if (verdict.cause == Cause::Late) return text;  // which of equal calls it is is not known
  if (operation.is_captured()) return text + " in a graph";
  return operation.call.is_message() ? text
                                     : fmt::format("{}, collective #{},", text, operation.number);
}

std::string last_of(const Verdict& verdict) {
  if (!verdict.last) return "it has called nothing yet";
  const calls::LoggedCall& last = *verdict.last;
  std::string text = "its last call was " + describe(last.call);
  if (last.is_captured()) return text + " in a graph";
  return last.call.is_message() ? text : fmt::format("{}, collective #{}", text, last.number);
}

double in_seconds(milliseconds time) { return std::chrono::duration<double>(time).count(); }

std::string reason(const transport::Traffic& link) {
  constexpr const char* kRemedy =
      "Is what lies between the two machines in order: interfaces (ip -s link), connections (ss "
      "-ti), firewalls?";
  const double age = in_seconds(link.unacknowledged.value_or(milliseconds(0)));
  if (link.from.empty() && !link.to.empty())
    return fmt::format(
        "cannot reach rank {}: its link (to {}) is not there: connecting has taken {:.1f} s so "
        "far. {}",
        link.peer, link.to, age, kRemedy);
  const std::string addresses =
      link.to.empty() ? "" : fmt::format(" (from {} to {})", link.from, link.to);
  const std::string what =
      link.parts == 0
          ? fmt::format("it has asked for room for its data, and had no answer for {:.1f} s", age)
          : fmt::format(
                "nothing has been acknowledged for {:.1f} s, {} parts of chunks ({} bytes) are on "
                "their way",
                age, link.parts, link.bytes);
  return fmt::format("cannot reach rank {}: its link{} stands still: {}. {}", link.peer, addresses,
                     what, kRemedy);
}

std::string reason(const transport::ProxyThread& proxy) {
  const auto state = [&] {
    switch (proxy.state) {
      case 'T':
      case 't':
        return "it is stopped by a debugger";
      case 'R':
        return "it runs, and comes to no end";
      case 'D':
        return "it waits in the kernel, for a disk or a device";
      default:
        return "it sleeps in a call";
    }
  };
  return fmt::format(
      "has a stuck proxy: its thread {} ({}), which carries data to and from other machines, has "
      "not "
      "come round for {:.1f} s: {}. Where is it (gdb -p), in a network plug-in?",
      proxy.name, proxy.number, in_seconds(proxy.unanswered), state());
}

std::string reason(const Verdict& verdict) {
  switch (verdict.cause) {
    case Cause::NotCalled:
      return fmt::format(
          "has not called it: {}. Is it busy with something else, or does its program not make "
          "this call?",
          last_of(verdict));
    case Cause::NotBegun:
      return fmt::format(
          "has not come to it: {}. Work that its program queued before on that stream, such as a "
          "kernel, goes on, or its GPU is busy",
          last_of(verdict));
    case Cause::Late:
      return fmt::format(
          "has not come to it: {}. Its program has not made this call or launched its graph, or "
          "work "
          "before it on that stream goes on",
          last_of(verdict));
    case Cause::HeldUp:
      return fmt::format(
          "has not come to it: its stream waits in {} of communicator 0x{:x}, there as rank {}, "
          "for "
          "rank {}",
          describe(verdict.holder->call), verdict.holder->communicator, verdict.holder->rank,
          verdict.holder->peer);
    case Cause::Stopped:
      return "is stopped, by a signal (SIGSTOP) or a debugger: continue it (kill -CONT)";
    case Cause::DoesNotAnswer:
      return fmt::format(
          "does not answer rank {}: its process hangs, its machine is down, or the network between "
          "the two is",
          verdict.waiting);
    case Cause::Link:
      return reason(*verdict.link);
    case Cause::Proxy:
      return reason(*verdict.proxy);
    case Cause::Blocked:
      return fmt::format(
          "is in {}: one thread uses a communicator at a time. Let all ranks make its calls in one "
          "order, or give each thread a communicator of its own (ncclCommSplit)",
          verdict.blocked->describe());
    case Cause::CutOff:
      return "hears nothing from any other machine: its network is down, or that of all others";
  }
  return "";
}

}  // namespace

bool is_fault(Cause cause) {
  switch (cause) {
    case Cause::NotCalled:
    case Cause::NotBegun:
    case Cause::Late:
    case Cause::HeldUp:
    case Cause::Blocked:
      return false;
    case Cause::Stopped:
    case Cause::DoesNotAnswer:
    case Cause::Link:
    case Cause::Proxy:
    case Cause::CutOff:
      break;
  }
  return true;
}

bool Verdict::is_of_same_operation_as(const Verdict& other) const {
  return host_call == other.host_call && operation.call == other.operation.call &&
         (cause == Cause::Late || operation.number == other.operation.number) &&
         (!operation.call.is_message() || waiting == other.waiting);
}

bool Verdict::is_same_as(const Verdict& other) const {
  return is_of_same_operation_as(other) && cause == other.cause && rank == other.rank &&
         (cause != Cause::Link || link->peer == other.link->peer);
}

std::string Verdict::describe(uint64_t communicator, const std::string& process) const {
  const std::string whose = operation.call.is_message() ? fmt::format(" of rank {}", waiting) : "";
  return fmt::format("communicator 0x{:x}: {}{} stands still: rank {} ({}) {}", communicator,
                     name(*this), whose, rank, process, reason(*this));
}

void Verdict::say_blocked(const Account& culprit) {
  if (!culprit.blocked) return;
  cause = Cause::Blocked;
  blocked = culprit.blocked;
}

Bytes Verdict::encode() const {
  Writer writer;
  writer.u8(static_cast<uint8_t>(cause));
  writer.i32(rank);
  writer.i32(waiting);
  write(writer, operation);
  writer.text(host_call);
  writer.u8(last ? 1 : 0);
  if (last) write(writer, *last);
  writer.u8(holder ? 1 : 0);
  if (holder) write(writer, *holder);
  writer.u8(link ? 1 : 0);
  if (link) write(writer, *link);
  writer.u8(proxy ? 1 : 0);
  if (proxy) write(writer, *proxy);
  writer.u8(blocked ? 1 : 0);
  if (blocked) write(writer, *blocked);
  return std::move(writer).take();
}

Result<Verdict> Verdict::decode(std::span<const std::byte> bytes, int nranks) {
  Reader reader(bytes, "a verdict");
  Verdict verdict;
  const uint8_t cause = reader.u8();
  if (cause > static_cast<uint8_t>(Cause::CutOff)) reader.reject("an unknown cause");
  verdict.cause = static_cast<Cause>(cause);
  verdict.rank = reader.i32();
  verdict.waiting = reader.i32();
  const auto is_rank = [&](int number) { return number >= 0 && number < nranks; };
  if (!is_rank(verdict.rank) || !is_rank(verdict.waiting)) reader.reject("a rank that cannot be");
  verdict.operation = read_logged_call(reader);
  constexpr size_t kMostName = 64;
  verdict.host_call = reader.text(kMostName);
  if (reader.u8() != 0) verdict.last = read_logged_call(reader);
  if (reader.u8() != 0) verdict.holder = read_stuck(reader);
  if (verdict.holder.has_value() != (verdict.cause == Cause::HeldUp))
    reader.reject("a holder where none holds");
  if (reader.u8() != 0) verdict.link = transport::read_traffic(reader);
  if (reader.u8() != 0) verdict.proxy = transport::read_proxy_thread(reader);
  if (reader.u8() != 0) verdict.blocked = read_blocked(reader);
  if (verdict.blocked.has_value() != (verdict.cause == Cause::Blocked))
    reader.reject("a call that is blocked where none is");
  if (verdict.link.has_value() != (verdict.cause == Cause::Link) ||
      verdict.proxy.has_value() != (verdict.cause == Cause::Proxy))
    reader.reject("a link or a proxy that is not the cause, or a cause without it");
  if (verdict.link && !is_rank(verdict.link->peer))
    reader.reject("a link to a rank that cannot be");
  TRY(reader.finish());
  return verdict;
}

std::optional<Verdict> judge_late(const Account& waiting, const Account& late) {
  if (late.connects) return std::nullopt;  // it says itself whom it connects with, and waits for
  const calls::LoggedCall* const operation = find_waiting(waiting);
  if (operation == nullptr) return std::nullopt;
  Verdict verdict{.cause = Cause::NotCalled,
                  .rank = late.rank,
                  .waiting = waiting.rank,
                  .operation = *operation,
                  .last = std::nullopt,
                  .holder = std::nullopt};
  if (!late.log.calls.empty()) verdict.last = late.log.calls.back();
  if (late.hold) {
    verdict.cause = Cause::HeldUp;
    verdict.holder = late.hold->chain.front();
    return verdict;
  }
  switch (has_made_end_of(*operation, waiting, late)) {
    case Made::No:
      verdict.say_blocked(late);
      break;
    case Made::NotKnown:
      // The late rank may have ended the operation for which the other waits.
      if (late.network && late.network->is_sending_to(waiting.rank)) return std::nullopt;
      verdict.cause = Cause::Late;
      break;
    case Made::Yes:
      // An operation that has begun, and waits for nothing, goes on. The data of an ended one are
      // on their way.
      if (late.progress.is_running || has_done_end_of(*operation, waiting, late))
        return std::nullopt;
      verdict.cause = Cause::NotBegun;
      break;
  }
  return verdict;
}

std::optional<Verdict> judge_network(const Account& waiting, const Account& awaited) {
  if (!waiting.network || !awaited.network) return std::nullopt;
  const calls::LoggedCall* const operation = find_waiting(waiting);
  if (operation == nullptr) return std::nullopt;
  Verdict verdict{.cause = Cause::Proxy,
                  .rank = -1,
                  .waiting = waiting.rank,
                  .operation = *operation,
                  .last = std::nullopt,
                  .holder = std::nullopt};
  for (const Account* const account : {&awaited, &waiting}) {
    const transport::ProxyThread* const stuck = account->network->stuck();
    if (stuck == nullptr) continue;
    verdict.rank = account->rank;
    verdict.proxy = *stuck;
    return verdict;
  }
  verdict.cause = Cause::Link;
  const auto stands_still = [&](const Account& sender, const Account& receiver) {
    const transport::Traffic* const sent = sender.network->find(receiver.rank);
    if (sent == nullptr || sent->unacknowledged.value_or(kMoves) < kStandsStill) return false;
    if (sent->has_another_way) return false;
    // An end that was held up, or had no core, tells nothing about the link.
    for (const Account* const account : {&sender, &receiver})
      if (!account->network->comes_round() || account->awake < kStandsStill) return false;
    const transport::Traffic* const received = receiver.network->find(sender.rank);
    if (received != nullptr && received->heard.value_or(kStandsStill) < kStandsStill) return false;
    verdict.rank = sender.rank;
    verdict.link = *sent;
    return true;
  };
  if (stands_still(awaited, waiting) || stands_still(waiting, awaited)) return verdict;
  return std::nullopt;
}

std::optional<Verdict> judge_silent(const Account& waiting, int rank, Cause cause) {
  const calls::LoggedCall* const operation = find_waiting(waiting);
  if (operation == nullptr) return std::nullopt;
  return Verdict{.cause = cause,
                 .rank = rank,
                 .waiting = waiting.rank,
                 .operation = *operation,
                 .last = std::nullopt,
                 .holder = std::nullopt};
}

}  // namespace niccolite::diagnosis
