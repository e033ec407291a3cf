// Gins: the networking of all device communicators of one communicator, and the connections to
// ranks of other machines, which they share. Thread safety: create(), connect() and start() by one
// thread at a time, since they are parts of a collective call; end() and land() by any; close()
// once nobody makes any more.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/thread_annotations.h"
#include "base/wait.h"
#include "bootstrap/member.h"
#include "registry/gin.h"

namespace niccolite::registry {

class Gins {
 public:
  struct Options {
    gpu::Machine& machine;
    int device = 0;
    bootstrap::Member* member = nullptr;        // null for one rank
    std::function<bool(int peer)> is_remote{};  // on another machine?
    std::function<Result<executor::PortAddress>(int peer, const Deadline& deadline)> connect{};
    std::function<std::shared_ptr<const Window>(const void* handle)> find_window{};
    std::function<std::shared_ptr<const Window>(uint64_t number)> find_numbered{};
    std::function<void(Status)> fail{};
    std::function<bool()> is_over{};  // the communicator has failed, or was aborted
    std::function<bool(int peer)> has_left{};
  };
  explicit Gins(Options options) : options_(std::move(options)) {}
  ~Gins() { close(); }
  Gins(const Gins&) = delete;

  /// The networking of device communicator `number`, which all ranks know by it.
  Result<std::shared_ptr<Gin>> create(uint64_t number, const GinNeeds& needs);
  /// Maps the memory of the ranks of this machine, and connects with all others. All have
  /// created theirs; `names` is by rank.
  Status connect(Gin& gin, std::span<const Gin::Name> names, const Deadline& deadline);
  /// From now on it carries out operations, and takes chunks. See Gin::start().
  Status start(uint64_t number, std::shared_ptr<Gin> gin, std::byte* state, const void* handle);
  /// Ends the networking of the device communicator with these resources, if it has any.
  void end(const void* resources) EXCLUDES(mutex_);
  void close() EXCLUDES(mutex_);
  /// A chunk of a rank of another machine has come (transport::PutSink). On the thread of a proxy
  /// of the network.
  Status land(int from, std::span<const std::byte> chunk) EXCLUDES(mutex_);

 private:
  struct Live {
    const void* resources;
    std::shared_ptr<Gin> gin;
  };
  int nranks() const { return options_.member == nullptr ? 1 : options_.member->nranks(); }
  int rank() const { return options_.member == nullptr ? 0 : options_.member->rank(); }
  bool is_remote(int peer) const { return peer != rank() && options_.is_remote(peer); }
  bool is_here(int peer) const { return peer == rank() || options_.member->same_process(peer); }

  const Options options_;
  Gin::Links links_;  // create(), connect() and start() only
  std::atomic<bool> is_closed_{false};
  std::mutex mutex_;
  std::map<uint64_t, Live> live_ GUARDED_BY(mutex_);  // by number
  uint64_t begun_ GUARDED_BY(mutex_) = 0;             // all numbers below it were once live
};

}  // namespace niccolite::registry
