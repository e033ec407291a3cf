// Import: a chunk of another process, mapped for one GPU of this process, or, if it is host memory,
// for all of them (device -1). All communicators that have connections in the chunk share one
// mapping, as they share the chunk at its owner (pool.h).
//
// An import is suspended together with its chunk. Its users register, and while there is none, the
// mapping lets go of the owner's memory, but its addresses stay taken. Thread safety: any thread.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/thread_annotations.h"
#include "base/wait.h"
#include "gpu/sharing.h"
#include "transport/pool.h"

namespace niccolite::transport {

/// The place at which another process keeps a chunk.
struct Origin {
  std::string address;  // of its descriptor server
  Token token{};
  size_t bytes = 0;
};

class Import {
 public:
  /// The process's one mapping of a chunk for a device.
  struct Entry;

  /// Returns the process's mapping of that chunk for `device`, and makes it if there is none yet.
  /// The caller counts as a user until suspend() or leave(). `kept`: the chunk's descriptor, if it
  /// is here already; otherwise the owner's process sends it.
  static Result<std::shared_ptr<Import>> open(gpu::Sharing& sharing, int device,
                                              const Origin& origin, const Deadline& deadline,
                                              Fd kept = {});

  std::byte* data() const { return static_cast<std::byte*>(memory_.data()); }
  size_t bytes() const { return memory_.bytes(); }

  /// The caller's connections are suspended; their owner suspends its memory afterwards.
  Status suspend() EXCLUDES(mutex_);
  /// The owner's memory is there again: maps it at the same addresses.
  Status resume(const Deadline& deadline) EXCLUDES(mutex_) { return resume({}, deadline); }
  /// The caller ends.
  void leave() EXCLUDES(mutex_);

 private:
  Status resume(Fd kept, const Deadline& deadline) EXCLUDES(mutex_);

  Import(gpu::Sharing& sharing, Origin origin, gpu::Memory memory, std::shared_ptr<Entry> place)
      : sharing_(sharing),
        origin_(std::move(origin)),
        place_(std::move(place)),
        memory_(std::move(memory)) {}

  gpu::Sharing& sharing_;
  const Origin origin_;
  const std::shared_ptr<Entry> place_;  // the table has it for as long as somebody may ask
  gpu::Memory memory_;
  std::mutex mutex_;
  size_t users_ GUARDED_BY(mutex_) = 0;
  bool is_new_ GUARDED_BY(mutex_) = true;  // nobody has used it yet
};

}  // namespace niccolite::transport
