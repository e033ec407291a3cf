// Gin: the networking that kernels of one device communicator start by themselves, by proxy.
// Kernels write descriptors (gin_descriptor.h) into queues in host memory, one for each context and
// peer; a thread of this rank carries them out: copies between windows, by the mappings that
// windows have, and additions to signals, which are words in host memory that all ranks map.
//
//   put, get   copies on a stream of the proxy's; done when the stream is
//   signal     after all earlier operations of its queue: every signal is a strong one
//   counter    after the operation itself
//
// The consumer's index of a queue advances in order, and after a failure, too: operations are then
// dropped, so that no kernel spins on a full queue for ever. A failure is told once.
//
// Thread safety: create(), connect() and start() by one thread; then only the destructor, which
// ends the thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/thread.h"
#include "gpu/streams.h"
#include "registry/gin_memory.h"
#include "registry/windows.h"

namespace niccolite::registry {

class Gin {
 public:
  struct Parts {
    gpu::Machine& machine;
    int device;
    int rank;
    int nranks;
    Windows& windows;                  // outlives this
    std::function<void(Status)> fail;  // called at most once, on the proxy's thread
  };
  using Name = GinMemory::Name;
  static Result<std::unique_ptr<Gin>> create(Parts parts, const GinNeeds& needs,
                                             bool has_other_processes);
  ~Gin();
  Gin(const Gin&) = delete;

  GinMemory& memory() { return *memory_; }
  /// `state`: GinMemory::state_bytes(), which begins with the contexts' structs afterwards.
  Status start(std::byte* state);

 private:
  struct Item {
    size_t queue;
    GinDescriptor descriptor;
    std::shared_ptr<const Window> windows[2];  // stay until the copy is done
  };

  Gin(Parts parts, const GinNeeds& needs, std::unique_ptr<GinMemory> memory);
  void serve();
  bool look();
  Status issue(Item& item, size_t place, bool& has_copied);
  Status complete(const Item& item);
  Status add_in_memory(const Item& item);
  Result<std::byte*> find(uint64_t window, uint64_t offset, uint64_t bytes, int peer,
                          std::shared_ptr<const Window>& keeps) const;
  void report(const Item& item, Status status);
  int context_of(const Item& item) const { return static_cast<int>(item.queue) / parts_.nranks; }
  int peer_of(const Item& item) const { return static_cast<int>(item.queue) % parts_.nranks; }

  const Parts parts_;
  const GinNeeds needs_;
  const std::unique_ptr<GinMemory> memory_;
  gpu::Stream stream_;
  std::vector<uint32_t> next_;  // by queue
  std::vector<Item> batch_;
  size_t first_queue_ = 0;  // takes turns
  bool has_failed_ = false;
  std::atomic<bool> stops_{false};
  Thread thread_;
};

}  // namespace niccolite::registry
