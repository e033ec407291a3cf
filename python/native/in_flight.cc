#include "in_flight.h"

#include <algorithm>
#include <utility>

namespace niccolite::python {

// A program's loop uses the same buffers again and again: they are kept once.
bool InFlight::is_kept_already(const Buffer& buffer) const {
  return std::any_of(open_.begin(), open_.end(), [&](const Buffer& kept) {
    return kept.object() == buffer.object() && buffer.is_within(kept);
  });
}

void InFlight::keep(std::array<Buffer, 2>& buffers, Stream stream, bool may_mark) {
  if (!marked_.empty()) drop_finished();
  const bool is_captured = devices().is_capturing(stream);
  for (Buffer& buffer : buffers) {
    if (buffer.object() == nullptr || buffer.count() == 0) continue;
    if (is_captured)
      to_the_end_.push_back(std::move(buffer));
    else if (!is_kept_already(buffer))
      open_.push_back(std::move(buffer));
  }
  if (is_captured || open_.empty()) return;
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end())
    streams_.push_back(stream);
  if (open_.size() >= kBatch && may_mark) mark();
}

void InFlight::mark() {
  // An event in a stream that is being captured would become a part of the graph.
  if (std::any_of(streams_.begin(), streams_.end(),
                  [](Stream stream) { return devices().is_capturing(stream); }))
    return;
  Batch batch;
  for (Stream stream : streams_) {
    Event event = devices().record(stream);
    if (event == nullptr) {  // the stream is gone, or the device has failed
      std::move(open_.begin(), open_.end(), std::back_inserter(to_the_end_));
      open_.clear();
      break;
    }
    batch.events.push_back(event);
  }
  batch.buffers = std::exchange(open_, {});
  streams_.clear();
  marked_.push_back(std::move(batch));
}

void InFlight::drop_finished() {
  while (!marked_.empty()) {
    Batch& oldest = marked_.front();
    while (!oldest.events.empty() && devices().is_done(oldest.events.back())) {
      devices().destroy(oldest.events.back());
      oldest.events.pop_back();
    }
    if (!oldest.events.empty()) return;
    const Batch done = std::move(oldest);  // dies last: a buffer's end may run Python
    marked_.pop_front();
  }
}

void InFlight::clear() {
  for (const Batch& batch : marked_)
    for (Event event : batch.events) devices().destroy(event);
  const auto marked = std::exchange(marked_, {});
  const auto open = std::exchange(open_, {});
  const auto to_the_end = std::exchange(to_the_end_, {});
  const auto cut_off = std::exchange(cut_off_, {});
  streams_.clear();
}

void InFlight::abandon() {
  if (!cut_off_.empty()) new std::vector<Buffer>(std::exchange(cut_off_, {}));
}

}  // namespace niccolite::python
