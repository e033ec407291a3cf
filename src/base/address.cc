#include "base/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>

#include <charconv>
#include <cstring>
#include <memory>

namespace niccolite {
namespace {

constexpr uint8_t kWireIpv4 = 4;
constexpr uint8_t kWireIpv6 = 6;

Status malformed(std::string_view text, std::string_view why) {
  return Status::invalid_argument(
      "'{}' is not an address ({}); write a.b.c.d:port, hostname:port, [v6]:port or "
      "[v6%interface]:port",
      text, why);
}

}  // namespace

Result<Address> Address::from_sockaddr(const sockaddr* address, size_t length) {
  Address result;
  if (address->sa_family == AF_INET && length >= sizeof(sockaddr_in)) {
    sockaddr_in v4;
    std::memcpy(&v4, address, sizeof v4);
    result.family_ = AF_INET;
    result.port_ = ntohs(v4.sin_port);
    std::memcpy(result.bytes_.data(), &v4.sin_addr, 4);
    return result;
  }
  if (address->sa_family == AF_INET6 && length >= sizeof(sockaddr_in6)) {
    sockaddr_in6 v6;
    std::memcpy(&v6, address, sizeof v6);
    result.family_ = AF_INET6;
    result.port_ = ntohs(v6.sin6_port);
    result.scope_ = v6.sin6_scope_id;
    std::memcpy(result.bytes_.data(), &v6.sin6_addr, 16);
    return result;
  }
  return Status::invalid_argument("address family {} is neither IPv4 nor IPv6",
                                  static_cast<int>(address->sa_family));
}

Result<Address> Address::parse(std::string_view text, int family) {
  std::string_view host, port;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return malformed(text, "']' is missing");
    host = text.substr(1, end - 1);
    if (end + 1 >= text.size() || text[end + 1] != ':') return malformed(text, "no port");
    port = text.substr(end + 2);
    if (host.find(':') == std::string_view::npos) return malformed(text, "no IPv6 address in []");
    if (family == AF_INET) return malformed(text, "NCCL_SOCKET_FAMILY asks for IPv4");
    family = AF_INET6;
  } else {
    const size_t colon = text.find(':');
    if (colon == std::string_view::npos) return malformed(text, "no port");
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (host.empty()) return malformed(text, "no host");
  uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number == 0)
    return malformed(text, "the port must be a number from 1 to 65535");

  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  if (text.starts_with('[')) hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(std::string(host).c_str(), nullptr, &hints, &found);
  if (failure != 0 && (hints.ai_flags & AI_NUMERICHOST) != 0)
    return malformed(text, gai_strerror(failure));
  if (failure != 0)
    return Status::invalid_argument(
        "'{}': the name {} does not resolve on this host{} ({}); write an address, or have "
        "/etc/hosts "
        "or a name server know it",
        text, host,
        family == AF_INET    ? " as an IPv4 address (NCCL_SOCKET_FAMILY)"
        : family == AF_INET6 ? " as an IPv6 address (NCCL_SOCKET_FAMILY)"
                             : "",
        gai_strerror(failure));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  Address address = TRY(from_sockaddr(found->ai_addr, found->ai_addrlen));
  return address.with_port(number);
}

socklen_t Address::to_sockaddr(sockaddr_storage* storage) const {
  std::memset(storage, 0, sizeof *storage);
  if (family_ == AF_INET) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port_);
    std::memcpy(&v4.sin_addr, bytes_.data(), 4);
    std::memcpy(storage, &v4, sizeof v4);
    return sizeof v4;
  }
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port_);
  v6.sin6_scope_id = scope_;
  std::memcpy(&v6.sin6_addr, bytes_.data(), 16);
  std::memcpy(storage, &v6, sizeof v6);
  return sizeof v6;
}

Address Address::with_port(uint16_t port) const {
  Address copy = *this;
  copy.port_ = port;
  return copy;
}

Address Address::with_scope(uint32_t scope) const {
  Address copy = *this;
  copy.scope_ = scope;
  return copy;
}

bool Address::is_loopback() const {
  if (family_ == AF_INET) return bytes_[0] == std::byte{127};
  for (size_t i = 0; i < 15; ++i)
    if (bytes_[i] != std::byte{0}) return false;
  return bytes_[15] == std::byte{1};
}

bool Address::is_link_local() const {
  return family_ == AF_INET6 && bytes_[0] == std::byte{0xfe} &&
         (bytes_[1] & std::byte{0xc0}) == std::byte{0x80};
}

std::string Address::host() const {
  if (family_ == AF_UNSPEC) return "no address";
  char text[INET6_ADDRSTRLEN];
  std::string host = inet_ntop(family_, bytes_.data(), text, sizeof text);
  if (scope_ != 0) {
    char name[IF_NAMESIZE];
    host += '%';
    host += if_indextoname(scope_, name) != nullptr ? std::string(name) : std::to_string(scope_);
  }
  return host;
}

std::string Address::text() const { return fmt::format("{} port {}", host(), port_); }

void Address::encode(Writer& writer) const {
  writer.u8(family_ == AF_INET ? kWireIpv4 : kWireIpv6);
  writer.u16(port_);
  writer.u32(scope_);
  writer.raw(bytes_);
}

Address Address::decode(Reader& reader) {
  Address address;
  const uint8_t family = reader.u8();
  address.family_ = family == kWireIpv4 ? AF_INET : AF_INET6;
  address.port_ = reader.u16();
  address.scope_ = reader.u32();
  const auto bytes = reader.raw(address.bytes_.size());
  if (!bytes.empty()) std::memcpy(address.bytes_.data(), bytes.data(), bytes.size());
  if (family != kWireIpv4 && family != kWireIpv6)
    reader.reject(fmt::format("address family {}", family));
  return address;
}

}  // namespace niccolite
