// Team: what the threads of one run share, in one process or several: a barrier, the unique ids,
// and a record per rank. It is one page of shared memory, whose descriptor the supervisor's
// children inherit.
//
// Thread safety: every thread of the run calls barrier() equally often. A rank's record is written
// by the thread that drives it and read by others; a barrier stands between the two. Ids are
// written by one thread before a barrier. A thread that fails calls abort(): all others then get an
// error from barrier() instead of waiting for ever.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <span>

#include "base/fd.h"
#include "base/status.h"

namespace niccolite::perf {

struct RankRecord {
  // Written once, after initialisation.
  int process_id = 0;
  int device = -1;
  char bus_id[24] = {};
  char device_name[64] = {};
  // The last measurement and the last check.
  double microseconds = 0;
  uint64_t wrong = 0;
  uint64_t digest = 0;
  // What each library has taken of the device's memory so far (--memory).
  int64_t device_bytes_after_init[2] = {};
  int64_t device_bytes[2] = {};
};

class Team {
 public:
  /// A team of `threads` callers of barrier() and `nranks` records.
  static Result<Team> create(int threads, int nranks);
  /// The team behind `fd`, made by the supervisor's create() with equal arguments.
  static Result<Team> attach(Fd fd, int threads, int nranks);

  int fd() const { return fd_.get(); }
  int nranks() const { return nranks_; }

  Status barrier();
  /// Ends the run for all; may be called from anywhere.
  void abort();
  bool aborted() const;
  /// Grows with every arrival at a barrier: who sees it stand still sees no progress.
  uint64_t progress() const;

  /// Of communicator `number` of all, of all libraries; less than kMostIds.
  static constexpr size_t kMostIds = 16;
  ncclUniqueId& id(size_t number);
  std::span<RankRecord> records();

 private:
  struct Page;
  Team(Fd fd, Mapping mapping, int threads, int nranks)
      : fd_(std::move(fd)), mapping_(std::move(mapping)), threads_(threads), nranks_(nranks) {}
  static size_t bytes_for(int nranks);
  Page& page() const { return *static_cast<Page*>(mapping_.data()); }

  Fd fd_;
  Mapping mapping_;
  int threads_ = 0;
  int nranks_ = 0;
};

}  // namespace niccolite::perf
