#include "algorithms/loaded.h"

#include <fmt/core.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/files.h"
#include "base/log.h"
#include "base/parameters.h"
#include "schedule/check.h"
#include "schedule/index.h"

namespace niccolite::algorithms {
namespace {

using schedule::Buffer;
using schedule::Collective;
using schedule::Schedule;

constexpr size_t kMostBytes = 256 << 20;  // of a file
constexpr size_t kMostName = 48;
constexpr size_t kMostBlocks = size_t{1} << 21;  // of all ranks
// The most for all collectives together, so that a number of one byte tells all algorithms apart
// (observe::Event).
constexpr size_t kMostLoaded = 128;
// The most for one collective, beside the built-in ones (kMostFormsOfCollective).
constexpr size_t kMostLoadedOfCollective = 16;

/// NCCL_ALGO ignores case, and cuts lists at ',', ':' and ';'.
bool is_name(std::string_view name) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && name.size() <= kMostName && std::ranges::all_of(name, is_allowed);
}

/// Shifts tags so that no connection of the collective has the tag of messages, which have other
/// slots.
void free_message_tag(Schedule& schedule) {
  for (schedule::Connection& connection : schedule.connections)
    if (connection.tag >= schedule::kMessageTag) ++connection.tag;
}

/// The set of the process.
struct Registered {
  std::mutex mutex;
  bool is_in_use = false;  // and changes no more
  LoadedSet set;
};

Registered& registered() {
  static auto& known = *new Registered;  // never destroyed: communicators may outlive main()
  return known;
}

}  // namespace

const LoadedFile* Loaded::find(int nranks) const {
  const auto found = by_ranks.find(nranks);
  return found == by_ranks.end() ? nullptr : &found->second;
}

std::string Loaded::describe_ranks() const {
  std::string text;
  size_t i = 0;
  for (const auto& [nranks, file] : by_ranks) {
    const bool is_last = ++i == by_ranks.size();
    text += fmt::format("{}{}", i == 1 ? "" : is_last ? " and " : ", ", nranks);
  }
  return text + " ranks";
}

Result<Schedule> Loaded::build(int nranks, const Options& options) const {
  const LoadedFile* const found = find(nranks);
  if (found == nullptr)
    return Status::invalid_argument("{} is read from files for {}, not {}", name, describe_ranks(),
                                    nranks);
  const Schedule& schedule = found->file.schedule;
  TRY(check_options(name.c_str(), nranks, nranks, options));
  if (!schedule::has_root(collective) || options.root == schedule.root) return schedule;
  return with_root(schedule, options.root);
}

Schedule with_root(Schedule schedule, int root) {
  const int n = schedule.nranks;
  const int shift = (root - schedule.root + n) % n;
  if (shift == 0) return schedule;
  const auto move = [&](int& rank) { rank = (rank + shift) % n; };
  // Gather and Scatter: the root's blocks are the ranks' own.
  const auto is_of_ranks = [&](const schedule::BlockReference& reference) {
    return (schedule.collective == Collective::Gather && reference.buffer == Buffer::Output) ||
           (schedule.collective == Collective::Scatter && reference.buffer == Buffer::Input);
  };
  for (schedule::Connection& connection : schedule.connections) {
    move(connection.sender);
    move(connection.receiver);
  }
  for (std::vector<schedule::Channel>& channels : schedule.ranks)
    for (schedule::Channel& channel : channels)
      for (schedule::Worker& worker : channel.workers)
        for (schedule::Instruction& instruction : worker.instructions)
          for (auto* const reference : {&instruction.source, &instruction.target})
            if (*reference && is_of_ranks(**reference)) move((*reference)->block);
  std::rotate(schedule.ranks.begin(), schedule.ranks.end() - shift, schedule.ranks.end());
  schedule.root = root;
  schedule.partial_sums |= schedule::reduces(schedule.collective);
  return schedule;
}

Status LoadedSet::add(const std::string& origin, std::string_view text,
                      bool (*is_taken)(Collective, std::string_view)) {
  Result<schedule::File> read = schedule::read_file(text);
  if (!read.is_ok()) return Status::invalid_argument("{}: {}", origin, read.status().message());
  Schedule& schedule = read->schedule;
  const std::string name = schedule.algorithm;
  const char* const of = name_of(schedule.collective);
  if (schedule.collective == Collective::PointToPoint)
    return Status::invalid_usage("{}: messages have no algorithm of a file; give a collective",
                                 origin);
  for (const schedule::Connection& connection : schedule.connections)
    if (connection.tag >= schedule::kReducerTag)
      return Status::invalid_usage(
          "{}: a connection has tag {}; from {} on tags are of the network's reducer, which only "
          "built-in algorithms use",
          origin, connection.tag, schedule::kReducerTag);
  if (!is_name(name))
    return Status::invalid_usage(
        "{}: \"algorithm\" is \"{}\"; NCCL_ALGO needs a name of at most {} small letters, digits "
        "and '_'",
        origin, name, kMostName);
  if (is_taken(schedule.collective, name))
    return Status::invalid_usage(
        "{}: {} has an algorithm {} that is built in; give this one another name", origin, of,
        name);
  // The proof's memory grows with them, which a short file can make huge.
  const size_t blocks = static_cast<size_t>(schedule.nranks) *
                        static_cast<size_t>(schedule.nblocks + schedule.scratch_blocks);
  if (blocks > kMostBlocks)
    return Status::invalid_usage("{}: {} blocks of all ranks together; at most {} are read", origin,
                                 blocks, kMostBlocks);
  const Result<int> depth = schedule::least_depth(schedule);
  if (!depth.is_ok())
    return Status::invalid_usage("{}: the schedule is wrong: {}", origin, depth.status().message());
  free_message_tag(schedule);

  const auto place = std::ranges::find_if(all_, [&](const std::unique_ptr<Loaded>& each) {
    return std::pair(each->collective, std::string_view(each->name)) >=
           std::pair(schedule.collective, std::string_view(name));
  });
  const bool is_known =
      place != all_.end() && (*place)->collective == schedule.collective && (*place)->name == name;
  const int nranks = schedule.nranks;
  LoadedFile file{.origin = origin, .file = std::move(*read), .least_depth = depth.value()};
  if (is_known) {
    const LoadedFile* const other = (*place)->find(nranks);
    if (other != nullptr)
      return Status::invalid_usage("{} and {} are both {} {} for {} ranks: rename one", origin,
                                   other->origin, of, name, nranks);
    (*place)->by_ranks.emplace(nranks, std::move(file));
    return {};
  }
  const auto of_collective = std::ranges::count_if(
      all_, [&](const auto& each) { return each->collective == file.file.schedule.collective; });
  if (all_.size() >= kMostLoaded || static_cast<size_t>(of_collective) >= kMostLoadedOfCollective)
    return Status::invalid_usage(
        "{}: there are {} algorithms from files already, {} of them of {}; at most {} of a "
        "collective and {} in all are read",
        origin, all_.size(), of_collective, of, kMostLoadedOfCollective, kMostLoaded);
  auto loaded = std::make_unique<Loaded>();
  loaded->name = name;
  loaded->collective = file.file.schedule.collective;
  loaded->by_ranks.emplace(nranks, std::move(file));
  all_.insert(place, std::move(loaded));
  return {};
}

void LoadedSet::add_folder(const std::string& path,
                           bool (*is_taken)(Collective, std::string_view)) {
  const Result<std::vector<std::string>> files = json_files_in(path);
  if (!files.is_ok()) {
    failures_.emplace_back(files.status().message());
    return;
  }
  for (const std::string& file : files.value()) {
    const Result<std::string> text = read_text_file(file, kMostBytes);
    const Status status = text.is_ok() ? add(file, text.value(), is_taken) : text.status().copy();
    if (!status.is_ok()) failures_.emplace_back(status.message());
  }
}

Status register_text(const std::string& origin, std::string_view text,
                     bool (*is_taken)(Collective, std::string_view)) {
  Registered& known = registered();
  const std::lock_guard lock(known.mutex);
  if (known.is_in_use)
    return Status::invalid_usage(
        "{}: algorithms are registered before the first communicator of the process, because its "
        "ranks have agreed on those that there are",
        origin);
  return known.set.add(origin, text, is_taken);
}

const LoadedSet& loaded_algorithms(bool (*is_taken)(Collective, std::string_view)) {
  Registered& known = registered();
  const std::lock_guard lock(known.mutex);
  if (std::exchange(known.is_in_use, true)) return known.set;
  const std::string& folder = parameters::algorithms();
  if (!folder.empty()) known.set.add_folder(folder, is_taken);
  for (const std::string& failure : known.set.failures())
    LOG(Warn, Tuning, "NICCOLITE_ALGORITHMS: {}. It is left out", failure);
  for (const auto& each : known.set.all())
    LOG(Info, Tuning, "Algorithm of a file: {} {} for {}", name_of(each->collective), each->name,
        each->describe_ranks());
  return known.set;
}

}  // namespace niccolite::algorithms
