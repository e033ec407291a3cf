// Worker: runs the instructions of one worker on one channel of its work, over all rounds, as a
// resumable state machine: it goes on until it would have to wait or has used up its budget.
// Semantics: executor/launch.h.
//
// A chunk is moved strip by strip, so that the data that one operand leaves in the cache is there
// for the next destination. With Simple the first strip waits for all receives and credits. With LL
// and LL128 the first strip waits for all credits, and every strip for its own flags of every
// receive.
//
// A tile is the part of a block that a channel moves in one round. Workers of a rank that run the
// same instruction on different channels may share the tiles of all of them, as on GPUs: each
// begins with the first tile of its channel, and takes the next free one until there are none. Then
// it tells its peers of all its tiles, in all channels. A worker that reduces may pull its operands
// instead of reading them (protocol/pull.h, worker_pulls.cc): its tiles are then tiles of the whole
// block.
//
// By a team (team.h) a chunk is stored once to the slots of all ranks of the machine, or the slots
// of all are loaded as one operand, after the local operand was put in the own one. Where all ranks
// have advertised one place of their windows, it is stored there, or loaded from there.
//
// At connections to other machines chunks may lie in the user's memory instead of slots
// (user_memory_steps.h, worker_user_memory.cc).
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <span>

#include "executor/host/budget.h"
#include "executor/host/plan.h"
#include "executor/host/port.h"
#include "executor/host/team.h"
#include "executor/report.h"
#include "executor/user_memory_steps.h"
#include "gpu/virtual/tasks.h"

namespace niccolite::executor::host {

class Worker {
 public:
  /// `number` is the number of the program's worker, `channel` a channel of its work's partition.
  /// `ports` are the ports of the worker on this channel, in the order of Plan::ports_of.
  /// `next_tile` is the next tile that a worker may take, where tile t belongs to channel t %
  /// channels in round t / channels; one for all channels, which starts at the number of channels.
  /// All of them outlive the worker.
  Worker(const Plan& plan, const Reducer& reducer, size_t number, uint32_t channel,
         PortState* ports, uint64_t* next_tile);

  /// Called before make_advertisements(); `user_memory` outlives the worker.
  void use(const UserMemorySteps& user_memory);
  /// Called before make_advertisements(), where ports go by a team; both outlive the worker.
  /// `windows`: by work.
  void use(const Team& team, std::span<const TeamWindows> windows);
  /// Called once, when all ports have begun, and before run().
  void make_advertisements();

  /// Done once all instructions of all rounds are; Advanced also when the budget was spent before
  /// anything was moved.
  gpu::virtual_::Progress run(Budget& budget);

  /// Is all done, except for chunks that are on their way from user memory?
  bool is_draining() const { return is_draining_; }
  /// After run() has returned WouldBlock: the subject of the worker's wait, as a report.
  Report wait() const;
  /// After run() has returned WouldBlock: does the event that ends the wait wake the GPU's workers?
  bool is_woken() const { return (has_tile_ || is_draining_) && port(blocked_).is_woken(); }
  /// After run() has returned WouldBlock: looks whether the data of any receive are another call's.
  /// run() finds that only for the receive that it waits for.
  void look_for_mismatch();

 private:
  const CompactInstruction& instruction() const { return instructions_[next_]; }
  PortState& receive_port(uint32_t i) const { return port(instruction().receive + i); }
  PortState& send_port(uint32_t i) const { return port(instruction().send + i); }
  PortState& port(uint32_t index) const;
  std::byte* local(OperandBuffer place, uint32_t block) const {
    return chunk_at(place, block, tile_start_) + offset_;
  }
  /// Returns the chunk that starts so many elements behind the start of its block.
  std::byte* chunk_at(OperandBuffer place, uint32_t block, uint64_t start) const;
  /// Returns the place that the present chunk goes to, or comes from.
  std::byte* destination(const PortState& to) const { return to.chunk(distance_); }
  const std::byte* operand_at(const PortState& from) const {
    return pulls() ? from.place_of(pulled_, most_pulls_, plan_->launch().pull_bytes)
                   : from.chunk(distance_);
  }

  /// Returns the address at which the rank at the other end of the port `index` sees `memory` of a
  /// buffer with these shifts; 0: nowhere.
  uint64_t seen_by_peer(uint32_t index, const std::byte* memory, const uint64_t* shifts) const;
  /// Returns the place where data of a receive, or of a send, of the only instruction's first chunk
  /// may be put, or may be read, as that rank sees it; 0: data go through slots.
  uint64_t put_address(uint32_t index) const;
  uint64_t get_address(uint32_t index) const;
  lowering::Way way_of(uint32_t index) const;
  /// Returns the place of the present chunk of a buffer in the team's windows; 0: it has none.
  uint64_t place_of(OperandBuffer buffer, uint32_t block) const;
  bool have_one_place(uint32_t first, uint32_t count, OperandBuffer buffer, uint32_t block);
  /// Do others do all that the present instruction is for?
  bool only_awaits() const;
  bool is_released();

  void start();
  void start_tile(uint32_t channel, uint32_t round);
  void start_tile_at(uint64_t start, uint64_t bytes);
  bool may_begin();
  bool has_all_taken() const;
  void take_tile();
  void end_sharing();

  // Pulls: of the worker that reduces,
  bool pulls() const { return most_pulls_ != 0; }
  bool may_pull() const;
  void begin_pulls();
  void pull_tiles();
  void take_pulled_tile();
  void start_pulled_tile();
  uint64_t block_bytes() const;
  bool has_pulled_tile_arrived();
  // and of the one whose input it is.
  bool may_serve_pulls() const;
  bool serve_pulls();
  // User memory at connections to other machines.
  uint64_t bytes_in_round(const CompactInstruction& of, uint32_t round) const;
  const std::byte* sent_from(const PortState& to) const;
  bool has_landed() const;
  bool has_nothing_to_move() const;
  void make_places();
  bool has_come_to(uint32_t from, uint32_t round) const;
  bool is_drained();

  Arrival arrival(uint32_t receive) const;
  bool all_arrived();
  void report_mismatch(uint32_t index, uint16_t tag);
  void report_once(ReportKind kind, uint32_t index, uint16_t tag);
  uint64_t strip_bytes() const;
  bool move_strip();
  uint32_t gather(std::byte* staging, const std::byte** operands);
  bool has_team_among(uint32_t first, uint32_t count) const;
  bool stores_to_windows() const;
  const std::byte* local_operand(std::byte* staging, size_t room);
  uint32_t load_from_team(const PortState& from, std::byte* staging, const std::byte** operands);
  void store_to_team(const PortState& to, const std::byte* result);
  std::byte* in_window(const Team& windows, size_t member, OperandBuffer buffer,
                       uint32_t block) const;
  void deliver(const std::byte* result);
  void clean(const PortState& to);
  void finish();

  const Plan* plan_;
  const Reducer* reducer_;
  const Work* work_;
  PortState* ports_;
  std::span<const uint16_t> port_numbers_;  // of those
  uint32_t first_;                          // instruction, in the program
  const CompactInstruction* instructions_;
  uint32_t count_;  // instructions
  uint32_t channel_;
  uint64_t* next_tile_;
  const lowering::WorkerPlan* lowered_;
  bool shares_tiles_ = false;
  bool has_tile_ = true;
  uint32_t round_ = 0;
  uint64_t tile_start_ = 0;      // elements from the start of the block to the present tile
  std::ptrdiff_t distance_ = 0;  // bytes from the worker's first tile to the present one
  uint32_t next_ = 0;            // instruction
  uint32_t blocked_ = 0;         // index of the port that is waited for
  uint32_t arrived_ = 0;         // receives that were there when last looked at
  bool awaits_ = false;          // only_awaits(), as the instruction began
  bool has_begun_ = false;     // has waited for all that it has to wait for before its first strip
  bool has_reported_ = false;  // that the present instruction receives another call's data
  uint64_t bytes_ = 0;         // of the present chunk
  uint64_t offset_ = 0;        // of the present strip in the chunk
  uint64_t strip_ = 0;         // bytes of the present strip

  const Team* team_ = nullptr;                    // null: no port goes by one
  const TeamWindows* windows_ = nullptr;          // of the work; null as above
  const UserMemorySteps* user_memory_ = nullptr;  // null: not for this operation
  bool is_draining_ = false;  // all is done, except for chunks on their way from user memory

  uint32_t most_pulls_ = 0;          // 0: nothing is pulled
  uint32_t pulled_ = 0;              // tiles; also the number of the present one
  uint32_t asked_ = 0;               // tiles
  uint32_t tiles_[kMostPulls] = {};  // by pull: which
};

}  // namespace niccolite::executor::host
