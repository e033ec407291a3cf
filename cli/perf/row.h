// The reports of a run: a Start (who takes part), a Row per collective, size, type, operation and
// root, and at the end the memory that the libraries took. Plain data with a JSON form, in which it
// also travels from the measuring process to the supervisor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace niccolite::perf {

/// The times of the operation and of the product of --beside, each alone.
struct Alone {
  double operation_us = 0;
  double product_us = 0;
};

struct Measurement {
  double microseconds = 0;             // per operation; the median of `samples`. --beside: of both
  std::vector<double> samples;         // one per round
  std::optional<uint64_t> wrong;       // elements over all ranks; absent: not checked
  std::optional<int> differing_ranks;  // ranks with other bits than rank 0's (--bitwise)
  std::optional<Alone> alone;          // --beside
  // --buffers new: to allocate the pair of a call and to free another one; not in `microseconds`
  // unless a stream orders the memory.
  std::optional<double> allocation_us = std::nullopt;
  std::vector<double> first_us = {};  // --first: calls one by one; medians over the rounds
};

struct PlaceResult {
  Measurement ours;
  std::optional<Measurement> other;  // of the library named by --vs
};

struct Row {
  std::string collective;
  size_t bytes = 0;  // of the larger buffer
  size_t count = 0;  // the call's
  std::string type;
  std::string operation;
  int root = -1;     // -1: the collective has none
  size_t start = 0;  // elements from an aligned address to where the buffers begin
  int nranks = 0;
  std::optional<PlaceResult> out_of_place;
  std::optional<PlaceResult> in_place;
};

struct Participant {
  int rank = 0;
  int process_id = 0;
  int device = 0;
  std::string host{};
  std::string bus_id;
  std::string device_name;
};

struct LibraryName {
  std::string path;
  std::string version;
};

struct Start {
  bool is_virtual = false;
  int driver_version = 0;
  LibraryName library;
  std::optional<LibraryName> other;
  std::vector<Participant> participants;
  std::vector<std::string> skipped;  // collectives of "all" that cannot be measured here, and why
};

/// Device memory that a library's communicator takes, on the GPU where it takes most.
struct MemoryUse {
  int64_t after_init_bytes = 0;
  int64_t after_run_bytes = 0;
};

/// GB/s as nccl-tests reports them: bytes over time, and the same per link, by the factors
/// of the row's collective.
double algorithm_bandwidth(const Row& row, double microseconds);
double bus_bandwidth(const Row& row, double microseconds);
/// The other library's time over ours: above 1, ours is faster.
double ratio(const PlaceResult& result);

/// The receiver of the measuring process's reports.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void start(const Start& start) = 0;
  virtual void row(const Row& row) = 0;
  /// One entry per library, after the last row (--memory).
  virtual void memory(const std::vector<MemoryUse>& uses) = 0;
  /// The run ends here. Called once at most, perhaps from another thread than the others.
  virtual void failure(const std::string& message) = 0;
};

}  // namespace niccolite::perf
