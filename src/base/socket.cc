#include "base/socket.h"

#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>

#include "base/parameters.h"

namespace niccolite {
namespace {

constexpr int kBacklog = 4096;  // the kernel lowers it to net.core.somaxconn
// A host that vanishes without a word is noticed after NICCOLITE_NET_TIMEOUT: idle, by three probes
// in its second half, and while data are unacknowledged (end_when_unacknowledged()).
constexpr int kKeepaliveProbes = 3;

void set_option(int fd, int level, int option, int value) {
  // These options refine; a kernel without one of them still gives a working socket.
  setsockopt(fd, level, option, &value, sizeof value);
}

void set_stream_options(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  const int timeout = static_cast<int>(parameters::net_timeout());
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, timeout / 3);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::max(timeout / 6, 1));
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, timeout * 1000);
}

Result<Fd> open_stream(int family, int* error_number) {
  Fd fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    const int error = errno;
    if (error_number != nullptr) *error_number = error;
    return Status::from_errno(error, "cannot open a socket (limit: ulimit -n)");
  }
  fd.withhold();
  // Before it connects or listens: the window's scale follows from it.
  if (const int64_t bytes = parameters::socket_rcvbuf(); bytes >= 0)
    set_option(fd.get(), SOL_SOCKET, SO_RCVBUF, static_cast<int>(bytes));
  if (const int64_t bytes = parameters::socket_sndbuf(); bytes >= 0)
    set_option(fd.get(), SOL_SOCKET, SO_SNDBUF, static_cast<int>(bytes));
  return fd;
}

Result<Address> address_of(int fd, int (*query)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (query(fd, address, &length) != 0)
    return Status::from_errno(errno, "cannot read a socket's address");
  return Address::from_sockaddr(address, length);
}

}  // namespace

bool is_shortage(int error_number) {
  switch (error_number) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
    case EADDRNOTAVAIL:  // no port is left to connect from
    case EAGAIN:         // nor, as some systems say it
      return true;
    default:
      return false;
  }
}

Result<Socket> Socket::listen(const Address& address, int* error_number) {
  return listen(address, /*is_shared=*/false, error_number);
}

Result<Socket> Socket::listen_shared(const Address& address, int* error_number) {
  return listen(address, /*is_shared=*/true, error_number);
}

Result<Socket> Socket::listen(const Address& address, bool is_shared, int* error_number) {
  Fd fd = TRY(open_stream(address.family(), error_number));
  // A fixed port (NCCL_COMM_ID) is used again while connections of its last user are in TIME_WAIT.
  if (address.port() != 0) set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (is_shared) set_option(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1);
  sockaddr_storage storage;
  const socklen_t length = address.to_sockaddr(&storage);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    if (error_number != nullptr) *error_number = error;
    return Status::from_errno(error, fmt::format("cannot listen on {}", address.text()));
  }
  return Socket(std::move(fd));
}

Result<Socket> Socket::connect(const Address& address, const Address& from, int* error_number) {
  Fd fd = TRY(open_stream(address.family(), error_number));
  set_stream_options(fd.get());
  sockaddr_storage storage;
  if (from.family() != AF_UNSPEC) {
    // The port is found when it connects: one that is taken now could not be used for other peers.
    set_option(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    const socklen_t bytes = from.with_port(0).to_sockaddr(&storage);
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&storage), bytes) != 0) {
      const int error = errno;
      if (error_number != nullptr) *error_number = error;
      return Status::from_errno(error, fmt::format("cannot connect from {}", from.host()));
    }
  }
  const socklen_t length = address.to_sockaddr(&storage);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) != 0 &&
      errno != EINPROGRESS && errno != EINTR) {
    const int error = errno;
    if (error_number != nullptr) *error_number = error;
    return Status::from_errno(error, fmt::format("cannot connect to {}", address.text()));
  }
  return Socket(std::move(fd));
}

Result<std::optional<Socket>> Socket::accept(int* error_number) const {
  Fd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  *error_number = fd.valid() ? 0 : errno;
  if (!fd.valid()) {
    // accept() also reports the error of a connection that ended while it waited; it concerns
    // nobody.
    const int error = *error_number;
    if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM)
      return Status::from_errno(error, "cannot accept a connection (limit: ulimit -n)");
    return std::optional<Socket>();
  }
  fd.withhold();
  set_stream_options(fd.get());
  return std::optional<Socket>(Socket(std::move(fd)));
}

int Socket::connect_result() const {
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

Result<Transfer> Socket::not_now_or(const char* failure) const {
  const int error = errno;
  if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR) return Transfer{};
  error_ = error;
  return Status::from_errno(error, failure);
}

Result<Transfer> Socket::send(std::span<const std::byte> bytes) const {
  const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) return Transfer{.bytes = static_cast<size_t>(sent), .open = true};
  return not_now_or("cannot send");
}

Result<Transfer> Socket::receive(std::span<std::byte> bytes) const {
  const ssize_t received = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (received > 0) return Transfer{.bytes = static_cast<size_t>(received), .open = true};
  if (received == 0) return Transfer{.bytes = 0, .open = false};
  return not_now_or("cannot receive");
}

Result<Transfer> Socket::send(std::span<const iovec> pieces) const {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) return Transfer{.bytes = static_cast<size_t>(sent), .open = true};
  return not_now_or("cannot send");
}

Result<Transfer> Socket::receive(std::span<const iovec> pieces) const {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  const ssize_t received = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
  if (received >= 0) return Transfer{.bytes = static_cast<size_t>(received), .open = received > 0};
  return not_now_or("cannot receive");
}

void Socket::end_when_unacknowledged(bool ends) const {
  constexpr int kNever = 0;  // or as the system sees fit: after some 15 min
  constexpr int kRtoMaxMs = 44, kShortest = 1'000, kLongest = 120'000;  // TCP_RTO_MAX_MS
  const int timeout = static_cast<int>(parameters::net_timeout()) * 1000;
  set_option(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, ends ? timeout : kNever);
  set_option(fd_.get(), IPPROTO_TCP, kRtoMaxMs,
             ends ? kLongest : std::clamp(timeout / 6, kShortest, kLongest));
}

Result<Socket::Delivery> Socket::delivery() const {
  int left = 0;
  if (ioctl(fd_.get(), SIOCOUTQ, &left) != 0)
    return Status::from_errno(errno, "cannot ask what was sent");
  if (left == 0) return Delivery{};
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(fd_.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
    return Status::from_errno(errno, "cannot ask what was acknowledged");
  return Delivery{.is_complete = false,
                  .silence = std::chrono::milliseconds(info.tcpi_last_ack_recv),
                  .tries = uint32_t{info.tcpi_retransmits} + info.tcpi_probes};
}

void Socket::end_sending() const { ::shutdown(fd_.get(), SHUT_WR); }
void Socket::shut_down() const { ::shutdown(fd_.get(), SHUT_RDWR); }

Result<Address> Socket::local_address() const { return address_of(fd_.get(), getsockname); }
Result<Address> Socket::peer_address() const { return address_of(fd_.get(), getpeername); }

}  // namespace niccolite
