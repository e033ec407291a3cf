// Which devices there are: their ports, GIDs and P_Keys.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "objects.h"
#include "options.h"

namespace vverbs {
namespace {

struct Interface {
  unsigned index = 0;
  bool loopback = false;
  std::vector<ibv_gid> addresses;  // IPv6 of the link first, as Linux has it
};

std::vector<Interface> interfaces() {
  std::vector<Interface> result;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return result;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    ibv_gid gid{};
    bool link_local = false;
    if (entry->ifa_addr->sa_family == AF_INET) {
      gid.raw[10] = gid.raw[11] = 0xff;
      std::memcpy(gid.raw + 12, &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr,
                  4);
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      const auto& address = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
      std::memcpy(gid.raw, &address, 16);
      link_local = IN6_IS_ADDR_LINKLOCAL(&address);
    } else {
      continue;
    }
    const unsigned index = if_nametoindex(entry->ifa_name);
    auto found = std::find_if(result.begin(), result.end(),
                              [&](const Interface& one) { return one.index == index; });
    if (found == result.end()) {
      result.push_back({index, (entry->ifa_flags & IFF_LOOPBACK) != 0, {}});
      found = result.end() - 1;
    }
    found->addresses.insert(link_local ? found->addresses.begin() : found->addresses.end(), gid);
  }
  freeifaddrs(list);
  std::sort(result.begin(), result.end(),
            [](const Interface& a, const Interface& b) { return a.index < b.index; });
  if (std::any_of(result.begin(), result.end(), [](const Interface& one) { return !one.loopback; }))
    std::erase_if(result, [](const Interface& one) { return one.loopback; });
  return result;
}

uint64_t guid_of(int device) {
  // Of the machine's first address, so that devices of several machines differ.
  uint64_t hash = 1469598103934665603u;
  const auto table = gid_table(0, 1);
  if (!table.empty())
    for (const uint8_t byte : table.back().gid.raw) hash = (hash ^ byte) * 1099511628211u;
  hash = (hash & 0x00ffffffffffff00u) | 0x0200000000000000u | static_cast<uint64_t>(device);
  return htobe64(hash);
}

int device_index(const ibv_device* device) { return std::atoi(device->name + std::strlen("vnic")); }

bool is_port(const ibv_context* context, uint32_t port) {
  const auto& ports = context_of(const_cast<ibv_context*>(context)).ports;
  return port >= 1 && port <= ports.size();
}

int query_port(ibv_context* handle, uint8_t number, ibv_port_attr* result, size_t size) {
  if (!is_port(handle, number)) return EINVAL;
  Context& context = context_of(handle);
  if (context.gone) return EIO;
  ibv_port_attr port{};
  {
    const std::lock_guard lock(context.mutex);
    port.state = context.ports[number - 1u].up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  }
  port.max_mtu = port.active_mtu = IBV_MTU_4096;
  port.gid_tbl_len = static_cast<int>(gid_table(context.index, number).size());
  port.port_cap_flags = 1 << 26;  // IP-based GIDs
  port.max_msg_sz = kMaxMessage;
  port.pkey_tbl_len = 1;
  port.max_vl_num = 1;
  // Width and speed whose product is nearest to what the port announces.
  static const struct {
    int gbit;
    uint8_t width, speed;
  } rates[] = {{10, 1, 8},   {25, 1, 32},   {50, 1, 64},  {100, 2, 32},
               {200, 2, 64}, {400, 2, 128}, {800, 4, 128}};
  for (const auto& rate : rates)
    if (rate.gbit <= options().speed_gbit || rate.gbit == 10) {
      port.active_width = rate.width;
      port.active_speed = rate.speed;
    }
  port.phys_state = port.state == IBV_PORT_ACTIVE ? 5 : 3;
  port.link_layer = IBV_LINK_LAYER_ETHERNET;
  std::memcpy(result, &port, std::min(size, sizeof port));
  return 0;
}

}  // namespace

std::vector<ibv_gid_entry> gid_table(int device, int port) {
  std::vector<ibv_gid_entry> table;
  const auto all = interfaces();
  if (all.empty()) return table;
  const Interface& interface =
      all[static_cast<size_t>(device * options().ports + port - 1) % all.size()];
  for (const ibv_gid& gid : interface.addresses)
    for (const uint32_t type : {IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2})
      table.push_back({gid, static_cast<uint32_t>(table.size()), static_cast<uint32_t>(port), type,
                       interface.index});
  return table;
}

void fill_operations(Context& context);  // of queue pairs and completion queues

}  // namespace vverbs

using namespace vverbs;

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  const int devices = options().devices;
  // One allocation: the list, then the devices, which stay until the process ends as contexts name
  // them.
  static ibv_device* const all = [] {
    auto* made = new ibv_device[kMostDevices]{};
    for (int i = 0; i < kMostDevices; ++i) {
      made[i].node_type = IBV_NODE_CA;
      made[i].transport_type = IBV_TRANSPORT_IB;
      std::snprintf(made[i].name, sizeof made[i].name, "vnic%d", i);
      std::snprintf(made[i].dev_name, sizeof made[i].dev_name, "uverbs%d", i);
      std::snprintf(made[i].dev_path, sizeof made[i].dev_path,
                    "/sys/class/infiniband_verbs/uverbs%d", i);
      std::snprintf(made[i].ibdev_path, sizeof made[i].ibdev_path, "/sys/class/infiniband/vnic%d",
                    i);
    }
    return made;
  }();
  auto** list =
      static_cast<ibv_device**>(std::calloc(static_cast<size_t>(devices) + 1, sizeof(void*)));
  if (list == nullptr) {
    errno = ENOMEM;
    return nullptr;
  }
  int present = 0;
  for (int i = 0; i < devices; ++i)
    if (!is_removed(i)) list[present++] = all + i;
  if (count != nullptr) *count = present;
  return list;
}

void ibv_free_device_list(ibv_device** list) { std::free(list); }
const char* ibv_get_device_name(ibv_device* device) { return device->name; }
__be64 ibv_get_device_guid(ibv_device* device) { return guid_of(device_index(device)); }
int ibv_get_device_index(ibv_device* device) { return device_index(device); }

ibv_context* ibv_open_device(ibv_device* device) {
  if (is_removed(device_index(device))) {
    errno = ENODEV;
    return nullptr;
  }
  auto* context = new Context;
  context->index = device_index(device);
  context->ports.resize(static_cast<size_t>(options().ports));
  context->verbs.sz = sizeof(verbs_context);
  context->verbs.query_port = query_port;
  ibv_context& base = context->verbs.context;
  base.device = device;
  base.abi_compat = __VERBS_ABI_IS_EXTENDED;
  base.num_comp_vectors = 1;
  base.cmd_fd = -1;
  pthread_mutex_init(&base.mutex, nullptr);
  context->events.fd = base.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  fill_operations(*context);
  if (base.async_fd < 0 || !start_engine(*context)) {
    const int error = errno;
    ibv_close_device(&base);
    errno = error;
    return nullptr;
  }
  return &base;
}

int ibv_close_device(ibv_context* handle) {
  Context* context = &context_of(handle);
  stop_engine(*context);
  if (context->events.fd >= 0) close(context->events.fd);
  pthread_mutex_destroy(&handle->mutex);
  delete context;
  return 0;
}

int ibv_query_device(ibv_context* handle, ibv_device_attr* device) {
  Context& context = context_of(handle);
  *device = {};
  std::snprintf(device->fw_ver, sizeof device->fw_ver, "1.0.0");
  device->node_guid = device->sys_image_guid = guid_of(context.index);
  device->max_mr_size = UINT64_MAX;
  device->page_size_cap = 4096;
  device->max_qp = 65536;
  device->max_qp_wr = kMaxWork;
  device->device_cap_flags =
      IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_PORT_ACTIVE_EVENT;
  device->max_sge = device->max_sge_rd = device->max_srq_sge = kMaxSge;
  device->max_cq = device->max_mr = device->max_pd = device->max_srq = device->max_ah = 65536;
  device->max_cqe = kMaxCqe;
  device->max_qp_rd_atom = device->max_qp_init_rd_atom = kMaxAtomicReads;
  device->max_res_rd_atom = 65536 * kMaxAtomicReads;
  device->atomic_cap = IBV_ATOMIC_HCA;
  device->max_srq_wr = kMaxWork;
  device->max_pkeys = 1;
  device->local_ca_ack_delay = 15;
  device->phys_port_cnt = static_cast<uint8_t>(context.ports.size());
  return 0;
}

// For programs older than the last fields.
int ibv_query_port(ibv_context* context, uint8_t port, _compat_ibv_port_attr* result) {
  return query_port(context, port, reinterpret_cast<ibv_port_attr*>(result),
                    offsetof(ibv_port_attr, port_cap_flags2));
}

int _ibv_query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                      uint32_t flags, size_t size) {
  if (flags != 0 || !is_port(context, port)) return EINVAL;
  const auto table = gid_table(context_of(context).index, static_cast<int>(port));
  if (index >= table.size()) return is_port(context, port) && index < 256 ? ENODATA : EINVAL;
  std::memcpy(entry, &table[index], std::min(size, sizeof *entry));
  return 0;
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t most,
                             uint32_t flags, size_t size) {
  if (flags != 0 || size < sizeof(ibv_gid_entry)) return -EINVAL;
  size_t count = 0;
  for (size_t port = 1; port <= context_of(context).ports.size(); ++port)
    for (const ibv_gid_entry& entry :
         gid_table(context_of(context).index, static_cast<int>(port))) {
      if (count == most) return -EINVAL;
      std::memcpy(reinterpret_cast<char*>(entries) + size * count++, &entry, sizeof entry);
    }
  return static_cast<ssize_t>(count);
}

int ibv_query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) {
  ibv_gid_entry entry{};
  if (index < 0 || _ibv_query_gid_ex(context, port, static_cast<uint32_t>(index), &entry, 0,
                                     sizeof entry) != 0) {
    errno = EINVAL;
    return -1;
  }
  *gid = entry.gid;
  return 0;
}

// What ibv_devinfo asks: 0 is InfiniBand and RoCE v1, 1 is RoCE v2.
int ibv_query_gid_type(ibv_context* context, uint8_t port, unsigned index, unsigned* type) {
  ibv_gid_entry entry{};
  if (_ibv_query_gid_ex(context, port, index, &entry, 0, sizeof entry) != 0) {
    errno = EINVAL;
    return -1;
  }
  *type = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
  return 0;
}

int ibv_query_pkey(ibv_context* context, uint8_t port, int index, __be16* key) {
  if (!is_port(context, port) || index != 0) {
    errno = EINVAL;
    return -1;
  }
  *key = htobe16(0xffff);
  return 0;
}

int ibv_get_pkey_index(ibv_context* context, uint8_t port, __be16 key) {
  if (is_port(context, port) && key == htobe16(0xffff)) return 0;
  errno = EINVAL;
  return -1;
}

const char* ibv_get_sysfs_path(void) { return "/sys"; }

int ibv_read_sysfs_file(const char*, const char*, char*, size_t) {
  errno = ENOENT;  // virtual NICs have no files
  return -1;
}
}
