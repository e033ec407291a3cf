// Address handles: where datagrams go.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/ip.h>

#include <cerrno>
#include <cstring>

#include "engine.h"
#include "objects.h"

namespace vverbs {
namespace {

constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

ibv_gid mapped(uint32_t address) {
  ibv_gid gid{};
  std::memcpy(gid.raw, kMapped, sizeof kMapped);
  std::memcpy(gid.raw + sizeof kMapped, &address, sizeof address);
  return gid;
}

}  // namespace

socklen_t socket_address(const ibv_gid& gid, uint16_t port, uint32_t scope,
                         sockaddr_storage& address) {
  if (std::memcmp(gid.raw, kMapped, sizeof kMapped) == 0) {
    auto& four = reinterpret_cast<sockaddr_in&>(address);
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    std::memcpy(&four.sin_addr, gid.raw + sizeof kMapped, 4);
    return sizeof four;
  }
  auto& six = reinterpret_cast<sockaddr_in6&>(address);
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(port);
  std::memcpy(&six.sin6_addr, gid.raw, 16);
  if (IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr)) six.sin6_scope_id = scope;
  return sizeof six;
}

}  // namespace vverbs

using namespace vverbs;

extern "C" {

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attributes) {
  Context& context = context_of(pd->context);
  const size_t index = attributes->grh.sgid_index;
  if (attributes->port_num < 1 || attributes->port_num > context.ports.size()) {
    errno = EINVAL;
    return nullptr;
  }
  const auto table = gid_table(context.index, attributes->port_num);
  // RoCE needs addresses: a LID says nothing.
  if (attributes->is_global == 0 || index >= table.size()) {
    errno = EINVAL;
    return nullptr;
  }
  auto* handle = new AddressHandle;
  handle->base.context = pd->context;
  handle->base.pd = pd;
  handle->attributes = *attributes;
  handle->own = table[index];
  const std::lock_guard lock(context.mutex);
  ++pd->handle;
  return &handle->base;
}

int ibv_destroy_ah(ibv_ah* ah) {
  {
    const std::lock_guard lock(context_of(ah->context).mutex);
    --ah->pd->handle;
  }
  delete reinterpret_cast<AddressHandle*>(ah);
  return 0;
}

// The way back to where a datagram came from.
int ibv_init_ah_from_wc(ibv_context* context, uint8_t port, ibv_wc* wc, ibv_grh* grh,
                        ibv_ah_attr* attributes) {
  if (port < 1 || port > context_of(context).ports.size() || (wc->wc_flags & IBV_WC_GRH) == 0) {
    errno = EINVAL;
    return -1;
  }
  *attributes = {};
  attributes->dlid = wc->slid;
  attributes->sl = wc->sl;
  attributes->src_path_bits = wc->dlid_path_bits;
  attributes->port_num = port;
  attributes->is_global = 1;
  attributes->grh.hop_limit = 0xff;
  ibv_gid own{};
  uint32_t type = IBV_GID_TYPE_ROCE_V2;
  const uint32_t first = be32toh(grh->version_tclass_flow);
  if (first >> 28 == 6) {
    attributes->grh.dgid = grh->sgid;
    attributes->grh.flow_label = first & 0xfffff;
    attributes->grh.traffic_class = static_cast<uint8_t>(first >> 20);
    own = grh->dgid;
    if (grh->next_hdr != IPPROTO_UDP) type = IBV_GID_TYPE_ROCE_V1;
  } else {
    iphdr header{};  // at the end, where there is room for one of IPv6
    std::memcpy(&header, reinterpret_cast<const char*>(grh) + sizeof *grh - sizeof header,
                sizeof header);
    attributes->grh.dgid = mapped(header.saddr);
    attributes->grh.traffic_class = header.tos;
    own = mapped(header.daddr);
  }
  for (const ibv_gid_entry& entry : gid_table(context_of(context).index, port))
    if (entry.gid_type == type && std::memcmp(&entry.gid, &own, sizeof own) == 0) {
      attributes->grh.sgid_index = static_cast<uint8_t>(entry.gid_index);
      return 0;
    }
  errno = ENOENT;
  return -1;
}

ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, uint8_t port) {
  ibv_ah_attr attributes{};
  return ibv_init_ah_from_wc(pd->context, port, wc, grh, &attributes) == 0
             ? ibv_create_ah(pd, &attributes)
             : nullptr;
}
}
