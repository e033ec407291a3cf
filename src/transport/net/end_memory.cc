#include "transport/net/end_memory.h"

#include "executor/partition.h"

namespace niccolite::transport::net {

using executor::ControlBlock;
using executor::FifoShape;

namespace {

// Returns the bytes of LL's size entries (relay.h), which need at least as much room as Simple's.
size_t notes_bytes(const FifoShape& shape, bool is_send) {
  const uint32_t blocks =
      (shape.depth + executor::relay::kNotesOfBlock - 1) / executor::relay::kNotesOfBlock;
  return is_send ? blocks * shape.control_bytes() : 0;
}

// A multiple of a line, so that slots behind them are aligned.
size_t places_bytes(const FifoShape& shape) {
  return executor::round_up(uint64_t{shape.channels} * shape.depth * sizeof(executor::relay::Place),
                            executor::kLine);
}

}  // namespace

Result<std::shared_ptr<const EndMemory>> EndMemory::allocate(gpu::Allocations& allocations,
                                                             const FifoShape& shape, bool is_send,
                                                             std::shared_ptr<DirectMemory> slots) {
  gpu::Memory memory = TRY(allocations.allocate_host(
      2 * shape.control_bytes() + notes_bytes(shape, is_send) + places_bytes(shape) +
      (slots == nullptr ? shape.slots_bytes() : 0)));
  return std::shared_ptr<const EndMemory>(
      new EndMemory(shape, std::move(memory), is_send, std::move(slots)));
}

EndMemory::EndMemory(const FifoShape& shape, gpu::Memory memory, bool is_send,
                     std::shared_ptr<DirectMemory> slots)
    : shape_(shape), memory_(std::move(memory)), direct_(std::move(slots)) {
  auto* const base = static_cast<std::byte*>(memory_.data());
  std::byte* const behind_counters = base + 2 * shape.control_bytes();
  own_ = reinterpret_cast<ControlBlock*>(base);
  far_ = own_ + shape.channels;
  notes_ = is_send ? reinterpret_cast<uint64_t*>(behind_counters) : nullptr;
  std::byte* const behind_notes = behind_counters + notes_bytes(shape, is_send);
  places_ = reinterpret_cast<executor::relay::Place*>(behind_notes);
  slots_ = direct_ != nullptr ? direct_->data() : behind_notes + places_bytes(shape);
}

executor::PortAddress EndMemory::port() const {
  executor::PortAddress address;
  address.slots = slots_;
  address.control = own_;
  address.remote_control = far_;
  address.notes = notes_;
  address.in_host = true;
  return address;
}

}  // namespace niccolite::transport::net
