// Streams: streams, events, and the copies and host calls that are queued on streams. Thread
// safety: any thread, as all of Machine (machine.h).
//
// Handles that cross the C API are the caller's: `StreamHandle` is a cudaStream_t (equal to a
// CUstream), null for the legacy default stream, 1 and 2 for CUDA's special handles
// cudaStreamLegacy and cudaStreamPerThread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "base/wait.h"
#include "gpu/owner.h"

namespace niccolite::gpu {

using StreamHandle = void*;

class Streams;

class Stream : public Owner<Streams, Stream> {
 public:
  using Owner<Streams, Stream>::Owner;

 private:
  friend Owner<Streams, Stream>;
  static Status give_back(Streams& from, void* handle);
};

class Event : public Owner<Streams, Event> {
 public:
  using Owner<Streams, Event>::Owner;

 private:
  friend Owner<Streams, Event>;
  static Status give_back(Streams& from, void* handle);
};

/// The work that this process has queued on a device by some moment (Streams::backlog()).
class Backlog {
 public:
  virtual ~Backlog() = default;
  /// Waits until it is done: true, or false at the deadline. Disturbs no capture. Thread safety:
  /// one thread at a time.
  virtual Result<bool> await(Deadline deadline) = 0;
};

class Streams {
 public:
  virtual Result<Stream> create_stream(
      int device) = 0;  // does not synchronise with the legacy default stream
  virtual Status synchronize_stream(int device, StreamHandle stream) = 0;
  /// True when all work queued before the call is done.
  virtual Result<bool> query_stream(int device, StreamHandle stream) = 0;
  /// Names the stream that `stream` means to the calling thread: two handles of the legacy stream
  /// have one id, each thread's default stream has its own, and a new stream never has the id of
  /// one that is gone, though it may have its handle. A stream that is capturing must not be asked:
  /// that is refused, and invalidates its capture.
  virtual Result<uint64_t> stream_id(int device, StreamHandle stream) = 0;
  virtual Result<Event> create_event(int device, bool timing) = 0;
  virtual Status record_event(const Event& event, int device, StreamHandle stream) = 0;
  virtual Status wait_event(int device, StreamHandle stream, const Event& event) = 0;
  virtual Status synchronize_event(const Event& event) = 0;
  /// Waits until the work that `event` recorded last is done: true, or false at the deadline.
  /// Disturbs no capture, whosever it is.
  virtual Result<bool> await_event(const Event& event, Deadline deadline) = 0;
  virtual Result<float> elapsed_milliseconds(const Event& start, const Event& stop) = 0;
  virtual Status copy_async(void* target, const void* source, size_t bytes, int device,
                            StreamHandle stream) = 0;
  virtual Status set_async(void* target, uint8_t value, size_t bytes, int device,
                           StreamHandle stream) = 0;
  /// Calls function(data) on a host thread when the stream gets there. It must not call the GPU.
  virtual Status call_host(int device, StreamHandle stream, void (*function)(void*),
                           void* data) = 0;

  /// Returns the work of all streams of `device`, also of streams that are gone. On CUDA not
  /// possible while a stream of the device is capturing: it is refused, and all such captures are
  /// invalidated. With drivers before CUDA 12.5, a capture that begins a moment later is, too.
  virtual Result<std::shared_ptr<Backlog>> backlog(int device) = 0;
  /// Awaits the work that is queued now.
  Result<bool> drain(int device, Deadline deadline) {
    return TRY(backlog(device))->await(deadline);
  }

 protected:
  friend class Stream;
  friend class Event;
  ~Streams() = default;
  virtual Status release_stream(void* handle) = 0;
  virtual Status release_event(void* handle) = 0;
};

}  // namespace niccolite::gpu
