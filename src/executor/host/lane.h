// Lane: runs the instructions of one lane of one channel, over all rounds, as a resumable state
// machine: it goes on until it would have to wait or has used up what it is allowed at once.
// Semantics: executor/launch.h.
//
// A chunk is moved strip by strip, so that what one operand leaves in the cache is there for the
// next destination. With Simple the first strip waits for all receives and credits. With LL the
// first strip waits for all credits, and every strip for its own words of every receive. Thread
// safety: one thread at a time.
#pragma once

#include <cstdint>

#include "executor/host/plan.h"
#include "executor/host/port.h"
#include "gpu/virtual/tasks.h"

namespace niccolite::executor::host {

/// What may still be done before a task has to return to its worker.
struct Budget {
  int64_t bytes;
  int instructions;
  bool is_spent() const { return bytes <= 0 || instructions <= 0; }
};

class Lane {
 public:
  /// `ports` are those of `channel`, in the order of Plan::ports_of; they and `plan` outlive the
  /// lane.
  Lane(const Plan& plan, const CompactLane& lane, uint32_t channel, PortState* ports);

  /// Done once all instructions of all rounds are; Advanced also when the budget was spent before
  /// anything was moved.
  gpu::virtual_::Progress run(Budget& budget);

 private:
  const CompactInstruction& instruction() const { return instructions_[next_]; }
  PortState& receive_port(uint32_t i) const { return port(instruction().receive + i); }
  PortState& send_port(uint32_t i) const { return port(instruction().send + i); }
  PortState& port(uint32_t index) const;
  std::byte* local(Place place, uint32_t block) const;

  void start();
  bool may_begin();
  bool words_arrived(uint64_t bytes);
  uint64_t strip_bytes() const;
  bool move_strip(uint64_t bytes);
  bool gather(uint64_t bytes, std::byte* staging, const std::byte** operands);
  void deliver(const std::byte* result, uint64_t bytes);
  void finish();

  const Plan* plan_;
  PortState* ports_;
  const CompactInstruction* instructions_;
  uint32_t count_;  // instructions
  uint32_t channel_;
  uint32_t round_ = 0;
  uint32_t next_ = 0;       // instruction
  bool has_begun_ = false;  // has waited for all that it has to wait for before its first strip
  uint32_t arrived_ = 0;    // LL: receives whose words of this strip were there when last looked
  uint64_t bytes_ = 0;      // of the present chunk
  uint64_t offset_ = 0;     // of the present strip in the chunk
};

}  // namespace niccolite::executor::host
