// Endpoint: one rank's ends of connections to its peers, made when a program first needs them.
//
// A connection is named by (sender, receiver, tag, protocol). Programs that use the same name share
// it: its counters persist, and the operations of a communicator run one after the other. Thread
// safety: connect() by one thread at a time; answer() from any thread at any time.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/wait.h"
#include "bootstrap/member.h"
#include "executor/program.h"
#include "executor/protocol/fifo.h"
#include "gpu/machine.h"
#include "transport/arena.h"
#include "transport/descriptor_server.h"

namespace niccolite::transport {

using Shapes = std::array<executor::FifoShape, executor::kProtocols>;  // equal on all ranks

class Endpoint {
 public:
  /// Has `peer`'s endpoint answer() a request.
  using Ask = std::function<Result<Bytes>(int peer, std::span<const std::byte> request,
                                          const Deadline& deadline)>;

  /// `machine` and `member` outlive the endpoint; `ask` is used in connect() only.
  Endpoint(gpu::Machine& machine, int device, const bootstrap::Member& member, const Shapes& shapes,
           Ask ask);

  /// Addresses for every port of `program`, in port order. Connects what is not yet connected,
  /// which may wait for peers' processes until `deadline`, but not for their calls.
  Result<std::vector<executor::PortAddress>> connect(const executor::Program& program,
                                                     executor::Protocol protocol,
                                                     const Deadline& deadline);

  /// A peer connects: makes this rank's half of each connection and tells where it is.
  Result<Bytes> answer(int from, std::span<const std::byte> request);

  /// Device memory of this rank's own ends.
  size_t allocated_bytes() const;

 private:
  enum class Role : uint8_t { Sender, Receiver };
  struct Name {
    int peer;
    int tag;
    executor::Protocol protocol;
    Role role;  // of this rank
    friend auto operator<=>(const Name&, const Name&) = default;
  };
  struct LocalEnd {  // this rank's memory of a connection
    Span control;
    std::optional<Span> slots;  // at the receiver
  };
  struct RemoteEnd {  // the peer's memory of a connection, mapped here
    std::byte* control = nullptr;
    std::byte* slots = nullptr;  // of a receiving peer
  };
  struct RemoteChunk {  // one of the two keeps it mapped
    std::shared_ptr<Chunk> shared;
    gpu::Memory imported;
    std::byte* data() const {
      return shared ? shared->data() : static_cast<std::byte*>(imported.data());
    }
    size_t bytes() const { return shared ? shared->bytes() : imported.bytes(); }
  };

  Result<LocalEnd> local_end(const Name& name) EXCLUDES(mutex_);
  Status connect_peer(int peer, std::span<const Name> names, const Deadline& deadline);
  Result<const RemoteChunk*> remote_chunk(int peer, const Token& token, size_t bytes,
                                          const std::string& address, const Deadline& deadline);

  gpu::Machine& machine_;
  const int device_;
  const bootstrap::Member& member_;
  const Shapes shapes_;
  const Ask ask_;
  std::map<Token, RemoteChunk> remote_chunks_;  // connect() only
  std::map<Name, RemoteEnd> remote_ends_;       // connect() only
  std::shared_ptr<DescriptorServer> server_
      GUARDED_BY(mutex_);  // from the first request of another process
  mutable std::mutex mutex_;
  Arena arena_ GUARDED_BY(mutex_);
  std::map<Name, LocalEnd> local_ends_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::transport
