// Streams: the order of work. Every stream is a chain of operations; the legacy default stream is a
// chain that each operation ties to all blocking streams of its device.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/per_thread.h"
#include "gpu/virtual/runtime.h"
#include "gpu/virtual/scheduler.h"

namespace niccolite::gpu::virtual_ {
namespace {

bool is_legacy_handle(StreamHandle stream) { return reinterpret_cast<uintptr_t>(stream) <= 1; }
bool is_thread_handle(StreamHandle stream) { return reinterpret_cast<uintptr_t>(stream) == 2; }

}  // namespace

// The calling thread's default streams, one per device that it used; retired when the thread ends.
struct Runtime::ThreadStreams {
  std::vector<std::shared_ptr<Stream>> by_device;
  ~ThreadStreams() {
    for (const std::shared_ptr<Stream>& stream : by_device)
      if (stream) instance()->retire(stream);
  }
};

std::shared_ptr<Stream> Runtime::thread_stream(int device) {
  ThreadStreams& mine = PerThread<ThreadStreams>::get();
  mine.by_device.resize(legacy_.size());
  std::shared_ptr<Stream>& stream = mine.by_device[static_cast<size_t>(device)];
  if (stream == nullptr) stream = add_stream(device, true, 0);
  return stream;
}

// Null for a handle that is not (any more) a stream, or one of another device.
std::shared_ptr<Stream> Runtime::find_stream(int device, StreamHandle handle) {
  if (!is_device(device)) return nullptr;
  if (is_legacy_handle(handle)) return legacy_[static_cast<size_t>(device)];
  if (is_thread_handle(handle)) return thread_stream(device);
  std::shared_ptr<Stream> stream = streams_.find(handle);
  return stream && stream->device == device ? stream : nullptr;
}

std::shared_ptr<Stream> Runtime::add_stream(int device, bool blocking, int priority) {
  auto stream = std::make_shared<Stream>();
  stream->device = device;
  stream->is_blocking = blocking;
  stream->priority = priority;
  // relaxed: only the number matters.
  stream->id = next_stream_id_.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  devices_[static_cast<size_t>(device)].streams.push_back(stream);
  return stream;
}

Error Runtime::create_stream(int device, bool blocking, int priority, StreamHandle* out) {
  if (!is_device(device)) return Error::InvalidDevice;
  *out = streams_.insert(add_stream(device, blocking, priority));
  return Error::None;
}

Error Runtime::destroy_stream(StreamHandle handle) {
  std::shared_ptr<Stream> stream = streams_.remove(handle);
  if (stream == nullptr) return Error::InvalidResourceHandle;
  retire(stream);
  return Error::None;
}

void Runtime::retire(const std::shared_ptr<Stream>& stream) {
  // Destroyed after the lock is given up, because that may call the user's functions.
  std::shared_ptr<Capture> abandoned;
  std::shared_ptr<Graph> abandoned_graph;
  std::lock_guard lock(mutex_);
  // A stream that has joined a capture may go: its work must be joined to the origin all the same.
  if (stream->capture && stream->capture->origin == stream.get()) {
    stream->capture->is_invalidated = true;
    abandoned = leave_capture(*stream);
    if (abandoned->owns_graph) {
      forget_handles(*abandoned->graph);
      abandoned_graph = graphs_.remove(abandoned->graph_handle);
    }
  }
  Device& device = devices_[static_cast<size_t>(stream->device)];
  std::erase(device.streams, stream);
  std::erase_if(device.orphans,
                [](const Device::Orphan& orphan) { return orphan.tail->is_done(); });
  if (stream->tail && !stream->tail->is_done())
    device.orphans.push_back({std::move(stream->tail), stream->is_blocking});
}

Error Runtime::stream_properties(int device, StreamHandle handle, Stream* out) {
  const std::shared_ptr<Stream> stream = is_legacy_handle(handle) || is_thread_handle(handle)
                                             ? find_stream(device, handle)
                                             : streams_.find(handle);
  if (stream == nullptr) return Error::InvalidResourceHandle;
  out->device = stream->device;
  out->is_legacy = stream->is_legacy;
  out->is_blocking = stream->is_blocking;
  out->priority = stream->priority;
  return Error::None;
}

Error Runtime::stream_id(int device, StreamHandle handle, uint64_t* out) {
  const std::shared_ptr<Stream> stream = find_stream(device, handle);
  if (stream == nullptr) return Error::InvalidResourceHandle;
  std::lock_guard lock(mutex_);
  if (stream->capture) {
    stream->capture->is_invalidated = true;
    return Error::StreamCaptureUnsupported;
  }
  *out = stream->id;
  return Error::None;
}

// Puts the part of a graph of operations that begins with `first` and ends with `last` at the end
// of the stream.
void Runtime::append(Stream& stream, const OperationPtr& first, const OperationPtr& last) {
  for (const OperationPtr& tail : tails_to_wait_for(stream)) Operation::after(first, tail);
  stream.tail = last;
}

// Returns the unfinished operations that work queued to `stream` now must wait for. For most
// streams it is at most one.
std::vector<OperationPtr> Runtime::tails_to_wait_for(Stream& stream) {
  std::vector<OperationPtr> tails;
  const auto take = [&tails](OperationPtr& tail) {
    if (tail == nullptr) return;
    if (tail->is_done()) {
      tail.reset();
    } else {
      tails.push_back(tail);
    }
  };
  take(stream.tail);
  Device& device = devices_[static_cast<size_t>(stream.device)];
  if (!stream.is_legacy) {
    if (stream.is_blocking) take(legacy_[static_cast<size_t>(stream.device)]->tail);
    return tails;
  }
  for (const std::shared_ptr<Stream>& other : device.streams)
    if (other->is_blocking) take(other->tail);
  for (const Device::Orphan& orphan : device.orphans)
    if (orphan.is_blocking && !orphan.tail->is_done()) tails.push_back(orphan.tail);
  return tails;
}

// The legacy stream waits for all blocking streams, so while one of them captures it cannot be
// used.
Error Runtime::check_usable(Stream& stream) {
  if (!scheduler().can_run()) return Error::InitializationError;
  if (stream.capture) return check_capture(stream);
  if (!stream.is_legacy || captures_.empty()) return Error::None;
  for (const std::shared_ptr<Stream>& other :
       devices_[static_cast<size_t>(stream.device)].streams) {
    if (!other->is_blocking || !other->capture) continue;
    other->capture->is_invalidated = true;
    return Error::StreamCaptureImplicit;
  }
  return Error::None;
}

Error Runtime::submit(int device, StreamHandle handle, Work work) {
  const std::shared_ptr<Stream> stream = find_stream(device, handle);
  if (stream == nullptr) return Error::InvalidResourceHandle;
  OperationPtr operation;
  {
    std::lock_guard lock(mutex_);
    TRY_VIRTUAL(check_usable(*stream));
    if (stream->capture) {
      capture_node(*stream, std::move(work));
      return Error::None;
    }
    operation = std::make_shared<Operation>(std::move(work));
    append(*stream, operation, operation);
  }
  scheduler().submit(std::move(operation));
  return Error::None;
}

Error Runtime::wait(const std::vector<OperationPtr>& operations, Deadline deadline) {
  if (operations.empty()) return Error::None;
  if (!scheduler().can_run()) return Error::InitializationError;
  auto latch = std::make_shared<Latch>();
  auto notify = std::make_shared<Operation>(Notify{latch});
  for (const OperationPtr& operation : operations) Operation::after(notify, operation);
  scheduler().submit(notify);
  if (deadline.at() == Deadline::Clock::time_point::max()) scheduler().help(*notify, *latch);
  return latch->wait(deadline) ? Error::None : Error::NotReady;
}

// To wait for a stream or to ask it is no work that a graph could hold; nor, on CUDA, is the launch
// of another graph.
Error Runtime::refuse_while_capturing(Stream& stream) {
  TRY_VIRTUAL(check_usable(stream));
  if (!stream.capture) return Error::None;
  stream.capture->is_invalidated = true;
  return Error::StreamCaptureUnsupported;
}

Error Runtime::synchronize_stream(int device, StreamHandle handle) {
  const std::shared_ptr<Stream> stream = find_stream(device, handle);
  if (stream == nullptr) return Error::InvalidResourceHandle;
  std::vector<OperationPtr> tails;
  {
    std::lock_guard lock(mutex_);
    TRY_VIRTUAL(refuse_while_capturing(*stream));
    tails = tails_to_wait_for(*stream);
  }
  return wait(tails);
}

Error Runtime::query_stream(int device, StreamHandle handle) {
  const std::shared_ptr<Stream> stream = find_stream(device, handle);
  if (stream == nullptr) return Error::InvalidResourceHandle;
  std::lock_guard lock(mutex_);
  TRY_VIRTUAL(refuse_while_capturing(*stream));
  return tails_to_wait_for(*stream).empty() ? Error::None : Error::NotReady;
}

std::vector<OperationPtr> Runtime::unfinished_tails(int number) {
  std::vector<OperationPtr> tails;
  const auto take = [&tails](const OperationPtr& tail) {
    if (tail && !tail->is_done()) tails.push_back(tail);
  };
  const Device& device = devices_[static_cast<size_t>(number)];
  for (const std::shared_ptr<Stream>& stream : device.streams) take(stream->tail);
  for (const Device::Orphan& orphan : device.orphans) take(orphan.tail);
  take(legacy_[static_cast<size_t>(number)]->tail);
  return tails;
}

Error Runtime::synchronize_device(int number) {
  if (!is_device(number)) return Error::InvalidDevice;
  std::vector<OperationPtr> tails;
  {
    std::lock_guard lock(mutex_);
    if (!captures_.empty()) {
      for (const std::shared_ptr<Stream>& stream : devices_[static_cast<size_t>(number)].streams)
        TRY_VIRTUAL(refuse_while_capturing(*stream));
    }
    tails = unfinished_tails(number);
  }
  return wait(tails);
}

Error Runtime::backlog(int device, std::function<Error(Deadline)>* await) {
  if (!is_device(device)) return Error::InvalidDevice;
  std::lock_guard lock(mutex_);
  *await = [tails = unfinished_tails(device)](Deadline deadline) { return wait(tails, deadline); };
  return Error::None;
}

Error Runtime::drain(int device, Deadline deadline) {
  std::function<Error(Deadline)> await;
  TRY_VIRTUAL(backlog(device, &await));
  return await(deadline);
}

Error Runtime::copy(int device, StreamHandle handle, Copy copy, bool waits) {
  if (is_empty(copy)) return submit(device, handle, Nothing{});
  const std::optional<size_t> target_bytes = target_span(copy);
  const std::optional<size_t> source_bytes = source_span(copy);
  if (!target_bytes || !source_bytes) return Error::InvalidValue;
  bool pageable_target = false;
  bool pageable_source = false;
  TRY_VIRTUAL(
      memory_.check_range(copy.target, *target_bytes, &pageable_target, Use::Write, &copy.place));
  TRY_VIRTUAL(memory_.check_range(copy.source, *source_bytes, &pageable_source));
  CaptureInfo capture;
  TRY_VIRTUAL(capture_info(device, handle, &capture));
  if (capture.state != CaptureState::None) {
    return waits ? check_waiting_call(device, handle) : submit(device, handle, std::move(copy));
  }
  if (waits || pageable_target) {
    TRY_VIRTUAL(submit(device, handle, std::move(copy)));
    return synchronize_stream(device, handle);
  }
  if (pageable_source) {
    copy.staged = std::make_shared_for_overwrite<std::byte[]>(*source_bytes);
    std::memcpy(copy.staged.get(), copy.source, *source_bytes);
    copy.source = copy.staged.get();
  }
  return submit(device, handle, std::move(copy));
}

Error Runtime::set(int device, StreamHandle handle, Set set, bool waits) {
  if (is_empty(set)) return submit(device, handle, Nothing{});
  const std::optional<size_t> bytes = target_span(set);
  if (!bytes) return Error::InvalidValue;
  bool pageable = false;
  TRY_VIRTUAL(memory_.check_range(set.target, *bytes, &pageable, Use::Write, &set.place));
  if (pageable) return Error::InvalidValue;
  TRY_VIRTUAL(waits ? check_waiting_call(device, handle) : Error::None);
  TRY_VIRTUAL(submit(device, handle, set));
  return waits ? synchronize_stream(device, handle) : Error::None;
}

Error Runtime::check_word(const void* address, size_t bytes, Use use, MulticastPlace* place) const {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0) return Error::InvalidValue;
  bool pageable = false;
  TRY_VIRTUAL(memory_.check_range(address, bytes, &pageable, use, place));
  return pageable ? Error::InvalidValue : Error::None;
}

Error Runtime::use_word(int device, StreamHandle handle, WaitValue wait) {
  TRY_VIRTUAL(check_word(wait.address, wait.bytes, Use::Read));
  return submit(device, handle, wait);
}

Error Runtime::use_word(int device, StreamHandle handle, WriteValue write) {
  TRY_VIRTUAL(check_word(write.address, write.bytes, Use::Write, &write.place));
  return submit(device, handle, write);
}

// A call that waits cannot be captured.
Error Runtime::check_waiting_call(int device, StreamHandle handle) {
  const std::shared_ptr<Stream> stream = find_stream(device, handle);
  if (stream == nullptr) return Error::InvalidResourceHandle;
  std::lock_guard lock(mutex_);
  return refuse_while_capturing(*stream);
}

}  // namespace niccolite::gpu::virtual_
