#include "registry/captured_buffers.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/wire.h"
#include "gpu/machine.h"
#include "registry/housekeeper.h"

namespace niccolite::registry {
namespace {

constexpr uint32_t kMark = 0x63617074;   // messages of other collective calls begin otherwise
constexpr uint32_t kMostBuffers = 1024;  // the exchange has room for 64 KiB of each rank

}  // namespace

struct CapturedBuffers::Link {
  std::mutex mutex;
  Windows* windows GUARDED_BY(mutex);
};

struct CapturedBuffers::Held {
  std::shared_ptr<Link> link;
  Windows::Handle handle;
  std::shared_ptr<const Window> window;

  // Unmapping calls the GPU, and a graph's end must not.
  ~Held() {
    auto end = [link = std::move(link), handle = handle, window = std::move(window)]() mutable {
      {
        const std::lock_guard lock(link->mutex);
        if (link->windows != nullptr)
          link->windows->remove(handle).ignore("it ends with the communicator otherwise");
      }
      window.reset();
    };
    Housekeeper::instance().run(std::move(end));
  }
};

CapturedBuffers::CapturedBuffers(gpu::Machine& machine, bootstrap::Member& member, Windows& windows)
    : machine_(machine), member_(member), windows_(windows), link_(std::make_shared<Link>()) {
  const std::lock_guard lock(link_->mutex);
  link_->windows = &windows;
}

CapturedBuffers::~CapturedBuffers() {
  const std::lock_guard lock(link_->mutex);
  link_->windows = nullptr;
}

CapturedBuffers::Place CapturedBuffers::place_of(const void* buffer,
                                                 std::shared_ptr<Held>& known_as) {
  if (buffer == nullptr) return {};
  const std::shared_ptr<const Window> known = windows_.containing(buffer, 1);
  if (known != nullptr && known->is_symmetric()) return {};  // the team reaches that
  Result<gpu::Backing> memory = machine_.backing_of(buffer);
  if (!memory.is_ok() || memory->base == nullptr) return {};
  Place place{
      .allocation = memory->id,
      .bytes = memory->bytes,
      .offset = static_cast<uint64_t>(static_cast<const std::byte*>(buffer) - memory->base)};
  const auto held = held_.find(place.allocation);
  if (held == held_.end()) return place;
  known_as = held->second.lock();
  if (known_as != nullptr)
    place.window = known_as->window->number() + 1;
  else
    held_.erase(held);
  return place;
}

// By rank, the places of its buffers.
Result<std::vector<std::vector<CapturedBuffers::Place>>> CapturedBuffers::exchange(
    std::span<const Place> mine) {
  Writer writer;
  writer.u32(kMark);
  writer.u32(static_cast<uint32_t>(mine.size()));
  for (const Place& place : mine) {
    writer.u64(place.allocation);
    writer.u64(place.bytes);
    writer.u64(place.offset);
    writer.u64(place.window);
  }
  const bootstrap::Gathered gathered = TRY(member_.all_gather(writer.bytes(), Deadline::never()));
  std::vector<std::vector<Place>> places;
  for (int rank = 0; rank < member_.nranks(); ++rank) {
    const std::string origin = fmt::format("rank {}", rank);
    Reader reader(gathered[rank], origin);
    if (reader.u32() != kMark) reader.reject("no captured buffers: is the rank in another call?");
    std::vector<Place>& theirs =
        places.emplace_back(reader.count(kMostBuffers, 4 * sizeof(uint64_t)));
    for (Place& place : theirs) {
      place.allocation = reader.u64();
      place.bytes = reader.u64();
      place.offset = reader.u64();
      place.window = reader.u64();
    }
    TRY(reader.finish());
    if (theirs.size() != mine.size())
      return Status::invalid_usage(
          "rank {} captures operations with {} buffers, rank {} with {}: all ranks capture the "
          "same operations in the same order",
          member_.rank(), mine.size(), rank, theirs.size());
  }
  return places;
}

// Null, on all ranks: it cannot be bound.
std::shared_ptr<CapturedBuffers::Held> CapturedBuffers::make(const void* buffer) {
  Result<gpu::Backing> memory = machine_.backing_of(buffer);
  Result<Windows::Handle> handle = windows_.add_captured(memory.is_ok() ? memory->base : nullptr,
                                                         memory.is_ok() ? memory->bytes : 0);
  if (!handle.is_ok() || handle.value() == nullptr) {
    if (member_.rank() == 0 && !handle.is_ok())
      LOG(Info, Nvls, "a buffer of captured operations goes through slots: {}",
          handle.status().message());
    return nullptr;
  }
  const std::shared_ptr<Held> held(
      new Held{.link = link_, .handle = handle.value(), .window = windows_.find(handle.value())});
  if (held->window->multicast_address() == nullptr) return nullptr;
  if (member_.rank() == 0)
    LOG(Info, Nvls, "captured operations by the team load and store the {} bytes at {} themselves",
        held->window->bytes(), static_cast<const void*>(held->window->user()));
  return held;
}

Result<std::vector<CapturedBuffer>> CapturedBuffers::compare(std::span<const void* const> buffers,
                                                             const std::function<bool()>& reach) {
  buffers = buffers.first(std::min<size_t>(buffers.size(), kMostBuffers));
  std::vector<Place> mine;
  std::vector<std::shared_ptr<Held>> known(buffers.size());  // as all ranks are told
  for (size_t i = 0; i < buffers.size(); ++i) mine.push_back(place_of(buffers[i], known[i]));
  const std::vector<std::vector<Place>> places = TRY(exchange(mine));
  std::vector<CapturedBuffer> same;
  std::map<Allocations, std::shared_ptr<Held>> made;
  for (size_t i = 0; i < buffers.size(); ++i) {
    Allocations allocations;
    bool is_same = true, has_window = true;
    for (const std::vector<Place>& theirs : places) {
      const Place& place = theirs[i];
      allocations.push_back(place.allocation);
      is_same &=
          place.allocation != 0 && place.bytes == mine[i].bytes && place.offset == mine[i].offset;
      has_window &= place.window != 0 && place.window == places[0][i].window;
    }
    // As all ranks find: whether some two places differ.
    if (!is_same || refused_.contains(allocations)) continue;
    std::shared_ptr<Held>& held = made[allocations];
    if (held == nullptr && has_window) held = known[i];
    if (held == nullptr) held = reach() ? make(buffers[i]) : nullptr;
    if (held == nullptr) {
      refused_.insert(std::move(allocations));
      continue;
    }
    held_[mine[i].allocation] = held;
    same.push_back({.data = buffers[i],
                    .window = held->window,
                    .shifts = windows_.shifts_in_graphs(*held->window),
                    .keeper = held});
  }
  return same;
}

}  // namespace niccolite::registry
