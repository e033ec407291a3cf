#include "cli/perf/team.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <ctime>

#include "base/wire.h"

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

// Their records pass one exchange of the bridge.
constexpr int kMostRanksOfProcess =
    static_cast<int>(((60 << 10) - Team::kMostIds * sizeof(ncclUniqueId)) / sizeof(RankRecord));

}  // namespace

struct Team::Page {
  alignas(64) std::atomic<uint64_t> arrivals;  // at all barriers so far; only grows
  alignas(64) std::atomic<uint64_t> released;  // arrivals that need not wait; only grows
  alignas(64) std::atomic<uint32_t> aborted;
  alignas(64) ncclUniqueId ids[kMostIds];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
                  std::endian::native == std::endian::little,
              "the page is shared between processes, and a futex is the low half of `released`");

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

Result<Team> Team::span(std::unique_ptr<Bridge> bridge, int threads, int ranks) {
  Writer writer;
  writer.i32(ranks);
  const bootstrap::Gathered of_all = TRY(bridge->exchange(writer.bytes()));
  std::vector<int> first_rank_of = {0};
  for (const std::span<const std::byte> of_process : of_all) {
    Reader reader(of_process, "a process of the run");
    const int32_t its_ranks = reader.i32();
    TRY(reader.finish());
    if (its_ranks < 1 || its_ranks > kMostRanksOfProcess)
      return Status::invalid_usage("process {} of the run has {} ranks; 1 to {} are possible",
                                   first_rank_of.size() - 1, its_ranks, kMostRanksOfProcess);
    first_rank_of.push_back(first_rank_of.back() + its_ranks);
  }
  Team team = TRY(create(threads, first_rank_of.back()));
  team.first_rank_of_ = std::move(first_rank_of);
  team.bridge_ = std::move(bridge);
  return team;
}

std::span<std::byte> Team::written_by(size_t process) {
  const auto first = static_cast<size_t>(first_rank_of_[process]);
  const auto behind = static_cast<size_t>(first_rank_of_[process + 1]);
  return std::as_writable_bytes(records().subspan(first, behind - first));
}

Status Team::cross() {
  Writer writer;
  if (process() == 0) writer.raw(std::as_bytes(std::span(page().ids)));
  writer.raw(written_by(process()));
  Result<bootstrap::Gathered> of_all = bridge_->exchange(writer.bytes());
  if (!of_all.is_ok()) return std::move(of_all).status().with_context("another rank failed");
  for (size_t other = 0; other + 1 < first_rank_of_.size(); ++other) {
    if (other == process()) continue;
    const std::span<std::byte> records = written_by(other);
    Reader reader((*of_all)[static_cast<int>(other)], "a process of the run");
    if (other == 0) {
      const std::span<const std::byte> ids = reader.raw(sizeof page().ids);
      if (!ids.empty()) std::memcpy(page().ids, ids.data(), ids.size());
    }
    const std::span<const std::byte> written = reader.raw(records.size());
    if (const Status status = reader.finish(); !status.is_ok())
      return Status::invalid_usage(
          "process {} of the run is of another build of this command; use one everywhere", other);
    std::memcpy(records.data(), written.data(), written.size());
  }
  return {};
}

Status Team::barrier() {
  std::atomic<uint64_t>& arrivals = page().arrivals;
  std::atomic<uint64_t>& released = page().released;
  const auto threads = static_cast<uint64_t>(threads_);
  // [arrive] releases this thread's records. All arrivals are read-modify-writes of one counter,
  // hence one release sequence: a thread that acquires the last has acquired the arrivals of all
  // processes.
  const uint64_t mine = arrivals.fetch_add(1, std::memory_order_acq_rel) + 1;
  const uint64_t last = (mine + threads - 1) / threads * threads;  // of this barrier
  if (mine == last) {
    if (bridge_ != nullptr) {
      Status status = cross();
      if (!status.is_ok()) {
        abort();
        return status;
      }
    }
    // [release] the records of all threads, and the messages that came over the bridge.
    released.store(last, std::memory_order_release);
    futex_wake_all(released);
    return {};
  }
  // A short spin keeps the ranks' starts close together where every thread has a core; then sleep.
  for (int spin = 0;; ++spin) {
    // [acquire] pairs with [release].
    const uint64_t seen = released.load(std::memory_order_acquire);
    if (seen >= last) return {};
    if (aborted()) return Status::remote_error("another rank failed");
    if (spin < 2000)
      continue;
    else if (spin < 2050)
      sched_yield();
    else
      futex_wait(released, static_cast<uint32_t>(seen), 100);
  }
}

void Team::abort() {
  // release, for form: nothing but the flag itself is published.
  page().aborted.store(1, std::memory_order_release);
  futex_wake_all(page().released);
  if (bridge_ != nullptr) bridge_->end();
}

bool Team::aborted() const { return page().aborted.load(std::memory_order_acquire) != 0; }

// relaxed: a heartbeat; nothing is read on the strength of it.
uint64_t Team::progress() const { return page().arrivals.load(std::memory_order_relaxed); }

ncclUniqueId& Team::id(size_t number) { return page().ids[number]; }

std::span<RankRecord> Team::records() {
  return {reinterpret_cast<RankRecord*>(&page() + 1), static_cast<size_t>(nranks_)};
}

}  // namespace niccolite::perf
