// The runs that measure every variant. A job is one run of `niccolite perf` with one algorithm for
// each of several collectives, one protocol and one number of channels: starting a process on GPUs
// takes longer than most measurements.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/tune/points.h"
#include "planner/settings.h"

namespace niccolite::tune {

struct Request {
  std::vector<int> ranks;
  std::vector<Collective> collectives;
  std::vector<size_t> sizes;                    // of the larger buffer, ascending
  std::vector<int> channels;                    // empty: the most, half of them and a sixth
  std::vector<executor::Protocol> protocols{};  // empty: all
  DataPath path = DataPath::Best;
};

struct Job {
  int nranks = 0;
  executor::Protocol protocol = executor::Protocol::Simple;
  int channels = 1;
  int parts = 1;
  size_t chunk_bytes = 0;
  std::vector<std::pair<Collective, const Form*>> variants;  // one per collective
  std::vector<size_t> sizes;
  bool is_large = false;  // sizes that a few operations are enough for
  DataPath path = DataPath::Best;
  bool is_free = false;  // forces nothing: the library chooses by itself

  /// The variables that leave the library no other choice; empty variables have to be unset.
  std::map<std::string, std::string> environment() const;
  /// Arguments of `niccolite`, from "perf" on.
  std::vector<std::string> arguments(const std::string& json_path) const;
  std::string describe() const;
};

/// In the order in which they tell most.
Result<std::vector<Job>> make_jobs(gpu::Kind machine, const Request& request);

}  // namespace niccolite::tune
