#include "registry/windows.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <shared_mutex>

#include "base/log.h"
#include "base/parameters.h"
#include "base/thread_annotations.h"
#include "executor/protocol/advertisement.h"
#include "gpu/machine.h"
#include "registry/vote.h"

namespace niccolite::registry {
namespace {

constexpr size_t kAlignment =
    4096;  // of a window's start in its memory: NCCL_WIN_REQUIRED_ALIGNMENT
constexpr std::chrono::minutes kMapTime{2};  // peers hand memory over from threads of their own

Windows::Options with_neighbours(Windows::Options options, int nranks) {
  if (options.neighbours.empty()) {
    options.neighbours.resize(static_cast<size_t>(nranks));
    std::iota(options.neighbours.begin(), options.neighbours.end(), 0);
  }
  return options;
}

constexpr size_t kRecordPlace = 128;  // a line, so that no two records share one
constexpr size_t kRecordPage = 8 << 10;

// The windows of all communicators of the process, for calls that name no communicator.
class ProcessWindows {
 public:
  static ProcessWindows& instance() {
    static auto* const windows = new ProcessWindows;  // never destroyed, as communicators may be
    return *windows;
  }
  void add(Windows::Handle handle, std::shared_ptr<const Window> window) {
    std::unique_lock lock(mutex_);
    windows_.emplace(handle, std::move(window));
  }
  void remove(Windows::Handle handle) {
    std::unique_lock lock(mutex_);
    windows_.erase(handle);
  }
  std::shared_ptr<const Window> find(Windows::Handle handle) const {
    std::shared_lock lock(mutex_);
    const auto found = windows_.find(handle);
    return found == windows_.end() ? nullptr : found->second;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<Windows::Handle, std::shared_ptr<const Window>> windows_ GUARDED_BY(mutex_);
};

}  // namespace

bool Window::holds(const void* pointer, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(user_);
  const auto at = reinterpret_cast<uintptr_t>(pointer);
  const size_t whole = this->bytes();
  return at >= begin && at - begin <= whole && bytes <= whole - (at - begin);
}

bool Window::is_there(gpu::Mappings& mappings, const void* pointer, size_t bytes) const {
  return are_mapped(mappings, pieces_, pointer, bytes);
}

Result<Windows::Handle> Windows::Records::add(const WindowRecord& record) {
  if (next_ == free_.size()) {
    std::vector<transport::Span> page = TRY(memory_.allocate({&kRecordPage, 1}));
    for (size_t offset = 0; offset + kRecordPlace <= kRecordPage; offset += kRecordPlace)
      free_.push_back(page[0].data() + offset);
    pages_.push_back(std::move(page[0]));
  }
  std::byte* const place = free_[next_];
  WindowRecord placed = record;
  // Kernels name the window so in descriptors (gin.h), for any connection.
  std::fill(std::begin(placed.gin_windows), std::end(placed.gin_windows), place);
  TRY(machine_.upload(device_, place, &placed, sizeof placed));
  ++next_;
  return Handle{place};
}

void Windows::Records::remove(Handle handle) {
  // The front holds places that were taken. They are erased once they are half of the list.
  if (next_ > free_.size() / 2) {
    free_.erase(free_.begin(), free_.begin() + static_cast<std::ptrdiff_t>(next_));
    next_ = 0;
  }
  free_.push_back(static_cast<std::byte*>(const_cast<void*>(handle)));
}

Status Windows::Table::write(const Page& page) {
  return machine_.upload(device_, page.memory.data(), &page.content, sizeof page.content);
}

Status Windows::Table::begin() {
  constexpr size_t kBytes = sizeof(WindowTablePage);
  std::vector<transport::Span> memory = TRY(memory_.allocate({&kBytes, 1}));
  Page page{.memory = std::move(memory[0]), .content = {}};
  TRY(write(page));
  pages_.push_back(std::move(page));
  if (pages_.size() == 1) return {};
  Page& before = pages_[pages_.size() - 2];
  before.content.next = pages_.back().memory.data();
  return write(before);
}

Status Windows::Table::add(const WindowTablePage::Entry& entry) {
  for (;;) {
    for (Page& page : pages_)
      for (WindowTablePage::Entry& place : page.content.entries)
        if (place.window == nullptr) {
          place = entry;
          return write(page);
        }
    TRY(begin());
  }
}

Status Windows::Table::remove(Handle window) {
  for (Page& page : pages_)
    for (WindowTablePage::Entry& place : page.content.entries)
      if (place.window == window) {
        place = {};
        return write(page);
      }
  return {};
}

Windows::Windows(gpu::Machine& machine, int device, bootstrap::Member* member, Options options)
    : machine_(machine),
      device_(device),
      member_(member),
      options_(with_neighbours(std::move(options), nranks())),
      records_(machine, device),
      shifts_(machine, device, nranks()),
      table_(machine, device) {}

Windows::~Windows() {
  for (const auto& [handle, window] : live_) ProcessWindows::instance().remove(handle);
}

Result<Windows::Handle> Windows::add(void* user, size_t bytes, int flags) {
  return add(user, bytes, flags, Purpose::User);
}

Result<Windows::Handle> Windows::add_resources(void* memory, size_t bytes) {
  return add(memory, bytes, kSymmetricWindow, Purpose::Resources);
}

Result<Windows::Handle> Windows::add_captured(void* memory, size_t bytes) {
  return add(memory, bytes, kSymmetricWindow, Purpose::Captured);
}

Result<Windows::Handle> Windows::add(void* user, size_t bytes, int flags, Purpose purpose) {
  const bool is_enabled =
      options_.are_possible && (purpose != Purpose::User || parameters::win_enable() != 0);
  Contribution mine = contribute(user, bytes, flags, is_enabled);
  std::vector<WindowPart> parts = TRY(exchange(mine.part));
  const uint64_t number = added_++;
  TRY(check(parts));
  if (!std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part.is_enabled; }))
    return Handle{nullptr};
  TRY(check(lay_out(parts), parts));  // of all ranks, so that all come to the same result
  auto window = std::make_shared<Window>();
  for (const WindowPart& part : parts) window->bytes_.push_back(part.bytes);
  std::vector<WindowPart> of_neighbours;
  for (const int peer : options_.neighbours)
    of_neighbours.push_back(std::move(parts[static_cast<size_t>(peer)]));
  const FlatLayout layout = lay_out(of_neighbours);

  window->rank_ = rank();
  window->number_ = number;
  window->flags_ = flags;
  window->user_ = static_cast<std::byte*>(user);
  window->team_ranks_ = options_.team_ranks;
  window->team_first_ = rank() / window->team_ranks_ * window->team_ranks_;
  window->stride_4g_ = static_cast<uint32_t>(layout.stride >> 32);
  window->pieces_ = std::move(mine.pieces);
  window->multicast_ = std::make_shared<MulticastPlace>();
  window->multicast_->number = number;
  if (layout.is_uniform) {
    for (size_t i = 0; i < of_neighbours.size(); ++i) {
      const uint64_t here = layout.stride * i;
      window->multicast_->bytes = std::max(
          window->multicast_->bytes, layout.pieces[i] - here + of_neighbours[i].mapped_bytes());
      if (options_.neighbours[i] != rank()) continue;
      window->multicast_->first_piece = layout.pieces[i] - here;
      window->multicast_->begin = layout.starts[i] - here;
    }
    window->multicast_->pieces = window->pieces_;
  }
  const FlatRange::Source source{.parts = of_neighbours,
                                 .layout = layout,
                                 .ranks = options_.neighbours,
                                 .is_here = [this](int peer) { return is_here(peer); },
                                 .device = device_};
  Result<std::shared_ptr<FlatRange>> range =
      FlatRange::obtain(machine_, source, Deadline::after(kMapTime));
  // All ranks also agree that each has mapped its neighbours' memory.
  const std::vector<uint64_t> all_bases =
      TRY(agree(range.is_ok() ? Status() : range.status().copy(),
                range.is_ok() ? range.value()->data() : nullptr));
  if (purpose == Purpose::User) {
    had_any_ = true;
    had_symmetric_ |= window->is_symmetric();
  }
  window->range_ = std::move(range).take();
  window->copies_.resize(window->bytes_.size());
  std::vector<uint64_t> bases;
  for (size_t i = 0; i < options_.neighbours.size(); ++i) {
    const auto peer = static_cast<size_t>(options_.neighbours[i]);
    window->copies_[peer] = window->range_->data() + layout.starts[i];
    bases.push_back(all_bases[peer]);
  }
  const Result<Handle> handle = enter(std::move(window), layout, bases, purpose);
  // All ranks take part in both steps, whatever has failed on one of them: then none has the
  // window.
  Status status = handle.is_ok() ? Status() : handle.status().copy();
  Status bound = bind_windows();
  if (status.is_ok()) status = std::move(bound);
  status = vote(member_, status);
  if (status.is_ok()) return handle.value();
  if (handle.is_ok()) remove(handle.value()).ignore("the first error is told");
  return status;
}

bool Windows::may_have_multicast() const {
  return multicast_terms_.try_step != nullptr && multicast_terms_.refusal.empty() &&
         options_.team_ranks >= 2 && options_.team_ranks <= transport::Team::kMostRanks &&
         machine_.multicast().has_multicast(device_);
}

Status Windows::begin_multicast() {
  if (member_ == nullptr || multicast_terms_.try_step == nullptr)
    return Status::invalid_argument("a multicast team has 2 to {} ranks",
                                    transport::Team::kMostRanks);
  if (multicast_ == nullptr) {
    auto made = TRY(WindowMulticast::make({.machine = machine_,
                                           .device = device_,
                                           .member = *member_,
                                           .team_ranks = options_.team_ranks,
                                           .refusal = multicast_terms_.refusal,
                                           .try_step = multicast_terms_.try_step}));
    std::lock_guard lock(mutex_);
    multicast_ = std::move(made);
  }
  TRY(vote(member_, bind_windows()));
  if (multicast_->has_given_up()) return Status::invalid_argument("{}", multicast_->obstacle());
  return {};
}

// Gives windows that all ranks have their multicast addresses, where there are any.
Status Windows::bind_windows() {
  if (multicast_ == nullptr) return {};
  std::vector<std::shared_ptr<const Window>> live;
  std::vector<std::shared_ptr<MulticastPlace>> places;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [handle, window] : live_)
      if (window->multicast_address() == nullptr) live.push_back(window);
  }
  for (const auto& window : live) places.push_back(window->multicast_);
  TRY(multicast_->bind(places));
  std::lock_guard lock(mutex_);
  for (const auto& [handle, window] : live_) {
    if (window->multicast_address() == nullptr ||
        std::find(live.begin(), live.end(), window) == live.end())
      continue;
    const uint32_t offset = multicast_->offset_4k(window->multicast_address());
    std::byte* const record = static_cast<std::byte*>(const_cast<void*>(handle));
    TRY(machine_.upload(device_, record + offsetof(WindowRecord, multicast_offset_4k), &offset,
                        sizeof offset));
    if (!window->is_symmetric()) continue;
    const std::ptrdiff_t place = window->multicast_address() - multicast_->base();
    TRY(shifts_.set_place(window->shifts_, executor::advertisement::kFirstPlace +
                                               static_cast<uint64_t>(place) -
                                               reinterpret_cast<uint64_t>(window->user())));
  }
  return {};
}

// Returns this rank's part. An error in it is told to all ranks, who are waiting for it.
Windows::Contribution Windows::contribute(void* user, size_t bytes, int flags, bool is_enabled) {
  Contribution mine;
  mine.part.number = added_;
  mine.part.flags = flags;
  mine.part.device = device_;
  mine.part.is_enabled = is_enabled;
  mine.part.problem = collect(user, bytes, flags, mine);
  if (!mine.part.problem.is_ok()) {
    mine.part.problem =
        std::move(mine.part.problem).with_context("rank {} of {}", rank(), nranks());
    mine.pieces.clear();
    mine.part.pieces.clear();
  }
  return mine;
}

Status Windows::collect(void* user, size_t bytes, int flags, Contribution& into) {
  WindowPart& part = into.part;
  if (user == nullptr) return Status::invalid_argument("buff argument is NULL");
  if (bytes == 0) return Status::invalid_argument("size argument is 0");
  if (bytes > UINTPTR_MAX - reinterpret_cast<uintptr_t>(user))
    return Status::invalid_argument("size argument {} goes beyond the address space", bytes);
  constexpr int kNetworkOnly = 0x4;  // NCCL_WIN_GIN_ONLY of 2.32
  if ((flags & kNetworkOnly) != 0)
    return Status::invalid_argument(
        "winFlags 0x{:x}: NCCL_WIN_GIN_ONLY asks for a window that only device-initiated "
        "networking "
        "reaches, which this library does not have. Register it without this flag, for loads, "
        "stores, puts and signals",
        flags);
  if ((flags & ~(kSymmetricWindow | kOrderedWindow)) != 0)
    return Status::invalid_argument(
        "winFlags 0x{:x}: NCCL_WIN_COLL_SYMMETRIC and NCCL_WIN_STRICT_ORDERING are known", flags);
  if (!part.is_enabled) return {};
  part.name = TRY(transport::draw_token());
  for (int peer = 0; peer < nranks() && server_ == nullptr; ++peer)
    if (!is_here(peer)) server_ = TRY(transport::DescriptorServer::instance());
  if (server_ != nullptr) part.address = server_->address();
  part.granularity = TRY(machine_.mapping_granularity(device_));
  part.bytes = bytes;

  const auto begin = reinterpret_cast<uintptr_t>(user);
  uintptr_t next = begin;
  while (next < begin + bytes) {
    gpu::Backing backing = TRY(machine_.backing_of(reinterpret_cast<void*>(next)));
    const auto base = reinterpret_cast<uintptr_t>(backing.base);
    if (next == begin) {
      part.offset = begin - base;
      if (part.offset % kAlignment != 0)
        return Status::invalid_argument(
            "buff argument {} begins {} bytes into its memory: that has to be a multiple of {}",
            user, part.offset, kAlignment);
    }
    if (part.pieces.size() == WindowPart::kMostPieces)
      return Status::invalid_argument("buff argument {} is mapped in more than {} pieces", user,
                                      WindowPart::kMostPieces);
    next = base + backing.bytes;
    const uint64_t piece_bytes = backing.bytes;
    into.pieces.push_back(TRY(SharedPiece::create(machine_, std::move(backing))));
    part.pieces.push_back({into.pieces.back()->token(), piece_bytes});
  }
  return {};
}

Result<std::vector<WindowPart>> Windows::exchange(const WindowPart& mine) {
  std::vector<WindowPart> parts;
  if (member_ == nullptr) {
    parts.push_back(TRY(WindowPart::decode(mine.encode(), "rank 0")));
    return parts;
  }
  const bootstrap::Gathered gathered = TRY(member_->all_gather(mine.encode(), Deadline::never()));
  for (int peer = 0; peer < nranks(); ++peer)
    parts.push_back(TRY(WindowPart::decode(gathered[peer], fmt::format("rank {}", peer))));
  return parts;
}

Status Windows::check(std::span<const WindowPart> parts) const {
  const auto mine = static_cast<size_t>(rank());
  if (!parts[mine].problem.is_ok()) return parts[mine].problem.copy();
  for (size_t peer = 0; peer < parts.size(); ++peer) {
    const WindowPart& part = parts[peer];
    if (!part.problem.is_ok()) return part.problem.copy();
    if (part.number != parts[mine].number)
      return Status::invalid_usage(
          "rank {} registers its window number {}, rank {} its number {}: all ranks register all "
          "windows in the same order",
          rank(), parts[mine].number, peer, part.number);
    if (part.flags != parts[mine].flags)
      return Status::invalid_argument("winFlags is 0x{:x} on rank {} and 0x{:x} on rank {}",
                                      parts[mine].flags, rank(), part.flags, peer);
  }
  return {};
}

Status Windows::check(const FlatLayout& layout, std::span<const WindowPart> parts) const {
  if (layout.is_uniform || (parts[0].flags & kSymmetricWindow) == 0) return {};
  const auto other = std::find_if(parts.begin(), parts.end(), [&](const WindowPart& part) {
    return part.offset % layout.granularity != parts[0].offset % layout.granularity;
  });
  return Status::invalid_argument(
      "buff argument begins {} bytes into its memory on rank 0 and {} on rank {}: in a symmetric "
      "window these differ by multiples of {}",
      parts[0].offset, other->offset, other - parts.begin(), layout.granularity);
}

Result<std::vector<uint64_t>> Windows::agree(Status mine, const std::byte* base) {
  const auto own_base = reinterpret_cast<uint64_t>(base);
  std::vector<uint64_t> bases;
  if (member_ == nullptr) {
    TRY(std::move(mine));
    bases.push_back(own_base);
    return bases;
  }
  Writer writer;
  writer.u64(own_base);
  writer.u8(static_cast<uint8_t>(mine.code()));
  writer.text(std::string_view(mine.message()).substr(0, WindowPart::kMostText));
  const bootstrap::Gathered gathered = TRY(member_->all_gather(writer.bytes(), Deadline::never()));
  TRY(std::move(mine));
  for (int peer = 0; peer < nranks(); ++peer) {
    const std::string origin = fmt::format("rank {}", peer);
    Reader reader(gathered[peer], origin);
    bases.push_back(reader.u64());
    const uint8_t code = reader.u8();
    const std::string text = reader.text(WindowPart::kMostText);
    if (code > static_cast<uint8_t>(Code::RemoteError)) reader.reject("an unknown failure");
    TRY(reader.finish());
    if (code != 0) return Status::error(static_cast<Code>(code), "rank {}: {}", peer, text);
  }
  return bases;
}

Result<Windows::Handle> Windows::enter(std::shared_ptr<Window> window, const FlatLayout& layout,
                                       std::span<const uint64_t> bases, Purpose purpose) {
  const std::vector<int>& neighbours = options_.neighbours;
  const auto own = static_cast<size_t>(std::ranges::find(neighbours, rank()) - neighbours.begin());
  std::vector<uint64_t> shifts(static_cast<size_t>(nranks()));  // modulo 2^64
  for (size_t i = 0; i < neighbours.size(); ++i)
    shifts[static_cast<size_t>(neighbours[i])] =
        bases[i] + layout.starts[own] - reinterpret_cast<uint64_t>(window->user());
  WindowRecord record;
  const auto team = window->bytes_.begin() + window->team_first();
  record.bytes = *std::min_element(team, team + window->team_ranks());
  record.flat_base = layout.is_uniform ? window->copy_of(window->team_first()) : nullptr;
  record.lsa_rank = rank() - window->team_first();
  record.world_rank = rank();
  record.stride_4g = window->stride_4g();
  record.flags = static_cast<uint32_t>(window->flags());
  LOG(Info, Reg, "window of {} bytes at {}: {} copies {} GiB apart from {} on", window->bytes(),
      static_cast<const void*>(window->user()), neighbours.size(), layout.stride >> 30,
      static_cast<const void*>(window->copy_of(neighbours.front())));
  std::lock_guard lock(mutex_);
  window->shifts_ = TRY(shifts_.add(shifts));
  const Handle handle = TRY(records_.add(record));
  if (purpose == Purpose::User && table_.first() != nullptr)
    TRY(table_.add({window->user(), window->bytes(), handle}));
  window->is_of_user_ = purpose == Purpose::User;
  live_.emplace(handle, window);
  if (purpose != Purpose::Captured) by_begin_.emplace(window->user(), window);
  if (purpose == Purpose::User) by_number_.emplace(window->number(), window);
  ProcessWindows::instance().add(handle, std::move(window));
  return handle;
}

Status Windows::remove(Handle handle) {
  std::shared_ptr<const Window> window;  // ends without the lock
  std::lock_guard lock(mutex_);
  const auto found = live_.find(handle);
  if (found == live_.end())
    return Status::invalid_argument(
        "win argument {} is not a window of this communicator: it was deregistered before, or is "
        "another communicator's",
        handle);
  TRY(shifts_.end(found->second->shifts_));
  TRY(table_.remove(handle));
  if (!found->second->is_in_graphs_) shifts_.give_back(found->second->shifts_);
  window = std::move(found->second);
  live_.erase(found);
  std::erase_if(by_begin_, [&](const auto& entry) { return entry.second == window; });
  by_number_.erase(window->number());
  ProcessWindows::instance().remove(handle);
  records_.remove(handle);
  return {};
}

std::shared_ptr<const Window> Windows::find(Handle handle) const {
  std::lock_guard lock(mutex_);
  const auto found = live_.find(handle);
  return found == live_.end() ? nullptr : found->second;
}

std::shared_ptr<const Window> Windows::find_numbered(uint64_t number) const {
  std::lock_guard lock(mutex_);
  const auto found = by_number_.find(number);
  return found == by_number_.end() ? nullptr : found->second;
}

std::shared_ptr<const Window> Windows::containing(const void* pointer, size_t bytes) const {
  std::lock_guard lock(mutex_);
  std::shared_ptr<const Window> best;
  for (const auto& [begin, window] : by_begin_)
    if (window->holds(pointer, bytes) && (best == nullptr || !best->is_symmetric())) best = window;
  return best;
}

// Returns the peer offsets of the range. Only windows with the nearest beginning before it are
// looked at. A window that begins further away and contains the range is not found, and the range's
// data then go through slots.
const uint64_t* Windows::shifts_of(const void* pointer, size_t bytes, bool is_captured) const {
  std::lock_guard lock(mutex_);
  const auto after = by_begin_.upper_bound(pointer);
  if (after == by_begin_.begin()) return nullptr;
  const auto [first, last] = by_begin_.equal_range(std::prev(after)->first);
  for (auto candidate = first; candidate != last; ++candidate) {
    const Window& window = *candidate->second;
    if (!window.holds(pointer, bytes) || !window.is_there(machine_, pointer, bytes)) continue;
    window.is_in_graphs_ |= is_captured;
    return window.shifts_;
  }
  return nullptr;
}

const uint64_t* Windows::shifts_in_graphs(const Window& window) const {
  std::lock_guard lock(mutex_);
  window.is_in_graphs_ = true;
  return window.shifts_;
}

Result<Windows::Handle> Windows::table() {
  std::lock_guard lock(mutex_);
  if (table_.first() == nullptr) {
    TRY(table_.begin());
    for (const auto& [handle, window] : live_)
      if (window->is_of_user_) TRY(table_.add({window->user(), window->bytes(), handle}));
  }
  return table_.first();
}

size_t Windows::record_bytes() const {
  std::lock_guard lock(mutex_);
  return records_.bytes() + shifts_.bytes() + table_.bytes() +
         (multicast_ == nullptr ? 0 : multicast_->bytes());
}

std::shared_ptr<const Window> Windows::find_in_process(Handle handle) {
  return ProcessWindows::instance().find(handle);
}

}  // namespace niccolite::registry
