// ProxyEnd: the common part of the two ends of a connection to another machine. It has a share of
// the end's memory, the doorbell of the engine that serves it, and the observer of its steps, and
// knows whether its proxy reaches the memory of this rank's user.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

#include "executor/protocol/ll.h"
#include "executor/protocol/relay.h"
#include "executor/protocol/user_memory.h"
#include "transport/net/end_memory.h"
#include "transport/net/frame.h"
#include "transport/net/user_buffers.h"
#include "transport/observer.h"
#include "wire/event_loop.h"

namespace niccolite::transport::net {

/// Whether an end's proxy reaches the memory of this rank's user. Where slots lie in memory of the
/// GPU, the network's device does, and reaches registered buffers alone. It then has all channels
/// of its connection.
struct UserMemoryOptions {
  wire::EventLoop* loop = nullptr;  // of its thread; null: it does not
  uint64_t least_bytes = 1;         // UserMemory's
  UserBuffers* buffers = nullptr;   // outlives the end; null only where slots are in host memory
};

class ProxyEnd : public executor::relay::UserMemory {
 public:
  /// Called before it is used: sets the end of a connection with this peer; the observer may be
  /// null.
  void observe(Observer* observer, int peer) {
    observer_ = observer;
    peer_ = peer;
  }
  /// Returns the port of the whole end, as if this proxy had all of it. Any thread.
  executor::PortAddress port() {
    executor::PortAddress address = share_.memory().port();
    address.bells.fill(&bell_);
    if (loop_ != nullptr) address.user_memory = this;
    return address;
  }

  bool reaches_any() const override { return direct() == nullptr || buffers_->has_any(); }
  bool reaches(const std::byte* memory, uint64_t bytes) const override {
    return direct() == nullptr || buffers_->reaches(memory, bytes, is_send_);
  }

  /// Sets a function that is called, with the loop, as long as an operation waits to leave, since
  /// that time. In the end it lets the waits end, or calls cut().
  void when_leaving(std::function<void(std::chrono::steady_clock::time_point since)> hurry) {
    hurry_ = std::move(hurry);
  }
  /// The network has nothing of the user's memory on its way any more, and never will have.
  void cut() { is_cut_ = true; }

  bool let_go(uint32_t channel) override {
    if (loop_ == nullptr) return true;
    bool has_left = false;
    static_cast<void>(loop_->try_borrow([&] { has_left = leave(channel); }));
    return has_left;
  }
  /// Lets go for kernels that ask by control words, or whose chunks nobody takes any more
  /// (user_memory.h). With the loop.
  void let_go_for_kernels() {
    if (loop_ == nullptr) return;
    for (uint32_t channel = 0; channel < shape_.channels; ++channel) {
      const std::atomic_ref answer(share_.own(channel).detached);
      const uint64_t answered = answer.load(std::memory_order_relaxed);  // by this thread
      if (answered == executor::relay::kAbandoned) continue;
      // Acquire, pairs with the kernel's [detached]: it names no more places.
      const uint64_t asked =
          std::atomic_ref(share_.far(channel).detached).load(std::memory_order_acquire);
      // Release, both: nothing uses the kernel's memory any more.
      if (asked != 0 && asked != answered) {
        if (leave(channel)) answer.store(asked, std::memory_order_release);
      } else if (is_abandoned() && stop_using(channel)) {
        answer.store(executor::relay::kAbandoned, std::memory_order_release);
      }
    }
  }

  /// Memory of the GPU that has the slots; null: they lie in host memory.
  const DirectMemory* direct() const { return share_.memory().direct(); }
  const executor::FifoShape& whole_shape() const { return share_.memory().shape(); }
  /// Where the channel's slot of a step lies in all slots.
  size_t slot_offset(uint32_t channel, uint64_t step) const {
    return whole_shape().slot_offset(share_.channel_of_end(channel), step);
  }

 protected:
  ProxyEnd(bool is_send, const Key& key, EndShare share, executor::relay::Bell& bell,
           const UserMemoryOptions& user_memory)
      : UserMemory(user_memory.least_bytes),
        key_(key),
        share_(std::move(share)),
        shape_(share_.shape()),
        loop_(user_memory.loop),
        buffers_(user_memory.buffers),
        is_send_(is_send),
        bell_(bell) {
    if (loop_ != nullptr) places_ = share_.memory().places();
  }
  ~ProxyEnd() = default;

  int peer() const { return peer_; }
  bool is_cut() const { return is_cut_; }
  /// Does the work of let_go(), with the loop.
  virtual bool leave(uint32_t channel) = 0;
  /// Does as leave(), without hurry.
  virtual bool stop_using(uint32_t channel) = 0;
  /// With the loop. `has_left()`: is nothing of a channel's user memory on its way?
  template <typename HasLeft>
  bool leave_when(HasLeft&& has_left) {
    if (!is_cut_ && !has_left() && hurry_) {
      if (!leaving_since_) leaving_since_ = std::chrono::steady_clock::now();
      hurry_(*leaving_since_);
    }
    if (!is_cut_ && !has_left()) return false;
    leaving_since_.reset();
    return true;
  }
  /// LL: chunks are words that say themselves that they are there, and travel without their flags.
  bool is_by_words() const { return key_.protocol == executor::Protocol::LL; }
  /// Bytes of a chunk that a slot has room for.
  uint32_t slot_data_bytes() const {
    return static_cast<uint32_t>(executor::data_bytes(key_.protocol, shape_.slot_bytes));
  }
  /// LL: of a chunk, as its note says.
  uint32_t bytes_noted(uint64_t note) const {
    return std::min(executor::ll::data_of(note), slot_data_bytes());
  }

  ProxyStep step_of(uint32_t channel, uint64_t step, uint32_t bytes) const {
    return {.peer = peer_,
            .tag = key_.tag,
            .protocol = key_.protocol,
            .is_send = is_send_,
            .channel = share_.channel_of_end(channel),
            .step = step,
            .bytes = bytes};
  }

  const Key key_;
  const EndShare share_;
  const executor::FifoShape shape_;  // of the share
  wire::EventLoop* const loop_;      // null: the user's memory is not reached
  UserBuffers* const buffers_;
  Observer* observer_ = nullptr;

 private:
  const bool is_send_;
  executor::relay::Bell& bell_;
  int peer_ = -1;
  std::function<void(std::chrono::steady_clock::time_point)> hurry_;
  std::optional<std::chrono::steady_clock::time_point> leaving_since_;
  bool is_cut_ = false;
};

}  // namespace niccolite::transport::net
