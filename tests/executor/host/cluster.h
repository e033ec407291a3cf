// Cluster: all ranks of one or more schedules in one process, with connections in ordinary memory,
// run by the host executor without a GPU: their tasks are stepped in a random order on one thread,
// or on several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "executor/host/kernel.h"
#include "executor/launch.h"
#include "executor/protocol/team_slots.h"
#include "lowering/routes.h"
#include "schedule/schedule.h"

namespace niccolite::executor::host {

inline constexpr Protocol kAllProtocols[] = {Protocol::LL, Protocol::LL128, Protocol::Simple};

/// Zeroed bytes at any wanted distance from an alignment of 128, between guard bytes that are
/// checked.
class GuardedMemory {
 public:
  explicit GuardedMemory(size_t bytes, size_t misalignment = 0);
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  bool guards_intact() const;

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::byte* data_;
  size_t bytes_;
};

/// The memory of one connection; see executor/protocol/fifo.h.
struct ConnectionMemory {
  explicit ConnectionMemory(const FifoShape& shape);
  ControlBlock& sender(uint32_t channel) const { return sender_control[channel]; }
  ControlBlock& receiver(uint32_t channel) const { return receiver_control[channel]; }

  FifoShape shape;
  GuardedMemory slots;
  std::unique_ptr<ControlBlock[]> sender_control;
  std::unique_ptr<ControlBlock[]> receiver_control;
};

/// Where the operands of one operation are, by rank; those of messages, by message.
struct OperationBuffers {
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
};

struct OperationArguments {
  uint64_t count = 0;
  DataType type = DataType::Float32;
  Reduction reduction{};
  uint16_t tag = 0x7a9;
};

/// One of the operations that run in one launch.
struct Part {
  size_t schedule = 0;           // number of the cluster's
  std::vector<uint64_t> counts;  // one, or one for each message
  OperationBuffers buffers;
  uint16_t tag = 0x7a9;
};

class Cluster {
 public:
  using Tasks = std::vector<std::unique_ptr<gpu::virtual_::Task>>;

  Cluster(schedule::Schedule schedule, Protocol protocol, const FifoShape& shape);
  /// By Simple or LL. What can goes by a multicast team of the ranks of each of `machines` (of all
  /// ranks, where it is empty), whose memory and addresses team_memory() and team_addresses() are.
  /// Only kernels of GPUs run it. Each rank has a window of `window_bytes` that its team reaches:
  /// window_of().
  static Cluster by_team(schedule::Schedule schedule, const FifoShape& shape,
                         size_t window_bytes = 0, Protocol protocol = Protocol::Simple,
                         std::vector<int> machines = {});
  /// Connections with the same ends and tag are one, whichever schedules and channels use them.
  Cluster(std::vector<schedule::Schedule> schedules, Protocol protocol, const FifoShape& shape);

  int nranks() const { return schedules_[0].nranks; }
  const schedule::Schedule& schedule(size_t i = 0) const { return schedules_[i]; }
  uint64_t elements_per_slot(DataType type) const;
  std::vector<std::unique_ptr<ConnectionMemory>>& connections() { return connections_; }
  /// By rank: its memory in the team, and its addresses of all members' (behind which the host has
  /// memory that nobody may touch).
  const std::vector<GuardedMemory>& team_memory() const { return team_memory_; }
  const std::vector<GuardedMemory>& team_addresses() const { return team_addresses_; }
  const TeamSlots& team_slots() const { return team_slots_; }
  /// By rank.
  const std::vector<int>& machines() const { return machines_; }
  std::byte* window_of(int rank) const;
  /// Buffers::input_shifts of what lies in the rank's window; as long as the cluster lives.
  const uint64_t* shifts_of(int rank) const {
    return window_shifts_[static_cast<size_t>(rank)].data();
  }

  /// Lets all connections stand at `step`, as if that many slots had been sent and received, most
  /// of them nearly empty.
  void start_at(uint64_t step);

  /// One collective, the first schedule's.
  std::vector<Launch> launches(const OperationArguments& arguments,
                               const OperationBuffers& buffers);
  /// All parts in one launch for each rank, on channels of their own.
  std::vector<Launch> launches(const std::vector<Part>& parts, DataType type,
                               const Reduction& reduction);
  /// All parts, which are of messages, in one launch for each rank, on the same channels: those of
  /// a pair take turns.
  std::vector<Launch> launches_in_turns(const std::vector<Part>& parts);
  /// All parts, which are of one collective, the first schedule's, as a list for each rank, over
  /// `channels` of its connections' channels, of which each has `parts_of_work`.
  std::vector<Launch> launches_in_a_list(const std::vector<Part>& parts, DataType type,
                                         const Reduction& reduction, uint32_t channels,
                                         uint32_t parts_of_work = 1);
  Tasks tasks(const std::vector<Launch>& launches);

  /// Runs tasks to their end in an order drawn from `seed`. False: all of them would block, which
  /// is a deadlock.
  static bool run(Tasks tasks, uint32_t seed);
  /// Runs tasks to their end on `threads` threads.
  static void run_threaded(Tasks tasks, int threads);

  bool guards_intact() const;
  /// Do both ends of all connections agree on how far they are, and does every sender know it or
  /// will when next used?
  bool counters_consistent(bool has_advertisements = false) const;

  ControlWords control{};
  uint32_t pull_bytes = 0;         // Launch::pull_bytes, of the next launches
  bool links_reach_users = true;   // else all goes through slots, from the next launches on
  bool fills_slots_first = false;  // PortAddress, from the next launches on
  uint32_t open_ranks = ~0u;       // bits: whose buffers the others see, from the next launches on

 private:
  Cluster(std::vector<schedule::Schedule> schedules, Protocol protocol, const FifoShape& shape,
          bool has_team, size_t window_bytes, std::vector<int> machines);
  size_t team_slots_bytes() const { return team_slots_.bytes(nranks()); }
  /// Ranks before `rank` on its machine; and all of them.
  int number_in_team(int rank) const;
  int team_ranks(int rank) const;
  enum class Channels : uint8_t { Apart, InTurns };
  std::vector<Launch> launches(const std::vector<Part>& parts, DataType type,
                               const Reduction& reduction, Channels channels);
  std::vector<Work> works(const Part& part, int rank, DataType type, uint32_t first_channel,
                          uint32_t channels);
  std::vector<PortAddress> addresses(const Program& program);

  std::vector<schedule::Schedule> schedules_;
  Protocol protocol_;
  FifoShape shape_;
  TeamSlots team_slots_;  // longer slots than the others
  bool has_team_ = false;
  std::vector<int> machines_;
  std::vector<GuardedMemory> team_memory_, team_addresses_;  // slots, then the window
  std::vector<std::vector<uint64_t>> window_shifts_;         // by rank; empty: there are no windows
  std::vector<std::vector<std::shared_ptr<const Program>>> programs_;     // [schedule][rank]
  std::map<std::tuple<int, int, int>, const ConnectionMemory*> by_ends_;  // sender, receiver, tag
  std::vector<std::unique_ptr<ConnectionMemory>> connections_;            // as first named
  std::map<std::tuple<size_t, int>, GuardedMemory> scratch_;  // [schedule, rank], grown as needed
};

}  // namespace niccolite::executor::host
