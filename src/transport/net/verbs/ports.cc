#include "transport/net/verbs/ports.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>

#include "base/log.h"
#include "base/parameters.h"

namespace niccolite::transport::net::verbs {
namespace {

constexpr uint8_t kIpv4InIpv6[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool is_zero(const ibv_gid& gid) {
  return std::ranges::all_of(gid.raw, [](uint8_t byte) { return byte == 0; });
}

// fe80::/10, and of InfiniBand's form of RoCE v1 without an address.
bool is_link_local(const ibv_gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }

// Where libibverbs is too old to tell.
int version_by_system(const std::string& device, int port, int index) {
  std::ifstream file(
      fmt::format("/sys/class/infiniband/{}/ports/{}/gid_attrs/types/{}", device, port, index));
  std::string type;
  std::getline(file, type);
  return type.find("v2") != std::string::npos ? 2 : type.empty() ? 0 : 1;
}

std::vector<Gid> read_gids(const Library& library, const Port& port) {
  std::vector<Gid> gids;
  ibv_context* const context = port.device->context();
  for (int index = 0; index < port.attributes.gid_tbl_len; ++index) {
    Gid gid{.index = index};
    if (library.query_gid_ex != nullptr) {
      ibv_gid_entry entry{};
      if (library.query_gid_ex(context, port.number, static_cast<uint32_t>(index), &entry, 0,
                               sizeof entry) != 0)
        continue;
      gid.bytes = entry.gid;
      gid.roce_version = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? 2
                         : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? 1
                                                                  : 0;
    } else {
      if (library.query_gid(context, port.number, index, &gid.bytes) != 0) continue;
      if (port.is_roce())
        gid.roce_version = version_by_system(port.device->name(), port.number, index);
    }
    if (!is_zero(gid.bytes)) gids.push_back(gid);
  }
  return gids;
}

std::string describe(std::span<const Gid> gids) {
  std::string all;
  for (const Gid& gid : gids)
    all += fmt::format("{}{} ({}{})", all.empty() ? "" : ", ", gid.index, text_of(gid.bytes),
                       gid.roce_version > 0 ? fmt::format(", RoCE v{}", gid.roce_version) : "");
  return all.empty() ? "none" : all;
}

struct Range {
  uint8_t bytes[16];
  int bits;  // of an IPv6 address
};
std::optional<Range> range_of(const std::string& text) {
  const size_t slash = text.find('/');
  const std::string address = text.substr(0, slash);
  Range range{};
  const bool is_v4 = inet_pton(AF_INET, address.c_str(), range.bytes + 12) == 1;
  if (is_v4)
    std::memcpy(range.bytes, kIpv4InIpv6, sizeof kIpv4InIpv6);
  else if (inet_pton(AF_INET6, address.c_str(), range.bytes) != 1)
    return std::nullopt;
  range.bits = is_v4 ? 32 : 128;
  if (slash != std::string::npos) {
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + slash + 1, end, range.bits);
    if (error != std::errc() || rest != end || range.bits < 0 || range.bits > (is_v4 ? 32 : 128))
      return std::nullopt;
  }
  if (is_v4) range.bits += 96;
  return range;
}

bool contains(const Range& range, const ibv_gid& gid) {
  for (int bit = 0; bit < range.bits; ++bit) {
    const int mask = 0x80 >> (bit % 8);
    if ((range.bytes[bit / 8] & mask) != (gid.raw[bit / 8] & mask)) return false;
  }
  return true;
}

// Devices that communicators of this process have open.
struct Opened {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Device>> devices;
};
Opened& opened() {
  static auto* const all = new Opened;  // devices may be closed after main()
  return *all;
}

}  // namespace

std::string host() {
  char name[256] = "";
  return gethostname(name, sizeof name - 1) == 0 ? name : "?";
}

std::string text_of(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (is_ipv4(gid))
    inet_ntop(AF_INET, gid.raw + 12, text, sizeof text);
  else
    inet_ntop(AF_INET6, gid.raw, text, sizeof text);
  return text;
}

bool is_ipv4(const ibv_gid& gid) {
  return std::memcmp(gid.raw, kIpv4InIpv6, sizeof kIpv4InIpv6) == 0;
}

Device::Device(const Library& library) : process_(getpid()), library_(library) {}

Result<std::shared_ptr<Device>> Device::open(const Library& library, ibv_device* of_list) {
  Opened& all = opened();
  std::lock_guard lock(all.mutex);
  std::weak_ptr<Device>& found = all.devices[of_list->name];
  if (std::shared_ptr<Device> open = found.lock();
      open != nullptr && open->process_ == getpid() && !open->is_gone())
    return open;
  std::shared_ptr<Device> device(new Device(library));
  device->name_ = of_list->name;
  device->is_virtual_ = device->name_.starts_with("vnic") && access(of_list->ibdev_path, F_OK) != 0;
  const auto failed = [&](const char* what) {
    return Status::from_errno(errno != 0 ? errno : EIO,
                              fmt::format("{} on host {}: {} failed (may this user open "
                                          "/dev/infiniband, and is 'ulimit -l' unlimited?)",
                                          device->name_, host(), what));
  };
  device->context_ = library.open_device(of_list);
  if (device->context_ == nullptr) return failed("ibv_open_device");
  device->domain_ = library.alloc_pd(device->context_);
  if (device->domain_ == nullptr) return failed("ibv_alloc_pd");
  if (library.query_device(device->context_, &device->limits_) != 0)
    return failed("ibv_query_device");
  // is_gone() waits for no event.
  const int flags = fcntl(device->context_->async_fd, F_GETFL);
  if (flags < 0 || fcntl(device->context_->async_fd, F_SETFL, flags | O_NONBLOCK) != 0)
    return failed("fcntl of its events");
  found = device;
  return device;
}

Device::~Device() {
  if (process_ != getpid()) return;  // in a child made by fork() it is the parent's
  if (domain_ != nullptr) static_cast<void>(library_.dealloc_pd(domain_));
  if (context_ != nullptr) static_cast<void>(library_.close_device(context_));
}

bool Device::is_gone() {
  // relaxed: says nothing of other memory
  if (is_gone_.load(std::memory_order_relaxed)) return true;
  std::lock_guard lock(mutex_);
  for (ibv_async_event event{}; library_.get_async_event(context_, &event) == 0;) {
    if (event.event_type == IBV_EVENT_DEVICE_FATAL) is_gone_.store(true, std::memory_order_relaxed);
    library_.ack_async_event(&event);
  }
  return is_gone_.load(std::memory_order_relaxed);
}

std::string Port::name() const { return fmt::format("{}:{}", device->name(), number); }

Network::Port Port::in_graph() const {
  return {.name = number == 1 ? device->name() : name(),
          .device = device->name(),
          .speed = speed(),
          .is_virtual = device->is_virtual()};
}

const char* Port::state() const {
  switch (attributes.state) {
    case IBV_PORT_ACTIVE:
      return "active";
    case IBV_PORT_INIT:
      return "initializing (no subnet manager?)";
    case IBV_PORT_ARMED:
      return "armed";
    default:
      return "down";
  }
}

int Port::speed() const {
  const int lanes = attributes.active_width == 1    ? 1
                    : attributes.active_width == 2  ? 4
                    : attributes.active_width == 4  ? 8
                    : attributes.active_width == 8  ? 12
                    : attributes.active_width == 16 ? 2
                                                    : 0;
  int lane = 0;
  switch (attributes.active_speed) {
    case 1:
      lane = 2'500;
      break;
    case 2:
      lane = 5'000;
      break;
    case 4:
    case 8:
      lane = 10'000;
      break;
    case 16:
      lane = 14'000;
      break;
    case 32:
      lane = 25'000;
      break;
    case 64:
      lane = 50'000;
      break;
    case 128:
      lane = 100'000;
      break;
    default:
      break;
  }
  return lanes * lane;
}

Result<std::vector<Port>> list_ports(const Library& library) {
  int count = 0;
  ibv_device** const list = library.get_device_list(&count);
  if (list == nullptr) {
    if (errno == ENOSYS || errno == ENOENT) return std::vector<Port>();  // no kernel modules
    return Status::from_errno(errno, fmt::format("{}: ibv_get_device_list failed", library.file()));
  }
  struct Release {
    const Library& library;
    ibv_device** list;
    ~Release() { library.free_device_list(list); }
  } const release{library, list};
  std::vector<Port> ports;
  Status refused;
  for (int i = 0; i < count; ++i) {
    Result<std::shared_ptr<Device>> device = Device::open(library, list[i]);
    if (!device.is_ok()) {  // others may do
      LOG(Info, Net, "NET/IB : {}", device.status().message());
      refused = std::move(device).status();
      continue;
    }
    for (uint8_t number = 1; number <= (*device)->limits().phys_port_cnt; ++number) {
      Port port;
      port.device = *device;
      port.number = number;
      if (library.query_port((*device)->context(), number, port.attributes) != 0) continue;
      port.gids = read_gids(library, port);
      ports.push_back(std::move(port));
    }
  }
  if (ports.empty()) TRY(std::move(refused));
  return ports;
}

PortFilter::PortFilter(std::string_view text) {
  if (text.starts_with('^')) {
    excludes_ = true;
    text.remove_prefix(1);
  }
  if (text.starts_with('=')) {
    is_exact_ = true;
    text.remove_prefix(1);
  }
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(','));
    text.remove_prefix(std::min(one.size() + 1, text.size()));
    if (one.empty()) continue;
    const size_t colon = one.find(':');
    Entry entry{.name = std::string(one.substr(0, colon))};
    if (colon != std::string_view::npos) {
      const std::string_view number = one.substr(colon + 1);
      std::from_chars(number.data(), number.data() + number.size(), entry.port);
    }
    entries_.push_back(std::move(entry));
  }
}

bool PortFilter::accepts(std::string_view device, int port) const {
  if (entries_.empty()) return true;
  const bool is_named = std::ranges::any_of(entries_, [&](const Entry& entry) {
    return (is_exact_ ? device == entry.name : device.starts_with(entry.name)) &&
           (entry.port < 0 || entry.port == port);
  });
  return is_named != excludes_;
}

GidRequest gid_request() {
  return {.index = parameters::ib_gid_index(),
          .version = parameters::ib_roce_version(),
          .family = parameters::ib_addr_family(),
          .range = parameters::ib_addr_range()};
}

Result<Gid> choose_gid(const std::string& port, bool is_roce, std::span<const Gid> gids,
                       const GidRequest& request) {
  const auto none = [&](const std::string& wanted, const char* remedy) {
    return Status::invalid_usage("{} on host {} has no GID {}; its GIDs are {}. {}", port, host(),
                                 wanted, describe(gids), remedy);
  };
  if (request.index >= 0) {
    const auto found = std::ranges::find(gids, request.index, &Gid::index);
    if (found == gids.end())
      return none(fmt::format("of index {} (NCCL_IB_GID_INDEX)", request.index),
                  "Name one of them, or unset the variable");
    return *found;
  }
  if (!is_roce) {
    if (gids.empty()) return none("at all", "Does a subnet manager run?");
    return gids.front();
  }
  std::optional<Range> range;
  if (!request.range.empty()) {
    range = range_of(request.range);
    if (!range)
      return Status::invalid_usage(
          "NCCL_IB_ADDR_RANGE='{}' is no subnet; write it as 10.1.0.0/16 or fd00::/8",
          request.range);
  }
  const Gid* best = nullptr;
  const auto rank_of = [](const Gid& gid) {
    return (is_link_local(gid.bytes) ? 2 : 0) + (is_ipv4(gid.bytes) ? 0 : 1);
  };
  for (const Gid& gid : gids) {
    if (gid.roce_version != 0 && gid.roce_version != request.version) continue;
    if (!request.family.empty() && is_ipv4(gid.bytes) != (request.family == "AF_INET")) continue;
    if (range && !contains(*range, gid.bytes)) continue;
    if (best == nullptr || rank_of(gid) < rank_of(*best)) best = &gid;
  }
  if (best != nullptr) return *best;
  return none(
      fmt::format("of RoCE v{}{}{}{}{}", request.version, request.family.empty() ? "" : " and ",
                  request.family, range ? " in " : "", request.range),
      "Give its network interface an address, or choose by NCCL_IB_GID_INDEX, "
      "NCCL_IB_ROCE_VERSION_NUM, NCCL_IB_ADDR_FAMILY and NCCL_IB_ADDR_RANGE");
}

Result<std::vector<Port>> choose_ports(std::vector<Port> all, const std::string& filter) {
  const PortFilter accepted(filter);
  if (all.empty())
    return Status::invalid_usage(
        "host {} has no InfiniBand or RoCE device (ibv_devinfo lists them; a container needs "
        "/dev/infiniband)",
        host());
  std::string present;
  for (const Port& port : all)
    present += fmt::format("{}{} ({})", present.empty() ? "" : ", ", port.name(), port.state());
  const size_t count = all.size();
  std::erase_if(
      all, [&](const Port& port) { return !accepted.accepts(port.device->name(), port.number); });
  if (all.empty())
    return Status::invalid_usage(
        "NCCL_IB_HCA='{}' leaves none of the {} ports of host {}: {}. Name one of them", filter,
        count, host(), present);
  std::erase_if(all, [](const Port& port) { return !port.is_active(); });
  if (all.empty())
    return Status::invalid_usage(
        "no InfiniBand or RoCE port of host {} is active: {}. Is a cable plugged in and the other "
        "side up? (ibv_devinfo)",
        host(), present);
  return all;
}

}  // namespace niccolite::transport::net::verbs
