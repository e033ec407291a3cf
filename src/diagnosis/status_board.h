// StatusBoard: the present work of this process's ranks, for reports on the whole job (ras/).
// Communicators put themselves on the board when they are ready, and take themselves off before
// they end. Thread safety: any thread.
#pragma once

#include <array>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/thread_annotations.h"
#include "base/wait.h"
#include "base/wire.h"

namespace niccolite::diagnosis {

/// The five that RAS counts, in the order of its reports.
enum class Counted : uint8_t { Broadcast, Reduce, AllGather, ReduceScatter, AllReduce };
inline constexpr size_t kCounted = 5;

/// A process, as its peers know it.
struct ProcessName {
  std::string host;  // its address, without a port
  uint64_t pid = 0;
  friend auto operator<=>(const ProcessName&, const ProcessName&) = default;
};

/// One rank of one communicator.
struct RankStatus {
  uint64_t communicator = 0;  // equal on all its ranks
  int nranks = 0;
  int rank = 0;
  int device = 0;
  int async_error = 0;  // ncclResult_t
  bool finalized = false, aborted = false;
  std::string verdict;     // why its operation stands still; empty: it does not, as far as it knows
  std::string stragglers;  // of rank 0: lines on late ranks (stragglers.h)
  std::array<uint64_t, kCounted> counts{};  // collectives called so far
};

struct ProcessStatus {
  ProcessName name;
  std::vector<RankStatus> ranks;

  Bytes encode() const;
  static Result<ProcessStatus> decode(std::span<const std::byte> bytes);
};

class StatusBoard {
 public:
  static StatusBoard& of_process();

  /// The functions of a communicator that the board calls.
  struct Entry {
    std::function<RankStatus()> describe;
    /// Names the process of a rank; for one rank this is the own process.
    std::function<ProcessName(int rank)> name_of;
    std::function<int(int rank)> device_of;
    /// Has that rank's process died?
    std::function<bool(int rank)> is_lost;
    /// Does that rank's process, of this machine, not run (SIGSTOP, a debugger)? False of others.
    std::function<bool(int rank)> is_stopped;
    /// ProcessStatus::encode() of the process of `rank`, which is another one than this.
    std::function<Result<Bytes>(int rank, const Deadline& deadline, Abort& cancel)> ask;
    int nranks = 0;
    int rank = 0;
  };
  /// Adds an entry until remove(), which waits while the entry is used: end its waits before.
  uint64_t add(Entry entry) EXCLUDES(mutex_);
  void remove(uint64_t id) EXCLUDES(mutex_);

  ProcessStatus describe_this_process() EXCLUDES(mutex_);

  /// The known state of a process of some communicator, this process included, without asking it.
  struct Known {
    std::set<int> devices;
    bool is_lost = false;
    bool is_stopped = false;  // as far as it was looked for
  };
  std::map<ProcessName, Known> processes(bool looks_for_stopped = false) EXCLUDES(mutex_);

  /// A process with which some communicator of this process has ranks in common, and its answer.
  struct Peer {
    ProcessName name;
    std::vector<std::pair<uint64_t, int>> ranks;  // communicator, rank
    std::optional<ProcessStatus> status;          // nothing: it did not answer
  };
  /// All of them; waits for each that does not answer until the deadline, at most, or
  /// until `cancel` is raised.
  std::vector<Peer> ask_peers(const Deadline& deadline, Abort& cancel) EXCLUDES(mutex_);

 private:
  struct Slot {
    Entry entry;
    int users = 0;  // under mutex_
  };
  Result<Bytes> ask(Slot& slot, int rank, const Deadline& deadline, Abort& cancel) EXCLUDES(mutex_);

  std::mutex mutex_;
  std::condition_variable unused_;
  uint64_t last_id_ GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::shared_ptr<Slot>> entries_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::diagnosis
