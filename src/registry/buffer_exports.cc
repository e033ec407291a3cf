#include "registry/buffer_exports.h"

#include <algorithm>

#include "base/log.h"
#include "executor/protocol/advertisement.h"
#include "gpu/machine.h"
#include "registry/buffer_messages.h"

namespace niccolite::registry {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostRefused = 4096;           // remembered; beyond that, some are tried again
constexpr size_t kMostUsedOnce = 4096;          // remembered
constexpr std::chrono::seconds kFirstPause{1};  // before another try with refused memory
constexpr std::chrono::seconds kLongestPause{64};

/// Calls function(id, bytes) for each piece of memory that `of` is of.
template <typename Function>
void for_each_memory(uint64_t id, size_t bytes,
                     std::span<const std::shared_ptr<SharedPiece>> pieces, Function&& function) {
  if (pieces.empty()) function(id, bytes);
  for (const auto& piece : pieces) function(piece->backing().id, piece->backing().bytes);
}

}  // namespace

BufferExport::~BufferExport() {
  if (const std::shared_ptr<BufferExports> owner = owner_.lock()) owner->ended(*this);
}

bool BufferExport::holds(const void* pointer, size_t bytes) const {
  const auto* const at = static_cast<const std::byte*>(pointer);
  return at >= base_ && static_cast<size_t>(at - base_) <= bytes_ &&
         bytes <= bytes_ - static_cast<size_t>(at - base_);
}

BufferExports::BufferExports(gpu::Machine& machine, Options options)
    : machine_(machine),
      options_(std::move(options)),
      kept_(KeptMemory::of(machine, options_.device)),
      tables_(machine, options_.device, static_cast<int>(options_.reach.size())) {
  kept_.measure();
}

void BufferExports::close() {
  std::multimap<uintptr_t, Pointer> known;
  std::map<uint64_t, Pointer> asked;
  std::lock_guard lock(mutex_);
  is_closed_ = true;
  for (const auto& [begin, of] : by_begin_) keep_no_more(*of);
  registered_.clear();
  ending_.clear();
  known.swap(by_begin_);
  asked.swap(asked_);
}

size_t BufferExports::table_bytes() const {
  std::lock_guard lock(mutex_);
  return tables_.bytes();
}

std::shared_ptr<const BufferExport> BufferExports::find(const void* pointer, size_t bytes, Use use,
                                                        const Deadline& deadline) {
  if (bytes == 0) return nullptr;
  Pointer dead;  // ends without the lock
  std::unique_lock lock(mutex_);
  Pointer found = find_known(pointer, bytes);
  if (found != nullptr) {
    const bool is_gone = !is_there(*found, pointer, bytes);
    if (is_gone) found->is_freed_ = is_freed(*found);
    if (is_gone || (found->lacks_some_ && !is_paused(found->id_))) {
      forget(found);
      dead = std::exchange(found, nullptr);
    }
  }
  const auto use_it = [&] {
    if (use == Use::Plain) found->is_used_live_ = true;
    found->last_use_ = Housekeeper::instance().round();
    return found;
  };
  const bool is_known = found != nullptr;
  if (is_known && found->state_ == BufferExport::State::Visible) return use_it();
  const bool is_registered = options_.registrations->covers(pointer, bytes);
  const bool must = is_registered || (use == Use::Captured && options_.captures);
  if (!is_known) {
    Result<Pointer> begun = begin(pointer, bytes, must, is_registered);
    if (!begun.is_ok()) LOG(Info, Reg, "buffer {}: {}", pointer, begun.status().message());
    if (!begun.is_ok() || begun.value() == nullptr) return nullptr;
    found = std::move(begun).take();
  }
  const auto is_answered = [&] {
    return found->state_ != BufferExport::State::Asked || is_closed_ || options_.abort->raised();
  };
  // The abort and peers that leave are looked for now and then: they are not worth a listener.
  while (must && !is_answered() && !deadline.passed()) {
    pass_over_left();
    answered_.wait_for(lock, std::chrono::milliseconds(5), is_answered);
  }
  return found->state_ == BufferExport::State::Visible ? use_it() : nullptr;
}

uint64_t BufferExports::number_of(const void* pointer, size_t bytes) const {
  std::lock_guard lock(mutex_);
  const Pointer found = find_known(pointer, bytes);
  return found == nullptr || found->state_ == BufferExport::State::Invisible ? 0 : found->number_;
}

// Prefers an export that peers see already. Exports overlap rarely: the last ones that begin before
// the range are enough.
BufferExports::Pointer BufferExports::find_known(const void* pointer, size_t bytes) const {
  constexpr int kMostLooks = 16;
  auto at = by_begin_.upper_bound(reinterpret_cast<uintptr_t>(pointer));
  Pointer found;
  for (int look = 0; look < kMostLooks && at != by_begin_.begin(); ++look) {
    const Pointer& candidate = (--at)->second;
    if (!candidate->holds(pointer, bytes)) continue;
    if (candidate->state_ == BufferExport::State::Visible) return candidate;
    if (found == nullptr) found = candidate;
  }
  return found;
}

bool BufferExports::is_there(const BufferExport& of, const void* pointer, size_t bytes) const {
  if (!of.pieces_.empty()) return are_mapped(machine_, of.pieces_, pointer, bytes);
  const Result<gpu::PointerInfo> info = machine_.pointer_info(pointer);
  return info.is_ok() && info.value().id == of.id_ && info.value().base == of.base_;
}

// Some pieces may be gone while operations that are queued use the others.
bool BufferExports::is_freed(const BufferExport& of) const {
  if (of.pieces_.empty()) return !is_there(of);
  return std::ranges::none_of(of.pieces_, [&](const auto& piece) {
    return machine_.is_mapped(piece->backing(), piece->backing().base);
  });
}

// Null: it is not worth it, or known to be impossible.
Result<BufferExports::Pointer> BufferExports::begin(const void* pointer, size_t bytes, bool must,
                                                    bool is_registered) {
  if (is_closed_) return Pointer{};
  const gpu::PointerInfo info = TRY(machine_.pointer_info(pointer));
  if (info.kind != gpu::PointerKind::Device || info.device != options_.device) return Pointer{};
  if (is_paused(info.id) && refused_.at(info.id).who == By::All) return Pointer{};
  if (!must && (info.bytes > options_.most_kept || !is_used_again(info, pointer, bytes)))
    return Pointer{};

  // The deleter hands it to the housekeeper's thread, because the last owner may be a callback of
  // the driver, or in a hurry.
  Pointer made(new BufferExport, [](BufferExport* ending) {
    Housekeeper::instance().release(std::shared_ptr<BufferExport>(ending));
  });
  made->owner_ = weak_from_this();
  const Status collected = collect(info, pointer, bytes, *made);
  if (!collected.is_ok()) {
    refuse(info.id, By::All);
    return collected.copy();
  }
  if (!is_registered) made->is_kept_ = keep(*made);
  if (!must && !made->is_kept_) {
    refuse(info.id, By::All);  // there may be room later
    return Pointer{};
  }

  forget_covered(*made);
  if (is_registered) registered_.insert(made.get());
  by_begin_.emplace(reinterpret_cast<uintptr_t>(made->base_), made);
  Status asked = ask(made);
  if (!asked.is_ok()) {
    forget(made);
    return asked;
  }
  Housekeeper::instance().tend(shared_from_this());
  return made;
}

// Called at each use of plain memory until it is exported. All mappings that the buffer reaches
// over count: a new tensor may begin in one that an older tensor has left.
bool BufferExports::is_used_again(const gpu::PointerInfo& info, const void* pointer, size_t bytes) {
  bool is_used_again = true;
  const auto note = [&](uint64_t id) {
    if (!used_once_.insert(id).second) return;
    is_used_again = false;
    // Numbers of memory ascend: the oldest makes room.
    if (used_once_.size() > kMostUsedOnce) used_once_.erase(used_once_.begin());
  };
  note(info.id);
  const Result<std::vector<gpu::Backing>> mappings = mappings_of(pointer, bytes);
  if (mappings.is_ok())
    for (const gpu::Backing& mapping : mappings.value()) note(mapping.id);
  return is_used_again;
}

Result<std::vector<gpu::Backing>> BufferExports::mappings_of(const void* pointer,
                                                             size_t bytes) const {
  std::vector<gpu::Backing> mappings;
  const auto* at = static_cast<const std::byte*>(pointer);
  const std::byte* const end = at + bytes;
  while (at < end) {
    if (mappings.size() == MapRequest::kMostPieces)
      return Status::invalid_argument("it is mapped in more than {} pieces",
                                      MapRequest::kMostPieces);
    Result<gpu::Backing> mapping = machine_.backing_of(at);
    if (!mapping.is_ok() && mappings.empty()) return mappings;
    mappings.push_back(TRY(std::move(mapping)));
    at = mappings.back().base + mappings.back().bytes;
  }
  return mappings;
}

// Keeps all of the export's memory, or nothing.
bool BufferExports::keep(BufferExport& of) {
  std::vector<uint64_t> kept;
  bool has_room = true;
  for_each_memory(of.id_, of.bytes_, of.pieces_, [&](uint64_t id, size_t bytes) {
    has_room = has_room && kept_.add(id, bytes, options_.most_kept);
    if (has_room) kept.push_back(id);
  });
  if (has_room) return true;
  for (const uint64_t id : kept) kept_.remove(id);
  return false;
}

void BufferExports::keep_no_more(BufferExport& of) {
  if (!std::exchange(of.is_kept_, false)) return;
  for_each_memory(of.id_, of.bytes_, of.pieces_, [&](uint64_t id, size_t) { kept_.remove(id); });
}

bool BufferExports::has_to_go(const BufferExport& of) const {
  bool has_to_go = false;
  for_each_memory(of.id_, of.bytes_, of.pieces_,
                  [&](uint64_t id, size_t) { has_to_go |= kept_.has_to_go(id); });
  return has_to_go;
}

// Exports that lie in `by`, and exports of memory that is gone.
void BufferExports::forget_covered(const BufferExport& by) {
  std::vector<Pointer> covered;
  for (const auto& [begin, known] : by_begin_) {
    const bool overlaps =
        known->base_ < by.base_ + by.bytes_ && by.base_ < known->base_ + known->bytes_;
    if (overlaps && (by.holds(known->base_, known->bytes_) || !is_there(*known)))
      covered.push_back(known);
  }
  for (const Pointer& of : covered) forget(of);
}

Status BufferExports::collect(const gpu::PointerInfo& info, const void* pointer, size_t bytes,
                              BufferExport& into) {
  into.pool_ = TRY(pool_of(pointer));
  into.base_ = static_cast<const std::byte*>(info.base);
  into.id_ = info.id;
  std::vector<gpu::Backing> mappings;
  if (into.pool_ == nullptr) mappings = TRY(mappings_of(pointer, bytes));
  if (mappings.empty()) {
    into.bytes_ = info.bytes;
    if (static_cast<const std::byte*>(pointer) + bytes > into.base_ + into.bytes_)
      return Status::invalid_argument("{} bytes reach beyond their allocation", bytes);
    return {};
  }
  into.base_ = mappings.front().base;  // of one mapping of perhaps several
  for (gpu::Backing& mapping : mappings) {
    into.bytes_ += mapping.bytes;
    into.pieces_.push_back(TRY(SharedPiece::create(machine_, std::move(mapping))));
  }
  return {};
}

// A new pool may have the identity of a destroyed one. So a pool is known only while some of its
// memory is allocated.
Result<std::shared_ptr<SharedPool>> BufferExports::pool_of(const void* pointer) {
  const void* const identity = machine_.pool_of(pointer);
  if (identity == nullptr) return std::shared_ptr<SharedPool>();
  std::erase_if(pools_, [](const auto& known) { return known.second.expired(); });
  std::weak_ptr<SharedPool>& known = pools_[identity];
  const std::shared_ptr<SharedPool> pool = known.lock();
  const bool is_there = pool != nullptr && std::ranges::any_of(by_begin_, [&](const auto& each) {
                          return each.second->pool_ == pool && this->is_there(*each.second);
                        });
  if (is_there) return pool;
  std::shared_ptr<SharedPool> made = TRY(SharedPool::create(machine_, pointer));
  known = made;
  return made;
}

Status BufferExports::ask(const Pointer& of) {
  MapRequest request{
      .number = next_++, .bytes = of->bytes_, .name = {}, .pool = {}, .address = {}, .pieces = {}};
  if (of->pool_ != nullptr || !of->pieces_.empty()) {
    if (server_ == nullptr) server_ = TRY(transport::DescriptorServer::instance());
    request.address = server_->address();
  }
  if (of->pieces_.empty()) {
    Result<gpu::AllocationName> name = machine_.name_allocation(of->base_);
    if (!name.is_ok()) {
      refuse(of->id_, By::All);
      return std::move(name).status();
    }
    request.name = *name;
    if (of->pool_ != nullptr) request.pool = of->pool_->token();
  } else {
    for (const auto& piece : of->pieces_)
      request.pieces.push_back({piece->token(), piece->backing().bytes});
  }
  of->number_ = request.number;
  of->bases_.resize(options_.reach.size());
  asked_.emplace(of->number_, of);
  const Bytes message = request.encode();
  for (int peer = 0; peer < nranks(); ++peer)
    if (options_.reach[static_cast<size_t>(peer)] == Reach::Mapping &&
        options_.tell(peer, Message::Map, message))
      of->awaited_.insert(peer);
  LOG(Trace, Reg, "{} ranks are asked to map {} bytes at {}, as buffer {}", of->awaited_.size(),
      of->bytes_, static_cast<const void*>(of->base_), of->number_);
  if (of->awaited_.empty()) settle(of);
  return {};
}

Status BufferExports::note_mapped(int peer, std::span<const std::byte> bytes) {
  const MapAnswer answer = TRY(MapAnswer::decode(bytes, "a peer"));
  Pointer of;  // ends without the lock
  std::lock_guard lock(mutex_);
  const auto found = asked_.find(answer.number);
  if (found == asked_.end()) return {};  // closed meanwhile
  of = found->second;
  if (of->awaited_.erase(peer) == 0) return {};  // it has left meanwhile
  of->bases_[static_cast<size_t>(peer)] = answer.base;
  if (answer.base == 0) LOG(Info, Reg, "rank {} cannot map buffer {}", peer, answer.number);
  if (of->awaited_.empty()) settle(of);
  return {};
}

void BufferExports::settle(const Pointer& of) {
  const Status published = publish(*of);
  if (!published.is_ok()) {
    LOG(Info, Reg, "buffer {} at {}: {}", of->number_, static_cast<const void*>(of->base_),
        published.message());
    of->state_ = BufferExport::State::Invisible;
    refuse(of->id_, By::All);
    forget(of);
  }
  asked_.erase(of->number_);
  answered_.notify_all();
}

void BufferExports::pass_over_left() {
  std::vector<Pointer> settled;
  for (const auto& [number, of] : asked_) {
    std::erase_if(of->awaited_, options_.has_left);
    if (of->awaited_.empty()) settled.push_back(of);
  }
  for (const Pointer& of : settled) settle(of);
}

Status BufferExports::publish(BufferExport& of) {
  const auto base = reinterpret_cast<uint64_t>(of.base_);
  std::vector<uint64_t> shifts;  // modulo 2^64
  size_t maps = 0;
  bool lacks_some = false;
  for (size_t rank = 0; rank < options_.reach.size(); ++rank) {
    const Reach reach = options_.reach[rank];
    uint64_t shift = executor::advertisement::kUnseen;
    // Memory of virtual memory management is open to peers of this process if it could be opened.
    const bool is_seen =
        of.pieces_.empty() || machine_.is_open(options_.device, of.base_, of.bytes_);
    if (reach == Reach::SameAddress && is_seen) shift = 0;
    if (reach == Reach::Mapping && of.bases_[rank] != 0) {
      shift = of.bases_[rank] - base;
      ++maps;
    } else if (reach == Reach::Mapping) {
      lacks_some |= !options_.has_left(static_cast<int>(rank));
    }
    shifts.push_back(shift);
  }
  if (maps == 0) return Status::cuda_error("no process can map {} bytes", of.bytes_);
  of.shifts_ = TRY(tables_.add(shifts));
  of.state_ = BufferExport::State::Visible;
  of.lacks_some_ = lacks_some;
  if (lacks_some)
    refuse(of.id_, By::Some);
  else
    refused_.erase(of.id_);
  LOG(Trace, Reg, "{} bytes at {} are mapped by {} of {} ranks of other processes", of.bytes_,
      static_cast<const void*>(of.base_), maps, std::ranges::count(options_.reach, Reach::Mapping));
  return {};
}

bool BufferExports::is_paused(uint64_t memory) const {
  const auto found = refused_.find(memory);
  return found != refused_.end() && Clock::now() < found->second.until;
}

void BufferExports::refuse(uint64_t memory, By who) {
  if (refused_.size() >= kMostRefused) refused_.clear();
  Refusal& refusal = refused_[memory];
  refusal.who = who;
  refusal.pause = std::clamp<Clock::duration>(2 * refusal.pause, kFirstPause, kLongestPause);
  refusal.until = Clock::now() + refusal.pause;
}

void BufferExports::forget(const Pointer& of) {
  const auto [first, last] = by_begin_.equal_range(reinterpret_cast<uintptr_t>(of->base_));
  const auto found =
      std::find_if(first, last, [&](const auto& known) { return known.second == of; });
  if (found == last) return;
  keep_no_more(*of);
  registered_.erase(of.get());
  by_begin_.erase(found);
}

void BufferExports::end_unregistered() {
  std::vector<Pointer> ending;  // without the lock
  std::lock_guard lock(mutex_);
  for (const auto& [begin, known] : by_begin_)
    if (registered_.contains(known.get()) &&
        !options_.registrations->touches(known->base_, known->bytes_))
      ending.push_back(known);
  for (const Pointer& of : ending) forget(of);
}

// Ends exports whose memory is gone, exports that only graphs held which are gone, and exports that
// have to make room.
std::optional<std::chrono::milliseconds> BufferExports::sweep() {
  constexpr std::chrono::milliseconds kWhileScarce{10};
  const uint64_t round = Housekeeper::instance().round();
  std::vector<Pointer> ending;  // without the lock
  if (kept_.begins(round)) kept_.measure();
  std::lock_guard lock(mutex_);
  pass_over_left();
  for (const auto& [begin, known] : by_begin_) {
    if (!known->is_kept_) continue;
    for_each_memory(
        known->id_, known->bytes_, known->pieces_,
        [this, last_use = known->last_use_](uint64_t id, size_t) { kept_.note_use(id, last_use); });
  }
  kept_.choose(round);
  for (const auto& [begin, known] : by_begin_) {
    const bool is_held = registered_.contains(known.get()) || known.use_count() > 1;
    const bool is_wanted = is_held || (known->is_kept_ && !has_to_go(*known));
    const bool is_gone = !is_there(*known);
    if (is_gone) known->is_freed_ = is_freed(*known);
    if (!is_wanted || is_gone) ending.push_back(known);
  }
  for (const Pointer& of : ending) forget(of);
  end_unused();
  if (by_begin_.empty() && asked_.empty() && ending_.empty()) return std::nullopt;
  return kept_.is_scarce() ? kWhileScarce : kUsualInterval;
}

// On the housekeeper's thread: no graph holds it, and no operation that is to come will use it. One
// that is queued may, unless the user has freed the memory; a graph is done when it lets go.
void BufferExports::ended(const BufferExport& of) {
  std::lock_guard lock(mutex_);
  if (is_closed_ || of.number_ == 0) return;
  Ending ending{.number = of.number_, .shifts = of.shifts_, .last_use = nullptr};
  if (of.is_used_live_ && !of.is_freed_) {
    Result<std::shared_ptr<gpu::Event>> mark = options_.mark();
    if (!mark.is_ok()) {  // rather never than too early
      LOG(Info, Reg, "an export is kept: {}", mark.status().message());
      return;
    }
    ending.last_use = std::move(mark).take();
  }
  ending_.push_back(std::move(ending));
  end_unused();
  Housekeeper::instance().tend(shared_from_this());
}

void BufferExports::end_unused() {
  std::erase_if(ending_, [&](const Ending& ending) {
    if (ending.last_use != nullptr) {
      const Result<bool> is_unused =
          machine_.await_event(*ending.last_use, Deadline::after(std::chrono::milliseconds(0)));
      if (!is_unused.is_ok() || !is_unused.value()) return false;
    }
    if (ending.shifts != nullptr) tables_.give_back(ending.shifts);
    const Bytes message = encode_unmap(ending.number);
    for (int peer = 0; peer < nranks(); ++peer)
      if (options_.reach[static_cast<size_t>(peer)] == Reach::Mapping)
        options_.tell(peer, Message::Unmap, message);
    return true;
  });
}

}  // namespace niccolite::registry
