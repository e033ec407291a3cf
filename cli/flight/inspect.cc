#include "cli/flight/inspect.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>

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

uint64_t failed_at(const RankDump& rank) {
  for (const Event& event : rank.events)
    if (event.kind == "failed") return event.time;
  return rank.time;
}

/// A rank that says whose fault it is.
struct Accusation {
  int by = -1, of = -1;  // of: -1: of nobody
  std::string text;
};

// The newest verdict first: an older one was of an operation that has gone on since.
std::vector<Accusation> find_verdicts(const CommunicatorDump& communicator) {
  std::vector<const RankDump*> told;
  for (const auto& [number, rank] : communicator.ranks)
    if (!rank.verdict.empty()) told.push_back(&rank);
  std::ranges::stable_sort(told, std::greater(), &RankDump::time);
  std::vector<Accusation> accusations;
  for (const RankDump* const rank : told)
    accusations.push_back({.by = rank->rank, .of = rank->verdict_rank, .text = rank->verdict});
  return accusations;
}

// The first cause first; the others are mostly its consequences.
std::vector<Accusation> find_failures(const CommunicatorDump& communicator) {
  std::vector<const RankDump*> failed;
  for (const auto& [number, rank] : communicator.ranks)
    if (!rank.failure.empty()) failed.push_back(&rank);
  std::ranges::stable_sort(failed, {}, [](const RankDump* rank) { return failed_at(*rank); });
  std::vector<Accusation> accusations;
  for (const RankDump* const rank : failed)
    accusations.push_back({.by = rank->rank, .of = rank->failure_rank, .text = rank->failure});
  return accusations;
}

const Accusation* find_by(const std::vector<Accusation>& accusations, int rank) {
  const auto found = std::ranges::find(accusations, rank, &Accusation::by);
  return found == accusations.end() || found->of < 0 || found->of == rank ? nullptr : &*found;
}

// Whom the first accuses may accuse another one in turn: its fault is then a consequence. Ranks
// that accuse each other do not reach each other, and whoever is cut off may have said so first:
// there most are right.
Accusation weigh(const std::vector<Accusation>& accusations) {
  const Accusation* believed = &accusations.front();
  std::set<int> met{believed->by};
  while (const Accusation* const next = find_by(accusations, believed->of)) {
    believed = next;
    if (!met.insert(next->by).second) break;
  }
  if (find_by(accusations, believed->of) == nullptr) return *believed;
  std::map<int, size_t> votes;
  for (const Accusation& accusation : accusations)
    if (accusation.of >= 0) ++votes[accusation.of];
  const auto most =
      std::ranges::max_element(votes, {}, [](const auto& vote) { return vote.second; });
  if (std::ranges::count(votes, most->second, [](const auto& vote) { return vote.second; }) == 1)
    return *std::ranges::find(accusations, most->first, &Accusation::of);
  return {.by = believed->by,
          .of = -1,
          .text = fmt::format("ranks {} and {} do not reach each other, and the dumps do not tell "
                              "whose machine or network is down; rank {} says: {}",
                              std::min(believed->by, believed->of),
                              std::max(believed->by, believed->of), believed->by, believed->text)};
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
  std::vector<Accusation> accusations = find_failures(communicator);
  if (accusations.empty()) accusations = find_verdicts(communicator);
  if (!accusations.empty()) {
    Accusation believed = weigh(accusations);
    finding.verdict = std::move(believed.text);
    finding.culprit = believed.of;
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
  std::stable_partition(findings.begin(), findings.end(),
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
