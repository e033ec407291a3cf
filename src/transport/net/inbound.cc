#include "transport/net/inbound.h"

#include <algorithm>

namespace niccolite::transport::net {

void Inbound::welcome(bootstrap::Link::Stream from) {
  if (streams_.size() >= kMostStreams) return;
  Result<std::unique_ptr<Stream>> stream = Stream::create(loop_, std::move(from), *this);
  if (!stream.is_ok()) return options_.fail(stream.status().copy());
  streams_.push_back({.stream = std::move(stream).take()});
  streams_.back().stream->flush();
}

std::vector<Inbound::Opened>::iterator Inbound::find(const Stream& stream) {
  return std::ranges::find_if(streams_,
                              [&](const Opened& opened) { return opened.stream.get() == &stream; });
}

Result<std::byte*> Inbound::stream_frame(Stream& stream, const Frame& frame) {
  has_moved_ = true;
  if (frame.kind == FrameKind::Begin) {
    find(stream)->has_begun = true;
    return nullptr;
  }
  if (frame.kind != FrameKind::Part)
    return Status::remote_error("it sends a frame of kind {} to a receiver",
                                static_cast<int>(frame.kind));
  const auto found = ends_.find(key_of(frame));
  if (found == ends_.end())
    return Status::remote_error("it sends to a connection that there is not (tag {})", frame.tag);
  std::byte* const place = TRY(found->second->place(frame));
  if (frame.length == 0) found->second->arrived(frame);
  return place;
}

void Inbound::stream_arrived(Stream&, const Frame& frame) {
  has_moved_ = true;
  if (frame.kind == FrameKind::Part && frame.length > 0) ends_.at(key_of(frame))->arrived(frame);
}

void Inbound::stream_ended(Stream& stream, Status why) {
  const auto found = find(stream);
  ended_.push_back(std::move(found->stream));
  streams_.erase(found);
  if (!why.is_ok())
    options_.fail(std::move(why).with_context("the connection from {} broke", options_.peer));
}

bool Inbound::progress() {
  ended_.clear();
  bool moved = std::exchange(has_moved_, false);
  const auto ready = std::ranges::find_if(streams_, [](const Opened& opened) {
    return opened.has_begun && opened.stream->wants_more();
  });
  if (ready == streams_.end()) return moved;
  Stream& stream = *ready->stream;
  bool has_credit = false;
  for (const auto& [key, end] : ends_)
    has_credit |= end->collect([&](const Frame& frame) { stream.send({.frame = frame}); });
  if (has_credit) stream.flush();
  return moved || has_credit;
}

}  // namespace niccolite::transport::net
