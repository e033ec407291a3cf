// Connector: one way to connect two ranks. An endpoint has one of each kind, asks them in this
// order whether they can serve a pair, and takes the first that does not object:
//
//   same_process.h      GPU memory of the same process, by its address       P2P/direct pointer
//   gpu_memory.h        GPU memory of another process, mapped                P2P/IPC
//   host_memory.h       page-locked memory of the host                       SHM
//   network_connector.h FIFOs of each end's own, which proxies join          NET/Socket/0
//
// The request of the asking rank and the peer's answer carry all that each rank must know of the
// other's ends. Thread safety: reserve(), answer(), keep() and const functions from any thread; all
// others by one thread at a time.
#pragma once

#include <compare>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/wait.h"
#include "executor/protocol/fifo.h"
#include "transport/farewell.h"
#include "transport/messages.h"
#include "transport/network_state.h"
#include "transport/pair.h"

namespace niccolite::transport {

/// This rank's end of a connection.
struct End {
  int peer = -1;
  int tag = 0;
  executor::Protocol protocol = executor::Protocol::Simple;
  bool is_send = false;
  friend auto operator<=>(const End&, const End&) = default;
};
struct ShapedEnd {
  End end;
  executor::FifoShape shape;
};

class Connector {
 public:
  enum class Kind : uint8_t { SameProcess, GpuMemory, HostMemory, Network };

  virtual ~Connector() = default;
  virtual Kind kind() const = 0;
  /// The name in NCCL's log.
  virtual std::string name() const = 0;
  /// Names as name() does, one for each device that shares the work.
  virtual std::vector<std::string> devices(std::span<const ShapedEnd> /*ends*/) const {
    return {name()};
  }
  /// Returns why this connector cannot serve such a pair: a phrase without a full stop; empty: it
  /// can. Depends on the pair alone, so that both ends agree.
  virtual std::string objection(const Pair& pair) const = 0;

  /// Makes this rank's ends, as far as they are not there yet, all at once.
  virtual Status reserve(std::span<const ShapedEnd> ends) = 0;
  /// Writes all that `peer` must know of the asking rank, except for the names of the connections.
  virtual Status ask(int peer, ConnectRequest& request) = 0;
  /// Makes this rank's ends of the connections that the request names, and tells where they are.
  virtual Status answer(int asker, std::span<const ShapedEnd> ends, const ConnectRequest& request,
                        ConnectReply& reply) = 0;
  /// The peer has made its ends of these connections, and `reply` says where. This rank's are made.
  virtual Status adopt(int peer, std::span<const ShapedEnd> ends, const ConnectReply& reply,
                       const Deadline& deadline) = 0;
  /// This rank leaves. Writes the answer about these ends that answer() has given the peer, or
  /// would give.
  virtual Status hand_over(int peer, bool same_process, std::span<const ShapedEnd> ends,
                           ConnectReply& reply) = 0;
  /// A peer that leaves has handed its ends over: adopt() will do with this reply when the peer is
  /// gone.
  virtual Status keep(int /*peer*/, const ConnectReply& /*reply*/, const Deadline& /*deadline*/) {
    return {};
  }
  /// The addresses that kernels use; nothing before adopt(). can_put, can_get and opens_buffers are
  /// false.
  virtual std::optional<executor::PortAddress> port(const End& end) const = 0;

  /// Device memory of this rank's own ends.
  virtual size_t device_bytes() const { return 0; }
  /// Device memory that stays while connections are suspended.
  virtual size_t lasting_bytes() const { return 0; }
  /// The steps of Endpoint's functions, in their order. A connector without GPU memory does
  /// nothing, and its connections stay.
  virtual Status suspend_peers() { return {}; }
  virtual Status suspend_own() { return {}; }
  virtual Status resume_own() { return {}; }
  virtual Status resume_peers(const Deadline& /*deadline*/) { return {}; }
  /// The network connector alone returns a state. Any thread.
  virtual std::optional<NetworkState> network_state() const { return std::nullopt; }
  /// See Endpoint.
  virtual bool await_flush(const Deadline& /*deadline*/) const { return true; }
  virtual void set_farewell(Farewell /*farewell*/) {}
  virtual void close() {}
};

}  // namespace niccolite::transport
