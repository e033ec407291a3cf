// Incoming: the receiving end of a connection to another machine. The kernel sees a FIFO in this
// host's memory, whose sender is the proxy (executor/protocol/relay.h):
//
//   proxy                                          kernel
//   slot, then `own.remote` = tail          --->   acquires the tail; reads the slot
//   acquires `far.remote` = head            <---   the slot has been read
//   tells the sender's proxy: head + depth
//
// Parts of a chunk may come in any order; a step is published when it and all before it are whole,
// each with the tag of its own call. Thread safety: port() from any thread, the rest on the
// proxy's.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "executor/protocol/relay.h"
#include "gpu/machine.h"
#include "transport/net/frame.h"
#include "transport/observer.h"

namespace niccolite::transport::net {

class Incoming {
 public:
  static Result<std::unique_ptr<Incoming>> create(gpu::Machine& machine, const Key& key,
                                                  const executor::FifoShape& shape,
                                                  executor::relay::Bell& bell);
  /// Before it is used: the end of a connection with this peer; the observer may be null.
  void observe(Observer* observer, int peer) {
    observer_ = observer;
    peer_ = peer;
  }

  executor::PortAddress port() const;

  /// Where the bytes of a part belong. RemoteError for what an honest sender does not send: no
  /// byte of that is stored.
  Result<std::byte*> place(const Frame& part);
  /// They are there.
  void arrived(const Frame& part);
  /// Calls `queue(frame)` for credit that the sender does not know of: on each channel for as much
  /// as half the FIFO, for what the sender has asked for, or, with `all`, for any. True when there
  /// was any. So credit costs a frame for several steps, and less than half is ever kept back.
  bool collect(bool all, const std::function<void(const Frame&)>& queue);
  /// What was told may not have arrived: collect() tells all of it again.
  void tell_again();
  /// The sender waits for credit on that channel.
  void want(uint32_t channel) {
    if (channel < channels_.size()) channels_[channel].is_wanted = true;
  }
  uint32_t depth() const { return shape_.depth; }

 private:
  struct Slot {
    bool is_begun = false;
    uint16_t call = 0;
    uint32_t bytes = 0;    // of the chunk
    uint32_t missing = 0;  // not yet there
  };
  struct Channel {
    uint64_t published = 0;  // steps that the kernel sees
    uint64_t told = 0;       // the sender may send the steps before it
    bool is_told = true;     // and may not know it, if false
    bool is_wanted = false;  // it waits for more
    std::vector<Slot> slots;
  };

  Incoming(const Key& key, const executor::FifoShape& shape, executor::relay::Bell& bell,
           gpu::Memory memory);

  ProxyStep step_of(uint32_t channel, uint64_t step, uint32_t bytes) const {
    return {.peer = peer_,
            .tag = key_.tag,
            .protocol = key_.protocol,
            .is_send = false,
            .channel = channel,
            .step = step,
            .bytes = bytes};
  }

  const Key key_;
  const executor::FifoShape shape_;
  executor::relay::Bell& bell_;
  const gpu::Memory memory_;  // page-locked
  executor::ControlBlock* own_;
  executor::ControlBlock* far_;
  std::byte* slots_;
  std::vector<Channel> channels_;
  Observer* observer_ = nullptr;
  int peer_ = -1;
};

}  // namespace niccolite::transport::net
