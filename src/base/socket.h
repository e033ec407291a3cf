// Non-blocking TCP sockets: close-on-exec, no SIGPIPE, small messages sent at once. Keepalive and
// unacknowledged data reveal dead peers. Thread safety: one thread at a time uses a socket.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/address.h"
#include "base/fd.h"

namespace niccolite {

/// Outcome of one attempt to send or receive. "Would block" is bytes == 0 with open == true.
struct Transfer {
  size_t bytes = 0;
  bool open = true;  // false: the peer closed its side (receive only)
};

/// True if this process or its host lacks a resource that a socket needs. The peer is not the
/// cause.
bool is_shortage(int error_number);
/// A shortage of this length is no failure: other threads may close descriptors.
inline constexpr std::chrono::seconds kShortagePatience{2};

class Socket {
 public:
  Socket() = default;
  /// Listens on `address`; port 0 lets the system choose. SystemError with errno in `error_number`,
  /// if given.
  static Result<Socket> listen(const Address& address, int* error_number = nullptr);
  /// Listens as listen() does, at a port at which other processes of this user may listen, too:
  /// each connection comes to one of these processes.
  static Result<Socket> listen_shared(const Address& address, int* error_number = nullptr);
  /// Starts to connect; finished when writable, then connect_result() tells how it went.
  /// `from`: the address of this host that it connects from; none: the system chooses.
  static Result<Socket> connect(const Address& address, const Address& from = {},
                                int* error_number = nullptr);
  /// The next waiting connection, or nothing.
  Result<std::optional<Socket>> accept(int* error_number) const;

  /// errno of a finished connect; 0: connected.
  int connect_result() const;
  Result<Transfer> send(std::span<const std::byte> bytes) const;
  Result<Transfer> receive(std::span<std::byte> bytes) const;
  /// Sends several pieces, in their order; at most kMostPieces.
  Result<Transfer> send(std::span<const iovec> pieces) const;
  Result<Transfer> receive(std::span<const iovec> pieces) const;
  static constexpr size_t kMostPieces = 64;
  /// Sets whether the system ends the connection when data stay unacknowledged for
  /// NICCOLITE_NET_TIMEOUT; it does by default. The system counts also data for which the peer has
  /// no room, although the peer answers: a process that is merely stopped is such a peer. With
  /// false the caller watches delivery() itself; the system probes the peer often enough for that
  /// (since Linux 6.15; older systems probe every two minutes at last).
  void end_when_unacknowledged(bool ends) const;
  /// Progress of the data that were sent.
  struct Delivery {
    bool is_complete = true;               // the peer's system has all that this one has taken
    std::chrono::milliseconds silence{0};  // since anything was last acknowledged
    /// How often the system has sent the oldest unacknowledged data again, or asked without an
    /// answer whether the peer has room.
    uint32_t tries = 0;
  };
  Result<Delivery> delivery() const;
  /// Ends this side's stream; the peer reads everything sent before, then the end.
  void end_sending() const;
  /// Ends both directions. Bytes that have come before can still be received.
  void shut_down() const;

  Result<Address> local_address() const;
  Result<Address> peer_address() const;
  /// errno of the last failure to send or receive; 0: none so far.
  int error() const { return error_; }
  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  void close() { fd_.reset(); }

 private:
  static Result<Socket> listen(const Address& address, bool is_shared, int* error_number);
  explicit Socket(Fd fd) : fd_(std::move(fd)) {}
  /// Returns the outcome that errno describes after an attempt to move bytes.
  Result<Transfer> not_now_or(const char* failure) const;

  Fd fd_;
  mutable int error_ = 0;
};

}  // namespace niccolite
