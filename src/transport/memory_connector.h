// MemoryConnector: the common part of the connectors whose ends both see one memory. Each end has
// its control blocks, and the receiver also the slots, in chunks of a pool (pool.h). The other end
// learns token and offset, and opens the chunk. The derived classes know where the memory is and
// how to open it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "base/thread_annotations.h"
#include "transport/connector.h"
#include "transport/descriptor_server.h"
#include "transport/imports.h"
#include "transport/pool.h"

namespace niccolite::transport {

class MemoryConnector : public Connector {
 public:
  ~MemoryConnector() override;

  Status reserve(std::span<const ShapedEnd> ends) override EXCLUDES(mutex_);
  Status ask(int peer, ConnectRequest& request) override;
  Status answer(int asker, std::span<const ShapedEnd> ends, const ConnectRequest& request,
                ConnectReply& reply) override EXCLUDES(mutex_);
  Status adopt(int peer, std::span<const ShapedEnd> ends, const ConnectReply& reply,
               const Deadline& deadline) override EXCLUDES(mutex_);
  Status hand_over(int peer, bool same_process, std::span<const ShapedEnd> ends,
                   ConnectReply& reply) override EXCLUDES(mutex_);
  Status keep(int peer, const ConnectReply& reply, const Deadline& deadline) override
      EXCLUDES(mutex_);
  std::optional<executor::PortAddress> port(const End& end) const override;

 protected:
  /// A chunk of the peer's; one of the two keeps it mapped.
  struct RemoteChunk {
    std::shared_ptr<Chunk> shared;
    std::shared_ptr<Import> imported;
    std::byte* data() const { return shared ? shared->data() : imported->data(); }
    size_t bytes() const { return shared ? shared->bytes() : imported->bytes(); }
  };

  MemoryConnector(std::shared_ptr<Pool> pool, int device)
      : machine_(pool->machine()), device_(device), share_(std::move(pool)) {}

  /// A chunk has pieces of this connector from now on. Whatever the driver has to do for a peer to
  /// open it is done here, before a kernel of this connection can run, and not when the peer asks.
  virtual Status prepare(Chunk& /*chunk*/) { return {}; }
  /// Lets the kernels of a device of the asker's process use a chunk of this process's, once for
  /// each chunk of an answer.
  virtual Status let_in(const Chunk& chunk, int device) = 0;
  /// Opens the chunk of `peer` that `origin` names; `kept`: its descriptor, if it is here already.
  virtual Result<RemoteChunk> open(int peer, const Origin& origin, Fd kept,
                                   const Deadline& deadline) = 0;
  /// Finds a chunk of a rank of this process.
  static Result<RemoteChunk> find_here(int peer, const Origin& origin);

  /// Drops the ends that peers have handed over, because their memory is about to be replaced.
  void forget_kept() EXCLUDES(mutex_);

  gpu::Machine& machine_;
  const int device_;                            // -1: host memory, of all
  std::map<Token, RemoteChunk> remote_chunks_;  // adopt() only
  bool lets_go_ = false;                        // of imports, which are suspended
  mutable std::mutex mutex_;
  Share share_ GUARDED_BY(mutex_);

 private:
  struct OwnEnd {
    Span control;
    std::optional<Span> slots;  // at the receiver
  };
  /// A chunk of a peer that has left, before adopt(): one of the two.
  struct KeptChunk {
    std::shared_ptr<Chunk> shared;
    Fd descriptor;
  };
  /// Describes the places of these ends to a peer, if `lets_in(chunk)` lets it use them.
  template <typename LetsIn>
  Status tell(std::span<const ShapedEnd> ends, bool same_process, ConnectReply& reply,
              const LetsIn& lets_in) EXCLUDES(mutex_);
  Result<const RemoteChunk*> remote_chunk(int peer, const Origin& origin, const Deadline& deadline);

  std::shared_ptr<DescriptorServer> server_
      GUARDED_BY(mutex_);  // from the first request of another process
  std::map<End, OwnEnd> own_ends_ GUARDED_BY(mutex_);
  std::map<Token, KeptChunk> kept_ GUARDED_BY(mutex_);
  std::map<End, executor::PortAddress> ports_;  // adopt() and port()
};

}  // namespace niccolite::transport
