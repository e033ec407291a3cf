#include "comm/links.h"
#include "topology/detect.h"

#include <algorithm>

namespace niccolite::comm {
namespace {

using transport::PeerAccess;

// About one peer, or about all.
constexpr uint8_t kOpensBuffers = 1;
constexpr uint8_t kSharesAtomics = 2;
// About all.
constexpr uint8_t kLacksAccess = 4;
constexpr uint8_t kHasUntried = 8;
constexpr uint8_t kSharesHost = 16;
// About one peer: a PeerAccess from this bit on.
constexpr int kAccessAt = 2;

uint8_t bits_of(bool opens_buffers, bool shares_atomics) {
  return static_cast<uint8_t>((opens_buffers ? kOpensBuffers : 0) |
                              (shares_atomics ? kSharesAtomics : 0));
}

bool is_lack(PeerAccess access) {
  return access != PeerAccess::Works && access != PeerAccess::Untried;
}

}  // namespace

Bytes encode(const Links& links) {
  const auto opened = std::ranges::count(links.opens_buffers, true);
  const auto shared = std::ranges::count(links.shares_atomics, true);
  const auto nranks = static_cast<std::ptrdiff_t>(links.opens_buffers.size());
  uint8_t all = bits_of(opened + 1 == nranks, shared == nranks);
  if (std::ranges::any_of(links.access, is_lack)) all |= kLacksAccess;
  if (std::ranges::count(links.access, PeerAccess::Untried) != 0) all |= kHasUntried;
  if (links.shares_host) all |= kSharesHost;
  Writer writer;
  writer.u8(all);
  writer.i32(links.torn);
  writer.i32(links.team_limit);
  for (size_t peer = 0; peer < links.opens_buffers.size(); ++peer) {
    const auto access =
        static_cast<unsigned>(peer < links.access.size() ? links.access[peer] : PeerAccess::Works);
    writer.u8(static_cast<uint8_t>(bits_of(links.opens_buffers[peer], links.shares_atomics[peer]) |
                                   access << kAccessAt));
  }
  return std::move(writer).take();
}

Result<PeerLinks> decode_links(std::span<const std::byte> bytes, int rank, int self, int nranks) {
  const std::string origin = fmt::format("rank {}", rank);
  Reader reader(bytes, origin);
  PeerLinks links;
  const uint8_t all = reader.u8();
  links.opens_all_buffers = (all & kOpensBuffers) != 0;
  links.shares_all_atomics = (all & kSharesAtomics) != 0;
  links.lacks_access = (all & kLacksAccess) != 0;
  links.has_untried = (all & kHasUntried) != 0;
  links.shares_host = (all & kSharesHost) != 0;
  links.torn = reader.i32();
  if (links.torn < -1 || links.torn >= nranks) reader.reject("a link to a rank that there is not");
  links.team_limit = reader.i32();
  if (links.team_limit < 0) reader.reject("a load-store team of fewer ranks than none");
  // All but one of many bytes are for others.
  const std::span<const std::byte> bits = reader.raw(static_cast<size_t>(nranks));
  if (!bits.empty()) {
    const auto own = std::to_integer<uint8_t>(bits[static_cast<size_t>(self)]);
    links.opens_own_buffers = (own & kOpensBuffers) != 0;
    links.shares_own_atomics = (own & kSharesAtomics) != 0;
    const int access = own >> kAccessAt;
    if (access >= transport::kPeerAccesses) reader.reject("peer access of an unknown kind");
    links.own_access = static_cast<PeerAccess>(access);
  }
  TRY(reader.finish());
  return links;
}

int local_device(gpu::Devices& devices, const RankInfo& info) {
  const auto is_it = [&](int device) {
    Result<gpu::DeviceInfo> known = devices.device_info(device);
    return known.is_ok() && known.value().uuid == info.device_uuid;
  };
  const int count = devices.device_count();
  if (info.device < count && is_it(info.device)) return info.device;  // where all see all
  for (int device = 0; device < count; ++device)
    if (is_it(device)) return device;
  return -1;
}

std::string describe_torn(std::span<const RankInfo> ranks, int a, int b) {
  const auto [low, high] = std::minmax(a, b);
  return fmt::format(
      "the link between rank {} (GPU {}) and rank {} (GPU {}) is not known to be NVLink, and "
      "others "
      "may tear lines of 128 bytes",
      low, ranks[static_cast<size_t>(low)].bus_id, high, ranks[static_cast<size_t>(high)].bus_id);
}

int nvml_device(gpu::Devices& devices, int device) {
  if (devices.kind() == gpu::Kind::Virtual) return device;
  const Result<gpu::DeviceInfo> info = devices.device_info(device);
  if (!info.is_ok()) return device;
  return topology::nvml_index(info.value().bus_id).value_or(device);
}

}  // namespace niccolite::comm
