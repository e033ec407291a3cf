#include "gpu/virtual/team.h"

#include <sys/mman.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "base/forks.h"
#include "base/log.h"
#include "gpu/multicast_bindings.h"
#include "gpu/virtual/mappings.h"
#include "gpu/virtual/path_fault.h"
#include "gpu/virtual/virtual_memory.h"

namespace niccolite::gpu::virtual_ {

struct VirtualMulticast::Team {
  std::shared_ptr<MulticastObject> object;
  MulticastBindings bindings;  // by the machine's numbers of devices
};

struct VirtualMulticast::Mapped {
  std::byte* base;
  size_t bytes;
};

Status VirtualMulticast::check(const char* what, int device, Error error) const {
  if (error == Error::None) return {};
  return Status::cuda_error("cannot {} virtual GPU {}: {} ({})", what, device, text_of(error),
                            name_of(error));
}

// A line for each call, by which tests see that there is none.

bool VirtualMulticast::has_multicast(int device) {
  LOG(Trace, Nvls, "multicast: can virtual GPU {} be in a team?", device);
  return is_visible(device);
}

Result<size_t> VirtualMulticast::granularity(int devices) {
  LOG(Trace, Nvls, "multicast: granularity of {} virtual GPUs", devices);
  return kMappingGranularity;
}

Result<MulticastTeam> VirtualMulticast::create(int devices, size_t bytes) {
  LOG(Trace, Nvls, "multicast: create a team of {} virtual GPUs, {} bytes", devices, bytes);
  auto team = std::make_unique<Team>();
  Error error = Error::InvalidValue;
  if (bytes % kMappingGranularity == 0)
    error = MulticastObject::create(devices, bytes, &team->object);
  if (error != Error::None)
    return Status::cuda_error(
        "cannot create a multicast team of {} virtual GPUs and {} bytes: {} "
        "({})",
        devices, bytes, text_of(error), name_of(error));
  return MulticastTeam(this, team.release(), bytes);
}

Result<Fd> VirtualMulticast::export_team(const MulticastTeam& team) {
  return static_cast<Team*>(team.handle())->object->file().duplicate();
}

Result<MulticastTeam> VirtualMulticast::import_team(Fd fd, size_t bytes) {
  LOG(Trace, Nvls, "multicast: import a team of {} bytes", bytes);
  auto team = std::make_unique<Team>();
  const Error error = MulticastObject::import(std::move(fd), &team->object);
  if (error != Error::None || team->object->bytes() != bytes)
    return Status::cuda_error(
        "cannot import a multicast team of virtual GPUs and {} bytes: what "
        "came is {}",
        bytes,
        error == Error::None ? fmt::format("one of {} bytes", team->object->bytes())
                             : std::string("none"));
  return MulticastTeam(this, team.release(), bytes);
}

Status VirtualMulticast::join(const MulticastTeam& team, int device) {
  LOG(Trace, Nvls, "multicast: add virtual GPU {}", device);
  if (!is_visible(device)) return check("add to a multicast team", device, Error::InvalidDevice);
  return check("add to a multicast team", device,
               static_cast<Team*>(team.handle())->object->add(visible_.on_machine(device)));
}

Status VirtualMulticast::bind(const MulticastTeam& team, int device, size_t offset,
                              const void* memory, size_t bytes) {
  LOG(Trace, Nvls, "multicast: bind {} bytes of virtual GPU {} at {}", bytes, device, offset);
  const auto refused = [&](Error error) {
    return check("bind to a multicast team memory of", device, error);
  };
  const MulticastFault fault = multicast_fault();
  if (fault == MulticastFault::Unbound || (fault == MulticastFault::UnboundLater && offset > 0))
    return refused(Error::SystemNotReady);
  if (fault == MulticastFault::Hung) std::this_thread::sleep_for(std::chrono::minutes(1));
  auto* const held = static_cast<Team*>(team.handle());
  if (!held->object->await_team(Deadline::after(kTeamPatience)))
    return refused(Error::SystemNotReady);
  MemoryProperties found;
  RemoteName name;
  if (!memory_.find(memory, &found) || found.device != device) return refused(Error::InvalidValue);
  const auto inside = static_cast<size_t>(static_cast<const std::byte*>(memory) - found.base);
  if (bytes > found.bytes - inside || offset % kMappingGranularity != 0 ||
      inside % kMappingGranularity != 0 || bytes % kMappingGranularity != 0)
    return refused(Error::InvalidValue);
  if (const Error error = memory_.name_for_others(memory, &name); error != Error::None)
    return refused(error);
  name.offset += inside;
  name.bytes = bytes;
  const int on_machine = visible_.on_machine(device);
  if (const Error error = held->object->bind(on_machine, offset, name); error != Error::None)
    return refused(error);
  held->bindings.add({on_machine, offset, bytes});
  return {};
}

Status VirtualMulticast::unbind(const MulticastTeam& team, int device, size_t offset,
                                size_t bytes) {
  if (forks::is_orphan()) return {};  // it is the parent's
  auto* const held = static_cast<Team*>(team.handle());
  const int on_machine = is_visible(device) ? visible_.on_machine(device) : -1;
  const bool was_bound = held->bindings.take({on_machine, offset, bytes});
  return check("take from a multicast team memory of", device,
               was_bound ? held->object->unbind(on_machine, offset, bytes) : Error::InvalidValue);
}

Result<MulticastMapping> VirtualMulticast::map(const MulticastTeam& team, int device) {
  LOG(Trace, Nvls, "multicast: map a team for virtual GPU {}", device);
  auto* const held = static_cast<Team*>(team.handle());
  const auto refused = [&](Error error) {
    return check("map a multicast team for", device, error);
  };
  if (!is_visible(device)) return refused(Error::InvalidDevice);
  if (!held->object->await_team(Deadline::after(kTeamPatience)))
    return refused(Error::SystemNotReady);
  auto mapped = std::make_unique<Mapped>(Mapped{nullptr, team.bytes()});
  Error error = reserve_aligned(mapped->bytes, kMappingGranularity, &mapped->base);
  if (error != Error::None) return refused(error);
  error = memory_.enter_multicast(device, mapped->base, held->object);
  if (error != Error::None) {
    munmap(mapped->base, mapped->bytes);
    return refused(error);
  }
  memory_.protect(mapped->base, /*is_readable=*/false, /*is_writable=*/true);
  std::byte* const base = mapped->base;
  return MulticastMapping(this, mapped.release(), base);
}

Status VirtualMulticast::release_team(void* handle) {
  const std::unique_ptr<Team> team(static_cast<Team*>(handle));
  if (forks::is_orphan()) return {};  // it is the parent's
  for (const MulticastBinding& bound : team->bindings.take_all())
    static_cast<void>(team->object->unbind(bound.device, bound.offset, bound.bytes));
  return {};
}

Status VirtualMulticast::release_mapping(void* handle) {
  const std::unique_ptr<Mapped> mapped(static_cast<Mapped*>(handle));
  if (forks::is_orphan()) return {};
  // Out of the table first: the addresses may be somebody else's as soon as they are unmapped.
  static_cast<void>(memory_.release(mapped->base));
  munmap(mapped->base, mapped->bytes);
  return {};
}

}  // namespace niccolite::gpu::virtual_
