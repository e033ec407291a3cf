#include "cli/tune/jobs.h"

#include <algorithm>
#include <optional>

#include "cli/grammar/collective.h"
#include "cli/perf/launch.h"
#include "planner/choice/choice.h"
#include "planner/choice/eligibility.h"
#include "schedule/schedule.h"

namespace niccolite::tune {
namespace {

using executor::Protocol;

// Words that carry flags halve the bandwidth, lines lose little but are not the fastest: beyond
// these sizes nobody would choose the protocol, and its rates are known. Publishing chunks never
// pays below the last.
constexpr size_t kMostByLL = 4 << 20;
constexpr size_t kMostByLL128 = 64 << 20;
constexpr size_t kFewestByChunks = 4 << 10;
// From here on a few operations take long enough to be measured.
constexpr size_t kLarge = 8 << 20;
static_assert(kLarge == planner::kLeastPublishedInParts, "both are measured by jobs of their own");

bool is_sensible(Protocol protocol, size_t bytes, DataPath path) {
  if (protocol == Protocol::LL) return bytes <= kMostByLL;
  if (protocol == Protocol::LL128) return bytes <= kMostByLL128;
  // Virtual GPUs choose it by the network whatever the size.
  return bytes >= kFewestByChunks || path == DataPath::Network;
}

std::vector<int> channels_of(const Request& request, const planner::Settings& settings,
                             Protocol protocol) {
  const int most = static_cast<int>(settings.shapes[static_cast<size_t>(protocol)].channels);
  if (most == 0) return {};  // this machine has no such protocol
  if (!request.channels.empty()) return request.channels;
  std::vector<int> channels{most};
  for (const int divisor : {2, 6})
    if (const int count = most / divisor; count >= 1 && count < channels.back())
      channels.push_back(count);
  return channels;
}

/// Algorithms that jobs measure together: for each of the request's collectives some.
using Algorithms = std::vector<std::vector<const Form*>>;

/// For each collective its built-in algorithms by `protocol`; then each algorithm of a file by
/// itself, as it may be for some sizes alone.
std::vector<Algorithms> algorithms_of(const planner::Settings& settings, const Request& request,
                                      Protocol protocol) {
  std::vector<Algorithms> result(1, Algorithms(request.collectives.size()));
  for (size_t c = 0; c < request.collectives.size(); ++c)
    for (const Form& form : planner::forms_of(request.collectives[c])) {
      const bool is_of_file = form.loaded() != nullptr;
      if (!planner::is_possible(settings.machine, settings.nranks, form, protocol,
                                planner::machines_in(settings)) ||
          (is_of_file && !planner::is_allowed(settings, {.form = &form, .protocol = protocol})))
        continue;
      if (is_of_file) result.emplace_back(request.collectives.size());
      (is_of_file ? result.back() : result.front())[c].push_back(&form);
    }
  return result;
}

/// Do the files of all algorithms of `job` offer them for this size of the larger buffer?
bool are_for_size(const planner::Settings& settings, const Job& job, size_t bytes) {
  return std::ranges::all_of(job.variants, [&](const auto& variant) {
    const auto& [collective, form] = variant;
    if (form->loaded() == nullptr) return true;
    const size_t blocks =
        schedule::has_blocks_of_ranks(collective) ? static_cast<size_t>(job.nranks) : 1;
    return planner::obstacle_to(settings, {.form = form, .protocol = job.protocol}, bytes / blocks)
        .empty();
  });
}

void add_free_jobs(int nranks, const Request& request, std::vector<Job>& jobs) {
  for (const bool is_large : {false, true}) {
    Job job{.nranks = nranks, .variants = {}, .sizes = {}, .is_large = is_large, .is_free = true};
    for (const Collective collective : request.collectives)
      job.variants.emplace_back(collective, nullptr);
    for (const size_t bytes : request.sizes)
      if (is_large == (bytes >= kLarge)) job.sizes.push_back(bytes);
    if (!job.sizes.empty()) jobs.push_back(job);
  }
}

void add_jobs(const Job& shape, const planner::Settings& settings, const Request& request,
              const Algorithms& algorithms, std::vector<Job>& jobs) {
  size_t runs = 0;
  for (const auto& each : algorithms) runs = std::max(runs, each.size());
  for (size_t run = 0; run < runs; ++run) {
    Job job = shape;
    for (size_t c = 0; c < algorithms.size(); ++c)
      if (run < algorithms[c].size())
        job.variants.emplace_back(request.collectives[c], algorithms[c][run]);
    const bool is_published = planner::publishes_chunks(job.protocol);
    for (const bool is_large : {false, true}) {
      if (!is_large && job.parts > 1 && is_published) continue;
      job.is_large = is_large;
      job.sizes.clear();
      for (const size_t bytes : request.sizes)
        if (is_sensible(job.protocol, bytes, request.path) &&
            is_large == (is_published && bytes >= kLarge) && are_for_size(settings, job, bytes) &&
            (job.parts == 1 || bytes > job.chunk_bytes))
          job.sizes.push_back(bytes);
      if (!job.sizes.empty()) jobs.push_back(job);
    }
  }
}

std::string joined(const std::vector<std::string>& parts, char separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (!text.empty()) text += separator;
    text += part;
  }
  return text;
}

}  // namespace

std::map<std::string, std::string> Job::environment() const {
  std::vector<std::string> groups;
  for (const auto& [collective, form] : variants)
    if (form != nullptr)
      groups.push_back(
          fmt::format("{}:{}", planner::function_name(collective), planner::selector_of(*form)));
  const std::string ctas = is_free ? "" : std::to_string(channels);
  std::map<std::string, std::string> result{
      {"NCCL_ALGO", is_free ? "" : joined(groups, ';')},
      {"NCCL_PROTO", is_free ? "" : executor::name_of(protocol)},
      {"NCCL_MIN_CTAS", ctas},
      {"NCCL_MAX_CTAS", ctas},
      {"NCCL_MIN_NCHANNELS", ""},
      {"NCCL_MAX_NCHANNELS", ""},
      {"NCCL_CTA_POLICY", ""},
      {"NCCL_P2P_DIRECT_DISABLE", path == DataPath::Slots ? "1" : "0"},
      {"NCCL_NVLS_ENABLE", "0"},
      {"NICCOLITE_PULL_BLOCK", ""},
      {"NICCOLITE_CHUNK_PARTS", is_free ? "" : std::to_string(parts)}};
  // A job is a run by itself, and no process of a launcher's run.
  for (const std::string& name : perf::launcher_variables()) result[name] = "";
  if (path == DataPath::HostMemory) result["NCCL_P2P_DISABLE"] = "1";
  if (path == DataPath::Network) result["NCCL_P2P_DISABLE"] = result["NCCL_SHM_DISABLE"] = "1";
  return result;
}

std::vector<std::string> Job::arguments(const std::string& json_path) const {
  std::vector<std::string> names, texts;
  for (const auto& variant : variants) names.emplace_back(grammar::collective_name(variant.first));
  for (const size_t bytes : sizes) texts.push_back(std::to_string(bytes));
  return {"perf",
          joined(names, ','),
          "--nthreads",
          std::to_string(nranks),
          "--ngpus",
          "1",
          "--sizes",
          joined(texts, ','),
          "--iters",
          is_large ? "3" : "20",
          "--warmup_iters",
          "2",
          "--cudagraph",
          is_large ? "4" : "8",
          "--check",
          "0",
          "--out-of-place",
          "--timeout",
          "20",
          "--output_file",
          json_path};
}

std::string Job::describe() const {
  if (is_free)
    return fmt::format("{} ranks, the library's own choice{}", nranks, is_large ? ", large" : "");
  std::string text = fmt::format("{} ranks, {}, {} channel{}", nranks, executor::name_of(protocol),
                                 channels, channels == 1 ? "" : "s");
  if (parts > 1) text += fmt::format(", {} chunks a slot", parts);
  std::vector<std::string> names;
  for (const auto& variant : variants) {
    const std::string name = variant.second->name;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return text + ": " + joined(names, ' ') + (is_large ? ", large" : "");
}

/// Among so few ranks the connections of all collectives and messages are the same.
constexpr auto kAny = planner::Collective::AllReduce;

Result<std::vector<Job>> make_jobs(gpu::Kind machine, const Request& request) {
  std::vector<Job> jobs;
  if (request.path == DataPath::HostMemory && machine != gpu::Kind::Cuda)
    return Status::invalid_usage(
        "host memory connects all virtual GPUs: measure them without --host-memory");
  std::optional<planner::MachineClass> machine_class;  // of all rank counts
  for (const int nranks : request.ranks) {
    planner::Settings settings = TRY(planner::make_settings(machine, nranks, {}));
    set_path(settings, request.path);
    // Jobs select by NCCL_ALGO and NCCL_PROTO themselves, and perf measures floats.
    for (planner::FormSet& forms : settings.forms) forms.set();
    for (planner::ProtocolSet& protocols : settings.protocols) protocols.fill(true);
    settings.type = executor::DataType::Float32;
    if (!machine_class) machine_class = planner::class_of(settings);
    if (planner::class_of(settings) != *machine_class)
      return Status::invalid_usage(
          "through slots, two ranks have constants of their own: measure {} and {} ranks apart",
          request.ranks.front(), nranks);
    add_free_jobs(nranks, request, jobs);
    for (int id = executor::kProtocols; id-- > 0;) {
      const auto protocol = static_cast<Protocol>(id);
      // The host's memory may tear lines, and proxies carry none.
      const bool keeps_lines =
          request.path != DataPath::HostMemory && request.path != DataPath::Network;
      if (!keeps_lines && protocol == Protocol::LL128) continue;
      const auto& wanted = request.protocols;
      if (!wanted.empty() && std::ranges::find(wanted, protocol) == wanted.end()) continue;
      const std::vector<Algorithms> together = algorithms_of(settings, request, protocol);
      const std::vector<int> counts = channels_of(request, settings, protocol);
      const int most = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
      for (const int channels : counts)
        for (int parts = 1; parts <= planner::most_parts(protocol); parts *= 2) {
          // Smaller chunks of few channels tell nothing new.
          if (parts > 1 && 4 * channels <= most) continue;
          const Variant variant{.protocol = protocol, .channels = channels, .parts = parts};
          const Job shape{.nranks = nranks,
                          .protocol = protocol,
                          .channels = channels,
                          .parts = parts,
                          .chunk_bytes = planner::chunk_bytes(settings, kAny, variant),
                          .variants = {},
                          .sizes = {}};
          for (const Algorithms& algorithms : together)
            add_jobs(shape, settings, request, algorithms, jobs);
        }
    }
  }
  for (Job& job : jobs) job.path = request.path;
  // Whole machines first, with all their channels: with a time limit the rest may be missing.
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const Job& a, const Job& b) { return a.parts < b.parts; });
  return jobs;
}

}  // namespace niccolite::tune
