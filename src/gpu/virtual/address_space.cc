#include "gpu/virtual/address_space.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "gpu/virtual/mappings.h"

namespace niccolite::gpu::virtual_ {
namespace {

bool is_multiple(size_t value) { return value % kAllocationGranularity == 0; }
bool is_multiple(const void* address) { return is_multiple(reinterpret_cast<uintptr_t>(address)); }

// ---- the file of an allocation: its name goes with the descriptor, whoever gets it
constexpr std::string_view kFileName = "virtual-gpu-memory-";

/// The name that Fd::memfd() got, with " (deleted)" behind it; empty: another kind of file.
std::string name_of_file(int descriptor) {
  constexpr std::string_view kPrefix = "/memfd:";
  char target[64] = "";
  const std::string link = fmt::format("/proc/self/fd/{}", descriptor);
  const ssize_t length = readlink(link.c_str(), target, sizeof target);
  const std::string_view name(target, static_cast<size_t>(std::max<ssize_t>(length, 0)));
  return name.starts_with(kPrefix) ? std::string(name.substr(kPrefix.size())) : std::string();
}

/// The machine's number; -1: no such file.
int device_of_file(const std::string& whole) {
  std::string_view name = whole;
  if (!name.starts_with(kFileName)) return -1;
  name.remove_prefix(kFileName.size());
  int device = -1;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), device);
  return parsed.ec == std::errc() ? device : -1;
}

Access access_of_all(const std::map<int, Access>& by_device) {
  Access all = Access::None;
  for (const auto& [device, access] : by_device) all = std::max(all, access);
  return all;
}

int protection_of(Access access) {
  if (access == Access::None) return PROT_NONE;
  return access == Access::Read ? PROT_READ : PROT_READ | PROT_WRITE;
}

constexpr int kNothingThere = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

}  // namespace

AddressSpace::AddressSpace(MemoryMap& memory, const VisibleDevices& visible,
                           std::function<void(int device)> drain)
    : memory_(memory), visible_(visible), drain_(std::move(drain)) {}

AddressSpace::~AddressSpace() {
  for (const auto& [base, mapping] : mappings_) static_cast<void>(memory_.release(base));
  for (const auto& [base, bytes] : reservations_) {
    memory_.unreserve(base);
    munmap(base, bytes);
  }
  drop_retired(0);
}

// ---- allocations

std::shared_ptr<AddressSpace::Allocation> AddressSpace::find(AllocationHandle handle) {
  std::shared_ptr<Allocation> found = allocations_.find(reinterpret_cast<void*>(handle));
  return found != nullptr && found->references > 0 ? found : nullptr;
}

AllocationHandle AddressSpace::enter(std::shared_ptr<Allocation> allocation) {
  allocation->id = ++last_id_;
  void* const handle = allocations_.insert(allocation);
  allocation->handle = handle;
  return reinterpret_cast<AllocationHandle>(handle);
}

void AddressSpace::drop_if_unused(const std::shared_ptr<Allocation>& allocation) {
  if (allocation->references > 0 || allocation->mappings > 0) return;
  allocations_.remove(allocation->handle);
  for (const Bound& bound : std::exchange(allocation->bound, {})) {
    static_cast<void>(allocation->multicast->unbind(visible_.on_machine(bound.device), bound.offset,
                                                    bound.bytes));
    --bound.memory->mappings;
    drop_if_unused(bound.memory);
  }
  if (!allocation->is_import && allocation->multicast == nullptr)
    memory_.withdraw(allocation->properties.device, allocation->bytes, &allocation->file);
}

Error AddressSpace::create(const AllocationProperties& properties, size_t bytes,
                           AllocationHandle* out) {
  if (properties.device < 0 || properties.device >= visible_.count()) return Error::InvalidDevice;
  if (bytes == 0 || !is_multiple(bytes)) return Error::InvalidValue;
  auto made = std::make_shared<Allocation>();
  made->bytes = bytes;
  made->properties = properties;
  // Before the file, which may be too large for any machine.
  TRY_VIRTUAL(memory_.promise(properties.device, bytes, &made->file));
  Result<Fd> file = Fd::memfd(
      fmt::format("{}{}", kFileName, visible_.on_machine(properties.device)).c_str(), bytes);
  if (!file.is_ok()) {
    LOG(Warn, Alloc, "memory of a virtual GPU: {}", file.status().message());
    memory_.withdraw(properties.device, bytes, &made->file);
    return Error::MemoryAllocation;
  }
  made->file = std::move(file).take();
  std::lock_guard lock(mutex_);
  *out = enter(std::move(made));
  return Error::None;
}

Error AddressSpace::release(AllocationHandle handle) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Allocation> allocation = find(handle);
  if (allocation == nullptr) return Error::InvalidValue;
  --allocation->references;
  drop_if_unused(allocation);
  return Error::None;
}

Error AddressSpace::retain(const void* address, AllocationHandle* out) {
  std::lock_guard lock(mutex_);
  const auto mapping = mapping_at(address);
  if (mapping == mappings_.end()) return Error::InvalidValue;
  Allocation& allocation = *mapping->second.allocation;
  ++allocation.references;
  *out = reinterpret_cast<AllocationHandle>(allocation.handle);
  return Error::None;
}

Error AddressSpace::properties(AllocationHandle handle, AllocationProperties* out) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Allocation> allocation = find(handle);
  if (allocation == nullptr || allocation->multicast != nullptr) return Error::InvalidValue;
  *out = allocation->properties;
  return Error::None;
}

Error AddressSpace::export_allocation(AllocationHandle handle, int* descriptor) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Allocation> allocation = find(handle);
  if (allocation == nullptr || !allocation->properties.is_exportable) return Error::InvalidValue;
  const bool is_multicast = allocation->multicast != nullptr;
  Result<Fd> copy = (is_multicast ? allocation->multicast->file() : allocation->file).duplicate();
  if (!copy.is_ok()) return Error::OperatingSystem;
  *descriptor = std::move(copy).take().release();
  return Error::None;
}

Error AddressSpace::import_allocation(int descriptor, AllocationHandle* out) {
  const std::string name = name_of_file(descriptor);
  const bool is_multicast = name.starts_with(MulticastObject::kFileName);
  const int device = device_of_file(name);
  if (!is_multicast && device < 0) return Error::InvalidValue;
  if (device >= visible_.total()) return Error::InvalidDevice;
  Fd mine(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  struct stat status {};
  if (!mine.valid() || fstat(mine.get(), &status) != 0) return Error::OperatingSystem;
  auto made = std::make_shared<Allocation>();
  made->is_import = true;
  if (is_multicast) {
    TRY_VIRTUAL(MulticastObject::import(std::move(mine), &made->multicast));
    made->bytes = made->multicast->bytes();
    made->properties.is_exportable = true;
  } else {
    made->bytes = static_cast<size_t>(status.st_size);
    // A process that can make a file of this name can give it any length.
    if (!is_multiple(made->bytes) || !can_be_mapped(mine, made->bytes, 0))
      return Error::InvalidValue;
    made->file = std::move(mine);
    // Memory of a GPU that this process does not see counts as its first one's.
    made->properties.device = std::max(visible_.in_process(device), 0);
  }
  std::lock_guard lock(mutex_);
  *out = enter(std::move(made));
  return Error::None;
}

// ---- multicast objects

Error AddressSpace::create_multicast(const MulticastProperties& properties, AllocationHandle* out) {
  if (properties.bytes == 0 || !is_multiple(properties.bytes)) return Error::InvalidValue;
  auto made = std::make_shared<Allocation>();
  TRY_VIRTUAL(MulticastObject::create(properties.devices, properties.bytes, &made->multicast));
  made->bytes = properties.bytes;
  made->properties.is_exportable = properties.is_exportable;
  std::lock_guard lock(mutex_);
  *out = enter(std::move(made));
  return Error::None;
}

Error AddressSpace::add_device(AllocationHandle multicast, int device) {
  if (device < 0 || device >= visible_.count()) return Error::InvalidDevice;
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Allocation> object = find(multicast);
  if (object == nullptr || object->multicast == nullptr) return Error::InvalidValue;
  return object->multicast->add(visible_.on_machine(device));
}

Error AddressSpace::await_team(AllocationHandle handle, std::shared_ptr<Allocation>* out) {
  {
    std::lock_guard lock(mutex_);
    *out = find(handle);
  }
  if (*out == nullptr || (*out)->multicast == nullptr) return Error::InvalidValue;
  return (*out)->multicast->await_team(Deadline::after(kTeamPatience)) ? Error::None
                                                                       : Error::SystemNotReady;
}

Error AddressSpace::bind_memory(const std::shared_ptr<Allocation>& object, size_t offset,
                                const std::shared_ptr<Allocation>& memory, size_t memory_offset,
                                size_t bytes) {
  if (bytes == 0 || !is_multiple(offset) || !is_multiple(memory_offset) || !is_multiple(bytes))
    return Error::InvalidValue;
  if (memory_offset > memory->bytes || bytes > memory->bytes - memory_offset)
    return Error::InvalidValue;
  struct stat file {};
  if (fstat(memory->file.get(), &file) != 0) return Error::OperatingSystem;
  const int device = memory->properties.device;
  TRY_VIRTUAL(object->multicast->bind(
      visible_.on_machine(device), offset,
      {getpid(), memory->file.get(), file.st_dev, file.st_ino, memory_offset, bytes}));
  ++memory->mappings;
  object->bound.push_back({device, offset, bytes, memory});
  return Error::None;
}

Error AddressSpace::bind(AllocationHandle multicast, size_t offset, AllocationHandle memory,
                         size_t memory_offset, size_t bytes) {
  std::shared_ptr<Allocation> object;
  TRY_VIRTUAL(await_team(multicast, &object));
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Allocation> found = find(memory);
  if (found == nullptr || found->multicast != nullptr) return Error::InvalidValue;
  return bind_memory(object, offset, found, memory_offset, bytes);
}

Error AddressSpace::bind_address(AllocationHandle multicast, size_t offset, const void* address,
                                 size_t bytes) {
  std::shared_ptr<Allocation> object;
  TRY_VIRTUAL(await_team(multicast, &object));
  std::lock_guard lock(mutex_);
  const auto mapping = mapping_at(address);
  if (mapping == mappings_.end() || mapping->second.allocation->multicast != nullptr)
    return Error::InvalidValue;
  const auto memory_offset =
      static_cast<size_t>(static_cast<const std::byte*>(address) - mapping->first);
  return bind_memory(object, offset, mapping->second.allocation, memory_offset, bytes);
}

Error AddressSpace::unbind(AllocationHandle multicast, int device, size_t offset, size_t bytes) {
  std::lock_guard lock(mutex_);
  const std::shared_ptr<Allocation> object = find(multicast);
  if (object == nullptr || object->multicast == nullptr) return Error::InvalidValue;
  const auto found =
      std::find_if(object->bound.begin(), object->bound.end(), [&](const Bound& bound) {
        return bound.device == device && bound.offset == offset && bound.bytes == bytes;
      });
  if (found == object->bound.end()) return Error::InvalidValue;
  TRY_VIRTUAL(object->multicast->unbind(visible_.on_machine(device), offset, bytes));
  const std::shared_ptr<Allocation> memory = std::move(found->memory);
  object->bound.erase(found);
  --memory->mappings;
  drop_if_unused(memory);
  return Error::None;
}

Error AddressSpace::map_multicast(std::byte* base, size_t bytes, size_t offset,
                                  const std::shared_ptr<Allocation>& object) {
  if (offset != 0 || bytes != object->bytes) return Error::NotSupported;
  if (!object->multicast->await_team(Deadline::after(kTeamPatience))) return Error::SystemNotReady;
  std::lock_guard lock(mutex_);
  TRY_VIRTUAL(check_place(base, bytes));
  TRY_VIRTUAL(memory_.enter_multicast(object->properties.device, base, object->multicast));
  ++object->mappings;
  mappings_.emplace(base, Mapping{object, bytes, {}});
  return Error::None;
}

// ---- addresses

void AddressSpace::drop_retired(size_t most) {
  while (retired_.size() > most) {
    memory_.unreserve(retired_.front().base);
    munmap(retired_.front().base, retired_.front().bytes);
    retired_.pop_front();
  }
}

Error AddressSpace::reserve(size_t bytes, size_t alignment, void* hint, void** out) {
  if (bytes == 0 || !is_multiple(bytes) || (alignment & (alignment - 1)) != 0)
    return Error::InvalidValue;
  alignment = std::max(alignment, kAllocationGranularity);
  std::lock_guard lock(mutex_);
  std::byte* base = nullptr;
  if (hint != nullptr && reinterpret_cast<uintptr_t>(hint) % alignment == 0) {
    drop_retired(0);  // the hint may be where a reservation was
    void* const there = mmap(hint, bytes, PROT_NONE, kNothingThere | MAP_FIXED_NOREPLACE, -1, 0);
    if (there == hint) {
      base = static_cast<std::byte*>(there);
    } else if (there != MAP_FAILED) {
      munmap(there, bytes);  // by a kernel that knows no MAP_FIXED_NOREPLACE
    }
  }
  if (base == nullptr) TRY_VIRTUAL(reserve_aligned(bytes, alignment, &base));
  reservations_.emplace(base, bytes);
  memory_.reserve(base, bytes);
  *out = base;
  return Error::None;
}

Error AddressSpace::free_reservation(void* base, size_t bytes) {
  auto* const begin = static_cast<std::byte*>(base);
  std::lock_guard lock(mutex_);
  const auto found = reservations_.find(begin);
  if (found == reservations_.end() || found->second != bytes) return Error::InvalidValue;
  std::vector<Mappings::iterator> there;
  if (!collect(begin, bytes, &there) || !there.empty()) return Error::InvalidValue;
  reservations_.erase(found);
  retired_.push_back({begin, bytes});
  drop_retired(kRetiredReservations);
  return Error::None;
}

bool AddressSpace::is_reserved(const std::byte* address, size_t bytes) {
  for (;;) {
    auto found = reservations_.upper_bound(const_cast<std::byte*>(address));
    if (found == reservations_.begin()) return false;
    --found;
    const auto offset = static_cast<size_t>(address - found->first);
    if (offset >= found->second) return false;
    const size_t left = found->second - offset;
    if (bytes <= left) return true;
    address += left;  // perhaps another reservation begins there
    bytes -= left;
  }
}

// ---- mappings

AddressSpace::Mappings::iterator AddressSpace::mapping_at(const void* address) {
  auto* const at = static_cast<std::byte*>(const_cast<void*>(address));
  auto found = mappings_.upper_bound(at);
  if (found == mappings_.begin()) return mappings_.end();
  --found;
  return static_cast<size_t>(at - found->first) < found->second.bytes ? found : mappings_.end();
}

bool AddressSpace::collect(std::byte* address, size_t bytes, std::vector<Mappings::iterator>* out) {
  const auto first = mapping_at(address);
  if (first != mappings_.end() && first->first != address) return false;
  std::byte* const end = address + bytes;
  for (auto next = mappings_.lower_bound(address); next != mappings_.end() && next->first < end;
       ++next) {
    if (next->first + next->second.bytes > end) return false;
    out->push_back(next);
  }
  return true;
}

/// Is the range reserved, and nothing mapped there?
Error AddressSpace::check_place(std::byte* base, size_t bytes) {
  std::vector<Mappings::iterator> there;
  const bool is_free = is_reserved(base, bytes) && collect(base, bytes, &there) && there.empty();
  return is_free ? Error::None : Error::InvalidValue;
}

Error AddressSpace::map(void* address, size_t bytes, size_t offset, AllocationHandle handle) {
  auto* const base = static_cast<std::byte*>(address);
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Allocation> allocation = find(handle);
  if (allocation == nullptr || bytes == 0 || !is_multiple(address)) return Error::InvalidValue;
  if (allocation->multicast != nullptr) {
    lock.unlock();  // over a wait for other processes
    return map_multicast(base, bytes, offset, allocation);
  }
  if (offset != 0 || bytes != allocation->bytes) return Error::NotSupported;
  TRY_VIRTUAL(check_place(base, bytes));
  if (mmap(base, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, allocation->file.get(), 0) == MAP_FAILED)
    return Error::OperatingSystem;
  TRY_VIRTUAL(memory_.enter_mapping(allocation->properties.device, base, bytes,
                                    std::shared_ptr<const Fd>(allocation, &allocation->file)));
  ++allocation->mappings;
  mappings_.emplace(base, Mapping{allocation, bytes, {}});
  return Error::None;
}

Error AddressSpace::unmap(void* address, size_t bytes) {
  auto* const base = static_cast<std::byte*>(address);
  if (bytes == 0 || !is_multiple(address) || !is_multiple(bytes)) return Error::InvalidValue;
  std::set<int> users;
  for (bool is_drained = false;; is_drained = true) {
    {
      std::lock_guard lock(mutex_);
      std::vector<Mappings::iterator> there;
      if (!is_reserved(base, bytes) || !collect(base, bytes, &there)) return Error::InvalidValue;
      if (is_drained || there.empty()) {
        for (const auto mapping : there) {
          const std::shared_ptr<Allocation> allocation = mapping->second.allocation;
          static_cast<void>(memory_.release(mapping->first));
          mmap(mapping->first, mapping->second.bytes, PROT_NONE, kNothingThere | MAP_FIXED, -1, 0);
          mappings_.erase(mapping);
          --allocation->mappings;
          drop_if_unused(allocation);
        }
        return Error::None;
      }
      for (const auto mapping : there)
        for (const auto& [device, access] : mapping->second.access) users.insert(device);
    }
    for (const int device : users) drain_(device);  // queued work may use it
  }
}

Error AddressSpace::set_access(void* address, size_t bytes,
                               const std::vector<DeviceAccess>& access) {
  auto* const base = static_cast<std::byte*>(address);
  if (bytes == 0 || access.empty()) return Error::InvalidValue;
  std::set<int> losers;
  for (const DeviceAccess& one : access) {
    if (one.device < 0 || one.device >= visible_.count()) return Error::InvalidValue;
    if (one.access != Access::ReadWrite) losers.insert(one.device);
  }
  // Queued work may still use the access that is taken away.
  for (const int device : losers) drain_(device);
  std::lock_guard lock(mutex_);
  std::vector<Mappings::iterator> there;
  if (!collect(base, bytes, &there)) return Error::InvalidValue;
  size_t mapped = 0;
  for (const auto mapping : there) mapped += mapping->second.bytes;
  if (mapped != bytes) return Error::InvalidValue;
  for (const auto mapping : there) {
    for (const DeviceAccess& one : access) mapping->second.access[one.device] = one.access;
    TRY_VIRTUAL(protect(mapping));
  }
  return Error::None;
}

Error AddressSpace::protect(Mappings::iterator mapping) {
  // One memory for all: everybody who has access to it has the widest access that anybody has.
  const Access access = access_of_all(mapping->second.access);
  const bool is_multicast = mapping->second.allocation->multicast != nullptr;
  // Nothing is mapped at multicast addresses: a plain access is a fault, as it is undefined on
  // GPUs.
  if (!is_multicast && mprotect(mapping->first, mapping->second.bytes, protection_of(access)) != 0)
    return Error::OperatingSystem;
  memory_.protect(mapping->first, access != Access::None, access == Access::ReadWrite);
  return Error::None;
}

bool AddressSpace::describe(const void* address, AddressDescription* out) {
  auto* const at = static_cast<std::byte*>(const_cast<void*>(address));
  std::lock_guard lock(mutex_);
  auto reservation = reservations_.upper_bound(at);
  if (reservation == reservations_.begin()) return false;
  --reservation;
  if (static_cast<size_t>(at - reservation->first) >= reservation->second) return false;
  *out = {};
  out->reservation = reservation->first;
  out->reserved_bytes = reservation->second;
  const auto mapping = mapping_at(address);
  if (mapping == mappings_.end()) return true;
  const Allocation& allocation = *mapping->second.allocation;
  out->mapping = mapping->first;
  out->mapped_bytes = mapping->second.bytes;
  out->properties = allocation.properties;
  out->allocation_id = allocation.id;
  for (const auto& [device, access] : mapping->second.access)
    out->access.push_back({device, access});
  return true;
}

}  // namespace niccolite::gpu::virtual_
