// Signals: one rank's counters of signals (executor/protocol/signal.h): a line for each peer, in
// shareable device memory, which the peers store to. As with connections (Endpoint), a rank asks a
// peer for the lines at their first use. The peer answers from a thread of its own, so that the
// wait is for the peer's process but never for its calls. A communicator that sends no signals has
// no lines.
//
// Lines stay when a communicator is suspended: a signal that has arrived is not lost. Thread
// safety: remote_line() by one thread at a time; all others by any at any time.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "base/thread_annotations.h"
#include "executor/protocol/signal.h"
#include "transport/descriptor_server.h"
#include "transport/endpoint.h"
#include "transport/imports.h"

namespace niccolite::transport {

class Signals {
 public:
  /// `member` is null for one rank; it outlives the signals, as `machine` does. `ask` is used in
  /// remote_line() only.
  Signals(gpu::Machine& machine, int device, const bootstrap::Member* member, Endpoint::Ask ask);
  ~Signals();
  Signals(const Signals&) = delete;

  int rank() const { return member_ != nullptr ? member_->rank() : 0; }
  /// Returns this rank's line for `peer`. Any thread.
  Result<executor::SignalLine*> line_of(int peer) EXCLUDES(mutex_);
  /// The line that `peer` has for this rank, at its address in this process.
  Result<executor::SignalLine*> remote_line(int peer, const Deadline& deadline);
  /// A peer asks for its line.
  Result<Bytes> answer(int from, std::span<const std::byte> request) EXCLUDES(mutex_);
  /// Device memory of the lines, which stay while connections are suspended.
  size_t allocated_bytes() EXCLUDES(mutex_) {
    std::lock_guard lock(mutex_);
    return share_.bytes();
  }

 private:
  struct Remote {  // one of the two keeps the line mapped
    std::shared_ptr<Chunk> shared;
    std::shared_ptr<Import> imported;
    executor::SignalLine* line = nullptr;
  };
  int nranks() const { return member_ != nullptr ? member_->nranks() : 1; }
  Result<Span> lines() EXCLUDES(mutex_);

  gpu::Machine& machine_;
  const int device_;
  const bootstrap::Member* const member_;
  const Endpoint::Ask ask_;
  std::map<int, Remote> remotes_;  // remote_line() only
  std::mutex mutex_;
  std::shared_ptr<DescriptorServer> server_ GUARDED_BY(mutex_);
  Share share_ GUARDED_BY(mutex_);
  Span lines_ GUARDED_BY(mutex_);  // of all ranks; no chunk before they are needed
};

}  // namespace niccolite::transport
