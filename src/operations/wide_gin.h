// WideGin: the networking of kernels (GIN) of one device communicator whose ranks are on several
// machines. As within a machine (registry/gin.h) kernels write descriptors into queues in host
// memory, one for each context and peer, and a thread of this rank carries them out. Operations to
// ranks of its own machine go by the mappings of their memory; all others in chunks (gin_chunk.h)
// over a connection to each rank of another machine, unless it has left:
//
//   put        its bytes, then its signal, in the order of the queue
//   signal     the target's proxy of the network adds it to the target's signal
//   get        asks the target's thread of the same device communicator, which sends the bytes
//
// A put is done when the connection has a copy of its source. A connection that has no room holds
// up the whole thread. After a failure of the communicator operations are dropped, and the queues'
// indices go on, so that no kernel spins on a full queue for ever.
//
// Thread safety: WideGins::make() by one thread at a time, since it is collective; end() and land()
// by any; close() once nobody makes any more.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/thread.h"
#include "base/thread_annotations.h"
#include "base/wait.h"
#include "bootstrap/member.h"
#include "executor/protocol/fifo.h"
#include "gpu/streams.h"
#include "operations/gin_chunk.h"
#include "registry/device_comms.h"
#include "registry/windows.h"
#include "transport/imports.h"
#include "transport/pool.h"

namespace niccolite::operations {

/// The sending end of the connection to a rank of another machine, which all device communicators
/// share.
class GinLink {
 public:
  explicit GinLink(const executor::PortAddress& port) : port_(port) {}
  /// Waits for room, and sends a chunk, whose bytes `fill` writes. Sends nothing once `is_over`.
  Status send(const GinChunk& chunk, const std::function<bool()>& is_over,
              const std::function<Status(std::byte*)>& fill = {}) EXCLUDES(mutex_);

 private:
  std::mutex mutex_;
  const executor::PortAddress port_ GUARDED_BY(mutex_);
};

class WideGin {
 public:
  using Name = registry::GinMemory::Name;
  using Links = std::vector<std::shared_ptr<GinLink>>;  // by rank; null: of this machine
  struct Parts {
    gpu::Machine& machine;
    int device;
    int rank;
    int nranks;
    uint64_t number;  // of the device communicator
    std::function<std::shared_ptr<const registry::Window>(const void* handle)> find_window;
    std::function<std::shared_ptr<const registry::Window>(uint64_t number)> find_numbered;
    std::function<void(Status)> fail;  // called at most once, on the proxy's thread
    std::function<bool()> is_over;     // the communicator has failed, or ends
    std::function<bool(int peer)> has_left;
    std::shared_ptr<const registry::Window> resources;  // memory of the device communicator
  };

  static Result<std::shared_ptr<WideGin>> create(Parts parts, const registry::GinNeeds& needs,
                                                 bool has_other_processes);
  ~WideGin();
  WideGin(const WideGin&) = delete;

  registry::GinMemory& memory() { return *memory_; }
  /// `state`: GinMemory::state_bytes(), which begins with the contexts' structs afterwards.
  Status start(std::byte* state, Links links);
  /// Carries out the operations in the queues, and ends the thread.
  void stop();

  /// A chunk for this device communicator has come. On the thread of a proxy of the network.
  Status land(int from, const GinChunk& chunk, const std::byte* data) EXCLUDES(gets_mutex_);

 private:
  struct Item {
    size_t queue;
    registry::GinDescriptor descriptor;
    std::array<std::shared_ptr<const registry::Window>, 2> windows{};  // until the copy is done
  };
  /// Bytes of a window of this rank.
  struct Place {
    std::shared_ptr<const registry::Window> window;
    std::byte* data = nullptr;
  };
  /// A get of this rank from another machine whose bytes have not all come.
  struct Get {
    int from;
    Place target;
    uint64_t bytes;
    uint64_t missing;
  };
  /// A get of a rank of another machine from this one.
  struct Request {
    int from;
    uint64_t number;
    Place source;
    uint64_t bytes;
  };

  WideGin(Parts parts, const registry::GinNeeds& needs,
          std::unique_ptr<registry::GinMemory> memory);
  void serve();
  bool look();
  Status check(const Item& item) const;
  Status copy_here(Item& item, size_t place, bool& has_copied);
  Status send(int peer, const GinChunk& chunk, const std::function<Status(std::byte*)>& fill = {});
  Status send(const Item& item) EXCLUDES(gets_mutex_);
  Status send_data(const Item& item);
  Status ask(const Item& item) EXCLUDES(gets_mutex_);
  void await_gets() EXCLUDES(gets_mutex_);
  bool answer_gets() EXCLUDES(gets_mutex_);
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
  const registry::GinNeeds needs_;
  const std::unique_ptr<registry::GinMemory> memory_;
  gpu::Stream stream_;
  Links links_;
  std::vector<uint32_t> next_;  // by queue
  std::vector<Item> batch_;
  size_t first_queue_ = 0;  // takes turns
  uint64_t requests_ = 0;
  bool has_failed_ = false;
  std::mutex gets_mutex_;
  std::map<uint64_t, Get> gets_ GUARDED_BY(gets_mutex_);  // by number of the request
  std::vector<Request> asked_ GUARDED_BY(gets_mutex_);
  std::atomic<bool> stops_{false};
  Thread thread_;
};

/// All of a communicator.
class WideGins {
 public:
  struct Options {
    gpu::Machine& machine;
    int device = 0;
    std::function<bool(int peer)> is_remote{};  // on another machine?
    std::function<Result<executor::PortAddress>(int peer, const Deadline& deadline)> connect{};
    std::function<std::shared_ptr<const registry::Window>(const void* handle)> find_window{};
    std::function<std::shared_ptr<const registry::Window>(uint64_t number)> find_numbered{};
    std::function<void(Status)> fail{};
    std::function<bool()> is_over{};  // the communicator has failed, or was aborted
    std::function<bool(int peer)> has_left{};
  };
  explicit WideGins(Options options) : options_(std::move(options)) {}
  ~WideGins() { close(); }

  /// Collective: a device communicator with networking. `member` and `device_comms` are the
  /// communicator's, whose load-store teams have `team_ranks`.
  Result<registry::DeviceComm> make(registry::DeviceNeeds needs, bootstrap::Member& member,
                                    registry::DeviceComms& device_comms, int team_ranks,
                                    const Deadline& deadline);
  /// Ends the networking of the device communicator with these resources, if it has any. Local.
  void end(const void* window) EXCLUDES(mutex_);
  void close() EXCLUDES(mutex_);
  /// A chunk of a rank of another machine has come (transport::PutSink). On the thread of a proxy
  /// of the network.
  Status land(int from, std::span<const std::byte> chunk) EXCLUDES(mutex_);

 private:
  struct Live {
    const void* window;
    std::shared_ptr<WideGin> gin;
  };
  Status exchange(bootstrap::Member& member, uint64_t number, const WideGin::Name& name,
                  const Status& own);
  Status join(bootstrap::Member& member, WideGin& gin, const Deadline& deadline);

  const Options options_;
  uint64_t made_ = 0;                            // make() only
  std::vector<std::shared_ptr<GinLink>> links_;  // make() only
  std::vector<WideGin::Name> names_;             // make() only
  std::atomic<bool> is_closed_{false};
  std::mutex mutex_;
  std::map<uint64_t, Live> live_ GUARDED_BY(mutex_);  // by number
  uint64_t begun_ GUARDED_BY(mutex_) = 0;             // all numbers below it were once live
};

}  // namespace niccolite::operations
