// Network: moves bytes between machines: by a plug-in of NCCL's net interface, whatever the version
// of its tables (plugin.cc), or by verbs of InfiniBand and RoCE (verbs/). Messages of a connection
// arrive in order. Nothing here waits: the caller asks again. Thread safety: as NCCL's: one thread
// per communicator for a connection's functions; listen(), meet() and choose() from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/plugin_library.h"
#include "base/status.h"

namespace niccolite::gpu {
class Machine;
}

namespace niccolite::transport::net {

/// Memory of this rank's GPU that the network's device reads or writes itself (GPUDirect RDMA).
class DirectMemory {
 public:
  virtual ~DirectMemory() = default;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  /// Copies by a core, which may not reach the memory itself. Unless overridden, it does.
  virtual Status store(std::byte* to, const void* from, size_t bytes) const {
    std::memcpy(to, from, bytes);
    return {};
  }
  virtual Status load(void* to, const std::byte* from, size_t bytes) const {
    std::memcpy(to, from, bytes);
    return {};
  }

 protected:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

/// How the peer's device finds such memory; travels to the peer as it is.
using DirectName = std::array<std::byte, 24>;

/// Bytes for memory of the peer's GPU.
struct DirectWrite {
  const std::byte* from = nullptr;
  uint32_t bytes = 0;
  const DirectMemory* memory = nullptr;  // that `from` lies in; null: the message's memory
  DirectName to{};
  uint64_t offset = 0;      // there
  bool is_of_user = false;  // `from`
  bool is_to_user = false;
};
inline constexpr size_t kMostDirectWrites = 8;  // of a message

class Network {
 public:
  /// How a listener is found; travels to the peer as it is. Plug-ins have the first 128 bytes.
  using Handle = std::array<std::byte, 640>;
  struct Properties {
    std::string device;     // "mlx5_0"
    int speed = 0;          // Mbit/s
    size_t most_bytes = 0;  // of one message
  };

  virtual ~Network() = default;

  const std::string& name() const { return name_; }      // "AWS Libfabric"
  const std::string& origin() const { return origin_; }  // "libnccl-net-ofi.so, ncclNetPlugin_v8"
  // of device 0, which is the one in use
  const Properties& properties() const { return properties_; }

  /// Where the network's reducer may be, too (collective_network.h). Null: it is no plug-in's.
  virtual std::shared_ptr<PluginLibrary> library() const { return nullptr; }

  /// A port of this machine that can carry data.
  struct Port {
    std::string name;    // "mlx5_0"; "mlx5_0:2" of a port that is not its device's first
    std::string device;  // "mlx5_0"
    int speed = 0;       // Mbit/s; 0: unknown
    bool is_virtual = false;
  };
  /// The ports among which prefer() chooses. None: the network has a choice of its own.
  virtual std::vector<Port> ports() const { return {}; }
  /// `nearest` to this rank's GPU, by name, the best first: they carry data, and other ports only
  /// in their place. None of them is a name of ports(): all ports are alike. Before the first
  /// listen().
  virtual void prefer(const std::vector<std::string>& /*nearest*/) {}

  /// `ports`, by name, may read and write memory of this rank's GPU themselves. None unless called.
  /// After prefer(), before the first listen().
  virtual void permit_direct(const std::vector<std::string>& /*ports*/) {}

  /// The numbers of the devices that carry each connection, as the log has them.
  virtual std::vector<size_t> devices() const { return {0}; }

  /// `peer`: for messages.
  virtual Result<void*> listen(Handle& handle, const std::string& peer) = 0;
  /// Takes the peer's handle. Called once for each listener, before this rank answers the peer.
  virtual Status meet(void* /*listener*/, const Handle& /*peer*/) { return {}; }
  /// Hears that the peer has met the listener that accepted this connection.
  virtual void peer_has_met(void* /*connection*/) {}
  /// Null: not yet. The handle keeps the plug-in's state between calls.
  virtual Result<void*> connect(void* listener, Handle& handle) = 0;
  virtual Result<void*> accept(void* listener) = 0;
  virtual Result<void*> register_memory(void* connection, void* data, size_t bytes) = 0;
  virtual void deregister_memory(void* connection, void* memory) = 0;
  /// Returns a request; null: there is no room for now. `event`: the name under which the plug-in
  /// reports the message to a profiler; may be null.
  virtual Result<void*> send(void* connection, void* data, size_t bytes, int tag, void* memory,
                             void* event) = 0;
  virtual Result<void*> receive(void* connection, void* data, size_t bytes, int tag,
                                void* memory) = 0;

  /// Does its device read memory of this rank's GPU (`is_send`), or write it?
  virtual bool is_direct(bool /*is_send*/) const { return false; }
  virtual Result<std::shared_ptr<DirectMemory>> allocate_direct(size_t /*bytes*/,
                                                                bool /*is_send*/) {
    return Status::invalid_usage("network {} has no memory of GPUs", name_);
  }
  /// Memory of the user's, of this rank's GPU: for sending the device reads it, and never writes
  /// it. Any thread, after the first listen().
  virtual Result<std::shared_ptr<DirectMemory>> register_direct(void* /*data*/, size_t /*bytes*/,
                                                                bool /*is_send*/) {
    return Status::invalid_usage("network {} has no memory of GPUs", name_);
  }
  /// Memory of this rank's GPU that there is, also for trials.
  virtual size_t gpu_bytes() const { return 0; }
  /// Returns the name of memory for receiving.
  virtual DirectName name_of(const DirectMemory& /*memory*/) const { return {}; }
  /// Do writes to memory of the peer's GPU work? They are tried first. On the thread that sends.
  virtual bool writes_directly(void* /*connection*/) const { return false; }
  /// As send(). The message arrives after these bytes, which stay as they are until it is done.
  virtual Result<void*> send_with(void* /*connection*/, void* /*data*/, size_t /*bytes*/,
                                  void* /*memory*/, std::span<const DirectWrite> /*writes*/) {
    return Status::invalid_usage("network {} writes to no memory of GPUs", name_);
  }
  /// Kernels of this rank's GPU see what a peer's device has written to its memory before a message
  /// that is here.
  virtual Status flush_direct() { return {}; }
  /// From now on neither end's device reads or writes memory for the two ranks' connections, which
  /// carry nothing any more.
  virtual void cut(void* /*connection*/) {}
  /// Is it done? A request that is done is gone. Plug-ins need not tell how many bytes came.
  virtual Result<bool> test(void* request) = 0;
  virtual void close_send(void* connection) = 0;
  virtual void close_receive(void* connection) = 0;
  virtual void close_listener(void* listener) = 0;

  /// A communicator's choice of a network.
  struct Wish {
    std::string name;        // config.netName, where NCCL_NET is not set; empty: any
    int traffic_class = -1;  // config.trafficClass; -1: none
    uint64_t communicator = 0;
    size_t number = 0;  // of this rank among the ranks of its machine
    // Has this rank's GPU; null: networks use host memory alone.
    gpu::Machine* machine = nullptr;
    int device = 0;
  };
  /// Returns the network that NCCL_NET_PLUGIN, NCCL_NET and the wish choose; null: our own sockets.
  /// InfiniBand and RoCE are chosen by name, or because their NICs are virtual. Errors:
  /// InvalidUsage when no network serves, with all that was tried.
  static Result<std::shared_ptr<Network>> choose(const Wish& wish);

  /// A function that hears the plug-ins' reports on messages under way; returns 0. As NCCL's
  /// ncclProfilerCallback_t.
  using EventSink = int (*)(void** event, int type, void* of, int64_t layout, void* data);
  /// Sets the function that hears the reports, before the first choose(). By default there is none.
  static void tell_events_to(EventSink sink);

 protected:
  std::string name_;
  std::string origin_;
  Properties properties_;
};

}  // namespace niccolite::transport::net
