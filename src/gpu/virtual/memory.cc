#include "gpu/virtual/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <iterator>
#include <mutex>
#include <utility>

#include "base/forks.h"
#include "base/log.h"
#include "gpu/virtual/multicast.h"

#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_ignore_thread_begin();
extern "C" void __tsan_ignore_thread_end();
#endif

namespace niccolite::gpu::virtual_ {
namespace {

constexpr size_t kReserved = 32;  // one part of so many of the host's memory is never promised
// Promised in small allocations before the host is asked again: far less than the reserve.
constexpr size_t kUnmeasuredBytes = size_t{4} << 20;

// ThreadSanitizer takes a mapping for a write. What orders it before the first use may lie in
// another process, where it is not seen: a service thread maps what a peer has exported, and tells
// the peer, whose advertisement then tells a kernel here.
class UnseenByThreadSanitizer {
 public:
#ifdef __SANITIZE_THREAD__
  UnseenByThreadSanitizer() { __tsan_ignore_thread_begin(); }
  ~UnseenByThreadSanitizer() { __tsan_ignore_thread_end(); }
#else
  UnseenByThreadSanitizer() {}
  ~UnseenByThreadSanitizer() {}
#endif
  UnseenByThreadSanitizer(const UnseenByThreadSanitizer&) = delete;
};

void* map_shared(int fd, size_t bytes, size_t offset, bool loses_stores = false) {
  const UnseenByThreadSanitizer unseen;
  void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       (loses_stores ? MAP_PRIVATE : MAP_SHARED) | MAP_NORESERVE, fd,
                       static_cast<off_t>(offset));
  return mapping == MAP_FAILED ? nullptr : mapping;
}

}  // namespace

MemoryMap::MemoryMap(int devices, size_t bytes_per_device, std::function<HostMemory()> measure)
    : bytes_per_device_(bytes_per_device),
      measure_(std::move(measure)),
      used_(static_cast<size_t>(devices) + 1) {}

// Returns the bytes that the host has left for new promises.
size_t MemoryMap::measure_room() const {
  if (measure_ == nullptr) return SIZE_MAX;
  const HostMemory host = measure_();
  size_t touched = arena_.touched();
  for (const Fd* file : files_) touched += touched_bytes(*file);
  const size_t owed = promised_ - std::min(promised_, touched);
  const size_t kept = owed + host.limit / kReserved;
  return host.available - std::min(host.available, kept);
}

bool MemoryMap::take_room(size_t bytes) {
  if (bytes > unmeasured_) {
    const size_t room = measure_room();
    if (bytes > room) return false;
    unmeasured_ = std::min(room - bytes, kUnmeasuredBytes);
  } else {
    unmeasured_ -= bytes;
  }
  promised_ += bytes;
  return true;
}

size_t& MemoryMap::used(int device) {
  return device < 0 ? used_.back() : used_[static_cast<size_t>(device)];
}

const MemoryMap::Entry& MemoryMap::enter(Entry entry) {
  // A child would give the memory, which it shares, to others.
  if (entry.properties.origin != MemoryOrigin::Registered) forks::make_orphans();
  entry.properties.id = ++last_id_;
  const auto base = reinterpret_cast<uintptr_t>(entry.properties.base);
  if (entry.properties.origin != MemoryOrigin::Registered)
    forget_registrations(entry.properties.base, entry.properties.bytes);
  const auto [place, is_new] = entries_.emplace(base, std::move(entry));
  assert(is_new);
  static_cast<void>(is_new);  // of a build without assertions
  return place->second;
}

void MemoryMap::forget_registrations(const void* base, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(base);
  auto at = entries_.upper_bound(begin);
  if (at != entries_.begin() &&
      begin - std::prev(at)->first < std::prev(at)->second.properties.bytes)
    --at;
  while (at != entries_.end() && at->first < begin + bytes)
    at = at->second.properties.origin == MemoryOrigin::Registered ? entries_.erase(at)
                                                                  : std::next(at);
}

Error MemoryMap::allocate(int device, size_t bytes, PointerKind kind, bool shareable,
                          MemoryProperties* out) {
  if (bytes == 0) return Error::InvalidValue;
  // Before any rounding, which could wrap around.
  if (bytes > bytes_per_device_ * used_.size()) return Error::MemoryAllocation;
  if (shareable) bytes = round_up(bytes, kPage);  // a file of its own has whole pages
  std::unique_lock lock(mutex_);
  if (device >= 0 && bytes > bytes_per_device_ - used(device)) return Error::MemoryAllocation;
  if (!take_room(bytes)) return Error::MemoryAllocation;
  const Error error = make(device, bytes, kind, shareable, out);
  if (error == Error::None) {
    used(device) += bytes;
  } else {
    promised_ -= bytes;
  }
  return error;
}

Error MemoryMap::allocate_from(std::shared_ptr<const MemoryPool> pool, size_t bytes,
                               MemoryProperties* out) {
  TRY_VIRTUAL(allocate(pool->device, bytes, PointerKind::Device, /*shareable=*/false, out));
  std::unique_lock lock(mutex_);
  entries_.at(reinterpret_cast<uintptr_t>(out->base)).pool = std::move(pool);
  return Error::None;
}

std::shared_ptr<const MemoryPool> MemoryMap::pool_of(const void* pointer) const {
  std::shared_lock lock(mutex_);
  const Entry* entry = lookup(pointer);
  return entry == nullptr ? nullptr : entry->pool;
}

Error MemoryMap::make(int device, size_t bytes, PointerKind kind, bool shareable,
                      MemoryProperties* out) {
  Entry entry;
  entry.asked = bytes;
  entry.properties = {nullptr, bytes, kind, device,
                      shareable ? MemoryOrigin::Shareable : MemoryOrigin::Carved};
  if (shareable) {
    entry.mapped_bytes = bytes;
    Result<Fd> fd = Fd::memfd("virtual-gpu-shared", entry.mapped_bytes);
    if (!fd.is_ok()) {
      LOG(Warn, Alloc, "shareable memory of a virtual GPU: {}", fd.status().message());
      return Error::MemoryAllocation;
    }
    entry.fd = std::move(fd).take();
    entry.mapping = map_shared(entry.fd.get(), entry.mapped_bytes, 0);
    if (entry.mapping == nullptr) return Error::MemoryAllocation;
    entry.properties.base = static_cast<std::byte*>(entry.mapping);
  } else {
    Result<std::byte*> block = arena_.allocate(bytes);
    if (!block.is_ok()) {
      LOG(Warn, Alloc, "memory of a virtual GPU: {}", block.status().message());
      return Error::MemoryAllocation;
    }
    entry.properties.base = block.value();
  }
  *out = entry.properties;
  const Entry& made = enter(std::move(entry));
  if (shareable) files_.insert(&made.fd);
  return Error::None;
}

// Needs the same user, and that the exporter lives: the rules of cudaIpcOpenMemHandle too.
Fd open_named(const RemoteName& name) {
  const std::string path = fmt::format("/proc/{}/fd/{}", name.pid, name.fd);
  Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat found {};
  if (!file.valid() || fstat(file.get(), &found) != 0) return {};
  return found.st_dev == name.node && found.st_ino == name.inode ? std::move(file) : Fd();
}

bool can_be_mapped(const Fd& fd, size_t bytes, size_t offset) {
  struct stat file {};
  if (bytes == 0 || !fd.valid() || fstat(fd.get(), &file) != 0) return false;
  // A mapping beyond the end of the file would fault on access.
  const auto file_bytes = static_cast<size_t>(file.st_size);
  if (offset > file_bytes || bytes > file_bytes - offset) return false;
  // A mapping would also fault if the file's owner made the file shorter later.
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

Error MemoryMap::import(int device, Fd fd, size_t bytes, size_t offset, MemoryProperties* out,
                        bool loses_stores) {
  if (!can_be_mapped(fd, bytes, offset)) return Error::InvalidValue;
  const size_t page_offset = offset % kPage;
  Entry entry;
  entry.mapped_bytes = bytes + page_offset;
  entry.mapping = map_shared(fd.get(), entry.mapped_bytes, offset - page_offset, loses_stores);
  if (entry.mapping == nullptr) return Error::OperatingSystem;
  entry.properties = {static_cast<std::byte*>(entry.mapping) + page_offset, bytes,
                      device < 0 ? PointerKind::Host : PointerKind::Device, device,
                      MemoryOrigin::Imported};
  *out = entry.properties;
  std::unique_lock lock(mutex_);
  enter(std::move(entry));
  return Error::None;
}

Error MemoryMap::register_host(void* base, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(base);
  if (base == nullptr || bytes == 0 || address + bytes < address) return Error::InvalidValue;
  std::unique_lock lock(mutex_);
  if (arena_.owns(base) || is_reserved(base)) return Error::InvalidValue;
  if (overlaps(base, bytes)) return Error::HostMemoryAlreadyRegistered;
  Entry entry;
  entry.properties = {static_cast<std::byte*>(base), bytes, PointerKind::Host, -1,
                      MemoryOrigin::Registered};
  enter(std::move(entry));
  return Error::None;
}

Error MemoryMap::release(void* base, MemoryOrigin* origin) {
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(reinterpret_cast<uintptr_t>(base));
  if (found == entries_.end()) return Error::InvalidValue;
  Entry& entry = found->second;
  if (origin != nullptr) *origin = entry.properties.origin;
  if (entry.mapping != nullptr) munmap(entry.mapping, entry.mapped_bytes);
  if (entry.properties.origin == MemoryOrigin::Carved)
    arena_.free(entry.properties.base, entry.asked);
  if (entry.properties.origin <= MemoryOrigin::Shareable && !entry.is_suspended) {
    used(entry.properties.device) -= entry.asked;
    promised_ -= entry.asked;
  }
  files_.erase(&entry.fd);
  entries_.erase(found);
  return Error::None;
}

MemoryMap::Entry* MemoryMap::find_shared(const void* base) {
  const auto found = entries_.find(reinterpret_cast<uintptr_t>(base));
  if (found == entries_.end()) return nullptr;
  const MemoryOrigin origin = found->second.properties.origin;
  const bool is_shared = origin == MemoryOrigin::Shareable || origin == MemoryOrigin::Imported;
  return is_shared ? &found->second : nullptr;
}

Error MemoryMap::suspend(const void* base) {
  std::unique_lock lock(mutex_);
  Entry* entry = find_shared(base);
  if (entry == nullptr) return Error::InvalidValue;
  if (entry->properties.origin == MemoryOrigin::Imported || entry->is_suspended) return Error::None;
  if (fallocate(entry->fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                static_cast<off_t>(entry->mapped_bytes)) != 0)
    return Error::OperatingSystem;
  used(entry->properties.device) -= entry->asked;
  promised_ -= entry->asked;
  entry->is_suspended = true;
  return Error::None;
}

Error MemoryMap::resume(const void* base) {
  std::unique_lock lock(mutex_);
  Entry* entry = find_shared(base);
  if (entry == nullptr) return Error::InvalidValue;
  if (!entry->is_suspended) return Error::None;
  size_t& in_use = used(entry->properties.device);
  if (entry->asked > bytes_per_device_ - in_use || !take_room(entry->asked))
    return Error::MemoryAllocation;
  in_use += entry->asked;
  entry->is_suspended = false;
  return Error::None;
}

Error MemoryMap::export_memory(const void* base, Fd* out) const {
  std::shared_lock lock(mutex_);
  const Entry* entry = lookup(base);
  if (entry == nullptr || entry->properties.base != base || !entry->fd.valid())
    return Error::InvalidValue;
  Result<Fd> copy = entry->fd.duplicate();
  if (!copy.is_ok()) return Error::OperatingSystem;
  *out = std::move(copy).take();
  return Error::None;
}

Error MemoryMap::share(const void* pointer, Fd* file, MemoryProperties* whole) const {
  std::shared_lock lock(mutex_);
  const Entry* entry = lookup(pointer);
  if (entry == nullptr) return Error::InvalidValue;
  const Fd& held = entry->backing == nullptr ? entry->fd : *entry->backing;
  if (!held.valid()) return Error::InvalidValue;
  Result<Fd> copy = held.duplicate();
  if (!copy.is_ok()) return Error::OperatingSystem;
  *file = std::move(copy).take();
  *whole = entry->properties;
  return Error::None;
}

Error MemoryMap::enter_mapping(int device, std::byte* base, size_t bytes,
                               std::shared_ptr<const Fd> file) {
  std::unique_lock lock(mutex_);
  forget_registrations(base, bytes);
  if (overlaps(base, bytes)) return Error::InvalidValue;
  Entry entry;
  entry.properties = {base, bytes, PointerKind::Device, device,
                      file == nullptr ? MemoryOrigin::Imported : MemoryOrigin::Mapped};
  entry.is_readable = entry.is_writable = file == nullptr;
  entry.backing = std::move(file);
  enter(std::move(entry));
  return Error::None;
}

Error MemoryMap::enter_multicast(int device, std::byte* base,
                                 std::shared_ptr<MulticastObject> object) {
  std::unique_lock lock(mutex_);
  forget_registrations(base, object->bytes());
  if (overlaps(base, object->bytes())) return Error::InvalidValue;
  Entry entry;
  entry.properties = {base, object->bytes(), PointerKind::Device, device, MemoryOrigin::Multicast};
  entry.is_readable = entry.is_writable = false;
  entry.multicast = std::move(object);
  enter(std::move(entry));
  return Error::None;
}

MulticastPlace MemoryMap::multicast_at(const void* pointer) const {
  std::shared_lock lock(mutex_);
  const Entry* entry = lookup(pointer);
  return entry == nullptr ? MulticastPlace{} : place_in(*entry, pointer);
}

MulticastPlace MemoryMap::place_in(const Entry& entry, const void* pointer) {
  if (entry.multicast == nullptr) return {};
  return {entry.multicast,
          static_cast<size_t>(static_cast<const std::byte*>(pointer) - entry.properties.base)};
}

void MemoryMap::protect(const void* base, bool is_readable, bool is_writable) {
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(reinterpret_cast<uintptr_t>(base));
  if (found == entries_.end()) return;
  const MemoryOrigin origin = found->second.properties.origin;
  if (origin != MemoryOrigin::Mapped && origin != MemoryOrigin::Multicast) return;
  found->second.is_readable = is_readable && origin == MemoryOrigin::Mapped;
  found->second.is_writable = is_writable;
}

void MemoryMap::reserve(const void* base, size_t bytes) {
  std::unique_lock lock(mutex_);
  forget_registrations(base, bytes);
  reserved_.emplace(reinterpret_cast<uintptr_t>(base), bytes);
}

void MemoryMap::unreserve(const void* base) {
  std::unique_lock lock(mutex_);
  reserved_.erase(reinterpret_cast<uintptr_t>(base));
}

Error MemoryMap::promise(int device, size_t bytes, const Fd* file) {
  std::unique_lock lock(mutex_);
  if (bytes > bytes_per_device_ - used(device) || !take_room(bytes)) return Error::MemoryAllocation;
  used(device) += bytes;
  files_.insert(file);
  forks::make_orphans();
  return Error::None;
}

void MemoryMap::withdraw(int device, size_t bytes, const Fd* file) {
  std::unique_lock lock(mutex_);
  used(device) -= bytes;
  promised_ -= bytes;
  files_.erase(file);
}

Error MemoryMap::name_for_others(const void* pointer, RemoteName* out) const {
  std::shared_lock lock(mutex_);
  const Entry* entry = lookup(pointer);
  if (entry == nullptr || entry->properties.kind != PointerKind::Device) return Error::InvalidValue;
  Arena::Extent place;
  switch (entry->properties.origin) {
    case MemoryOrigin::Carved:
      place = arena_.place_of(entry->properties.base);
      break;
    case MemoryOrigin::Shareable:
      place = {entry->fd.get(), 0};
      break;
    default:
      return Error::InvalidValue;  // as on CUDA, imported memory is not handed on
  }
  struct stat file {};
  if (fstat(place.fd, &file) != 0) return Error::OperatingSystem;
  *out = {getpid(), place.fd, file.st_dev, file.st_ino, place.offset, entry->properties.bytes};
  return Error::None;
}

Error MemoryMap::import_named(int device, const RemoteName& name, MemoryProperties* out) {
  Fd file = open_named(name);
  if (!file.valid()) return Error::InvalidValue;
  return import(device, std::move(file), name.bytes, name.offset, out);
}

const MemoryMap::Entry* MemoryMap::lookup(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto after = entries_.upper_bound(address);
  if (after == entries_.begin()) return nullptr;
  --after;
  return address - after->first < after->second.properties.bytes ? &after->second : nullptr;
}

bool MemoryMap::overlaps(const void* base, size_t bytes) const {
  if (lookup(base) != nullptr) return true;
  const auto next = entries_.lower_bound(reinterpret_cast<uintptr_t>(base));
  return next != entries_.end() && next->first < reinterpret_cast<uintptr_t>(base) + bytes;
}

bool MemoryMap::find(const void* pointer, MemoryProperties* out) const {
  std::shared_lock lock(mutex_);
  const Entry* entry = lookup(pointer);
  if (entry == nullptr) return false;
  *out = entry->properties;
  return true;
}

bool MemoryMap::is_reserved(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto after = reserved_.upper_bound(address);
  if (after == reserved_.begin()) return false;
  --after;
  return address - after->first < after->second;
}

Error MemoryMap::check_range(const void* pointer, size_t bytes, bool* pageable, Use use,
                             MulticastPlace* place) const {
  *pageable = false;
  if (pointer == nullptr) return Error::InvalidValue;
  std::shared_lock lock(mutex_);
  const Entry* entry = lookup(pointer);
  if (entry == nullptr) {
    *pageable = true;
    return arena_.owns(pointer) || is_reserved(pointer) ? Error::InvalidValue : Error::None;
  }
  if (entry->properties.origin == MemoryOrigin::Mapped) return check_mapped(pointer, bytes, use);
  if (use == Use::Read ? !entry->is_readable : !entry->is_writable) return Error::InvalidValue;
  if (place != nullptr) *place = place_in(*entry, pointer);
  const auto offset =
      static_cast<size_t>(static_cast<const std::byte*>(pointer) - entry->properties.base);
  if (bytes <= entry->properties.bytes - offset) return Error::None;
  // Host memory goes on where only a part of it was registered.
  return entry->properties.origin == MemoryOrigin::Registered ? Error::None : Error::InvalidValue;
}

// A range of a program's mappings may go from one to the next.
Error MemoryMap::check_mapped(const void* pointer, size_t bytes, Use use) const {
  auto address = reinterpret_cast<uintptr_t>(pointer);
  for (auto found = std::prev(entries_.upper_bound(address)); found != entries_.end(); ++found) {
    const Entry& entry = found->second;
    const size_t offset = address - found->first;
    const bool may = use == Use::Read ? entry.is_readable : entry.is_writable;
    const bool is_there =
        entry.properties.origin == MemoryOrigin::Mapped && offset < entry.properties.bytes;
    if (!is_there || !may) return Error::InvalidValue;
    const size_t left = entry.properties.bytes - offset;
    if (bytes <= left) return Error::None;
    address += left;
    bytes -= left;
    const auto next = std::next(found);
    if (next == entries_.end() || next->first != address) return Error::InvalidValue;
  }
  return Error::InvalidValue;
}

void MemoryMap::usage(int device, size_t* free, size_t* total) const {
  std::shared_lock lock(mutex_);
  *total = bytes_per_device_;
  *free = std::min(bytes_per_device_ - used_[static_cast<size_t>(device)], measure_room());
}

size_t MemoryMap::live() const {
  std::shared_lock lock(mutex_);
  return entries_.size();
}

}  // namespace niccolite::gpu::virtual_
