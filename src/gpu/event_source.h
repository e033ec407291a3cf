// EventSource: a descriptor that the threads of a device wait for and serve on behalf of somebody
// else. Devices whose kernels run on threads (gpu/virtual) have such workers; others have none.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"

struct epoll_event;

namespace niccolite::gpu {

/// A source of data for kernels outside the process, with a descriptor that tells when data come: a
/// proxy of the network. While kernels wait and nothing else is to be done, a worker waits for the
/// descriptor and serves the source itself. So no other thread has to wake between the data and the
/// kernel. No function here waits longer than a moment, since one worker serves all sources.
/// Thread safety: one worker at a time.
class EventSource {
 public:
  /// Readable when there is something to do. The same for as long as the source is attached. Best
  /// an epoll, which is then mostly waited for itself; events of kForeign in it are none of the
  /// source's.
  virtual int descriptor() const = 0;
  static constexpr uint64_t kForeign = 0;
  /// Does all work that has come: `ready`, where the caller has waited for the epoll's events
  /// itself; else whatever the source finds. False: another thread is at it, and calls
  /// EventWorkers::wake() when it no longer is; until then nobody waits for the descriptor.
  virtual bool serve(std::span<const epoll_event> ready) = 0;
  /// Called when the serving thread has looked after all kernels, and waits: work that serve() has
  /// left for later is due.
  virtual void before_wait() = 0;
  /// From now on a worker waits for the descriptor: no thread of the source's own need do so ...
  virtual void begin_serving() = 0;
  /// ... until now. Kernels may have work for it again within microseconds.
  virtual void end_serving() = 0;

 protected:
  ~EventSource() = default;
};

/// The threads of a device that run its kernels. Thread safety: any thread.
class EventWorkers {
 public:
  /// Workers serve `source` until it is detached; then none is inside it any more.
  virtual Status attach(EventSource& source) = 0;
  virtual void detach(EventSource& source) = 0;
  /// Something that kernels may wait for has happened. Cheap when no worker sleeps over it. Also by
  /// a thread that serves.
  virtual void wake() = 0;

 protected:
  ~EventWorkers() = default;
};

}  // namespace niccolite::gpu
