#include "registry/device_comms.h"

#include <algorithm>

#include "gpu/machine.h"

namespace niccolite::registry {
namespace {

constexpr uint64_t kHandleUnit = 128;
constexpr const char* kNoMulticastAddresses =
    "reqs argument requires multicast addresses (lsaMultimem, or multimem of a team)";
constexpr uint64_t kMostNamed = kHandleUnit << 32;  // that handles can name

// Returns the bytes of n barriers among N ranks: three words of state each, then a word for each
// rank.
uint64_t barrier_bytes(int barriers, int ranks) {
  return static_cast<uint64_t>(barriers) * (3 + static_cast<uint64_t>(ranks)) * sizeof(uint32_t);
}

}  // namespace

DeviceComms::DeviceComms(gpu::Machine& machine, int device, bootstrap::Member* member,
                         Windows& windows)
    : machine_(machine), device_(device), member_(member), windows_(windows) {}

DeviceComms::~DeviceComms() {
  for (const auto& [window, memory] : live_)
    windows_.remove(window).ignore("the communicator ends with it");
}

Result<DeviceComms::Layout> DeviceComms::lay_out(const DeviceNeeds& needs) const {
  Layout layout;
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
  layout.barriers =
      TRY(place(barrier_bytes(needs.lsa_barriers, windows_.team_ranks()), sizeof(uint32_t)));
  for (const DeviceNeeds::Buffer& buffer : needs.buffers)
    layout.buffers.push_back(TRY(place(buffer.bytes, buffer.align)));
  return layout;
}

// Tells all ranks of a failure of one, and compares their needs: a kernel of a rank whose buffers
// lie elsewhere would write into the others' state.
Status DeviceComms::agree(const DeviceNeeds& needs, const Layout& layout,
                          const Status& mine) const {
  if (member_ == nullptr) return mine.copy();
  constexpr uint32_t kMark = 0x64657663;  // messages of register_window() begin otherwise
  Writer writer;
  writer.u32(kMark);
  writer.i32(needs.lsa_barriers);
  writer.u8(needs.multicast ? 1 : 0);
  writer.u64(layout.bytes);
  writer.u32(static_cast<uint32_t>(layout.buffers.size()));
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
    const int barriers = reader.i32();
    const bool multicast = reader.u8() != 0;
    const uint64_t bytes = reader.u64();
    const uint32_t buffers = reader.u32();
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
  }
  return {};
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
  return {};
}

Result<DeviceComm> DeviceComms::make(const DeviceNeeds& needs) {
  Prepared prepared;
  const Status mine = prepare(needs, prepared);
  TRY(agree(needs, prepared.layout, mine));
  const Layout& layout = prepared.layout;
  if (needs.multicast) TRY(windows_.begin_multicast().with_context(kNoMulticastAddresses));
  DeviceComm made;
  made.table = prepared.table;
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
  made.lsa_barrier_handle = static_cast<uint32_t>(layout.barriers / kHandleUnit);
  for (size_t i = 0; i < needs.buffers.size(); ++i)
    if (needs.buffers[i].handle != nullptr)
      *needs.buffers[i].handle = static_cast<uint32_t>(layout.buffers[i] / kHandleUnit);
  std::lock_guard lock(mutex_);
  if (made.window != nullptr)
    live_.emplace(made.window, std::move(prepared.memory));
  else
    ++without_resources_;
  return made;
}

Status DeviceComms::end(Windows::Handle window) {
  gpu::Memory memory;  // ends without the lock
  std::lock_guard lock(mutex_);
  if (window == nullptr && without_resources_ > 0) {
    --without_resources_;
    return {};
  }
  const auto found = live_.find(window);
  if (found == live_.end())
    return Status::invalid_argument(
        "ncclDevCommCreate did not make this device communicator of this communicator, or it was "
        "destroyed before");
  TRY(windows_.remove(window));
  memory = std::move(found->second);
  live_.erase(found);
  return {};
}

size_t DeviceComms::bytes() const {
  std::lock_guard lock(mutex_);
  size_t bytes = 0;
  for (const auto& [window, memory] : live_) bytes += memory.bytes();
  return bytes;
}

}  // namespace niccolite::registry
