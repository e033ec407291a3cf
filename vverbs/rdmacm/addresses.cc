// Which device has an address, and what programs ask by name.
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "objects.h"

namespace vverbs::rdmacm {
namespace {

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, &address, sizeof four);
    return ntohl(four.sin_addr.s_addr) >> 24 == 127;
  }
  sockaddr_in6 six{};
  std::memcpy(&six, &address, sizeof six);
  return IN6_IS_ADDR_LOOPBACK(&six.sin6_addr);
}

std::vector<ibv_gid_entry> table_of(ibv_context* device) {
  std::vector<ibv_gid_entry> table(1024);
  const ssize_t count = ibv_query_gid_table(device, table.data(), table.size(), 0);
  table.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  return table;
}

struct Domains {
  std::mutex mutex;
  std::map<ibv_context*, ibv_pd*> all;
};

// A path as a subnet manager would tell it.
void set_route(Id& id) {
  rdma_addr& address = id.base.route.addr;
  address.addr.ibaddr.sgid = id.place.gid;
  address.addr.ibaddr.dgid = gid_of(address.dst_addr);
  address.addr.ibaddr.pkey = htobe16(0xffff);
  id.path = {};
  id.path.sgid = address.addr.ibaddr.sgid;
  id.path.dgid = address.addr.ibaddr.dgid;
  id.path.pkey = address.addr.ibaddr.pkey;
  id.path.reversible = id.path.numb_path = 1;
  id.path.mtu = IBV_MTU_4096;
  id.path.mtu_selector = id.path.rate_selector = id.path.packet_life_time_selector = 2;  // exact
  id.path.hop_limit = 64;
}

char* copy(const char* text) { return text != nullptr ? strdup(text) : nullptr; }

sockaddr* copy(const sockaddr* address, socklen_t size) {
  auto* made = static_cast<sockaddr_storage*>(std::calloc(1, sizeof(sockaddr_storage)));
  if (made != nullptr) std::memcpy(made, address, size);
  return reinterpret_cast<sockaddr*>(made);
}

}  // namespace

// Opened once, and until the process ends: programs compare them by address.
const std::vector<ibv_context*>& devices() {
  static const auto& all = *[] {
    auto* opened = new std::vector<ibv_context*>;
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    for (int i = 0; i < count; ++i)
      if (ibv_context* device = ibv_open_device(list[i]); device != nullptr)
        opened->push_back(device);
    if (list != nullptr) ibv_free_device_list(list);
    return opened;
  }();
  return all;
}

ibv_pd* domain_of(ibv_context* device) {
  static auto& domains = *new Domains;
  const std::lock_guard lock(domains.mutex);
  ibv_pd*& domain = domains.all[device];
  if (domain == nullptr) domain = ibv_alloc_pd(device);
  return domain;
}

socklen_t size_of(const sockaddr& address) {
  return address.sa_family == AF_INET    ? sizeof(sockaddr_in)
         : address.sa_family == AF_INET6 ? sizeof(sockaddr_in6)
                                         : 0;
}

bool is_any(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, &address, sizeof four);
    return four.sin_addr.s_addr == INADDR_ANY;
  }
  sockaddr_in6 six{};
  std::memcpy(&six, &address, sizeof six);
  return IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr);
}

uint16_t port_of(const sockaddr& address) {
  // At the same place in both families.
  sockaddr_in four{};
  std::memcpy(&four, &address, sizeof four);
  return four.sin_port;
}

void set_port(sockaddr& address, uint16_t port) {
  if (address.sa_family == AF_INET)
    reinterpret_cast<sockaddr_in&>(address).sin_port = port;
  else
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = port;
}

ibv_gid gid_of(const sockaddr& address) {
  ibv_gid gid{};
  if (address.sa_family == AF_INET) {
    gid.raw[10] = gid.raw[11] = 0xff;
    std::memcpy(gid.raw + 12, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
  } else {
    std::memcpy(gid.raw, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, 16);
  }
  return gid;
}

std::optional<Place> place_of(const sockaddr& address) {
  const ibv_gid gid = gid_of(address);
  uint32_t scope = 0;
  if (address.sa_family == AF_INET6)
    scope = reinterpret_cast<const sockaddr_in6&>(address).sin6_scope_id;
  std::optional<Place> fallback;
  for (ibv_context* device : devices())
    for (const ibv_gid_entry& entry : table_of(device)) {
      if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) continue;
      const Place place{device, static_cast<uint8_t>(entry.port_num),
                        static_cast<uint8_t>(entry.gid_index), entry.gid};
      if (std::memcmp(&entry.gid, &gid, sizeof gid) == 0 &&
          (scope == 0 || scope == entry.ndev_ifindex))
        return place;
      // Prefers an address of the same family.
      const bool four = entry.gid.raw[10] == 0xff && entry.gid.raw[11] == 0xff &&
                        entry.gid.global.subnet_prefix == 0;
      if (!fallback || (fallback->device == device && four && address.sa_family == AF_INET))
        fallback = place;
    }
  return is_loopback(address) ? fallback : std::nullopt;
}

void settle(Id& id, const Place& place) {
  id.place = place;
  id.base.verbs = place.device;
  id.base.port_num = place.port;
  if (id.base.pd == nullptr) id.base.pd = domain_of(place.device);
}

int bind_to(Id& id, const sockaddr& address) {
  const socklen_t size = size_of(address);
  if (size == 0) return EAFNOSUPPORT;
  std::optional<Place> place;
  const int fd = socket(address.sa_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int only = id.four_or_six_only ? 1 : 0;
  if (address.sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
  sockaddr_storage bound{};
  socklen_t bound_size = sizeof bound;
  int error = 0;
  if (bind(fd, &address, size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &bound_size) != 0)
    error = errno;
  if (error == 0 && !is_any(address) && !(place = place_of(address))) error = ENODEV;
  if (error != 0) {
    close(fd);
    return error;
  }
  id.port_fd = fd;
  id.base.route.addr.src_storage = bound;
  if (place) settle(id, *place);
  id.state = State::Bound;
  return 0;
}

}  // namespace vverbs::rdmacm

using namespace vverbs::rdmacm;

extern "C" {

int rdma_bind_addr(rdma_cm_id* handle, sockaddr* address) {
  Id& id = id_of(handle);
  if (id.state != State::Idle) return fail(EINVAL);
  const int error = bind_to(id, *address);
  return error == 0 ? 0 : fail(error);
}

int rdma_resolve_addr(rdma_cm_id* handle, sockaddr* source, sockaddr* destination, int) {
  Id& id = id_of(handle);
  if (id.state != State::Idle && id.state != State::Bound) return fail(EINVAL);
  if (size_of(*destination) == 0) return fail(EAFNOSUPPORT);
  // The kernel knows from which address it would go there.
  sockaddr_storage from{};
  auto& address = reinterpret_cast<sockaddr&>(from);
  if (source != nullptr && size_of(*source) > 0) {
    std::memcpy(&address, source, size_of(*source));
  } else if (id.state == State::Bound) {
    from = id.base.route.addr.src_storage;
  } else {
    address.sa_family = destination->sa_family;
  }
  if (address.sa_family != destination->sa_family) return fail(EAFNOSUPPORT);
  int error = 0;
  if (is_any(address)) {
    const uint16_t port = port_of(address);
    const int fd = socket(destination->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof from;
    if (fd < 0 || connect(fd, destination, size_of(*destination)) != 0 ||
        getsockname(fd, &address, &size) != 0)
      error = errno;
    if (fd >= 0) close(fd);
    set_port(address, port);
  }
  if (error == 0 && id.state == State::Idle) {
    error = bind_to(id, address);
  } else if (error == 0) {
    const auto place = place_of(address);
    set_port(address, port_of(id.base.route.addr.src_addr));
    if (place) {
      settle(id, *place);
      id.base.route.addr.src_storage = from;
    } else {
      error = ENODEV;
    }
  }
  {
    const std::lock_guard lock(agent().mutex);
    if (error == 0) {
      std::memcpy(&id.base.route.addr.dst_storage, destination, size_of(*destination));
      set_route(id);
      id.state = State::AddressResolved;
    }
    push(id, error == 0 ? RDMA_CM_EVENT_ADDR_RESOLVED : RDMA_CM_EVENT_ADDR_ERROR, -error);
  }
  return wait_for_event(id);
}

int rdma_resolve_route(rdma_cm_id* handle, int) {
  Id& id = id_of(handle);
  {
    const std::lock_guard lock(agent().mutex);
    if (id.state != State::AddressResolved) return fail(EINVAL);
    id.state = State::RouteResolved;
    handle->route.path_rec = &id.path;
    handle->route.num_paths = 1;
    push(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
  }
  return wait_for_event(id);
}

__be16 rdma_get_src_port(rdma_cm_id* id) {
  return size_of(id->route.addr.src_addr) == 0 ? uint16_t{0} : port_of(id->route.addr.src_addr);
}
__be16 rdma_get_dst_port(rdma_cm_id* id) {
  return size_of(id->route.addr.dst_addr) == 0 ? uint16_t{0} : port_of(id->route.addr.dst_addr);
}

ibv_context** rdma_get_devices(int* count) {
  const auto& all = devices();
  auto** list = static_cast<ibv_context**>(std::calloc(all.size() + 1, sizeof(void*)));
  if (list == nullptr) {
    errno = ENOMEM;
    return nullptr;
  }
  std::copy(all.begin(), all.end(), list);
  if (count != nullptr) *count = static_cast<int>(all.size());
  return list;
}

void rdma_free_devices(ibv_context** list) { std::free(list); }

int rdma_getaddrinfo(const char* node, const char* service, const rdma_addrinfo* hints,
                     rdma_addrinfo** result) {
  if (node == nullptr && service == nullptr && hints == nullptr) return fail(EINVAL);
  auto* made = static_cast<rdma_addrinfo*>(std::calloc(1, sizeof(rdma_addrinfo)));
  if (made == nullptr) return fail(ENOMEM);
  if (hints != nullptr) {
    made->ai_flags = hints->ai_flags;
    made->ai_family = hints->ai_family;
    made->ai_qp_type = hints->ai_qp_type;
    made->ai_port_space = hints->ai_port_space;
  }
  if (made->ai_port_space == 0)
    made->ai_port_space = made->ai_qp_type == IBV_QPT_UD ? RDMA_PS_UDP : RDMA_PS_TCP;
  if (made->ai_qp_type == 0)
    made->ai_qp_type = made->ai_port_space == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC;
  const bool passive = (made->ai_flags & RAI_PASSIVE) != 0;
  if (node != nullptr || service != nullptr) {
    addrinfo wanted{};
    wanted.ai_flags =
        (passive ? AI_PASSIVE : 0) | ((made->ai_flags & RAI_NUMERICHOST) != 0 ? AI_NUMERICHOST : 0);
    wanted.ai_family = made->ai_family;
    wanted.ai_socktype = made->ai_qp_type == IBV_QPT_UD ? SOCK_DGRAM : SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int error = getaddrinfo(node, service, &wanted, &found); error != 0) {
      rdma_freeaddrinfo(made);
      return error;
    }
    made->ai_family = found->ai_family;
    if (passive) {
      made->ai_src_addr = copy(found->ai_addr, found->ai_addrlen);
      made->ai_src_len = found->ai_addrlen;
      made->ai_src_canonname = copy(found->ai_canonname);
    } else {
      made->ai_dst_addr = copy(found->ai_addr, found->ai_addrlen);
      made->ai_dst_len = found->ai_addrlen;
      made->ai_dst_canonname = copy(found->ai_canonname);
    }
    freeaddrinfo(found);
  }
  if (hints != nullptr && made->ai_src_len == 0 && hints->ai_src_len > 0) {
    made->ai_src_addr = copy(hints->ai_src_addr, hints->ai_src_len);
    made->ai_src_len = hints->ai_src_len;
  }
  if (hints != nullptr && made->ai_dst_len == 0 && hints->ai_dst_len > 0) {
    made->ai_dst_addr = copy(hints->ai_dst_addr, hints->ai_dst_len);
    made->ai_dst_len = hints->ai_dst_len;
  }
  *result = made;
  return 0;
}

void rdma_freeaddrinfo(rdma_addrinfo* result) {
  while (result != nullptr) {
    rdma_addrinfo* next = result->ai_next;
    std::free(result->ai_src_addr);
    std::free(result->ai_dst_addr);
    std::free(result->ai_src_canonname);
    std::free(result->ai_dst_canonname);
    std::free(result);
    result = next;
  }
}
}
