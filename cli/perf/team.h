// Team: the shared state of one run's threads, in one process or several: a barrier, the unique
// ids, and a record per rank. It is one page of shared memory, whose descriptor the supervisor's
// children inherit. Processes that share no memory have a page each and a bridge between them: the
// last thread of a process at a barrier exchanges with the other processes what theirs have
// written.
//
// Thread safety: every thread of the run calls barrier() equally often. A rank's record is written
// by the thread that drives it and read by others; a barrier stands between the two. Ids are
// written by one thread before a barrier. A thread that fails calls abort(): all others then get an
// error from barrier() instead of waiting for ever.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "cli/perf/bridge.h"

namespace niccolite::perf {

struct RankRecord {
  // Written once, after initialisation.
  int process_id = 0;
  int device = -1;
  char host[64] = {};
  char bus_id[24] = {};
  char device_name[64] = {};
  // The last measurement and the last check.
  double microseconds = 0;
  double allocation_microseconds = 0;  // of a call's fresh buffers (--buffers new)
  uint64_t wrong = 0;
  uint64_t digest = 0;
  // Device memory that each library has taken so far (--memory).
  int64_t device_bytes_after_init[2] = {};
  int64_t device_bytes[2] = {};
};

class Team {
 public:
  /// A team of `threads` callers of barrier() and `nranks` records.
  static Result<Team> create(int threads, int nranks);
  /// The team behind `fd`, made by the supervisor's create() with equal arguments.
  static Result<Team> attach(Fd fd, int threads, int nranks);

  /// Returns a team over the processes of `bridge`. This process has `threads` callers of barrier()
  /// and drives `ranks` ranks. Collective. Ranks are numbered in the order of the processes.
  static Result<Team> span(std::unique_ptr<Bridge> bridge, int threads, int ranks);

  int fd() const { return fd_.get(); }
  /// Returns the first rank of this process in a team over a bridge, else 0.
  int first_rank() const { return first_rank_of_.empty() ? 0 : first_rank_of_[process()]; }
  int nranks() const { return nranks_; }

  Status barrier();
  /// Ends the run for all; may be called from anywhere.
  void abort();
  bool aborted() const;
  /// Grows with every arrival at a barrier: who sees it stand still sees no progress.
  uint64_t progress() const;

  /// Returns the id of a communicator. `number` counts over all libraries and is less than
  /// kMostIds.
  static constexpr size_t kMostIds = 16;
  ncclUniqueId& id(size_t number);
  std::span<RankRecord> records();

 private:
  struct Page;
  Team(Fd fd, Mapping mapping, int threads, int nranks)
      : fd_(std::move(fd)), mapping_(std::move(mapping)), threads_(threads), nranks_(nranks) {}
  static size_t bytes_for(int nranks);
  size_t process() const { return static_cast<size_t>(bridge_->process()); }
  /// Called by the last thread of this process at a barrier, while the others wait.
  Status cross();
  /// Returns the part of the page that the process writes and the others get.
  std::span<std::byte> written_by(size_t process);
  Page& page() const { return *static_cast<Page*>(mapping_.data()); }

  Fd fd_;
  Mapping mapping_;
  int threads_ = 0;
  int nranks_ = 0;
  std::vector<int> first_rank_of_;  // by process, and behind the last one nranks_; empty: no bridge
  std::unique_ptr<Bridge> bridge_;
};

}  // namespace niccolite::perf
