#include "cli/perf/team.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace niccolite::perf {
namespace {

// std::atomic::wait sleeps on a futex that other processes do not see; this one is shared between
// processes.
void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, long milliseconds) {
  const timespec timeout = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}
void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace

struct Team::Page {
  alignas(64) std::atomic<uint32_t> arrived;     // at the barrier in progress
  alignas(64) std::atomic<uint32_t> generation;  // barriers passed
  alignas(64) std::atomic<uint32_t> aborted;
  alignas(64) ncclUniqueId ids[2];
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "the page is shared between processes");

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
  Page& shared = page();
  // relaxed: the value is only compared; what the barrier orders goes through `arrived` and the
  // later acquire.
  const uint32_t generation = shared.generation.load(std::memory_order_relaxed);
  // [arrive] releases this thread's records; the last arrival acquires everyone's.
  if (shared.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 ==
      static_cast<uint32_t>(threads_)) {
    // relaxed: published by the store of `generation` that follows.
    shared.arrived.store(0, std::memory_order_relaxed);
    // [leave] pairs with the acquire below.
    shared.generation.store(generation + 1, std::memory_order_release);
    futex_wake_all(shared.generation);
    return {};
  }
  // A short spin keeps the ranks' starts close together where every thread has a core; then sleep.
  for (int spin = 0;; ++spin) {
    // [leave] acquires the records of all threads.
    if (shared.generation.load(std::memory_order_acquire) != generation) return {};
    if (aborted()) return Status::remote_error("another rank failed");
    if (spin < 2000)
      continue;
    else if (spin < 2050)
      sched_yield();
    else
      futex_wait(shared.generation, generation, 100);
  }
}

void Team::abort() {
  // release, for form: nothing but the flag itself is published.
  page().aborted.store(1, std::memory_order_release);
  futex_wake_all(page().generation);
}

bool Team::aborted() const { return page().aborted.load(std::memory_order_acquire) != 0; }

// relaxed: a heartbeat; nothing is read on the strength of it.
uint32_t Team::progress() const { return page().generation.load(std::memory_order_relaxed); }

ncclUniqueId& Team::id(int library) { return page().ids[library]; }

std::span<RankRecord> Team::records() {
  return {reinterpret_cast<RankRecord*>(&page() + 1), static_cast<size_t>(nranks_)};
}

}  // namespace niccolite::perf
