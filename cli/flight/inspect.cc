#include "cli/flight/inspect.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

namespace niccolite::flight {
namespace {

std::string describe_last(const RankDump& rank) {
  const Event* const call = last_call(rank);
  if (call == nullptr) return "has called nothing yet";
  std::string text = "last call " + call->call;
  if (call->number == 0) text += " in a graph";
  if (rank.begun == 0) return text;  // its executor does not tell how far it is
  if (call->launch > rank.begun) return text + ", which its stream has not come to";
  const bool goes_on = call->launch == rank.begun && rank.is_running;
  return text + (goes_on ? ", which goes on" : ", done");
}

std::string describe(const RankDump& rank) {
  std::string text = describe_last(rank);
  if (rank.waits_for >= 0)
    text = fmt::format("has waited {:.1f} s for rank {}{}", static_cast<double>(rank.waited) / 1000,
                       rank.waits_for, rank.waits_in.empty() ? "" : " in " + rank.waits_in);
  if (!rank.blocked.empty()) text = fmt::format("is in {}; {}", rank.blocked, text);
  if (rank.state != "ready") text = rank.state + "; " + text;
  return text;
}

// The newest verdict: an older one was of an operation that has gone on since.
const RankDump* find_verdict(const CommunicatorDump& communicator) {
  const RankDump* newest = nullptr;
  for (const auto& [number, rank] : communicator.ranks)
    if (!rank.verdict.empty() && (newest == nullptr || rank.time > newest->time)) newest = &rank;
  return newest;
}

uint64_t failed_at(const RankDump& rank) {
  for (const Event& event : rank.events)
    if (event.kind == "failed") return event.time;
  return rank.time;
}

// The first cause; the others are its consequences.
const RankDump* find_failure(const CommunicatorDump& communicator) {
  const RankDump* first = nullptr;
  for (const auto& [number, rank] : communicator.ranks)
    if (!rank.failure.empty() && (first == nullptr || failed_at(rank) < failed_at(*first)))
      first = &rank;
  return first;
}

std::vector<int> missing(const CommunicatorDump& communicator) {
  std::vector<int> ranks;
  for (int rank = 0; rank < communicator.nranks; ++rank)
    if (!communicator.ranks.contains(rank)) ranks.push_back(rank);
  return ranks;
}

// Nobody said so: whom do others wait for, who waits for nobody?
std::optional<int> find_awaited(const CommunicatorDump& communicator) {
  for (const auto& [number, rank] : communicator.ranks) {
    if (rank.waits_for < 0) continue;
    const auto awaited = communicator.ranks.find(rank.waits_for);
    if (awaited == communicator.ranks.end() || awaited->second.waits_for < 0) return rank.waits_for;
  }
  return std::nullopt;
}

void judge(const CommunicatorDump& communicator, Finding& finding) {
  const std::vector<int> silent = missing(communicator);
  if (const RankDump* const failed = find_failure(communicator)) {
    finding.verdict = failed->failure;
    // Whoever died left no dump; others may be on their way out, too.
    for (const int rank : silent)
      if (failed->failure.find(fmt::format("rank {} ", rank)) != std::string::npos)
        finding.culprit = rank;
    if (finding.culprit < 0 && silent.size() == 1) finding.culprit = silent.front();
    return;
  }
  if (const RankDump* const told = find_verdict(communicator)) {
    finding.verdict = told->verdict;
    finding.culprit = told->verdict_rank;
    return;
  }
  const std::optional<int> awaited = find_awaited(communicator);
  if (!awaited) return;
  finding.culprit = *awaited;
  finding.verdict =
      fmt::format("ranks wait for rank {} ({}){}", *awaited,
                  communicator.processes[static_cast<size_t>(*awaited)],
                  communicator.ranks.contains(*awaited) ? "" : ", which left no dump");
}

}  // namespace

std::vector<Finding> inspect(const Flight& flight) {
  std::vector<Finding> findings;
  for (const auto& [id, communicator] : flight.communicators) {
    Finding finding{.communicator = id, .nranks = communicator.nranks, .verdict = {}, .lines = {}};
    judge(communicator, finding);
    for (int rank = 0; rank < communicator.nranks; ++rank) {
      RankLine line{.rank = rank,
                    .process = communicator.processes[static_cast<size_t>(rank)],
                    .is_culprit = rank == finding.culprit,
                    .does = "left no dump"};
      if (const auto found = communicator.ranks.find(rank); found != communicator.ranks.end()) {
        line.has_dump = true;
        line.collectives = found->second.collectives;
        line.does = describe(found->second);
      }
      finding.lines.push_back(std::move(line));
    }
    findings.push_back(std::move(finding));
  }
  std::ranges::stable_partition(findings,
                                [](const Finding& finding) { return !finding.verdict.empty(); });
  return findings;
}

std::string to_text(const Finding& finding) {
  std::string text =
      fmt::format("communicator {}, {} ranks\n", finding.communicator, finding.nranks);
  text += fmt::format("  {}\n", finding.verdict.empty() ? "nothing stands still" : finding.verdict);
  size_t width = 7;
  for (const RankLine& line : finding.lines) width = std::max(width, line.process.size());
  text += fmt::format("    rank  {:<{}}  collectives  what it does\n", "process", width);
  for (const RankLine& line : finding.lines)
    text += fmt::format("  {} {:>4}  {:<{}}  {:>11}  {}\n", line.is_culprit ? '*' : ' ', line.rank,
                        line.process, width, line.has_dump ? std::to_string(line.collectives) : "-",
                        line.does);
  return text;
}

}  // namespace niccolite::flight
