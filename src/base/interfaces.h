// The choice of a network interface: NCCL_SOCKET_IFNAME, NCCL_SOCKET_FAMILY, and the automatic
// order without them. Thread safety: any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/address.h"

namespace niccolite {

inline constexpr size_t kMaxInterfaces = 16;  // that a process uses at a time

struct Interface {
  std::string name;
  Address address;  // port 0
  Address netmask;
  bool running = true;
};

/// `[^][=]name,name...`: ^ excludes matching interfaces, = compares whole names instead of
/// prefixes; both hold for the whole list.
class InterfaceFilter {
 public:
  explicit InterfaceFilter(std::string_view text);
  /// Does it name the interfaces to be used? Otherwise it only excludes some, or none.
  bool names_wanted() const { return !names_.empty() && !excludes_; }
  bool accepts(std::string_view name) const;

 private:
  bool excludes_ = false;
  bool exact_ = false;
  std::vector<std::string> names_;
};

struct InterfaceRequest {
  std::string filter;  // NCCL_SOCKET_IFNAME
  std::string family;  // NCCL_SOCKET_FAMILY
  Address reaches;     // prefer the interface in this address's subnet; none: no preference
};

/// AF_INET, AF_INET6, or AF_UNSPEC for every other text.
int family_from(std::string_view text);

/// Returns the addresses of this host's IPv4 and IPv6 interfaces, in the system's order.
Result<std::vector<Interface>> list_interfaces();

/// Returns the interfaces of `present` that `request` accepts, best first, each name once, at most
/// kMaxInterfaces. Only running interfaces count. With a filter that names interfaces they are in
/// the system's order. Without such a filter, also with one that excludes interfaces, the order is:
/// ib*, the subnet of `reaches`, others, docker*, lo*, virbr*. Link-local addresses come after all
/// others.
std::vector<Interface> select_interfaces(const std::vector<Interface>& present,
                                         const InterfaceRequest& request);

/// The interfaces over which data go, as select_interfaces() orders them: all that a filter names.
/// Without one, also where some are excluded, the interfaces of the first name's kind: ib*, others,
/// docker*, lo*, or virbr*.
std::vector<Interface> select_rails(const std::vector<Interface>& present,
                                    const InterfaceRequest& request);

/// Returns the ways by which this host may reach `address`, which another host has sent. A
/// link-local address is tried on each running link that `filter` accepts, because its scope is
/// valid on the other host alone; the link that the address names comes first. All other addresses,
/// and this host's own, are returned unchanged. Never empty.
std::vector<Address> ways_to(const Address& address, const std::vector<Interface>& present,
                             std::string_view filter);

/// Does the interface's subnet hold the address? False where the system knows no netmask.
bool is_in_subnet(const Interface& interface, const Address& address);

/// Mbit/s of the link, as its driver says; 0: unknown.
int link_speed(const std::string& name);
/// The PCI vendor of its network adapter; 0: unknown, or it has none.
uint32_t adapter_vendor(const std::string& name);

/// "eth0 (10.0.0.4), lo (127.0.0.1), eth1 (10.1.0.4, down)"; "none".
std::string describe(const std::vector<Interface>& interfaces);

/// Why nothing goes by an address of this host: "eth1 is down"; empty: its interface is up.
std::string trouble_of(const Address& address);

/// Returns the first of select_interfaces(). InvalidUsage: nothing is left; the message names the
/// filter and the present interfaces.
Result<Interface> choose_interface(const std::vector<Interface>& present,
                                   const InterfaceRequest& request);

}  // namespace niccolite
