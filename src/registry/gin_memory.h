// GinMemory: the host memory by which the kernels of one rank reach their proxy (gin.h): queues of
// descriptors, signals, counters. Ranks of one machine map each other's.
//
// Thread safety: create(), connect() and write_contexts() by one thread; then take() and
// give_back() by the proxy's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/wire.h"
#include "registry/gin_descriptor.h"
#include "transport/descriptor_server.h"
#include "transport/imports.h"
#include "transport/pool.h"

namespace niccolite::registry {

inline constexpr size_t kGinBatch = 64;    // operations of a proxy under way at a time
inline constexpr uint64_t kGinLine = 128;  // bytes: each list begins with a line of its own
constexpr uint64_t gin_aligned(uint64_t bytes) {
  return (bytes + kGinLine - 1) / kGinLine * kGinLine;
}

struct GinNeeds {
  int contexts = 0;  // 0: no networking
  int signals = 0;   // of each context
  int counters = 0;
  uint32_t depth = 64;       // of a queue: a power of two
  size_t context_bytes = 0;  // of the struct that kernels have of a context
};

class GinMemory {
 public:
  /// Signals of a rank, as the others find them.
  struct Name {
    std::string address;  // of the descriptor server; empty within a process
    transport::Token token{};
    uint64_t chunk_bytes = 0;
    uint64_t offset = 0;

    void encode(Writer& writer) const;
    static Name decode(Reader& reader);
  };

  /// At offsets that are the same on all ranks of a machine.
  struct Layout {
    uint64_t signals = 64;  // behind the word that locks signals in memory
    uint64_t counters, consumed, staging, queues, bytes;
    Layout(const GinNeeds& needs, int nranks);
  };

  static Result<std::unique_ptr<GinMemory>> create(gpu::Machine& machine, const GinNeeds& needs,
                                                   int nranks, bool has_other_processes);
  ~GinMemory();
  GinMemory(const GinMemory&) = delete;

  const Name& name() const { return name_; }
  const Layout& layout() const { return layout_; }
  /// Maps the memory of a rank of this machine.
  Status connect(int peer, const Name& name, bool is_here);
  /// Null: connect() was not called for this rank.
  std::byte* of(int peer) const { return peers_[static_cast<size_t>(peer)]; }
  std::byte* data() const { return memory_.data(); }
  template <typename T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }

  /// Device memory of contexts: zeros, which the caller owns.
  static uint64_t state_bytes(const GinNeeds& needs, int nranks);
  /// `state`: that memory, which begins with the contexts' structs afterwards.
  Status write_contexts(int device, std::byte* state) const;

  /// Takes the descriptor with this number out of a queue, if it is there.
  std::optional<GinDescriptor> take(size_t queue, uint32_t number,
                                    const std::atomic<bool>& stops) const;
  /// The oldest operation of the queue that was taken is done.
  void give_back(size_t queue) const;

 private:
  GinMemory(gpu::Machine& machine, const GinNeeds& needs, int nranks);

  gpu::Machine& machine_;
  const GinNeeds needs_;
  const int nranks_;
  const Layout layout_;
  transport::Share share_;
  transport::Span memory_;
  Name name_;
  std::shared_ptr<transport::DescriptorServer> server_;
  std::vector<std::byte*> peers_;  // their memory, in this process
  std::vector<std::shared_ptr<transport::Chunk>> chunks_;
  std::vector<std::shared_ptr<transport::Import>> imports_;
};

}  // namespace niccolite::registry
