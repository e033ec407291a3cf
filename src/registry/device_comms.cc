#include "registry/device_comms.h"

#include <algorithm>
#include <atomic>

#include "gpu/machine.h"
#include "registry/vote.h"

namespace niccolite::registry {
namespace {

constexpr uint64_t kHandleUnit = 128;
constexpr const char* kNoMulticastAddresses =
    "reqs argument requires multicast addresses (lsaMultimem, or multimem of a team)";
constexpr uint64_t kMostNamed = kHandleUnit << 32;  // that handles can name

/// At the beginning of resources of virtual GPUs: how many kernels of niccolite::launch use them,
/// as they say themselves (niccolite/device.h has the same struct).
struct KernelCount {
  static constexpr uint32_t kMark = 0x6b726e6c;
  uint32_t mark = kMark;
  uint32_t running = 0;
};

// Returns the bytes of n barriers among N ranks: three words of state each, then a word for each
// rank.
uint64_t barrier_bytes(int barriers, int ranks) {
  return static_cast<uint64_t>(barriers) * (3 + static_cast<uint64_t>(ranks)) * sizeof(uint32_t);
}

}  // namespace

DeviceComms::DeviceComms(gpu::Machine& machine, int device, bootstrap::Member* member,
                         Windows& windows, Gins& gins)
    : machine_(machine), device_(device), member_(member), windows_(windows), gins_(gins) {}

DeviceComms::~DeviceComms() {
  for (const auto& [window, live] : live_)
    windows_.remove(window).ignore("the communicator ends with it");
}

// A GPU does not tell which kernels use which memory.
bool DeviceComms::counts_kernels() const { return machine_.kind() == gpu::Kind::Virtual; }

// Gives out signals and counters behind the ones that kernels number themselves.
Status DeviceComms::number_signals(const DeviceNeeds& needs, Layout& layout) const {
  constexpr int64_t kMostSignals = 1 << 20;  // of a context; descriptors name 2^24
  layout.gin = needs.gin;
  int64_t signals = needs.gin.signals;
  int64_t counters = needs.gin.counters;
  const int64_t rails = nranks() / windows_.team_ranks();
  const int64_t barriers[] = {int64_t{needs.world_barriers} * nranks(), needs.rail_barriers * rails,
                              int64_t{needs.hybrid_barriers} * nranks(),
                              needs.hybrid_barriers * rails};
  for (size_t i = 0; i < std::size(barriers); ++i) {
    layout.barrier_signals[i] = static_cast<uint32_t>(signals);
    signals += barriers[i];
  }
  for (const DeviceNeeds::Buffer& buffer : needs.buffers) {
    layout.signals.push_back(static_cast<uint32_t>(signals));
    layout.counters.push_back(static_cast<uint32_t>(counters));
    signals += buffer.signals;
    counters += buffer.counters;
  }
  if (signals > kMostSignals || counters > kMostSignals)
    return Status::invalid_argument(
        "reqs argument: {} signals and {} counters, those of barriers included: a context has at "
        "most {} of each",
        signals, counters, kMostSignals);
  layout.gin.signals = static_cast<int>(signals);
  layout.gin.counters = static_cast<int>(counters);
  return {};
}

Result<DeviceComms::Layout> DeviceComms::lay_out(const DeviceNeeds& needs) const {
  Layout layout;
  TRY(number_signals(needs, layout));
  const auto place = [&](uint64_t bytes, uint64_t align) -> Result<uint64_t> {
    const uint64_t unit = std::max(align, kHandleUnit);
    if ((unit & (unit - 1)) != 0 || unit > kMostNamed || bytes > kMostNamed)
      return Status::invalid_argument(
          "reqs argument: a buffer of {} bytes aligned to {}: alignments are powers of two, and "
          "all buffers together have at most {} GiB",
          bytes, align, kMostNamed >> 30);
    const uint64_t offset = (layout.bytes + unit - 1) / unit * unit;
    layout.bytes = offset + bytes;
    if (layout.bytes > kMostNamed)
      return Status::invalid_argument("reqs argument: all buffers together have more than {} GiB",
                                      kMostNamed >> 30);
    return offset;
  };
  static_assert(sizeof(KernelCount) <= kHandleUnit);
  if (counts_kernels()) TRY(place(kHandleUnit, kHandleUnit));
  const uint64_t before = layout.bytes;
  layout.barriers =
      TRY(place(barrier_bytes(needs.lsa_barriers, windows_.team_ranks()), sizeof(uint32_t)));
  layout.hybrid_barriers =
      TRY(place(barrier_bytes(needs.hybrid_barriers, windows_.team_ranks()), sizeof(uint32_t)));
  for (const DeviceNeeds::Buffer& buffer : needs.buffers)
    layout.buffers.push_back(TRY(place(buffer.bytes, buffer.align)));
  if (layout.gin.contexts > 0) {
    layout.shadows = TRY(place(static_cast<uint64_t>(layout.gin.contexts) *
                                   static_cast<uint64_t>(layout.gin.signals) * sizeof(uint64_t),
                               sizeof(uint64_t)));
    layout.gin_state = TRY(place(GinMemory::state_bytes(layout.gin, nranks()), kGinLine));
  }
  if (layout.bytes == before) layout.bytes = 0;  // nothing is needed
  return layout;
}

// Tells all ranks of a failure of one, and compares their needs: a kernel of a rank whose buffers
// lie elsewhere would write into the others' state.
Status DeviceComms::agree(const DeviceNeeds& needs, Prepared& prepared, const Status& mine) const {
  if (member_ == nullptr) {
    if (prepared.gin != nullptr) prepared.names.push_back(prepared.gin->memory().name());
    return mine.copy();
  }
  const Layout& layout = prepared.layout;
  constexpr uint32_t kMark = 0x64657663;  // messages of register_window() begin otherwise
  Writer writer;
  writer.u32(kMark);
  writer.u64(made_);
  writer.i32(needs.lsa_barriers);
  writer.u8(needs.multicast ? 1 : 0);
  writer.u64(layout.bytes);
  writer.u32(static_cast<uint32_t>(layout.buffers.size()));
  writer.i32(layout.gin.contexts);
  writer.i32(layout.gin.counters);
  writer.u32(layout.gin.depth);
  (prepared.gin == nullptr ? Gin::Name{} : prepared.gin->memory().name()).encode(writer);
  writer.u8(static_cast<uint8_t>(mine.code()));
  writer.text(std::string_view(mine.message()).substr(0, WindowPart::kMostText));
  const bootstrap::Gathered gathered = TRY(member_->all_gather(writer.bytes(), Deadline::never()));
  TRY(mine.copy());
  for (int peer = 0; peer < member_->nranks(); ++peer) {
    const std::string origin = fmt::format("rank {}", peer);
    Reader reader(gathered[peer], origin);
    if (reader.u32() != kMark)
      return Status::invalid_usage(
          "rank {} makes a device communicator, and rank {} is in another collective call", rank(),
          peer);
    if (const uint64_t number = reader.u64(); number != made_)
      return Status::invalid_usage(
          "rank {} makes its device communicator number {}, and rank {} its number {}: all ranks "
          "make all of them in one order",
          rank(), made_, peer, number);
    const int barriers = reader.i32();
    const bool multicast = reader.u8() != 0;
    const uint64_t bytes = reader.u64();
    const uint32_t buffers = reader.u32();
    const int contexts = reader.i32();
    const int counters = reader.i32();
    const uint32_t depth = reader.u32();
    prepared.names.push_back(Gin::Name::decode(reader));
    const uint8_t code = reader.u8();
    const std::string text = reader.text(WindowPart::kMostText);
    if (code > static_cast<uint8_t>(Code::RemoteError)) reader.reject("an unknown failure");
    TRY(reader.finish());
    if (code != 0) return Status::error(static_cast<Code>(code), "rank {}: {}", peer, text);
    if (multicast != needs.multicast)
      return Status::invalid_argument(
          "reqs argument: rank {} requires multicast addresses (lsaMultimem, or multimem of a "
          "team), and rank {} does not: all ranks call with equal requirements",
          multicast ? peer : rank(), multicast ? rank() : peer);
    if (barriers != needs.lsa_barriers || bytes != layout.bytes || buffers != layout.buffers.size())
      return Status::invalid_argument(
          "reqs argument: rank {} requires {} barriers and {} buffers, {} bytes in all, and rank "
          "{} {} barriers and {} buffers, {} bytes: all ranks call with equal requirements",
          rank(), needs.lsa_barriers, layout.buffers.size(), layout.bytes, peer, barriers, buffers,
          bytes);
    if (contexts != layout.gin.contexts || counters != layout.gin.counters ||
        depth != layout.gin.depth)
      return Status::invalid_argument(
          "reqs argument: rank {} requires {} contexts of networking, {} counters and queues of {} "
          "operations, and rank {} {}, {} and {}: all ranks call with equal requirements",
          rank(), layout.gin.contexts, layout.gin.counters, layout.gin.depth, peer, contexts,
          counters, depth);
  }
  return {};
}

// Behind the collective call for the window, so that no rank waits there for one that fails here.
Status DeviceComms::begin_network(Prepared& prepared, Windows::Handle window,
                                  const Deadline& deadline) {
  Status status = gins_.connect(*prepared.gin, prepared.names, deadline);
  if (status.is_ok())
    status = gins_.start(
        made_, std::move(prepared.gin),
        static_cast<std::byte*>(prepared.memory.data()) + prepared.layout.gin_state, window);
  // Afterwards all can take chunks, and all have mapped the signals of all, so that a rank may end
  // its device communicator at once.
  return vote(member_, status);
}

// This rank's part. The memory is zeros before any peer's kernel can know where it is.
Status DeviceComms::prepare(const DeviceNeeds& needs, Prepared& into) {
  into.layout = TRY(lay_out(needs));
  into.table = TRY(windows_.table());
  if (into.layout.bytes == 0) return {};
  Result<gpu::Memory> memory = machine_.allocate(device_, into.layout.bytes, /*shareable=*/true);
  if (!memory.is_ok())
    return std::move(memory).status().with_context(
        "memory for {} barriers and {} buffers, {} bytes", needs.lsa_barriers, needs.buffers.size(),
        into.layout.bytes);
  into.memory = std::move(memory).take();
  constexpr KernelCount kNone;
  if (counts_kernels()) TRY(machine_.upload(device_, into.memory.data(), &kNone, sizeof kNone));
  if (into.layout.gin.contexts == 0) return {};
  into.gin = TRY(gins_.create(made_, into.layout.gin));
  return {};
}

Result<DeviceComm> DeviceComms::make(const DeviceNeeds& needs, const Deadline& deadline) {
  Result<DeviceComm> made = make_next(needs, deadline);
  ++made_;
  return made;
}

Result<DeviceComm> DeviceComms::make_next(const DeviceNeeds& needs, const Deadline& deadline) {
  Prepared prepared;
  const Status mine = prepare(needs, prepared);
  TRY(agree(needs, prepared, mine));
  const Layout& layout = prepared.layout;
  if (needs.multicast) TRY(windows_.begin_multicast().with_context(kNoMulticastAddresses));
  DeviceComm made;
  made.table = prepared.table;
  made.gin = layout.gin;
  if (prepared.memory.valid()) {
    made.window = TRY(windows_.add_resources(prepared.memory.data(), layout.bytes));
    const std::shared_ptr<const Window> window = windows_.find(made.window);
    made.base = window->copy_of(window->team_first());
    made.stride_4g = window->stride_4g();
    if (needs.multicast && window->multicast_address() == nullptr) {
      TRY(windows_.remove(made.window));
      return Status::invalid_argument("{} : {}", kNoMulticastAddresses,
                                      windows_.multicast_obstacle());
    }
    if (needs.multicast)
      made.multicast_offset_4k = windows_.multicast_offset_4k(window->multicast_address());
  }
  if (needs.multicast) made.multicast_base = windows_.multicast_base();
  if (prepared.gin != nullptr) {
    const Status status = begin_network(prepared, made.window, deadline);
    if (!status.is_ok()) {
      gins_.end(made.window);
      windows_.remove(made.window).ignore("the first error is told");
      return status.copy();
    }
    auto* const own = static_cast<std::byte*>(prepared.memory.data());
    made.gin_contexts = own + layout.gin_state;
    made.signal_shadows = reinterpret_cast<uint64_t*>(own + layout.shadows);
  }
  made.lsa_barrier_handle = static_cast<uint32_t>(layout.barriers / kHandleUnit);
  made.hybrid_barrier_handle = static_cast<uint32_t>(layout.hybrid_barriers / kHandleUnit);
  made.world_signal = layout.barrier_signals[0];
  made.rail_signal = layout.barrier_signals[1];
  made.dense_signal = layout.barrier_signals[2];
  made.hybrid_rail_signal = layout.barrier_signals[3];
  for (size_t i = 0; i < needs.buffers.size(); ++i) {
    const DeviceNeeds::Buffer& buffer = needs.buffers[i];
    if (buffer.handle != nullptr)
      *buffer.handle = static_cast<uint32_t>(layout.buffers[i] / kHandleUnit);
    if (buffer.first_signal != nullptr) *buffer.first_signal = layout.signals[i];
    if (buffer.first_counter != nullptr) *buffer.first_counter = layout.counters[i];
  }
  std::lock_guard lock(mutex_);
  if (made.window != nullptr)
    live_.emplace(made.window, Live{.memory = std::move(prepared.memory)});
  else
    ++without_resources_;
  return made;
}

Status DeviceComms::withdraw(Windows::Handle window) {
  std::lock_guard lock(mutex_);
  if (window == nullptr && without_resources_ > 0) {
    --without_resources_;
    return {};
  }
  const auto found = live_.find(window);
  if (found == live_.end() || found->second.is_withdrawn)
    return Status::invalid_argument(
        "ncclDevCommCreate did not make this device communicator of this communicator, or it was "
        "destroyed before");
  if (counts_kernels()) {
    auto* const count = static_cast<KernelCount*>(found->second.memory.data());
    // [acquire] pairs with the end of the last kernel.
    const uint32_t running = std::atomic_ref(count->running).load(std::memory_order_acquire);
    if (running > 0)
      return Status::invalid_usage(
          "{} of the kernels that were launched on device {} with this device communicator have "
          "not "
          "ended. Synchronize with their streams before; if they wait for a rank that does not "
          "come, "
          "abort the communicator",
          running, device_);
  }
  found->second.is_withdrawn = true;
  return {};
}

gpu::Memory DeviceComms::end(Windows::Handle window) {
  std::lock_guard lock(mutex_);
  const auto found = live_.find(window);
  if (found == live_.end()) return {};
  windows_.remove(window).ignore("the device communicator ends with it");
  gpu::Memory memory = std::move(found->second.memory);
  live_.erase(found);
  return memory;
}

bool DeviceComms::has_any() const {
  std::lock_guard lock(mutex_);
  return !live_.empty() || without_resources_ > 0;
}

size_t DeviceComms::bytes() const {
  std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const auto& [window, live] : live_) bytes += live.memory.bytes();
  return bytes;
}

}  // namespace niccolite::registry
