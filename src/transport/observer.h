// Observer: hears of the connections of one rank: that they are made, and, if a proxy carries their
// slots (net/proxy.h), of each step. It is called on the threads that do the work, so it must not
// wait. Thread safety: any thread.
#pragma once

#include <cstdint>

#include "executor/protocol/fifo.h"

namespace niccolite::transport {

/// One slot of a connection that a proxy carries.
struct ProxyStep {
  int peer = -1;
  int tag = 0;  // of the connection
  executor::Protocol protocol = executor::Protocol::Simple;
  bool is_send = false;  // by this rank
  uint32_t channel = 0;
  uint64_t step = 0;  // of the connection's channel, from 0
  uint32_t bytes = 0;
};

enum class ProxyStepState : uint8_t {
  Taken,    // sender: the kernel's slot is on its way
  Sent,     // sender: it is with the network, or the peer, and the slot is free
  Arrived,  // receiver: the kernel sees it
  Read      // receiver: the kernel has read this step and all before it
};

/// States of a proxy's thread.
enum class ProxyState : uint8_t {
  Idle,    // it has found nothing to do
  Active,  // it moves something again
  Sleep,   // it waits until somebody wakes it
  Wakeup,
  Append,  // a connection is added
  AppendEnd
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void connected(int peer) = 0;
  virtual void step(const ProxyStep& step, ProxyStepState state) = 0;
  /// True if anybody wants to hear of the threads' states.
  virtual bool wants_state() const = 0;
  virtual void state(ProxyState state) = 0;
  /// The name under which a network plug-in reports on this step (NCCL's phandle); null: nobody
  /// wants reports.
  virtual void* handle_for_network(const ProxyStep& step) = 0;
};

}  // namespace niccolite::transport
