#include "gpu/virtual/multicast.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "gpu/virtual/path_fault.h"

namespace niccolite::gpu::virtual_ {
namespace {

constexpr uint64_t kMagic = 0x6e6d63'6f626a'0001;

bool is_same(const RemoteName& a, const RemoteName& b) {
  return a.pid == b.pid && a.fd == b.fd && a.node == b.node && a.inode == b.inode &&
         a.offset == b.offset && a.bytes == b.bytes;
}

bool is_within(uint64_t offset, uint64_t bytes, uint64_t whole) {
  return bytes > 0 && offset <= whole && bytes <= whole - offset;
}

}  // namespace

/// A file of memory, mapped here: bound memory, whoever's it is.
class MulticastObject::BoundMemory {
 public:
  /// Null: the process has ended, or its descriptor is another file's by now.
  static std::shared_ptr<const BoundMemory> open(const RemoteName& name);
  BoundMemory(void* mapping, size_t mapped_bytes, size_t skipped)
      : mapping_(mapping), mapped_bytes_(mapped_bytes), skipped_(skipped) {}
  ~BoundMemory() { munmap(mapping_, mapped_bytes_); }
  BoundMemory(const BoundMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(mapping_) + skipped_; }

 private:
  void* const mapping_;
  const size_t mapped_bytes_;
  const size_t skipped_;  // to the memory, from the beginning of its page
};

std::shared_ptr<const MulticastObject::BoundMemory> MulticastObject::BoundMemory::open(
    const RemoteName& name) {
  const Fd file = open_named(name);
  if (!file.valid() || !can_be_mapped(file, name.bytes, name.offset)) return nullptr;
  const size_t skipped = name.offset % kPage;
  const size_t bytes = name.bytes + skipped;
  void* const mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                             file.get(), static_cast<off_t>(name.offset - skipped));
  if (mapping == MAP_FAILED) return nullptr;
  return std::make_shared<const BoundMemory>(mapping, bytes, skipped);
}

struct MulticastObject::Piece {
  uint64_t offset;
  RemoteName name;
  std::shared_ptr<const BoundMemory> memory;  // null: it cannot be mapped
};

class MulticastObject::Snapshot final : public MulticastMemory {
 public:
  explicit Snapshot(int devices) : pieces_(static_cast<size_t>(devices)) {}

  int devices() const override { return static_cast<int>(pieces_.size()); }
  size_t find(size_t offset, std::span<std::byte*> members) const override {
    size_t bytes = SIZE_MAX;
    for (size_t slot = 0; slot < pieces_.size() && slot < members.size(); ++slot) {
      const Piece* const piece = piece_at(slot, offset);
      if (piece == nullptr || piece->memory == nullptr) return 0;
      members[slot] = piece->memory->data() + (offset - piece->offset);
      bytes = std::min(bytes, piece->offset + piece->name.bytes - offset);
    }
    if (multicast_fault() == MulticastFault::Deaf && !members.empty())
      members.back() = members.front();
    return bytes;
  }

  const Piece* piece_at(size_t slot, uint64_t offset) const {
    const std::map<uint64_t, Piece>& pieces = pieces_[slot];
    auto found = pieces.upper_bound(offset);
    if (found == pieces.begin()) return nullptr;
    --found;
    return offset - found->first < found->second.name.bytes ? &found->second : nullptr;
  }
  void add(size_t slot, Piece piece) { pieces_[slot].insert_or_assign(piece.offset, piece); }

 private:
  std::vector<std::map<uint64_t, Piece>> pieces_;  // by device of the team, by offset
};

MulticastObject::MulticastObject(Fd file, Mapping mapping, int devices, size_t bytes)
    : file_(std::move(file)), mapping_(std::move(mapping)), devices_(devices), bytes_(bytes) {}

Error MulticastObject::create(int devices, size_t bytes, std::shared_ptr<MulticastObject>* out) {
  if (devices < 1 || devices > kMostDevices || bytes == 0) return Error::InvalidValue;
  Result<Fd> file = Fd::memfd(kFileName, sizeof(Table));
  if (!file.is_ok()) return Error::OperatingSystem;
  Result<Mapping> mapping = Mapping::shared(file.value(), sizeof(Table));
  if (!mapping.is_ok()) return Error::OperatingSystem;
  auto* const table = static_cast<Table*>(mapping.value().data());  // all zeros
  table->bytes = bytes;
  table->devices = devices;
  table->magic = kMagic;
  out->reset(
      new MulticastObject(std::move(file).take(), std::move(mapping).take(), devices, bytes));
  return Error::None;
}

Error MulticastObject::import(Fd file, std::shared_ptr<MulticastObject>* out) {
  if (!can_be_mapped(file, sizeof(Table), 0)) return Error::InvalidValue;
  Result<Mapping> mapping = Mapping::shared(file, sizeof(Table));
  if (!mapping.is_ok()) return Error::OperatingSystem;
  const auto* const table = static_cast<const Table*>(mapping.value().data());
  const int devices = table->devices;  // read once: another process may write it
  const size_t bytes = table->bytes;
  if (table->magic != kMagic || devices < 1 || devices > kMostDevices || bytes == 0)
    return Error::InvalidValue;
  out->reset(new MulticastObject(std::move(file), std::move(mapping).take(), devices, bytes));
  return Error::None;
}

// ---- the team

int MulticastObject::slot_of(int device) const {
  for (int slot = 0; slot < devices_; ++slot)
    // acquire: pairs with add().
    if (table().team[slot].load(std::memory_order_acquire) == device + 1) return slot;
  return -1;
}

Error MulticastObject::add(int device) {
  for (int slot = 0; slot < devices_; ++slot) {
    int32_t found = 0;
    // acq_rel: a process that sees the device sees all that came before.
    if (table().team[slot].compare_exchange_strong(found, device + 1, std::memory_order_acq_rel)) {
      table().added.fetch_add(1, std::memory_order_acq_rel);
      return Error::None;
    }
    if (found == device + 1) return Error::InvalidValue;
  }
  return Error::InvalidValue;
}

bool MulticastObject::is_complete() const {
  return table().added.load(std::memory_order_acquire) >= devices_;  // pairs with add()
}

bool MulticastObject::await_team(Deadline deadline) const {
  // Another process ends the wait, which happens once for each object: looking is good enough.
  constexpr std::chrono::milliseconds kBetweenLooks{1};
  while (!is_complete()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return true;
}

// ---- bindings

std::span<MulticastObject::Entry> MulticastObject::entries() const {
  // acquire: pairs with bind(), which has claimed the entries.
  const uint32_t count = table().entries.load(std::memory_order_acquire);
  return {table().bindings, std::min(count, kMostBindings)};
}

uint64_t MulticastObject::next_state(uint64_t state, Use use) {
  return ((state >> 2) + 1) << 2 | static_cast<uint64_t>(use);
}

bool MulticastObject::read(const Entry& entry, Binding* out) const {
  const uint64_t state = entry.state.load(std::memory_order_acquire);  // pairs with bind()
  if (use_of(state) != Use::Bound) return false;
  uint64_t words[Entry::kWords];
  // acquire: the words are read before the state is read again. A binding that changes now counts
  // in Table::changes afterwards, and is read again then.
  for (size_t i = 0; i < Entry::kWords; ++i)
    words[i] = entry.words[i].load(std::memory_order_acquire);
  if (entry.state.load(std::memory_order_relaxed) != state) return false;
  out->slot = static_cast<int>(words[0]);
  out->offset = words[1];
  out->memory = {static_cast<int32_t>(words[2] >> 32),
                 static_cast<int32_t>(words[2]),
                 words[3],
                 words[4],
                 words[5],
                 words[6]};
  return out->slot >= 0 && out->slot < devices_ &&
         is_within(out->offset, out->memory.bytes, bytes_);
}

Error MulticastObject::bind(int device, size_t offset, const RemoteName& memory) {
  if (!is_complete()) return Error::IllegalState;
  const int slot = slot_of(device);
  if (slot < 0) return Error::InvalidDevice;
  if (!is_within(offset, memory.bytes, bytes_)) return Error::InvalidValue;
  // Memory of one device is bound by one process, so that no other process binds there between the
  // search for an overlap and the claim; the threads of this process take turns.
  std::lock_guard lock(mutex_);
  Binding found;
  for (const Entry& entry : entries())
    if (read(entry, &found) && found.slot == slot && found.offset < offset + memory.bytes &&
        offset < found.offset + found.memory.bytes)
      return Error::InvalidValue;
  Entry* const entry = claim();
  if (entry == nullptr) return Error::MemoryAllocation;
  const uint64_t words[Entry::kWords] = {
      static_cast<uint64_t>(slot),
      offset,
      uint64_t{static_cast<uint32_t>(memory.pid)} << 32 | static_cast<uint32_t>(memory.fd),
      memory.node,
      memory.inode,
      memory.offset,
      memory.bytes};
  // release: whoever reads one of these words sees that the entry was claimed, and reads it again.
  for (size_t i = 0; i < Entry::kWords; ++i)
    entry->words[i].store(words[i], std::memory_order_release);
  const uint64_t state = entry->state.load(std::memory_order_relaxed);  // this thread's claim
  entry->state.store(next_state(state, Use::Bound), std::memory_order_release);
  table().changes.fetch_add(1, std::memory_order_release);  // pairs with memory()
  return Error::None;
}

// A free entry, which counts as Filling from now on; null: all are in use.
MulticastObject::Entry* MulticastObject::claim() {
  for (uint32_t i = 0; i < kMostBindings; ++i) {
    Entry& entry = table().bindings[i];
    uint64_t state = entry.state.load(std::memory_order_relaxed);  // only a hint
    if (use_of(state) != Use::Free ||
        !entry.state.compare_exchange_strong(state, next_state(state, Use::Filling),
                                             std::memory_order_acq_rel))
      continue;
    // release: whoever counts the entry sees that it is claimed.
    uint32_t count = table().entries.load(std::memory_order_relaxed);
    while (count < i + 1 &&
           !table().entries.compare_exchange_weak(count, i + 1, std::memory_order_release)) {
    }
    return &entry;
  }
  return nullptr;
}

Error MulticastObject::unbind(int device, size_t offset, size_t bytes) {
  const int slot = slot_of(device);
  if (slot < 0) return Error::InvalidDevice;
  std::lock_guard lock(mutex_);
  Binding found;
  for (Entry& entry : entries()) {
    if (!read(entry, &found) || found.slot != slot || found.offset != offset ||
        found.memory.bytes != bytes)
      continue;
    const uint64_t state = entry.state.load(std::memory_order_relaxed);  // ours: nobody else's
    entry.state.store(next_state(state, Use::Free), std::memory_order_release);
    table().changes.fetch_add(1, std::memory_order_release);  // pairs with memory()
    return Error::None;
  }
  return Error::InvalidValue;
}

std::shared_ptr<const MulticastMemory> MulticastObject::memory() {
  std::lock_guard lock(mutex_);
  const uint64_t changes = table().changes.load(std::memory_order_acquire);
  if (current_ != nullptr && changes == seen_) return current_;
  auto next = std::make_shared<Snapshot>(devices_);
  Binding entry;
  for (const Entry& written : entries()) {
    if (!read(written, &entry)) continue;
    const auto slot = static_cast<size_t>(entry.slot);
    Piece piece{entry.offset, entry.memory, nullptr};
    const Piece* const known =
        current_ == nullptr ? nullptr : current_->piece_at(slot, entry.offset);
    if (known != nullptr && known->offset == entry.offset && is_same(known->name, entry.memory))
      piece.memory = known->memory;
    if (piece.memory == nullptr) piece.memory = BoundMemory::open(entry.memory);
    next->add(slot, std::move(piece));
  }
  seen_ = changes;
  current_ = std::move(next);
  return current_;
}

}  // namespace niccolite::gpu::virtual_
