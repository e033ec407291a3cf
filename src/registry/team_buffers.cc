#include "registry/team_buffers.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/wire.h"
#include "gpu/machine.h"
#include "registry/registrations.h"

namespace niccolite::registry {
namespace {

constexpr uint32_t kMarkOfBuffers =
    0x63617074;                          // messages of other collective calls begin otherwise
constexpr uint32_t kMostBuffers = 1024;  // the exchange has room for 64 KiB of each rank

}  // namespace

struct TeamBuffers::Link {
  std::mutex mutex;
  Windows* windows GUARDED_BY(mutex);
};

struct TeamBuffers::Held {
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

TeamBuffers::TeamBuffers(gpu::Machine& machine, bootstrap::Member& member, Windows& windows,
                         const Registrations& registrations, Mark mark)
    : machine_(machine),
      member_(member),
      windows_(windows),
      registrations_(registrations),
      mark_(std::move(mark)),
      link_(std::make_shared<Link>()) {
  const std::lock_guard lock(link_->mutex);
  link_->windows = &windows;
}

void TeamBuffers::close() {
  {
    const std::lock_guard lock(link_->mutex);
    link_->windows = nullptr;
  }
  std::vector<Live> live, ending;  // end without the lock
  const std::lock_guard lock(mutex_);
  live.swap(live_);
  ending.swap(ending_);
}

TeamBuffers::Place TeamBuffers::place_of(const void* buffer, std::shared_ptr<Held>& known_as) {
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
Result<std::vector<TeamBuffers::Places>> TeamBuffers::exchange(const Places& mine) {
  Writer writer;
  writer.u32(kMarkOfBuffers);
  writer.u32(static_cast<uint32_t>(mine.size()));
  for (const auto& [key, place] : mine) {
    writer.u64(key);
    writer.u64(place.allocation);
    writer.u64(place.bytes);
    writer.u64(place.offset);
    writer.u64(place.window);
  }
  const bootstrap::Gathered gathered = TRY(member_.all_gather(writer.bytes(), Deadline::never()));
  std::vector<Places> places;
  for (int rank = 0; rank < member_.nranks(); ++rank) {
    const std::string origin = fmt::format("rank {}", rank);
    Reader reader(gathered[rank], origin);
    if (reader.u32() != kMarkOfBuffers) reader.reject("no buffers: is the rank in another call?");
    const uint32_t count = reader.count(kMostBuffers, 5 * sizeof(uint64_t));
    Places& theirs = places.emplace_back();
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t key = reader.u64();
      Place place;
      place.allocation = reader.u64();
      place.bytes = reader.u64();
      place.offset = reader.u64();
      place.window = reader.u64();
      theirs.emplace(key, place);
    }
    TRY(reader.finish());
  }
  return places;
}

// Null, on all ranks: it cannot be bound.
std::shared_ptr<TeamBuffers::Held> TeamBuffers::make(const void* buffer) {
  Result<gpu::Backing> memory = machine_.backing_of(buffer);
  Result<Windows::Handle> handle = windows_.add_captured(memory.is_ok() ? memory->base : nullptr,
                                                         memory.is_ok() ? memory->bytes : 0);
  if (!handle.is_ok() || handle.value() == nullptr) {
    if (member_.rank() == 0 && !handle.is_ok())
      LOG(Info, Nvls, "operations by the team on a buffer go through slots: {}",
          handle.status().message());
    return nullptr;
  }
  std::shared_ptr<Held> held(
      new Held{.link = link_, .handle = handle.value(), .window = windows_.find(handle.value())});
  if (held->window->multicast_address() == nullptr) return nullptr;
  if (member_.rank() == 0)
    LOG(Info, Nvls, "operations by the team load and store the {} bytes at {} themselves",
        held->window->bytes(), static_cast<const void*>(held->window->user()));
  return held;
}

Result<std::map<uint64_t, std::shared_ptr<TeamBuffers::Held>>> TeamBuffers::compare(
    std::span<const Offer> offers, const Reach& reach) {
  offers = offers.first(std::min<size_t>(offers.size(), kMostBuffers));
  Places mine;
  std::vector<std::shared_ptr<Held>> known(offers.size());  // as all ranks are told
  for (size_t i = 0; i < offers.size(); ++i)
    mine.emplace(offers[i].key, place_of(offers[i].buffer, known[i]));
  const std::vector<Places> places = TRY(exchange(mine));
  std::map<uint64_t, std::shared_ptr<Held>> same;
  std::map<Allocations, std::shared_ptr<Held>> made;
  const auto team_ranks = static_cast<size_t>(windows_.team_ranks());
  for (size_t i = 0; i < offers.size(); ++i) {
    const Place& own = mine[offers[i].key];
    Allocations allocations;
    bool has_window = true;
    uint64_t window = 0;
    for (size_t rank = 0; rank < places.size(); ++rank) {
      const Places& theirs = places[rank];
      const auto found = theirs.find(offers[i].key);
      const auto first = places[rank - rank % team_ranks].find(offers[i].key);
      if (found == theirs.end() || !found->second.fits(first->second)) break;
      if (allocations.empty()) window = found->second.window;
      has_window &= window != 0 && found->second.window == window;
      allocations.push_back(found->second.allocation);
    }
    // From here on as all ranks find.
    if (allocations.size() != places.size() || refused_.contains(allocations)) continue;
    std::shared_ptr<Held>& held = made[allocations];
    if (held == nullptr && has_window) held = known[i];
    if (held == nullptr) held = reach() ? make(offers[i].buffer) : nullptr;
    if (held == nullptr) {
      refused_.insert(std::move(allocations));
      continue;
    }
    held_[own.allocation] = held;
    same.emplace(offers[i].key, held);
  }
  return same;
}

Result<std::vector<CapturedBuffer>> TeamBuffers::compare_captured(
    std::span<const void* const> buffers, const Reach& reach) {
  std::vector<Offer> offers;
  for (size_t i = 0; i < buffers.size(); ++i) offers.push_back({.key = i, .buffer = buffers[i]});
  std::vector<CapturedBuffer> same;
  for (const auto& [key, held] : TRY(compare(offers, reach)))
    same.push_back({.data = buffers[key],
                    .window = held->window,
                    .shifts = windows_.shifts_in_graphs(*held->window),
                    .keeper = held});
  return same;
}

void TeamBuffers::note(uint64_t key, const void* buffer) {
  if (buffer == nullptr || noted_.size() == kMostBuffers || registrations_.size() == 0) return;
  const std::lock_guard lock(mutex_);
  const auto holds = [&](const Live& live) { return live.held->window->holds(buffer, 1); };
  if (std::ranges::any_of(live_, holds) || !registrations_.covers(buffer, 1)) return;
  const Result<gpu::PointerInfo> info = machine_.pointer_info(buffer);
  if (info.is_ok() && info.value().kind == gpu::PointerKind::Device &&
      compared_.insert(info.value().id).second)
    noted_.push_back({.key = key, .buffer = buffer});
}

Status TeamBuffers::compare_noted(const Reach& reach) {
  std::vector<Offer> noted = std::exchange(noted_, {});
  std::erase_if(noted, [&](const Offer& offer) { return !registrations_.covers(offer.buffer, 1); });
  const std::map<uint64_t, std::shared_ptr<Held>> same = TRY(compare(noted, reach));
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, held] : same) {
      const auto is_it = [&held = held](const Live& live) { return live.held == held; };
      if (std::ranges::any_of(live_, is_it)) continue;
      live_.push_back({.held = held, .shifts = windows_.shifts_in_graphs(*held->window)});
    }
  }
  end_live();  // a registration may have ended meanwhile
  return {};
}

const uint64_t* TeamBuffers::shifts_of(const void* pointer, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  for (const Live& live : live_)
    if (live.held->window->holds(pointer, bytes) &&
        live.held->window->is_there(machine_, pointer, bytes))
      return live.shifts;
  return nullptr;
}

void TeamBuffers::end_unregistered() {
  {
    const std::lock_guard lock(mutex_);
    compared_.clear();
  }
  end_live();
}

void TeamBuffers::end_live() {
  {
    const std::lock_guard lock(mutex_);
    const auto first_over = std::partition(live_.begin(), live_.end(), [&](const Live& live) {
      return registrations_.touches(live.held->window->user(), live.held->window->bytes());
    });
    if (first_over == live_.end()) return;
    Result<std::shared_ptr<gpu::Event>> mark = mark_();
    // Without an event they end with the communicator: rather late than too early.
    if (!mark.is_ok()) LOG(Info, Nvls, "windows of buffers are kept: {}", mark.status().message());
    for (auto live = first_over; live != live_.end(); ++live) {
      live->last_use = mark.is_ok() ? mark.value() : nullptr;
      ending_.push_back(std::move(*live));
    }
    live_.erase(first_over, live_.end());
  }
  Housekeeper::instance().tend(shared_from_this());
}

std::optional<std::chrono::milliseconds> TeamBuffers::sweep() {
  std::vector<Live> ended;  // without the lock
  const std::lock_guard lock(mutex_);
  const auto is_used = [&](const Live& live) {
    if (live.last_use == nullptr) return true;
    const Result<bool> is_done =
        machine_.await_event(*live.last_use, Deadline::after(std::chrono::milliseconds(0)));
    return !is_done.is_ok() || !is_done.value();
  };
  const auto first_unused = std::partition(ending_.begin(), ending_.end(), is_used);
  ended.assign(std::make_move_iterator(first_unused), std::make_move_iterator(ending_.end()));
  ending_.erase(first_unused, ending_.end());
  if (ending_.empty()) return std::nullopt;
  return kUsualInterval;
}

}  // namespace niccolite::registry
