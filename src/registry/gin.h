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
#include <string>
#include <vector>

#include "base/thread.h"
#include "base/wait.h"
#include "base/wire.h"
#include "gpu/streams.h"
#include "registry/gin_descriptor.h"
#include "registry/windows.h"
#include "transport/imports.h"
#include "transport/pool.h"

namespace niccolite::registry {

struct GinNeeds {
  int contexts = 0;  // 0: no networking
  int signals = 0;   // of each context
  int counters = 0;
  uint32_t depth = 64;       // of a queue: a power of two
  size_t context_bytes = 0;  // of the struct that kernels have of a context
};

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
  /// Signals of a rank, as the others find them.
  struct Name {
    std::string address;  // of the descriptor server; empty within a process
    transport::Token token{};
    uint64_t chunk_bytes = 0;
    uint64_t offset = 0;

    void encode(Writer& writer) const;
    static Name decode(Reader& reader);
  };

  static Result<std::unique_ptr<Gin>> create(Parts parts, const GinNeeds& needs,
                                             bool has_other_processes);
  ~Gin();
  Gin(const Gin&) = delete;

  const Name& name() const { return name_; }
  Status connect(int peer, const Name& name, bool is_here);
  /// Device memory of contexts: zeros, which the caller owns.
  static uint64_t state_bytes(const GinNeeds& needs, int nranks);
  /// `state`: that memory, which begins with the contexts' structs afterwards.
  Status start(std::byte* state);

 private:
  /// The host memory of a rank, at offsets that are the same on all ranks.
  struct Layout {
    uint64_t signals = 64;  // behind the word that locks signals in memory
    uint64_t counters, cis, staging, queues, bytes;
    Layout(const GinNeeds& needs, int nranks);
  };
  struct Item {
    size_t queue;
    GinDescriptor descriptor;
    std::shared_ptr<const Window> windows[2];  // stay until the copy is done
  };

  Gin(Parts parts, const GinNeeds& needs);
  void serve();
  bool take(size_t queue);
  bool look();
  Status issue(Item& item, size_t place, bool& has_copied);
  Status complete(const Item& item);
  Status add_in_memory(const Item& item);
  Result<std::byte*> find(uint64_t window, uint64_t offset, uint64_t bytes, int peer,
                          std::shared_ptr<const Window>& keeps) const;
  void report(const Item& item, Status status);
  int context_of(const Item& item) const { return static_cast<int>(item.queue) / parts_.nranks; }
  int peer_of(const Item& item) const { return static_cast<int>(item.queue) % parts_.nranks; }
  template <typename T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }

  const Parts parts_;
  const GinNeeds needs_;
  const Layout layout_;
  transport::Share share_;
  transport::Span memory_;
  Name name_;
  std::shared_ptr<transport::DescriptorServer> server_;
  std::vector<std::byte*> peers_;  // their memory, in this process
  std::vector<std::shared_ptr<transport::Chunk>> chunks_;
  std::vector<std::shared_ptr<transport::Import>> imports_;
  gpu::Stream stream_;
  std::vector<uint32_t> next_;  // by queue: what cis says
  std::vector<Item> batch_;
  size_t first_queue_ = 0;  // takes turns
  bool has_failed_ = false;
  std::atomic<bool> stops_{false};
  Thread thread_;
};

}  // namespace niccolite::registry
