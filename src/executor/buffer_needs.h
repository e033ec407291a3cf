// BufferNeeds: the buffers that the works of a launch cannot do without, so that a launch with too
// few of them is refused before it is queued. Thread safety: immutable.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "executor/launch.h"

namespace niccolite::executor {

class BufferNeeds {
 public:
  BufferNeeds() = default;
  /// The needs of the launch's works, for any buffers. The launch is consistent: it has as many
  /// works as its program, or it is a list.
  explicit BufferNeeds(const Launch& launch);

  /// InternalError, naming the work and the buffer, when `buffers`, one for each work, lack one
  /// that the program has blocks of. (An empty message may have none.) What calls of users lack is
  /// found before; scratch buffers, for which only algorithms ask, communicators have
  /// (operations/scratch.h).
  Status check(std::span<const Buffers> buffers) const;

 private:
  struct OfWork {
    bool input = false;
    bool output = false;
    bool scratch = false;
  };
  std::vector<OfWork> works_;
};

}  // namespace niccolite::executor
