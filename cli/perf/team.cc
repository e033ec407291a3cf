#include "cli/perf/team.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <ctime>

namespace niccolite::perf {
namespace {

// std::atomic::wait sleeps on a futex that other processes do not see; this one is shared between
// processes.
void futex_wait(std::atomic<uint64_t>& word, uint32_t seen, long milliseconds) {
  const timespec timeout = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}
void futex_wake_all(std::atomic<uint64_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace

struct Team::Page {
  alignas(64) std::atomic<uint64_t> arrivals;  // at all barriers so far; only grows
  alignas(64) std::atomic<uint32_t> aborted;
  alignas(64) ncclUniqueId ids[kMostIds];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
                  std::endian::native == std::endian::little,
              "the page is shared between processes, and a futex is the low half of `arrivals`");

size_t Team::bytes_for(int nranks) {
  return sizeof(Page) + static_cast<size_t>(nranks) * sizeof(RankRecord);
}

Result<Team> Team::create(int threads, int nranks) {
  Fd fd = TRY(Fd::memfd("niccolite-perf", bytes_for(nranks)));
  return attach(std::move(fd), threads, nranks);
}

Result<Team> Team::attach(Fd fd, int threads, int nranks) {
  // The memory is zero when new, which is the initial state of all of it.
  Mapping mapping = TRY(Mapping::shared(fd, bytes_for(nranks)));
  return Team(std::move(fd), std::move(mapping), threads, nranks);
}

Status Team::barrier() {
  std::atomic<uint64_t>& arrivals = page().arrivals;
  const auto threads = static_cast<uint64_t>(threads_);
  // [arrive] releases this thread's records. All arrivals are read-modify-writes of one counter,
  // hence one release sequence: whoever acquires the last has acquired them all, whichever process
  // they came from.
  const uint64_t mine = arrivals.fetch_add(1, std::memory_order_acq_rel) + 1;
  const uint64_t last = (mine + threads - 1) / threads * threads;  // of this barrier
  if (mine == last) {
    futex_wake_all(arrivals);
    return {};
  }
  // A short spin keeps the ranks' starts close together where every thread has a core; then sleep.
  for (int spin = 0;; ++spin) {
    // Pairs with [arrive] of all threads.
    const uint64_t seen = arrivals.load(std::memory_order_acquire);
    if (seen >= last) return {};
    if (aborted()) return Status::remote_error("another rank failed");
    if (spin < 2000)
      continue;
    else if (spin < 2050)
      sched_yield();
    else
      futex_wait(arrivals, static_cast<uint32_t>(seen), 100);
  }
}

void Team::abort() {
  // release, for form: nothing but the flag itself is published.
  page().aborted.store(1, std::memory_order_release);
  futex_wake_all(page().arrivals);
}

bool Team::aborted() const { return page().aborted.load(std::memory_order_acquire) != 0; }

// relaxed: a heartbeat; nothing is read on the strength of it.
uint64_t Team::progress() const { return page().arrivals.load(std::memory_order_relaxed); }

ncclUniqueId& Team::id(size_t number) { return page().ids[number]; }

std::span<RankRecord> Team::records() {
  return {reinterpret_cast<RankRecord*>(&page() + 1), static_cast<size_t>(nranks_)};
}

}  // namespace niccolite::perf
