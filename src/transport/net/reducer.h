// Reducer: a rank's place in the network's reductions. It is a member of one collective of a
// CollectiveNetwork, and carries the rank's connections through the reducer (schedule::Through):
//
//   kernel                                   thread of the Reducer               network
//   slot, note, then `far.remote` = tail --> request: from the sender's slot --> all members' chunks
//   acquires `own.remote` = head         <-- the receiver's slot is full;    <-- reduced
//   acquires `own.remote` = tail         <--   the sender's is free
//
// The kernel sees two FIFOs in its host's memory, as of a connection to another machine
// (executor/protocol/relay.h), whose slots the network reads and writes: nothing is copied between.
// A note says what the elements are, and how they are reduced.
//
// Requests must begin in one order on all members. Operations have an order, and so have the steps
// of a channel. Channels of an operation take turns, a carry each: an operation has equally many
// chunks in each of its channels (executor/partition.h). So no member waits for another's later
// carry. A carry begins when the own sender has a chunk and the own receiver has room. Carries that
// gather take a step of the sender's n times; carries that scatter fill the receiver's at every
// n-th. Empty chunks, which are empty at all members, need no request.
//
// Chunks in memory that the user has registered go from there, and there (user_memory.h); the
// network knows that memory as it knows the slots. A kernel that gives up has the Reducer leave the
// collective, since requests cannot be withdrawn: then the network touches no memory any more.
//
// After a failure of the network nothing moves any more. Thread safety: any thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/thread.h"
#include "base/thread_annotations.h"
#include "executor/program.h"
#include "executor/protocol/fifo.h"
#include "executor/protocol/relay.h"
#include "executor/protocol/user_memory.h"
#include "gpu/adapters.h"
#include "gpu/memory.h"
#include "transport/net/collective_network.h"
#include "transport/net/end_memory.h"

namespace niccolite::transport::net {

class Reducer {
 public:
  struct Options {
    std::shared_ptr<CollectiveNetwork> network;
    void* collective = nullptr;  // connected; the Reducer's from now on
    int members = 0;
    int place = 0;                     // of this rank among them
    bool kernels_ring = true;          // kernels of GPUs do not: it looks at their counters
    std::function<void(Status)> fail;  // hears of the first failure, on a thread of the Reducer's
    /// Is this memory of the user's registered, as it was then? Null: it is out of reach. Any
    /// thread.
    std::function<bool(const void*, size_t)> is_registered;
    /// Device memory of the user's, for networks that take some. Null: there is none.
    std::function<Result<gpu::DmaBuffer>(const void*, size_t)> export_memory;
    uint64_t direct_bytes = 1;  // UserMemory::least_bytes()
  };
  static Result<std::unique_ptr<Reducer>> start(Options options);
  ~Reducer();  // close()

  /// The end of this rank's connection: memory is made when it is first asked for.
  Result<executor::PortAddress> port(gpu::Allocations& allocations, schedule::Through through,
                                     bool is_send, const executor::FifoShape& shape)
      EXCLUDES(mutex_);
  const CollectiveNetwork& network() const { return *options_.network; }
  /// Has the network know memory that the user has registered, so that chunks need no slots.
  void add_user_memory(void* memory, size_t bytes) EXCLUDES(mutex_) EXCLUDES(user_mutex_);
  /// Has the network forget memory whose registration has ended.
  void remove_user_memory() EXCLUDES(mutex_) EXCLUDES(user_mutex_);
  /// Ends the thread and leaves the collective. The memory of the ends stays.
  void close() EXCLUDES(mutex_);

 private:
  explicit Reducer(Options options);
  Result<void*> register_user_memory(void* memory, size_t bytes) REQUIRES(mutex_);

  /// One end of the connections of one kind, whose memory the network knows.
  class RegisteredEnd final : public executor::relay::UserMemory {
   public:
    RegisteredEnd(Reducer& reducer, std::shared_ptr<const EndMemory> memory);
    bool reaches(const std::byte* memory, uint64_t bytes) const override {
      return reducer_.find_user_memory(memory, bytes) != nullptr;
    }
    bool let_go(uint32_t /*channel*/) override { return reducer_.let_go(); }
    bool is_abandoned() const override { return false; }

    const EndShare& share() const { return share_; }
    executor::relay::Place& place_of(uint32_t channel, uint64_t step);
    CollectivePiece slot(uint32_t channel, uint64_t step) const {
      return {share_.slot(channel, step), registered};
    }

    void* registered = nullptr;

   private:
    Reducer& reducer_;
    const EndShare share_;
  };
  struct Carry {
    void* request = nullptr;  // null: of an empty chunk
    uint16_t call = 0;
    bool receives = false;
    bool uses_up = false;
  };
  struct Channel {
    uint64_t started = 0;    // carries
    uint64_t freed = 0;      // steps of the sender
    uint64_t published = 0;  // steps of the receiver
    uint64_t awaited = 0;    // the same, with those under way
    std::deque<Carry> under_way{};
  };
  struct Lane {
    schedule::Through through = schedule::Through::Nothing;
    std::unique_ptr<RegisteredEnd> send, receive;
    std::vector<Channel> channels;
    uint32_t turn = 0;      // the channel of the next carry
    uint32_t taking_turns;  // channels of the operation that has begun
  };
  struct UserRange {
    std::byte* begin = nullptr;
    size_t bytes = 0;
    void* registered = nullptr;
  };

  Result<std::unique_ptr<RegisteredEnd>> make_end(gpu::Allocations& allocations, bool is_send,
                                                  const executor::FifoShape& shape);
  executor::PortAddress port_of(RegisteredEnd& end);
  /// The network's name of registered memory; null: it is not registered, or not any more.
  void* find_user_memory(const std::byte* memory, uint64_t bytes) const EXCLUDES(user_mutex_);
  void run();
  /// Sets `moved` when anything moved.
  Status look(bool& moved) REQUIRES(mutex_);
  Result<bool> start(Lane& lane) REQUIRES(mutex_);
  Result<bool> finish(Lane& lane) const;
  Result<std::optional<Carry>> begin(const Lane& lane, uint64_t step, uint64_t note) const;
  Result<CollectivePiece> source_of(const Lane& lane, uint64_t step, uint64_t note) const;
  CollectivePiece target_of(const Lane& lane, uint64_t note) const;
  void sleep(std::unique_lock<std::mutex>& lock) REQUIRES(mutex_);
  bool awaits_network() const REQUIRES(mutex_);
  void ring();
  /// UserMemory's.
  bool let_go();
  void leave() REQUIRES(mutex_) EXCLUDES(user_mutex_);

  const Options options_;
  executor::relay::Bell bell_;
  std::mutex mutex_;
  std::condition_variable rung_;
  bool is_rung_ GUARDED_BY(mutex_) = false;
  bool is_closed_ GUARDED_BY(mutex_) = false;
  bool lacks_room_ GUARDED_BY(mutex_) = false;  // the network, for a request
  std::chrono::steady_clock::time_point last_moved_ GUARDED_BY(mutex_){};
  std::atomic<bool> has_to_leave_ = false;
  std::atomic<bool> has_left_ = false;
  std::array<std::unique_ptr<Lane>, 4> lanes_ GUARDED_BY(mutex_);  // by schedule::Through
  mutable std::mutex user_mutex_;                                  // taken after mutex_
  std::vector<UserRange> user_ranges_ GUARDED_BY(user_mutex_);
  Thread thread_;
};

}  // namespace niccolite::transport::net
