#include "operations/operators.h"

namespace niccolite::operations {
namespace {

constexpr uint32_t kHandleMask = 0x7fffffff;

Status unknown(int handle) {
  return Status::invalid_argument(
      "invalid reduction operation {}: none of this communicator, destroyed, or made by "
      "ncclRedOpCreatePreMulSum for another one",
      handle);
}

}  // namespace

// Slots count up from a start that belongs to the communicator, skipping the built-in values.
int Operators::handle_of(size_t slot) const {
  constexpr uint64_t kHandles = uint64_t{kHandleMask} - kFirst + 1;
  const uint64_t start = (salt_ * 0x9e3779b97f4a7c15u) >> 33;
  return static_cast<int>((start + slot) % kHandles) + kFirst;
}

std::optional<size_t> Operators::slot_of(int handle) const {
  for (size_t slot = 0; slot < entries_.size(); ++slot)
    if (entries_[slot] && handle_of(slot) == handle) return slot;
  return std::nullopt;
}

int Operators::add(const planner::Operator& op, executor::DataType type) {
  std::lock_guard lock(mutex_);
  size_t slot = 0;
  while (slot < entries_.size() && entries_[slot]) ++slot;
  if (slot == entries_.size()) entries_.emplace_back();
  entries_[slot] = Entry{op, type};
  return handle_of(slot);
}

Result<planner::Operator> Operators::find(int handle, executor::DataType type) const {
  std::lock_guard lock(mutex_);
  const std::optional<size_t> slot = slot_of(handle);
  if (!slot) return unknown(handle);
  const Entry& entry = *entries_[*slot];
  if (entry.type != type)
    return Status::invalid_argument("reduction operation {} was made for {}, not for {}", handle,
                                    executor::name_of(entry.type), executor::name_of(type));
  return entry.op;
}

Status Operators::remove(int handle) {
  std::lock_guard lock(mutex_);
  const std::optional<size_t> slot = slot_of(handle);
  if (!slot) return unknown(handle);
  entries_[*slot].reset();
  return {};
}

}  // namespace niccolite::operations
