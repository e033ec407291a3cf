#include "transport/imports.h"

#include "transport/descriptor_server.h"

namespace niccolite::transport {

// An import that is being made is a place with its lock held, so that others wait for that chunk
// and for no other.
struct Import::Entry {
  std::mutex mutex;
  std::weak_ptr<Import> import GUARDED_BY(mutex);
};

namespace {

struct Key {
  const gpu::Sharing* sharing;
  int device;
  Token token;
  friend auto operator<=>(const Key&, const Key&) = default;
};

struct Table {
  std::mutex mutex;
  std::map<Key, std::weak_ptr<Import::Entry>> places GUARDED_BY(mutex);

  std::shared_ptr<Import::Entry> find(const Key& key) EXCLUDES(mutex) {
    std::lock_guard lock(mutex);
    std::erase_if(places, [](const auto& known) { return known.second.expired(); });
    std::weak_ptr<Import::Entry>& known = places[key];
    std::shared_ptr<Import::Entry> place = known.lock();
    if (place == nullptr) known = place = std::make_shared<Import::Entry>();
    return place;
  }
};

// Never destroyed: communicators may outlive static destruction.
Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

Result<Fd> descriptor_of(const Origin& origin, Fd kept, const Deadline& deadline) {
  if (kept.valid()) return kept;
  return fetch_descriptor(origin.address, origin.token, deadline);
}

}  // namespace

Result<std::shared_ptr<Import>> Import::open(gpu::Sharing& sharing, int device,
                                             const Origin& origin, const Deadline& deadline,
                                             Fd kept) {
  const std::shared_ptr<Import::Entry> place = table().find({&sharing, device, origin.token});
  std::lock_guard lock(place->mutex);
  std::shared_ptr<Import> import = place->import.lock();
  if (import == nullptr) {
    Fd descriptor = TRY(descriptor_of(origin, std::exchange(kept, Fd()), deadline));
    gpu::Memory memory =
        TRY(device < 0 ? sharing.import_host(std::move(descriptor), origin.bytes)
                       : sharing.import_memory(device, std::move(descriptor), origin.bytes));
    import = std::shared_ptr<Import>(new Import(sharing, origin, std::move(memory), place));
    place->import = import;
  }
  TRY(import->resume(std::move(kept), deadline));
  return import;
}

Status Import::suspend() {
  std::lock_guard lock(mutex_);
  if (--users_ > 0) return {};
  return sharing_.suspend_memory(memory_);
}

Status Import::resume(Fd kept, const Deadline& deadline) {
  std::lock_guard lock(mutex_);
  // While this process did not use the chunk, its owner may have suspended it. Then the old mapping
  // is of memory that is gone.
  if (users_ == 0 && !is_new_ && memory_.device() >= 0) {
    Fd descriptor = TRY(descriptor_of(origin_, std::move(kept), deadline));
    TRY(sharing_.resume_import(memory_, std::move(descriptor)));
  }
  is_new_ = false;
  ++users_;
  return {};
}

void Import::leave() {
  std::lock_guard lock(mutex_);
  --users_;
}

}  // namespace niccolite::transport
