// CollectiveNetwork: a network that reduces: NCCL's CollNet interface in the library of a network
// plug-in, whatever the version of its table. Nothing here waits but connect(), which may: the
// caller asks again. Requests of a collective begin in one order on all its members. Thread safety:
// as NCCL's: one thread for a collective's functions; open() from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "executor/numeric.h"
#include "gpu/adapters.h"
#include "transport/net/network.h"

namespace niccolite::transport::net {

/// A piece of registered memory.
struct CollectivePiece {
  std::byte* data = nullptr;
  void* memory = nullptr;  // what register_memory() gave
};

class CollectiveNetwork {
 public:
  using Handle = Network::Handle;

  virtual ~CollectiveNetwork() = default;
  const std::string& name() const { return name_; }      // "SHARP"
  const std::string& origin() const { return origin_; }  // "libnccl-net.so, ncclCollNetPlugin_v8"
  const std::string& device() const { return device_; }  // of device 0, which is the one in use
  size_t most_bytes() const { return most_bytes_; }      // of one request

  virtual Result<void*> listen(Handle& handle) = 0;
  /// Collective over the members, whose handles these are. May wait for them.
  virtual Result<void*> connect(std::span<Handle> handles, int place, void* listener) = 0;
  virtual Result<bool> can_reduce(executor::DataType type, executor::ReduceOp operation) = 0;
  virtual bool gathers() const = 0;  // and scatters
  virtual Result<void*> register_memory(void* collective, void* data, size_t bytes) = 0;
  /// Does it reduce from and to device memory?
  virtual bool takes_device_memory() const = 0;
  /// Registers device memory, by its descriptor if the plug-in takes descriptors.
  virtual Result<void*> register_device_memory(void* collective, void* data, size_t bytes,
                                               const gpu::DmaBuffer& memory) = 0;
  virtual void deregister_memory(void* collective, void* memory) = 0;

  /// Requests; null: there is no room for now. All members ask for the same.
  virtual Result<void*> all_reduce(void* collective, const CollectivePiece& send,
                                   const CollectivePiece& receive, size_t count,
                                   executor::DataType type, executor::ReduceOp operation) = 0;
  /// All receive the bytes of the member at `place`.
  virtual Result<void*> gather(void* collective, const CollectivePiece& send,
                               const CollectivePiece& receive, size_t bytes, int place) = 0;
  /// The member at `place` receives the reduction.
  virtual Result<void*> reduce_to(void* collective, const CollectivePiece& send,
                                  const CollectivePiece& receive, size_t bytes, int place,
                                  executor::DataType type, executor::ReduceOp operation) = 0;
  /// Is it done? A request that is done is gone.
  virtual Result<bool> test(void* request) = 0;
  virtual void close(void* collective) = 0;
  virtual void close_listener(void* listener) = 0;

  /// The one in that library. Errors: InvalidUsage where it has none, SystemError where none
  /// works: names it, the call and the remedy.
  static Result<std::shared_ptr<CollectiveNetwork>> open(
      const std::shared_ptr<PluginLibrary>& library, uint64_t communicator);

 protected:
  std::string name_;
  std::string origin_;
  std::string device_;
  size_t most_bytes_ = 0;
};

}  // namespace niccolite::transport::net
