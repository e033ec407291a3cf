// Gin: the networking that kernels of one device communicator start by themselves (GIN), by proxy.
// Kernels write descriptors (gin_descriptor.h) into queues in host memory, one for each context and
// peer, and a thread of this rank carries them out. Operations to ranks of its own machine go by
// the mappings of their memory; all others in chunks (gin_chunk.h) over a connection to each rank
// of another machine, unless it has left.
//
//               of this machine                      of another one
//   put, get    copies on a stream of the proxy's    put: its bytes in chunks; get: asks the peer's
//                                                    proxy of the same device communicator for them
//   signal      is added to a word in host memory    the peer's proxy of the network adds it
//               that all ranks map
//
// A signal comes after all earlier operations of its queue: each one is strong. A counter comes
// after its operation. A put is done when its copy is, or when the connection has a copy of its
// source. A connection that has no room holds up the queues of its peer alone. After a failure or
// an abort of the communicator operations are dropped, and the queues' indices go on, so that no
// kernel spins on a full queue for ever.
//
// Thread safety: create(), connecting and start() by one thread, before all else; land() and stop()
// by any.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/thread.h"
#include "base/thread_annotations.h"
#include "base/wait.h"
#include "executor/protocol/fifo.h"
#include "gpu/streams.h"
#include "registry/gin_chunk.h"
#include "registry/gin_inbox.h"
#include "registry/gin_memory.h"
#include "registry/windows.h"

namespace niccolite::registry {

/// The sending end of the connection to a rank of another machine, which all device communicators
/// share.
class GinLink {
 public:
  explicit GinLink(const executor::PortAddress& port) : port_(port) {}
  /// Sends a chunk, whose bytes `fill` writes. False: there is no room now.
  Result<bool> send(const GinChunk& chunk, const std::function<Status(std::byte*)>& fill = {})
      EXCLUDES(mutex_);

 private:
  std::mutex mutex_;
  const executor::PortAddress port_ GUARDED_BY(mutex_);
};

class Gin {
 public:
  using Name = GinMemory::Name;
  using Links = std::vector<std::shared_ptr<GinLink>>;  // by rank; null: of this machine
  struct Parts {
    gpu::Machine& machine;
    int device;
    int rank;
    int nranks;
    uint64_t number;  // of the device communicator
    std::function<std::shared_ptr<const Window>(const void* handle)> find_window;
    std::function<std::shared_ptr<const Window>(uint64_t number)> find_numbered;
    std::function<void(Status)> fail;  // called at most once, on the proxy's thread
    std::function<bool()> is_over;     // the communicator has failed, or ends
    std::function<bool(int peer)> has_left;
  };

  static Result<std::shared_ptr<Gin>> create(Parts parts, const GinNeeds& needs,
                                             bool has_other_processes);
  ~Gin();
  Gin(const Gin&) = delete;

  GinMemory& memory() { return *memory_; }
  /// All ranks of this machine are connected (GinMemory::connect()). `resources`: the device
  /// communicator's memory, with GinMemory::state_bytes() at `state`.
  Status start(std::byte* state, std::shared_ptr<const Window> resources, Links links);
  /// Carries out the operations in the queues, and ends the thread.
  void stop();
  /// Begins stop(), whose end has_ended() tells.
  void ask_to_stop();
  bool has_ended() const { return has_ended_.load(std::memory_order_relaxed); }

  /// The failure of a get by a kernel of rank `from` that comes when nobody answers any more.
  static Status too_late(int from);
  /// A chunk for this device communicator has come. On the thread of a proxy of the network.
  Status land(int from, const GinChunk& chunk, const std::byte* data) EXCLUDES(gets_mutex_);

 private:
  struct Item {
    size_t queue;
    GinDescriptor descriptor;
    std::array<std::shared_ptr<const Window>, 2> windows{};  // until the copy is done
  };
  /// Bytes of a window of this rank.
  struct Place {
    std::shared_ptr<const Window> window;
    std::byte* data = nullptr;
  };
  /// An operation with a rank of another machine that is not done.
  struct Transfer {
    Item item;
    Place source, target;
    uint64_t sent = 0;                         // bytes of a put
    bool is_asked = false;                     // a get
    bool is_sent = false;                      // all of it
    std::optional<uint64_t> request{};         // of a get
    std::optional<Deadline> gives_up_at = {};  // a get, whose peer has left
  };
  /// A get of this rank from another machine whose bytes have not all come.
  struct Get {
    Place target;
    uint64_t bytes;
    uint64_t missing;
  };
  /// A get of a rank of another machine from this one; `sent` of its bytes have gone.
  struct Request {
    int from;
    uint64_t number;
    Place source;
    uint64_t bytes;
    uint64_t sent = 0;
  };

  Gin(Parts parts, const GinNeeds& needs, std::unique_ptr<GinMemory> memory);
  void serve();
  bool look();
  bool look_here();
  bool look_beyond(size_t queue);
  bool end_if_idle();
  Status check(const Item& item) const;
  Status copy_here(Item& item, size_t place, bool& has_copied);
  Result<bool> send(int peer, const GinChunk& chunk,
                    const std::function<Status(std::byte*)>& fill = {});
  Status begin(Transfer& transfer) EXCLUDES(gets_mutex_);
  Result<bool> go_on(Transfer& transfer);
  Result<bool> send_signal(const Item& item);
  bool is_awaited(const Transfer& transfer) EXCLUDES(gets_mutex_);
  bool has_come(Transfer& transfer) EXCLUDES(gets_mutex_);
  void drop(Transfer& transfer) EXCLUDES(gets_mutex_);
  bool answer_gets() EXCLUDES(gets_mutex_);
  Result<bool> answer(Request& request, bool& has_moved);
  Status complete(const Item& item);
  Status add(int peer, uint64_t context, uint64_t signal, uint64_t amount);
  Status add_in_memory(int peer, std::byte* word, uint64_t amount);
  Status fetch(void* target, const void* source, size_t bytes);
  Result<Place> find(uint64_t window, uint64_t offset, uint64_t bytes, int peer) const;
  Result<Place> find_for(int from, const GinChunk& chunk, uint64_t bytes) const;
  bool is_remote(int peer) const { return links_[static_cast<size_t>(peer)] != nullptr; }
  bool is_over() const { return has_failed_ || parts_.is_over(); }
  void report(const Item& item, Status status);
  int context_of(const Item& item) const { return static_cast<int>(item.queue) / parts_.nranks; }
  int peer_of(const Item& item) const { return static_cast<int>(item.queue) % parts_.nranks; }

  const Parts parts_;
  const GinNeeds needs_;
  const std::unique_ptr<GinMemory> memory_;
  gpu::Stream stream_;
  Links links_;
  std::shared_ptr<const Window> resources_;
  std::vector<char> is_given_up_;                // by rank: it has left, and takes nothing any more
  std::vector<uint32_t> next_;                   // by queue
  std::vector<Item> batch_;                      // for ranks of this machine
  std::vector<std::deque<Transfer>> transfers_;  // by queue
  size_t first_queue_ = 0;                       // takes turns
  uint64_t requests_ = 0;
  bool has_failed_ = false;
  std::mutex gets_mutex_;
  std::map<uint64_t, Get> gets_ GUARDED_BY(gets_mutex_);  // by number of the request
  GinInbox<Request> asked_;
  std::deque<Request> answers_;  // under way
  std::atomic<bool> stops_{false}, has_ended_{true};
  Thread thread_;
};

}  // namespace niccolite::registry
