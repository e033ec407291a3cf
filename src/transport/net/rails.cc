#include "transport/net/rails.h"

#include <algorithm>

#include "base/parameters.h"
#include "transport/net/stream.h"

namespace niccolite::transport::net {
namespace {

// Several interfaces in one subnet lead to different addresses, in the order of their numbers.
const Address* counterpart(std::span<const Interface> all, size_t number,
                           std::span<const Address> peer) {
  const Interface& own = all[number];
  std::vector<const Address*> near, far;
  for (const Address& address : peer)
    if (address.family() == own.address.family())
      (is_in_subnet(own, address) ? near : far).push_back(&address);
  if (near.empty()) return far.empty() ? nullptr : far[number % far.size()];
  const auto before = std::ranges::count_if(
      all.first(number), [&](const Interface& other) { return is_in_subnet(own, other.address); });
  return near[static_cast<size_t>(before) % near.size()];
}

// A link-local address is good on the link of this host's interface.
Path make_path(const Interface& own, const Address& to) {
  return {.interface = own.name,
          .from = own.address,
          .to = to.is_link_local() ? to.with_scope(own.address.scope()) : to};
}

}  // namespace

Result<std::vector<Interface>> find_rails(const Address& used) {
  const std::string& filter = parameters::socket_ifname();
  const std::vector<Interface> present = TRY(list_interfaces());
  std::vector<Interface> rails =
      select_rails(present, {.filter = filter,
                             .family = used.family() == AF_INET6 ? "AF_INET6" : "AF_INET",
                             .reaches = {}});
  const bool are_named = InterfaceFilter(filter).names_wanted();
  const auto is_used = [&](const Interface& rail) { return rail.address == used.with_port(0); };
  if (rails.empty() || (!are_named && std::ranges::none_of(rails, is_used))) {
    const auto found = std::ranges::find_if(present, is_used);
    if (found != present.end()) return std::vector<Interface>{*found};
    return std::vector<Interface>{{.name = "", .address = used.with_port(0), .netmask = {}}};
  }
  if (are_named || rails.size() == 1) return rails;
  std::vector<int> speeds;
  for (const Interface& rail : rails) speeds.push_back(link_speed(rail.name));
  return fast_rails(rails, speeds, used.with_port(0));
}

// Leaves out slow rails: a much slower rail would hold up the others. A driver's speed does not
// describe the network behind the interface: virtio tells none, and a bridge to containers of this
// host tells a high one. Only the interface of the bootstrap is known to reach other hosts.
std::vector<Interface> fast_rails(const std::vector<Interface>& rails, std::span<const int> speeds,
                                  const Address& used) {
  const auto is_used = [&](const Interface& rail) { return rail.address == used; };
  const auto found = std::ranges::find_if(rails, is_used);
  const int speed = found == rails.end() ? 0 : speeds[static_cast<size_t>(found - rails.begin())];
  const int measure = speed > 0 ? speed : std::ranges::max(speeds);
  std::vector<Interface> fast;
  for (size_t i = 0; i < rails.size(); ++i)
    if (is_used(rails[i]) || (speeds[i] == 0 ? speed == 0 : 2 * int64_t{speeds[i]} >= measure))
      fast.push_back(rails[i]);
  return fast;
}

int sockets_of_rail(int64_t threads, int64_t sockets_per_thread, uint32_t vendor, gpu::Kind kind) {
  constexpr uint32_t kAmazon = 0x1d0f, kGoogle = 0x1ae0;
  if (threads == 0 && sockets_per_thread == 0 && vendor != kAmazon && vendor != kGoogle)
    return kind == gpu::Kind::Virtual ? 2 : 1;
  if (threads == 0) threads = vendor == kAmazon ? 2 : vendor == kGoogle ? 4 : 1;
  if (sockets_per_thread == 0) sockets_per_thread = vendor == kAmazon ? 8 : 1;
  return static_cast<int>(std::min<int64_t>(threads * sockets_per_thread, kMostStreams));
}

Paths paths_between(const Rails& own, std::span<const Address> peer) {
  Paths paths;
  const size_t count = own.interfaces.size();
  for (size_t k = 0; k < count; ++k) {
    const size_t number = (own.preferred + k) % count;
    const Interface& interface = own.interfaces[number];
    const Address* const to = counterpart(own.interfaces, number, peer);
    if (to == nullptr) continue;
    paths.rails.push_back(make_path(interface, *to));
    for (const Address& other : peer)
      if (&other != to && other.family() == interface.address.family() &&
          paths.detours.size() < kMaxInterfaces)
        paths.detours.push_back(make_path(interface, other));
  }
  return paths;
}

std::string describe(const Path& path) {
  return fmt::format("from {}{} to {}", path.from.host(),
                     path.interface.empty() ? "" : fmt::format(" ({})", path.interface),
                     path.to.text());
}

}  // namespace niccolite::transport::net
