#include "cli/flight/dump.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

namespace niccolite::flight {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr int kMostRanks = 1 << 20;

std::string text_of(const json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? "" : found->get<std::string>();
}
template <typename Number>
Number number_of(const json& object, const char* name, Number absent = 0) {
  const auto found = object.find(name);
  return found == object.end() ? absent : found->get<Number>();
}

Event read_event(const json& object) {
  return {.time = number_of<uint64_t>(object, "t"),
          .kind = text_of(object, "kind"),
          .launch = number_of<uint64_t>(object, "launch"),
          .call = text_of(object, "call"),
          .function = text_of(object, "function"),
          .number = number_of<uint64_t>(object, "number"),
          .stream = text_of(object, "stream"),
          .milliseconds = number_of<uint64_t>(object, "milliseconds"),
          .peer = number_of<int>(object, "peer", -1)};
}

RankDump read_rank(const json& object, uint64_t time) {
  RankDump rank{.rank = object.at("rank").get<int>(),
                .device = number_of<int>(object, "device"),
                .process = {},
                .time = time,
                .state = text_of(object, "state"),
                .failure = text_of(object, "failure"),
                .failure_rank = number_of<int>(object, "failure_rank", -1),
                .collectives = number_of<uint64_t>(object, "collectives"),
                .begun = number_of<uint64_t>(object, "begun"),
                .is_running = number_of<int>(object, "running") != 0,
                .verdict = {},
                .waits_in = {},
                .blocked = text_of(object, "blocked"),
                .events = {}};
  if (const auto verdict = object.find("verdict"); verdict != object.end()) {
    rank.verdict = text_of(*verdict, "text");
    rank.verdict_rank = number_of<int>(*verdict, "rank", -1);
  }
  if (const auto waiting = object.find("waiting"); waiting != object.end()) {
    rank.waits_in = text_of(*waiting, "call");
    rank.waits_for = number_of<int>(*waiting, "peer", -1);
    rank.waited = number_of<uint64_t>(*waiting, "milliseconds");
  }
  for (const json& event : object.at("events")) rank.events.push_back(read_event(event));
  return rank;
}

/// One rank of a communicator, as a file has it.
struct Described {
  CommunicatorDump communicator;  // without ranks
  RankDump rank;
};

Described read_communicator(const json& object, uint64_t time) {
  Described read{
      .communicator = {.id = object.at("id").get<std::string>(),
                       .nranks = object.at("nranks").get<int>(),
                       .processes = object.at("processes").get<std::vector<std::string>>(),
                       .ranks = {}},
      .rank = read_rank(object, time)};
  const CommunicatorDump& of = read.communicator;
  if (of.nranks < 1 || of.nranks > kMostRanks || read.rank.rank < 0 ||
      read.rank.rank >= of.nranks || of.processes.size() != static_cast<size_t>(of.nranks))
    throw std::runtime_error("ranks that cannot be");
  read.rank.process = of.processes[static_cast<size_t>(read.rank.rank)];
  return read;
}

// All of a file, or nothing.
std::vector<Described> read_communicators(const Flight& known, const json& document) {
  const auto time = document.at("time").get<uint64_t>();
  std::vector<Described> all;
  std::map<std::string, int> nranks;
  for (const json& object : document.at("communicators")) {
    Described& read = all.emplace_back(read_communicator(object, time));
    const CommunicatorDump& of = read.communicator;
    const auto before = known.communicators.find(of.id);
    const int expected = before == known.communicators.end() ? of.nranks : before->second.nranks;
    if (nranks.try_emplace(of.id, expected).first->second != of.nranks)
      throw std::runtime_error("a communicator with another number of ranks elsewhere");
  }
  return all;
}

void add(Flight& flight, Described described) {
  CommunicatorDump& communicator = flight.communicators[described.communicator.id];
  described.communicator.ranks = std::move(communicator.ranks);
  communicator = std::move(described.communicator);
  // The later of two dumps of one rank counts.
  RankDump& rank = described.rank;
  const auto known = communicator.ranks.find(rank.rank);
  if (known == communicator.ranks.end() || known->second.time <= rank.time)
    communicator.ranks[rank.rank] = std::move(rank);
}

Status read_file(Flight& flight, const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) return Status::invalid_argument("{}: cannot be opened", path.string());
  try {
    const json document = json::parse(file);
    if (const int format = document.at("format").get<int>(); format != kFormat)
      return Status::invalid_argument("{}: is of format {}, and this command reads format {}",
                                      path.string(), format, kFormat);
    for (Described& described : read_communicators(flight, document))
      add(flight, std::move(described));
  } catch (const std::exception& error) {
    return Status::invalid_argument("{}: is no whole dump ({})", path.string(), error.what());
  }
  ++flight.files;
  return {};
}

}  // namespace

Result<Flight> read_flight(const std::filesystem::path& path) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(path, error)) {
    for (const auto& entry : std::filesystem::directory_iterator(path, error))
      if (entry.path().extension() == ".json") files.push_back(entry.path());
    std::ranges::sort(files);
  } else {
    files.push_back(path);
  }
  Flight flight;
  for (const std::filesystem::path& file : files)
    if (const Status status = read_file(flight, file); !status.is_ok())
      flight.problems.push_back(status.message());
  if (flight.files > 0) return flight;
  return Status::invalid_argument(
      "{} has no dump of the flight recorder{}", path.string(),
      flight.problems.empty() ? ", no file *.json" : ": " + flight.problems.front());
}

const Event* last_call(const RankDump& rank) {
  const auto is_call = [](const Event& event) { return event.kind == "called"; };
  const auto found = std::find_if(rank.events.rbegin(), rank.events.rend(), is_call);
  return found == rank.events.rend() ? nullptr : &*found;
}

}  // namespace niccolite::flight
