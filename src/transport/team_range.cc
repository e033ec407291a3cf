#include "transport/team_range.h"

#include <memory>
#include <utility>

#include "gpu/machine.h"

namespace niccolite::transport {

Result<std::shared_ptr<TeamRange>> TeamRange::plan(gpu::Machine& machine, int device,
                                                   const Layout& layout) {
  std::shared_ptr<TeamRange> range(new TeamRange(machine, device));
  range->layout_ = layout;
  range->unit_ = TRY(machine.multicast().binding_granularity(layout.members));
  range->layout_.part_bytes = range->whole(layout.part_bytes);
  const size_t granularity = TRY(machine.multicast().granularity(layout.members));
  const size_t needed = range->windows_begin() + layout.window_bytes;
  range->bytes_ = (needed + granularity - 1) / granularity * granularity;
  return range;
}

Result<Fd> TeamRange::create() {
  team_ = TRY(machine_.multicast().create(layout_.members, bytes_));
  return machine_.multicast().export_team(team_);
}

Status TeamRange::import(Fd descriptor) {
  team_ = TRY(machine_.multicast().import_team(std::move(descriptor), bytes_));
  return {};
}

Status TeamRange::join() { return machine_.multicast().join(team_, device_); }

Status TeamRange::map() {
  mapping_ = TRY(machine_.multicast().map(team_, device_));
  return {};
}

Status TeamRange::bind(size_t offset, const void* memory, size_t bytes) {
  return machine_.multicast().bind(team_, device_, offset, memory, bytes);
}

Status TeamRange::unbind(size_t offset, size_t bytes) {
  return machine_.multicast().unbind(team_, device_, offset, bytes);
}

uint64_t TeamRange::parts_in_use() const {
  const std::lock_guard lock(mutex_);
  return in_use_;
}

bool TeamRange::take_part(int part) {
  const uint64_t bit = uint64_t{1} << part;
  const std::lock_guard lock(mutex_);
  if ((in_use_ & bit) != 0) return false;
  in_use_ |= bit;
  return true;
}

void TeamRange::give_part_back(int part) {
  const std::lock_guard lock(mutex_);
  in_use_ &= ~(uint64_t{1} << part);
}

}  // namespace niccolite::transport
