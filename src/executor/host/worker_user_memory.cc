// The part of a worker's moves that it leaves to the proxies of connections to other machines
// (user_memory_steps.h): chunks that go straight from and to the user's memory.
#include "executor/host/worker.h"

namespace niccolite::executor::host {

void Worker::use(const UserMemorySteps& user_memory) {
  for (size_t p = 0; p < port_numbers_.size(); ++p)
    if (ports_[p].reaches_user_memory()) user_memory_ = &user_memory;
}

uint64_t Worker::bytes_in_round(const CompactInstruction& of, uint32_t round) const {
  return work_->partition.range(of.chunk_block, channel_, round).count * plan_->element_bytes();
}

// Returns the place of the present chunk in user memory; null: it is in the slot.
const std::byte* Worker::sent_from(const PortState& to) const {
  if (user_memory_ == nullptr || !to.may_send_from_memory(bytes_)) return nullptr;
  const UserMemorySteps::Source source = user_memory_->source_of(first_ + next_);
  if (source.buffer == OperandBuffer::None) return nullptr;
  const std::byte* const chunk = chunk_at(source.buffer, source.block, tile_start_);
  return to.reaches(chunk, bytes_) ? chunk : nullptr;
}

// Has the chunk landed in user memory? Only chunks that are received alone, to be stored, may.
bool Worker::has_landed() const {
  return instruction().receive_count == 1 && receive_port(0).has_landed();
}

// Is the present chunk, which may be moved, where it has to be?
bool Worker::has_nothing_to_move() const {
  const CompactInstruction& present = instruction();
  if (present.target != OperandBuffer::None && !has_landed()) return false;
  for (uint32_t i = 0; i < present.send_count; ++i)
    if (sent_from(send_port(i)) == nullptr) return false;
  return true;
}

bool Worker::has_come_to(uint32_t from, uint32_t round) const {
  return from == UserMemorySteps::kAnyTime || round_ > round ||
         (round_ == round && first_ + next_ >= from);
}

// Makes places for the next chunks, as far as their memory is nobody else's.
void Worker::make_places() {
  for (size_t p = 0; p < port_numbers_.size(); ++p) {
    const uint16_t number = port_numbers_[p];
    PortState& from = ports_[p];
    if (plan_->program().ports[number].is_send || !from.reaches_user_memory()) continue;
    const std::vector<uint16_t>& receives = user_memory_->receives_at(number);
    while (const auto step = from.next_to_place()) {
      const auto round = static_cast<uint32_t>(*step / receives.size());
      const size_t by = receives[*step % receives.size()];
      const CompactInstruction& of = plan_->program().instructions[by];
      const uint64_t bytes = bytes_in_round(of, round);
      std::byte* const chunk =
          user_memory_->is_placed(by)
              ? chunk_at(of.target, of.target_block, work_->partition.start_of(channel_, round))
              : nullptr;
      if (chunk == nullptr || !from.may_place(bytes) || !from.reaches(chunk, bytes)) {
        from.place(nullptr, 0);
        continue;
      }
      if (!has_come_to(user_memory_->placed_from(by), round)) break;
      from.place(chunk, bytes);
    }
  }
}

// All is done: has it left the user's memory, too?
bool Worker::is_drained() {
  if (user_memory_ == nullptr) return true;
  is_draining_ = true;
  for (uint32_t i = 0; i < count_; ++i) {
    const CompactInstruction& of = instructions_[i];
    for (uint32_t s = 0; s < of.send_count; ++s)
      if (!port(of.send + s).is_drained()) {
        blocked_ = of.send + s;
        return false;
      }
  }
  return true;
}

}  // namespace niccolite::executor::host
