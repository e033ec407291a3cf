#include "base/interfaces.h"

#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "base/fd.h"

namespace niccolite {
namespace {

size_t sockaddr_length(const sockaddr* address) {
  return address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

// Smaller is better; only used when the user named no interface.
int automatic_order(const Interface& interface, const Address& reaches) {
  const std::string_view name = interface.name;
  if (name.starts_with("ib")) return 0;
  if (is_in_subnet(interface, reaches)) return 1;
  if (name.starts_with("docker")) return 3;
  if (name.starts_with("lo")) return 4;
  if (name.starts_with("virbr")) return 5;
  return 2;
}

bool usable(const Interface& interface, int family) {
  const Address& address = interface.address;
  if (!interface.running || (family != AF_UNSPEC && address.family() != family)) return false;
  return !(address.family() == AF_INET6 && address.is_loopback());
}

}  // namespace

InterfaceFilter::InterfaceFilter(std::string_view text) {
  if (text.starts_with('^')) {
    excludes_ = true;
    text.remove_prefix(1);
  }
  if (text.starts_with('=')) {
    exact_ = true;
    text.remove_prefix(1);
  }
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view name = text.substr(0, comma);
    name = name.substr(0, name.find(':'));  // ports are for HCAs
    if (!name.empty()) names_.emplace_back(name);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
}

bool InterfaceFilter::accepts(std::string_view name) const {
  if (names_.empty()) return true;
  const bool matches = std::any_of(names_.begin(), names_.end(), [&](const std::string& entry) {
    return exact_ ? name == entry : name.starts_with(entry);
  });
  return matches != excludes_;
}

int family_from(std::string_view text) {
  if (text == "AF_INET") return AF_INET;
  if (text == "AF_INET6") return AF_INET6;
  return AF_UNSPEC;
}

Result<std::vector<Interface>> list_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0)
    return Status::from_errno(errno, "cannot list the network interfaces (getifaddrs)");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Interface interface {
      .name = entry->ifa_name,
      .address = TRY(Address::from_sockaddr(entry->ifa_addr, sockaddr_length(entry->ifa_addr))),
      .netmask = {}, .running = (entry->ifa_flags & IFF_RUNNING) != 0
    };
    // The kernel leaves the family of an IPv6 netmask unset on some interfaces (tunnels): then
    // there is no mask.
    if (entry->ifa_netmask != nullptr && entry->ifa_netmask->sa_family == family)
      interface.netmask =
          TRY(Address::from_sockaddr(entry->ifa_netmask, sockaddr_length(entry->ifa_netmask)));
    interfaces.push_back(std::move(interface));
  }
  return interfaces;
}

std::vector<Interface> select_interfaces(const std::vector<Interface>& present,
                                         const InterfaceRequest& request) {
  const InterfaceFilter filter(request.filter);
  const int family = family_from(request.family);
  std::vector<Interface> candidates;
  for (const Interface& interface : present)
    if (usable(interface, family) && filter.accepts(interface.name))
      candidates.push_back(interface);
  const auto sort_by = [&](auto&& key) {
    std::stable_sort(candidates.begin(), candidates.end(),
                     [&](const Interface& a, const Interface& b) { return key(a) < key(b); });
  };
  sort_by([](const Interface& of) { return of.address.is_link_local(); });
  if (!filter.names_wanted())
    sort_by([&](const Interface& of) { return automatic_order(of, request.reaches); });
  std::vector<Interface> selected;
  for (Interface& candidate : candidates) {
    const bool known = std::any_of(selected.begin(), selected.end(), [&](const Interface& other) {
      return other.name == candidate.name;
    });
    if (!known && selected.size() < kMaxInterfaces) selected.push_back(std::move(candidate));
  }
  return selected;
}

std::vector<Interface> select_rails(const std::vector<Interface>& present,
                                    const InterfaceRequest& request) {
  std::vector<Interface> selected = select_interfaces(present, request);
  if (selected.empty() || InterfaceFilter(request.filter).names_wanted()) return selected;
  const int best = automatic_order(selected.front(), {});
  std::erase_if(selected,
                [&](const Interface& interface) { return automatic_order(interface, {}) != best; });
  return selected;
}

std::vector<Address> ways_to(const Address& address, const std::vector<Interface>& present,
                             std::string_view filter) {
  const bool is_own = std::ranges::any_of(present, [&](const Interface& interface) {
    return interface.address == address.with_port(0);
  });
  if (is_own || !address.is_link_local()) return {address};
  const InterfaceFilter accepted(filter);
  std::vector<Address> ways;
  for (const Interface& interface : present) {
    const Address way = address.with_scope(interface.address.scope());
    if (interface.running && interface.address.is_link_local() &&
        accepted.accepts(interface.name) && std::ranges::find(ways, way) == ways.end())
      ways.push_back(way);
  }
  if (ways.empty()) return {address};
  std::stable_partition(ways.begin(), ways.end(),
                        [&](const Address& way) { return way == address; });
  return ways;
}

bool is_in_subnet(const Interface& interface, const Address& address) {
  if (address.family() == AF_UNSPEC || address.family() != interface.address.family() ||
      interface.netmask.family() != address.family())
    return false;
  const auto mine = interface.address.bytes(), mask = interface.netmask.bytes(),
             theirs = address.bytes();
  for (size_t i = 0; i < mine.size(); ++i)
    if ((mine[i] & mask[i]) != (theirs[i] & mask[i])) return false;
  return true;
}

int link_speed(const std::string& name) {
  const Fd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  ethtool_cmd command{};
  command.cmd = ETHTOOL_GSET;
  name.copy(request.ifr_name, sizeof request.ifr_name - 1);
  request.ifr_data = reinterpret_cast<char*>(&command);
  if (!fd.valid() || ioctl(fd.get(), SIOCETHTOOL, &request) != 0) return 0;
  const uint32_t speed = ethtool_cmd_speed(&command);
  return speed > INT32_MAX ? 0 : static_cast<int>(speed);  // SPEED_UNKNOWN is -1
}

uint32_t adapter_vendor(const std::string& name) {
  std::ifstream file("/sys/class/net/" + name + "/device/vendor");
  std::string text;  // "0x1d0f"
  std::getline(file, text);
  return static_cast<uint32_t>(std::strtoul(text.c_str(), nullptr, 16));
}

std::string describe(const std::vector<Interface>& interfaces) {
  std::string names;
  for (const Interface& interface : interfaces)
    names += fmt::format("{}{} ({}{})", names.empty() ? "" : ", ", interface.name,
                         interface.address.host(), interface.running ? "" : ", down");
  return names.empty() ? "none" : names;
}

std::string trouble_of(const Address& address) {
  Result<std::vector<Interface>> present = list_interfaces();
  if (!present.is_ok()) return {};
  const auto found = std::find_if(
      present->begin(), present->end(),
      [&](const Interface& interface) { return interface.address == address.with_port(0); });
  if (found == present->end())
    return fmt::format("no interface of this host has {} any more", address.host());
  return found->running ? "" : fmt::format("{} is down", found->name);
}

Result<Interface> choose_interface(const std::vector<Interface>& present,
                                   const InterfaceRequest& request) {
  std::vector<Interface> selected = select_interfaces(present, request);
  if (!selected.empty()) return std::move(selected.front());
  return Status::invalid_usage(
      "no network interface is left for bootstrap with NCCL_SOCKET_IFNAME '{}' and "
      "NCCL_SOCKET_FAMILY '{}'; present are: {}. Correct the variables, or bring an interface up",
      request.filter, request.family, describe(present));
}

}  // namespace niccolite
