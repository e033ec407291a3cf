// Stragglers: how late each rank of a communicator comes to its collectives: the time from the
// first rank's arrival to this rank's, as a histogram. An arrival is an event of the rank's own
// stream of events (observe/recorder.h): the rank's stream has come to the operation, by the clock
// of its host. With GPUs whose kernels do not report that, it is the time of the launch. Rank 0
// asks the others for their arrivals about once a second. Operations that a ring has forgotten by
// then, and operations of graphs, are not counted. Thread safety: any thread, but add() by one.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "base/wire.h"
#include "observe/json.h"
#include "observe/recorder.h"

namespace niccolite::diagnosis {

/// When one rank came to its last live collectives.
struct Arrivals {
  static constexpr size_t kMost = 160;  // of them at a time, the newest

  uint64_t now = 0;          // nanoseconds since 1970, by its host's clock
  uint64_t uncertainty = 0;  // nanoseconds by which the times may be wrong, as far as it knows
  struct One {
    uint64_t number = 0;  // LoggedCall::number
    uint64_t time = 0;    // the same clock
  };
  std::vector<One> collectives;  // ascending

  Bytes encode() const;
  /// `rank` is whom the bytes come from.
  static Result<Arrivals> decode(std::span<const std::byte> bytes, int rank);
};

/// Returns the arrivals at collectives after number `after`.
Arrivals arrivals_of(const observe::Recorder& recorder, uint64_t after);

class Stragglers {
 public:
  /// Ends of the histogram's bins, in nanoseconds after the first arrival; one more has the rest.
  static constexpr std::array<uint64_t, 6> kEnds{10'000,     100'000,     1'000'000,
                                                 10'000'000, 100'000'000, 1'000'000'000};
  static constexpr size_t kBins = kEnds.size() + 1;
  /// A smaller lateness counts in the histogram, and is not reported.
  static constexpr uint64_t kWorthTelling = 100'000;

  struct OfRank {
    std::array<uint64_t, kBins> bins{};
    uint64_t times_last = 0;    // that it was the last, by as much as is worth telling
    uint64_t lateness = 0;      // of these times together, in nanoseconds
    uint64_t worst = 0;         // of them
    uint64_t worst_number = 0;  // of that collective
  };

  explicit Stragglers(int nranks) : of_ranks_(static_cast<size_t>(nranks)) {}

  /// The number of the last collective that has been counted.
  uint64_t counted() const EXCLUDES(mutex_);
  /// Adds the arrivals of all ranks, by rank, with times of one clock. Counts collectives that all
  /// ranks have.
  void add(std::span<const Arrivals> of_ranks) EXCLUDES(mutex_);

  std::vector<OfRank> of_ranks() const EXCLUDES(mutex_);
  uint64_t operations() const EXCLUDES(mutex_);
  /// A line for each of the worst few ranks: who, how often, how much. Empty: nobody is late.
  std::string describe(uint64_t communicator) const EXCLUDES(mutex_);
  void describe(observe::Json& json) const EXCLUDES(mutex_);

 private:
  mutable std::mutex mutex_;
  std::vector<OfRank> of_ranks_ GUARDED_BY(mutex_);
  uint64_t operations_ GUARDED_BY(mutex_) = 0;
  uint64_t counted_ GUARDED_BY(mutex_) = 0;
};

}  // namespace niccolite::diagnosis
