// Rails: the network interfaces over which the sockets of a process carry data, and the paths over
// them to a peer. The rails are the devices of the network "Socket", in the order that users know
// from NCCL's log. Thread safety: pure functions, except for find_rails(), which asks the system.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/interfaces.h"
#include "gpu/devices.h"

namespace niccolite::transport::net {

struct Rails {
  std::vector<Interface> interfaces;  // by device number; never empty when found
  size_t preferred = 0;               // of the rank's own: the nearest to its GPU
};

/// Returns all interfaces that NCCL_SOCKET_IFNAME chooses, of the address family of `used`. Without
/// the variable: the fast enough interfaces of the kind of `used`. `used` is the address by which
/// the bootstrap reaches others. If it is of another kind, it is the only rail.
Result<std::vector<Interface>> find_rails(const Address& used);

/// Returns the rails that are fast enough to carry beside the one with the address `used`, and
/// always this one. A rail is fast enough with at least half of the speed of `used`, or, if that is
/// unknown, of the fastest known speed. Rails of unknown speed count if the speed of `used` is
/// unknown, too. `speeds`: of each rail, as link_speed() tells it.
std::vector<Interface> fast_rails(const std::vector<Interface>& rails, std::span<const int> speeds,
                                  const Address& used);

/// Returns how many sockets to a peer share a rail. `threads` and `sockets_per_thread`: the user
/// wants their product (NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD); 0: a number that suits the
/// adapter of the PCI vendor `vendor`, as clouds limit one TCP connection, or else the machine's
/// GPUs.
int sockets_of_rail(int64_t threads, int64_t sockets_per_thread, uint32_t vendor, gpu::Kind kind);

/// A way from an interface of this host to an address of the peer.
struct Path {
  std::string interface;  // "eth1"; empty: unknown
  Address from;           // without a port
  Address to;
};

struct Paths {
  std::vector<Path> rails;    // one for each interface that has a counterpart, the preferred first
  std::vector<Path> detours;  // the other pairs: for when rails fail
};

/// Pairs this rank's interfaces with the peer's, which listens at `peer`: an address of each of its
/// interfaces in the order of its devices. An interface's counterpart is in its subnet, the n-th of
/// the n-th there; if there is none, the interface of its number. Nothing if no address family is
/// common.
Paths paths_between(const Rails& own, std::span<const Address> peer);

/// "from 10.0.0.4 (eth1) to 10.0.0.5 port 40123".
std::string describe(const Path& path);

}  // namespace niccolite::transport::net
