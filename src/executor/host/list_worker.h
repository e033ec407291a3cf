// ListWorker: one channel of a list over buffers that all ranks reach (executor/list_access.h), as
// a resumable state machine. It works in the same order and over the same words as a CTA of a GPU
// (executor/cuda/patterns/direct_list.cuh), so that either can be the other's peer:
//
//   Credit      until the slots of round 0 are free; then tells all peers where the own buffers
//               are, and advertises them
//   Addresses   of all peers, and their advertisements
//   Tiles       from inputs, reduced, to outputs, except for works with a buffer that some rank
//               does not see; then lets the peers go
//   Slots       those works, one-shot, a slot of each peer a round
//   Release     until the peers are done with the own buffers
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "executor/host/budget.h"
#include "executor/host/list_peer.h"
#include "executor/host/plan.h"
#include "executor/report.h"
#include "gpu/virtual/tasks.h"

namespace niccolite::executor::host {

class ListWorker {
 public:
  /// `peers`: the connections of `channel` of the list. All of them outlive the worker.
  ListWorker(const Plan& plan, const Reducer& reducer, uint32_t channel, std::span<ListPeer> peers);

  /// See the functions of the same names in Worker.
  gpu::virtual_::Progress run(Budget& budget);
  Report wait() const;
  /// Lists go over no network, whose events would wake a kernel (Port::is_woken()).
  bool is_woken() const { return false; }
  bool is_draining() const { return false; }
  void look_for_mismatch();

 private:
  enum class Phase : uint8_t { Credit, Addresses, Tiles, Slots, Release, Done };
  /// The addresses of a rank's input and output of a work, as this rank sees them. In the form in
  /// which they travel: bytes of the slot of round 0.
  struct Addresses {
    uint64_t input = kUnneeded;
    uint64_t output = kUnneeded;
  };
  static constexpr uint64_t kUnneeded =
      1;  // of a buffer that nobody uses; 0: somebody does not see
  static constexpr size_t kMostSources = kMostRanksOfListAccess;

  // The list. Works of the channel are named by their numbers in the launch.
  const Launch& launch() const { return plan_->launch(); }
  const ListAccess& access() const { return *launch().list_access; }
  const Work& work(uint32_t number) const { return launch().works[number]; }
  uint32_t rank() const { return static_cast<uint32_t>(plan_->program().rank); }
  uint32_t nranks() const { return static_cast<uint32_t>(peers_.size()) + 1; }
  uint64_t block_bytes(uint32_t number) const;
  uint32_t first_tile_of(uint32_t number) const;
  uint32_t end_tile_of(uint32_t number) const;
  bool uses_input(uint32_t of) const { return has_rank(access().inputs, of); }
  bool uses_output(uint32_t of) const { return has_rank(access().outputs, of); }
  uint16_t tag() const { return work(first_.work).tag; }
  Addresses& addresses(uint32_t of, uint32_t number) {
    return addresses_[size_t{of} * works_ + number - first_.work];
  }
  bool is_hidden(uint32_t number);

  // Its phases; false: the phase waits for `blocked_`, or the budget is spent.
  bool await_credit(uint32_t round);
  void tell_addresses();
  bool learn_addresses();
  bool move_tiles(Budget& budget);
  void move_tile(uint32_t number, uint32_t tile);
  bool move_by_slots(Budget& budget);
  bool await_release();

  // Slots.
  void start_slots();
  void next_chunk();
  const std::byte* own_strip(uint32_t to, uint64_t offset) const;
  void send_chunk();
  bool receive_strip(uint64_t bytes);

  bool judge(const ListPeer& peer, const Arrival& seen);

  const Plan* plan_;
  const Reducer* reducer_;
  std::span<ListPeer> peers_;  // by the order of the ranks
  ListPosition first_;
  ListPosition end_;
  uint32_t works_;
  std::vector<Addresses> addresses_;  // [rank][work]
  std::vector<bool> hidden_;          // by work, once the addresses are known
  Phase phase_ = Phase::Credit;
  const ListPeer* blocked_;  // which is waited for
  size_t next_peer_ = 0;     // of the phase
  bool has_moved_ = false;   // in the present run()
  bool has_reported_ = false;

  uint32_t work_ = 0;  // number of the present
  uint32_t tile_ = 0;

  // Slots.
  uint32_t round_ = 1;     // the next; at last, how many there were
  uint64_t at_ = 0;        // bytes from the start of the block to the present chunk
  uint64_t chunk_ = 0;     // its bytes
  uint64_t offset_ = 0;    // of the present strip in it
  bool has_sent_ = false;  // the present chunk
};

}  // namespace niccolite::executor::host
