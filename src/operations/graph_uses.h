// GraphUses: which graphs hold operations of one communicator. Its connections must live as long as
// any of them, since the program may launch them after it has destroyed the communicator
// (docs/design/failures.md). Thread safety: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "base/thread_annotations.h"
#include "gpu/graphs.h"

namespace niccolite::operations {

class GraphUses : public std::enable_shared_from_this<GraphUses> {
 public:
  /// Counts the graph that `stream` captures into until it, and all that is made of it, is
  /// destroyed. At least once for each capture.
  Status add(gpu::Graphs& machine, int device, gpu::StreamHandle stream);
  /// Has `release` called once when the last graph is destroyed, on a thread of its own: the GPU
  /// must not be called where graphs are. False: there is none now, and `release` is dropped.
  bool call_after_last(std::function<void()> release) EXCLUDES(mutex_);

 private:
  void remove() EXCLUDES(mutex_);

  std::mutex mutex_;
  uint64_t count_ GUARDED_BY(mutex_) = 0;
  std::function<void()> release_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::operations
