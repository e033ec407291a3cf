#include "diagnosis/status_board.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/thread.h"

namespace niccolite::diagnosis {
namespace {

constexpr size_t kMostRanks = 1 << 16;  // of one process
constexpr size_t kRankBytes = 8 + 4 + 4 + 4 + 4 + 2 + 4 + 8 * kCounted;
constexpr size_t kMostVerdict = 4096;
constexpr size_t kMostHostName = 256;
constexpr size_t kAtOnce = 16;  // peers that are asked side by side

void write(Writer& writer, const RankStatus& rank) {
  writer.u64(rank.communicator);
  writer.i32(rank.nranks);
  writer.i32(rank.rank);
  writer.i32(rank.device);
  writer.i32(rank.async_error);
  writer.u8(rank.finalized ? 1 : 0);
  writer.u8(rank.aborted ? 1 : 0);
  writer.text(rank.verdict);
  writer.text(rank.stragglers);
  for (const uint64_t count : rank.counts) writer.u64(count);
}

RankStatus read_rank(Reader& reader) {
  RankStatus rank;
  rank.communicator = reader.u64();
  rank.nranks = reader.i32();
  rank.rank = reader.i32();
  rank.device = reader.i32();
  rank.async_error = reader.i32();
  rank.finalized = reader.u8() != 0;
  rank.aborted = reader.u8() != 0;
  rank.verdict = reader.text(kMostVerdict);
  rank.stragglers = reader.text(kMostVerdict);
  for (uint64_t& count : rank.counts) count = reader.u64();
  if (rank.nranks < 1 || rank.rank < 0 || rank.rank >= rank.nranks || rank.device < 0)
    reader.reject("a rank that cannot be");
  return rank;
}

}  // namespace

Bytes ProcessStatus::encode() const {
  Writer writer;
  writer.text(name.host);
  writer.u64(name.pid);
  writer.u32(static_cast<uint32_t>(ranks.size()));
  for (const RankStatus& rank : ranks) write(writer, rank);
  return std::move(writer).take();
}

Result<ProcessStatus> ProcessStatus::decode(std::span<const std::byte> bytes) {
  Reader reader(bytes, "the status of a process");
  ProcessStatus status;
  status.name.host = reader.text(kMostHostName);
  status.name.pid = reader.u64();
  const uint32_t count = reader.count(kMostRanks, kRankBytes);
  for (uint32_t i = 0; i < count; ++i) status.ranks.push_back(read_rank(reader));
  TRY(reader.finish());
  return status;
}

StatusBoard& StatusBoard::of_process() {
  static auto* const board = new StatusBoard;  // never destroyed: communicators may outlive main()
  return *board;
}

uint64_t StatusBoard::add(Entry entry) {
  std::lock_guard lock(mutex_);
  entries_.emplace(++last_id_, std::make_shared<Slot>(Slot{.entry = std::move(entry)}));
  return last_id_;
}

void StatusBoard::remove(uint64_t id) {
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  const std::shared_ptr<Slot> slot = found->second;
  entries_.erase(found);
  unused_.wait(lock, [&] { return slot->users == 0; });
}

ProcessStatus StatusBoard::describe_this_process() {
  std::lock_guard lock(mutex_);
  ProcessStatus status;
  for (const auto& [id, slot] : entries_) {
    if (status.name.pid == 0) status.name = slot->entry.name_of(slot->entry.rank);
    status.ranks.push_back(slot->entry.describe());
  }
  if (status.name.pid == 0)
    status.name = {.host = "localhost", .pid = static_cast<uint64_t>(getpid())};
  return status;
}

std::map<ProcessName, StatusBoard::Known> StatusBoard::processes(bool looks_for_stopped) {
  std::lock_guard lock(mutex_);
  std::map<ProcessName, Known> known;
  for (const auto& [id, slot] : entries_) {
    const Entry& entry = slot->entry;
    for (int rank = 0; rank < entry.nranks; ++rank) {
      Known& process = known[entry.name_of(rank)];
      process.devices.insert(entry.device_of(rank));
      process.is_lost = process.is_lost || entry.is_lost(rank);
      if (looks_for_stopped && !process.is_stopped) process.is_stopped = entry.is_stopped(rank);
    }
  }
  return known;
}

Result<Bytes> StatusBoard::ask(Slot& slot, int rank, const Deadline& deadline, Abort& cancel) {
  Result<Bytes> answer = cancel.raised() ? cancel.reason() : slot.entry.ask(rank, deadline, cancel);
  std::lock_guard lock(mutex_);
  --slot.users;
  unused_.notify_all();
  return answer;
}

std::vector<StatusBoard::Peer> StatusBoard::ask_peers(const Deadline& deadline, Abort& cancel) {
  struct Asked {
    Peer peer;
    std::shared_ptr<Slot> slot;
    int rank = 0;
  };
  std::map<ProcessName, Asked> asked;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, slot] : entries_) {
      const Entry& entry = slot->entry;
      const RankStatus own = entry.describe();
      const ProcessName here = entry.name_of(entry.rank);
      for (int rank = 0; rank < entry.nranks; ++rank) {
        const ProcessName name = entry.name_of(rank);
        if (name == here) continue;
        auto [found, is_new] = asked.try_emplace(
            name, Asked{.peer = {.name = name, .ranks = {}, .status = std::nullopt},
                        .slot = slot,
                        .rank = rank});
        if (is_new) ++slot->users;
        found->second.peer.ranks.emplace_back(own.communicator, rank);
      }
    }
  }
  std::vector<Asked*> all;
  for (auto& [name, each] : asked) all.push_back(&each);
  const auto ask_some = [&](size_t first) {
    for (size_t i = first; i < all.size(); i += kAtOnce) {
      Result<Bytes> answer = ask(*all[i]->slot, all[i]->rank, deadline, cancel);
      if (!answer.is_ok()) continue;
      Result<ProcessStatus> status = ProcessStatus::decode(answer.value());
      if (status.is_ok()) all[i]->peer.status = std::move(status).take();
    }
  };
  std::vector<Thread> helpers;
  std::vector<size_t> shares = {0};  // that no helper has
  for (size_t first = 1; first < std::min(kAtOnce, all.size()); ++first) {
    Result<Thread> helper = Thread::start("nccl-ras-ask", [&, first] { ask_some(first); });
    if (helper.is_ok()) {
      helpers.push_back(std::move(helper).take());
    } else {
      shares.push_back(first);
    }
  }
  for (const size_t first : shares) ask_some(first);
  helpers.clear();  // joins
  std::vector<Peer> peers;
  for (Asked* each : all) peers.push_back(std::move(each->peer));
  return peers;
}

}  // namespace niccolite::diagnosis
