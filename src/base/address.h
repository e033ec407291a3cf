// Address: an IPv4 or IPv6 address with a port.
// Thread safety: as for any value.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/wire.h"

namespace niccolite {

class Address {
 public:
  /// No address: family() is AF_UNSPEC.
  Address() = default;
  static Result<Address> from_sockaddr(const sockaddr* address, size_t length);
  /// `a.b.c.d:port`, `hostname:port`, `[v6address]:port`, `[v6address%interface]:port`; host names
  /// are resolved, with `family` AF_INET or AF_INET6 to restrict the result. InvalidArgument:
  /// malformed, or the name is unknown.
  static Result<Address> parse(std::string_view text, int family = AF_UNSPEC);

  /// The form for system calls; returns its length.
  socklen_t to_sockaddr(sockaddr_storage* storage) const;

  int family() const { return family_; }
  uint16_t port() const { return port_; }
  uint32_t scope() const { return scope_; }
  /// 4 or 16 bytes in network order.
  std::span<const std::byte> bytes() const {
    return {bytes_.data(), family_ == AF_INET ? 4u : 16u};
  }
  Address with_port(uint16_t port) const;
  Address with_scope(uint32_t scope) const;
  bool is_loopback() const;
  /// An IPv6 address that is good on one link only and needs a scope (an interface of this host).
  bool is_link_local() const;

  std::string host() const;  // "10.0.0.4", "fe80::1%eth0"
  std::string text() const;  // "10.0.0.4 port 40123"

  void encode(Writer& writer) const;
  /// Rejects unknown families in `reader`.
  static Address decode(Reader& reader);
  bool operator==(const Address&) const = default;

 private:
  int family_ = AF_UNSPEC;
  uint16_t port_ = 0;
  uint32_t scope_ = 0;
  std::array<std::byte, 16> bytes_{};
};

}  // namespace niccolite
