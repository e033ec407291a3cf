#include "ras/report.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <tuple>

namespace niccolite::ras {
namespace {

enum Errors : unsigned { kMismatch = 1, kError = 2, kIncomplete = 4 };
constexpr const char* kCountNames[diagnosis::kCounted] = {"Broadcast", "Reduce", "AllGather",
                                                          "ReduceScatter", "AllReduce"};

const char* plural(size_t count, const char* one = "", const char* several = "s") {
  return count == 1 ? one : several;
}

const char* name_of(RankState state) {
  switch (state) {
    case RankState::Init:
      return "INIT";
    case RankState::Running:
      return "RUNNING";
    case RankState::Finalize:
      return "FINALIZE";
    case RankState::Abort:
      return "ABORT";
  }
  return "";
}

const char* name_of_error(int code) {
  constexpr const char* kNames[] = {"",
                                    "Unhandled CUDA error",
                                    "System error",
                                    "Internal error",
                                    "Invalid argument",
                                    "Invalid usage",
                                    "Remote process error",
                                    "NCCL operation in progress"};
  return code > 0 && code < static_cast<int>(std::size(kNames)) ? kNames[code] : "Unexpected error";
}

/// Whether a group of `count` among `total` is worth listing member by member.
bool is_outlier(size_t count, size_t total, bool is_verbose) {
  if (count == 1) return true;
  if (is_verbose) return 2 * count < total;
  return count <= 10 && 4 * count <= total;
}

std::string underlined(const std::string& title) {
  return title + "\n" + std::string(title.size(), '=') + "\n\n";
}

std::string gpus_of(const std::set<int>& devices) {
  std::string text;
  for (const int device : devices) text += fmt::format("{}{}", text.empty() ? "" : ",", device);
  return text;
}

std::string describe(const ProcessName& process) {
  return fmt::format("process {} on node {}", process.pid, process.host);
}

std::string describe(const Member& member) {
  return fmt::format("GPU {} managed by {}", member.status.device, describe(member.process));
}

// ---- the summary of the job

struct Shape {
  std::map<std::string, std::vector<const ProcessName*>> nodes;
  std::set<size_t> processes_per_node, gpus_per_process;
  size_t processes = 0, gpus = 0;
};

Shape shape_of(const Job& job) {
  Shape shape;
  for (const auto& [process, devices] : job.processes) {
    shape.nodes[process.host].push_back(&process);
    shape.gpus_per_process.insert(devices.size());
    shape.gpus += devices.size();
  }
  shape.processes = job.processes.size();
  for (const auto& [host, processes] : shape.nodes)
    shape.processes_per_node.insert(processes.size());
  return shape;
}

/// Counts values; the most frequent first, of equally frequent ones the larger.
std::vector<std::pair<size_t, size_t>> ranked(const std::vector<size_t>& values) {
  std::map<size_t, size_t> counts;
  for (const size_t value : values) ++counts[value];
  std::vector<std::pair<size_t, size_t>> sorted(counts.begin(), counts.end());
  std::ranges::sort(sorted, std::greater<>(),
                    [](const auto& entry) { return std::pair(entry.second, entry.first); });
  return sorted;
}

std::string totals(const Shape& shape) {
  return fmt::format(
      "\n  Nodes  Processes         GPUs\n(total)    (total)      (total)\n{:7}  {:9}  {:11}\n",
      shape.nodes.size(), shape.processes, shape.gpus);
}

std::string list_outlying_nodes(const Shape& shape, size_t usual) {
  std::map<size_t, std::vector<const std::vector<const ProcessName*>*>> others;
  for (const auto& [host, processes] : shape.nodes)
    if (processes.size() != usual) others[processes.size()].push_back(&processes);
  std::string text;
  for (const auto& [count, nodes] : others) {
    if (!is_outlier(nodes.size(), shape.nodes.size(), false)) continue;
    text += fmt::format("\nThe outlier node{}:\n", plural(nodes.size()));
    for (const auto* processes : nodes) {
      std::string pids;
      for (const ProcessName* process : *processes)
        pids += fmt::format("{}{}", pids.empty() ? "" : ",", process->pid);
      text += fmt::format("  Node {} running process{} {}\n", processes->front()->host,
                          plural(processes->size(), "", "es"), pids);
    }
  }
  return text;
}

std::string summarize(const Job& job) {
  const Shape shape = shape_of(job);
  std::string text = underlined("Job summary");
  if (shape.processes_per_node.size() == 1 && shape.gpus_per_process.size() == 1)
    return text + fmt::format(
                      "  Nodes  Processes         GPUs  Processes     GPUs\n"
                      "(total)   per node  per process    (total)  (total)\n"
                      "{:7}  {:9}  {:11}  {:9}  {:7}\n",
                      shape.nodes.size(), *shape.processes_per_node.begin(),
                      *shape.gpus_per_process.begin(), shape.processes, shape.gpus);
  std::vector<size_t> processes, gpus;
  for (const auto& [host, of_node] : shape.nodes) processes.push_back(of_node.size());
  for (const auto& [process, devices] : job.processes) gpus.push_back(devices.size());
  const auto per_node = ranked(processes);
  if (shape.gpus_per_process.size() == 1) {
    text += "  Nodes  Processes         GPUs\n          per node  per process\n";
    for (const auto& [value, count] : per_node)
      text += fmt::format("{:7}  {:9}  {:11}\n", count, value, gpus.front());
    return text + totals(shape) + list_outlying_nodes(shape, per_node.front().first);
  }
  text += "  Nodes  Processes\n          per node\n";
  for (const auto& [value, count] : per_node) text += fmt::format("{:7}  {:9}\n", count, value);
  text += "\n         Processes         GPUs\n                    per process\n";
  for (const auto& [value, count] : ranked(gpus))
    text += fmt::format("         {:9}  {:11}\n", count, value);
  return text + totals(shape);
}

// ---- the table of communicators

struct Row {
  const CommunicatorReport* report = nullptr;
  size_t nodes = 0, least_per_node = 0, most_per_node = 0, gpus = 0;
  unsigned errors = 0;
  RankState status = RankState::Init;
  auto key() const {
    return std::tuple(report->nranks, nodes, static_cast<unsigned>(status), errors);
  }
};

bool differs_in_status(const CommunicatorReport& report) {
  std::set<RankState> statuses;
  for (const auto& [rank, member] : report.ranks) statuses.insert(state_of(member.status));
  return statuses.size() > 1;
}

bool differs_in_count(const CommunicatorReport& report, size_t counted) {
  std::set<uint64_t> counts;
  for (const auto& [rank, member] : report.ranks) counts.insert(member.status.counts[counted]);
  return counts.size() > 1;
}

bool has_error(const CommunicatorReport& report) {
  return std::ranges::any_of(report.ranks,
                             [](const auto& rank) { return rank.second.status.async_error != 0; });
}

Row row_of(const CommunicatorReport& report) {
  Row row{.report = &report};
  std::map<std::string, size_t> per_node;
  std::set<std::pair<std::string, int>> gpus;
  for (const auto& [rank, member] : report.ranks) {
    ++per_node[member.process.host];
    gpus.emplace(member.process.host, member.status.device);
    row.status = std::max(row.status, state_of(member.status));
  }
  for (const Missing& missing : report.missing)
    if (missing.process.pid != 0) per_node[missing.process.host] += 1;
  row.nodes = per_node.size();
  row.gpus = gpus.size();
  row.least_per_node = SIZE_MAX;
  for (const auto& [host, count] : per_node) {
    row.least_per_node = std::min(row.least_per_node, count);
    row.most_per_node = std::max(row.most_per_node, count);
  }
  if (!report.missing.empty()) row.errors |= kIncomplete;
  if (has_error(report)) row.errors |= kError;
  if (differs_in_status(report)) row.errors |= kMismatch;
  for (size_t counted = 0; counted < diagnosis::kCounted; ++counted)
    if (differs_in_count(report, counted)) row.errors |= kMismatch;
  return row;
}

std::string name_errors(unsigned errors) {
  std::string text;
  const auto add = [&](unsigned bit, const char* name) {
    if ((errors & bit) != 0) text += fmt::format("{}{}", text.empty() ? "" : ",", name);
  };
  add(kIncomplete, "INCOMPLETE");
  add(kError, "ERROR");
  add(kMismatch, "MISMATCH");
  return text.empty() ? "OK" : text;
}

/// The rows of one line of the table.
using RowGroup = std::vector<Row>;

std::vector<RowGroup> group_rows(const Job& job) {
  std::vector<Row> rows;
  for (const CommunicatorReport& report : job.communicators) rows.push_back(row_of(report));
  std::ranges::stable_sort(rows, [](const Row& a, const Row& b) {
    if (a.key() != b.key()) return a.key() > b.key();
    return a.report->ranks.size() < b.report->ranks.size();
  });
  std::vector<RowGroup> groups;
  for (const Row& row : rows) {
    if (groups.empty() || groups.back().front().key() != row.key()) groups.emplace_back();
    groups.back().push_back(row);
  }
  return groups;
}

std::string table_of(const std::vector<RowGroup>& groups) {
  std::string text =
      "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
      "    #  in group  per comm  per node  per comm  in group\n";
  for (size_t i = 0; i < groups.size(); ++i) {
    const RowGroup& group = groups[i];
    size_t least = SIZE_MAX, most = 0;
    std::set<std::pair<std::string, int>> gpus;
    for (const Row& row : group) {
      least = std::min(least, row.least_per_node);
      most = std::max(most, row.most_per_node);
      for (const auto& [rank, member] : row.report->ranks)
        gpus.emplace(member.process.host, member.status.device);
    }
    const Row& first = group.front();
    text += fmt::format(
        "{:5}  {:8}  {:8}  {:>8}  {:8}  {:8}  {:>8}  {:>6}\n", i, group.size(), first.nodes,
        least == most ? std::to_string(most) : fmt::format("{}-{}", least, most),
        first.report->nranks, gpus.size(), name_of(first.status), name_errors(first.errors));
  }
  return text;
}

// ---- errors

/// "#0-0 (cf264af53edbe986) ERROR"
std::string block_title(size_t group, size_t index, const CommunicatorReport& report,
                        const char* what) {
  return fmt::format("#{}-{} ({:016x}) {}\n", group, index, report.id, what);
}

template <typename Visit>
void for_each_row(const std::vector<RowGroup>& groups, Visit visit) {
  for (size_t group = 0; group < groups.size(); ++group)
    for (size_t index = 0; index < groups[group].size(); ++index)
      visit(group, index, *groups[group][index].report);
}

std::string describe_process(const Job& job, const ProcessName& process) {
  const auto found = job.processes.find(process);
  if (found == job.processes.end() || found->second.empty())
    return fmt::format("Process {} on node {}", process.pid, process.host);
  return fmt::format("Process {} on node {} managing GPU{} {}", process.pid, process.host,
                     plural(found->second.size()), gpus_of(found->second));
}

std::string describe_silent(const Job& job, bool is_verbose) {
  if (job.silent.empty()) return "";
  std::string text = fmt::format("INCOMPLETE\n  Missing communicator data from {} job process{}\n",
                                 job.silent.size(), plural(job.silent.size(), "", "es"));
  if (is_outlier(job.silent.size(), job.processes.size(), is_verbose))
    for (const ProcessName& process : job.silent)
      text += "  " + describe_process(job, process) + "\n";
  text += "\n";
  if (job.dead.empty()) return text;
  text +=
      fmt::format("DEAD\n  {} job process{} considered dead (unreachable via the RAS network)\n",
                  job.dead.size(), plural(job.dead.size(), " is", "es are"));
  for (const ProcessName& process : job.dead) text += "  " + describe_process(job, process) + "\n";
  return text + "\n";
}

std::string describe_missing(const CommunicatorReport& report, bool is_verbose) {
  std::string text = fmt::format("  Missing communicator data from {} rank{}\n",
                                 report.missing.size(), plural(report.missing.size()));
  if (!is_outlier(report.missing.size(), static_cast<size_t>(report.nranks), is_verbose))
    return text;
  for (const Missing& missing : report.missing)
    text +=
        missing.process.pid == 0
            ? fmt::format("  Rank {} -- [process information not found]\n", missing.rank)
            : fmt::format("  Rank {} -- managed by {}\n", missing.rank, describe(missing.process));
  return text;
}

/// Describes groups of ranks with an equal value, the largest group first: `several(value, count)`
/// is the text for many ranks, `one(value)` for one. Groups for which `leaves_out` is true are
/// omitted.
template <typename Value>
std::string describe_groups(const CommunicatorReport& report, bool is_verbose,
                            const std::function<Value(const Member&)>& value_of,
                            const std::function<bool(const Value&)>& leaves_out,
                            const std::function<std::string(const Value&)>& words) {
  std::map<Value, std::vector<int>> groups;
  for (const auto& [rank, member] : report.ranks) groups[value_of(member)].push_back(rank);
  std::vector<std::pair<Value, std::vector<int>>> sorted(groups.begin(), groups.end());
  std::ranges::stable_sort(sorted, std::greater<>(),
                           [](const auto& group) { return group.second.size(); });
  std::string text;
  for (const auto& [value, ranks] : sorted) {
    if (leaves_out(value)) continue;
    if (ranks.size() == 1) {
      text += fmt::format("  Rank {} {} -- {}\n", ranks.front(), words(value),
                          describe(report.ranks.at(ranks.front())));
      continue;
    }
    std::string plural_words = words(value);
    if (plural_words.starts_with("has ")) plural_words.replace(0, 4, "have ");
    text += fmt::format("  {} ranks {}\n", ranks.size(), plural_words);
    if (is_outlier(ranks.size(), report.ranks.size(), is_verbose))
      for (const int rank : ranks)
        text += fmt::format("  Rank {} -- {}\n", rank, describe(report.ranks.at(rank)));
  }
  return text;
}

std::string describe_errors(const CommunicatorReport& report, bool is_verbose) {
  const auto failed = static_cast<size_t>(std::ranges::count_if(
      report.ranks, [](const auto& rank) { return rank.second.status.async_error != 0; }));
  return fmt::format("  Asynchronous error{} on {} rank{}\n", plural(failed), failed,
                     plural(failed)) +
         describe_groups<int>(
             report, is_verbose, [](const Member& member) { return member.status.async_error; },
             [](const int& code) { return code == 0; },
             [](const int& code) { return fmt::format("reported {}", name_of_error(code)); });
}

std::string describe_statuses(const CommunicatorReport& report, bool is_verbose) {
  return "  Communicator ranks have different status\n" +
         describe_groups<RankState>(
             report, is_verbose, [](const Member& member) { return state_of(member.status); },
             [](const RankState&) { return false; },
             [](const RankState& status) { return fmt::format("has status {}", name_of(status)); });
}

std::string describe_counts(const CommunicatorReport& report, size_t counted, bool is_verbose) {
  return fmt::format("  Communicator ranks have different {} operation counts\n",
                     kCountNames[counted]) +
         describe_groups<uint64_t>(
             report, is_verbose,
             [counted](const Member& member) { return member.status.counts[counted]; },
             [](const uint64_t&) { return false; },
             [](const uint64_t& count) -> std::string {
               if (count == 0) return "has not launched any operations";
               return fmt::format("has launched up to operation {}", count);
             }) +
         "\n";
}

// ---- JSON

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  }
  return result + "\"";
}

/// Two blanks for each level, a key a line, as NCCL has it.
class Lines {
 public:
  void open(const std::string& text) {
    line(text);
    ++depth_;
    is_first_ = true;
  }
  void close(const char* bracket) {
    --depth_;
    text_ += "\n" + std::string(2 * depth_, ' ') + bracket;
    is_first_ = false;
  }
  void line(const std::string& text) {
    if (!text_.empty()) text_ += is_first_ ? "\n" : ",\n";
    text_ += std::string(2 * depth_, ' ') + text;
    is_first_ = false;
  }
  void field(const char* name, const std::string& value) {
    line(fmt::format("\"{}\": {}", name, value));
  }
  std::string take() && { return std::move(text_) + "\n"; }

 private:
  std::string text_;
  size_t depth_ = 0;
  bool is_first_ = true;
};

const char* truth(bool value) { return value ? "true" : "false"; }

void add_place(Lines& lines, int rank, const ProcessName& process, int device) {
  const bool is_known = process.pid != 0;
  lines.field("rank", std::to_string(rank));
  lines.field("host", quoted(is_known ? process.host : "unknown"));
  lines.field("pid", is_known ? std::to_string(process.pid) : "-1");
  lines.field("cuda_dev", std::to_string(device));
  lines.field("nvml_dev", std::to_string(device));
}

void add_rank(Lines& lines, int rank, const Member& member) {
  lines.open("{");
  add_place(lines, rank, member.process, member.status.device);
  lines.open("\"status\": {");
  lines.field("init_state", "0");
  lines.field("async_error", std::to_string(member.status.async_error));
  lines.field("finalize_called", truth(member.status.finalized));
  lines.field("destroy_flag", "false");
  lines.field("abort_flag", truth(member.status.aborted));
  lines.close("}");
  lines.open("\"collective_counts\": {");
  for (size_t counted = 0; counted < diagnosis::kCounted; ++counted)
    lines.field(kCountNames[counted], std::to_string(member.status.counts[counted]));
  lines.close("}");
  lines.close("}");
}

void add_communicator(Lines& lines, const CommunicatorReport& report, const Job& job) {
  lines.open("{");
  lines.field("hash", fmt::format("\"0x{:x}\"", report.id));
  const auto first = report.ranks.find(0);
  const bool is_known = first != report.ranks.end();
  lines.field("secondary_hash",
              fmt::format("\"0x{:x}:0x{:x}\"",
                          is_known ? std::hash<std::string>()(first->second.process.host) : 0,
                          is_known ? first->second.process.pid : 0));
  lines.field("size", std::to_string(report.nranks));
  lines.field("ranks_count", std::to_string(report.ranks.size()));
  lines.field("missing_ranks_count", std::to_string(report.missing.size()));
  lines.open("\"ranks\": [");
  for (const auto& [rank, member] : report.ranks) add_rank(lines, rank, member);
  lines.close("]");
  lines.open("\"missing_ranks\": [");
  for (const Missing& missing : report.missing) {
    lines.open("{");
    add_place(lines, missing.rank, missing.process, -1);
    lines.open("\"status\": {");
    lines.field("unresponsive", truth(job.silent.contains(missing.process)));
    lines.field("considered_dead", truth(job.dead.contains(missing.process)));
    lines.close("}");
    lines.close("}");
  }
  lines.close("]");
  lines.close("}");
}

}  // namespace

std::string text_head(const Versions& versions, const Job& known) {
  return fmt::format(
             "NCCL version {} compiled with CUDA {}.{}\nCUDA runtime version {}, driver version "
             "{}\n\n",
             versions.library, versions.cuda / 1000, versions.cuda % 1000 / 10, versions.runtime,
             versions.driver) +
         summarize(known) + "\nCommunicators...";
}

std::string text_rest(const Job& job, bool is_verbose) {
  const std::vector<RowGroup> groups = group_rows(job);
  std::string text = fmt::format(" ({:.3f}s)\n=============\n\n", job.elapsed.count());
  text += groups.empty() ? "No communicator data collected!\n" : table_of(groups);
  text += "\n" + underlined("Errors") + describe_silent(job, is_verbose);
  for_each_row(groups, [&](size_t group, size_t index, const CommunicatorReport& report) {
    if (!report.missing.empty())
      text += block_title(group, index, report, "INCOMPLETE") +
              describe_missing(report, is_verbose) + "\n";
    if (has_error(report))
      text +=
          block_title(group, index, report, "ERROR") + describe_errors(report, is_verbose) + "\n";
  });
  text += underlined("Warnings");
  if (job.timeouts > 0)
    text += fmt::format(
        "TIMEOUT\n  Encountered {} communication timeout{} while gathering communicator data\n\n",
        job.timeouts, plural(static_cast<size_t>(job.timeouts)));
  for_each_row(groups, [&](size_t group, size_t index, const CommunicatorReport& report) {
    std::string block;
    if (differs_in_status(report)) block += describe_statuses(report, is_verbose) + "\n";
    for (size_t counted = 0; counted < diagnosis::kCounted; ++counted)
      if (differs_in_count(report, counted)) block += describe_counts(report, counted, is_verbose);
    if (!block.empty()) text += block_title(group, index, report, "MISMATCH") + block;
  });
  return text;
}

std::string verdicts_of(const Job& job) {
  std::set<std::string> lines;  // ranks give equal lines
  for (const CommunicatorReport& report : job.communicators)
    for (const auto& [rank, member] : report.ranks)
      if (!member.status.verdict.empty()) lines.insert(member.status.verdict);
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::string stragglers_of(const Job& job) {
  std::string text;
  for (const CommunicatorReport& report : job.communicators)
    for (const auto& [rank, member] : report.ranks) text += member.status.stragglers;
  return text;
}

std::string to_json(const Versions& versions, const Job& job, const std::string& timestamp) {
  Lines lines;
  lines.open("{");
  lines.field("nccl_version", quoted(versions.library));
  lines.field("cuda_runtime_version", std::to_string(versions.runtime));
  lines.field("cuda_driver_version", std::to_string(versions.driver));
  lines.field("timestamp", quoted(timestamp));
  lines.field("communicators_count", std::to_string(job.communicators.size()));
  lines.open("\"communicators\": [");
  for (const CommunicatorReport& report : job.communicators) add_communicator(lines, report, job);
  lines.close("]");
  lines.open("\"ras\": {");
  lines.field("collection_time_sec", fmt::format("{:.3f}", job.elapsed.count()));
  lines.field("timeouts_count", std::to_string(job.timeouts));
  lines.close("}");
  lines.close("}");
  return std::move(lines).take();
}

}  // namespace niccolite::ras
