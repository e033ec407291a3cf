#include "transport/net/end_memory.h"

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

}  // namespace

Result<std::shared_ptr<const EndMemory>> EndMemory::allocate(gpu::Allocations& allocations,
                                                             const FifoShape& shape, bool is_send) {
  gpu::Memory memory = TRY(allocations.allocate_host(
      2 * shape.control_bytes() + notes_bytes(shape, is_send) + shape.slots_bytes()));
  return std::shared_ptr<const EndMemory>(new EndMemory(shape, std::move(memory), is_send));
}

EndMemory::EndMemory(const FifoShape& shape, gpu::Memory memory, bool is_send)
    : shape_(shape), memory_(std::move(memory)) {
  auto* const base = static_cast<std::byte*>(memory_.data());
  std::byte* const behind_counters = base + 2 * shape.control_bytes();
  own_ = reinterpret_cast<ControlBlock*>(base);
  far_ = own_ + shape.channels;
  notes_ = is_send ? reinterpret_cast<uint64_t*>(behind_counters) : nullptr;
  slots_ = behind_counters + notes_bytes(shape, is_send);
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
