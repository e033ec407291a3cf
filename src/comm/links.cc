#include "comm/links.h"

#include <algorithm>

namespace niccolite::comm {

Bytes encode(const Links& links) {
  const auto opened = std::ranges::count(links.opens_buffers, true);
  Writer writer;
  writer.u8(opened + 1 == static_cast<std::ptrdiff_t>(links.opens_buffers.size()) ? 1 : 0);
  writer.i32(links.torn);
  for (const bool opens : links.opens_buffers) writer.u8(opens ? 1 : 0);
  return std::move(writer).take();
}

Result<PeerLinks> decode_links(std::span<const std::byte> bytes, int rank, int self, int nranks) {
  const std::string origin = fmt::format("rank {}", rank);
  Reader reader(bytes, origin);
  PeerLinks links;
  links.opens_all_buffers = reader.u8() != 0;
  links.torn = reader.i32();
  if (links.torn < -1 || links.torn >= nranks) reader.reject("a link to a rank that there is not");
  // All but one of many bytes are for others.
  const std::span<const std::byte> opened = reader.raw(static_cast<size_t>(nranks));
  if (!opened.empty()) links.opens_own_buffers = opened[static_cast<size_t>(self)] != std::byte{0};
  TRY(reader.finish());
  return links;
}

int local_device(gpu::Machine& machine, const RankInfo& info) {
  const auto is_it = [&](int device) {
    Result<gpu::DeviceInfo> known = machine.device_info(device);
    return known.is_ok() && known.value().uuid == info.device_uuid;
  };
  const int count = machine.device_count();
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

}  // namespace niccolite::comm
