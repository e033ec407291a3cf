// InFlight: the buffers of operations that a stream has not finished yet. Each communicator has
// one.
//
// An event behind every operation would cost more than the operation, so buffers are kept in
// batches: one event stands behind a batch of kBatch, and later calls look whether the oldest is
// done. Buffers of operations in a CUDA graph, which may be launched at any time, stay until the
// end. Thread safety: the GIL must be held.
#pragma once

#include <array>
#include <deque>
#include <span>
#include <vector>

#include "buffer.h"
#include "devices.h"

namespace niccolite::python {

class InFlight {
 public:
  ~InFlight() { clear(); }

  /// Keeps the buffers of one operation, which has been queued on `stream`. `may_mark`: all
  /// operations of the communicator so far are on their streams.
  void keep(std::array<Buffer, 2>& buffers, Stream stream, bool may_mark);
  /// Keeps one of a call that failed or was interrupted: its operation may be queued, and go on.
  void keep_cut_off(Buffer buffer) { cut_off_.push_back(std::move(buffer)); }
  /// Buffers that stay at least until the next operation is kept.
  std::span<const Buffer> newest() const { return open_; }
  /// Everything is done, or will never be.
  void clear();
  /// Nobody will end the communicator: buffers that operations of failed calls may use are never
  /// freed.
  void abandon();

 private:
  static constexpr size_t kBatch = 16;
  struct Batch {
    std::vector<Event> events;  // one for each of its streams
    std::vector<Buffer> buffers;
  };
  bool is_kept_already(const Buffer& buffer) const;
  void mark();
  void drop_finished();

  std::vector<Buffer> open_;
  std::vector<Stream> streams_;  // of open_
  std::deque<Batch> marked_;
  std::vector<Buffer> to_the_end_;  // in graphs, or behind no event
  std::vector<Buffer> cut_off_;
};

}  // namespace niccolite::python
