#include "transport/net/stream.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>

namespace niccolite::transport::net {
namespace {

constexpr int kTurns = 16;  // of receiving, before other streams have theirs

}  // namespace

Result<std::unique_ptr<Stream>> Stream::create(wire::EventLoop& loop, wire::Link::Stream from,
                                               Owner& owner) {
  std::unique_ptr<Stream> stream(new Stream(loop, std::move(from), owner));
  stream->watch_ =
      TRY(loop.watch_shared(stream->socket_.fd(), EPOLLIN,
                            [self = stream.get()](uint32_t events) { self->ready(events); }));
  return stream;
}

void Stream::send(const Part& part) {
  if (!can_send()) return;
  queue_.push_back(part);
  queued_bytes_ += part.frame.kind == FrameKind::Part ? part.frame.length : 0;
}

void Stream::finish() {
  is_finishing_ = true;
  flush();
}

void Stream::flush() {
  if (can_send() && !is_blocked_) push();
}

void Stream::push() {
  Status status = try_push();
  if (!status.is_ok()) stop_sending(std::move(status));
}

// The loop finds the socket ready, and receives the bytes that came before.
void Stream::stop_sending(Status why) {
  send_failure_ = std::move(why);
  preface_.clear();
  queue_.clear();
  socket_.shut_down();
}

Status Stream::try_push() {
  while (!preface_.empty() || !queue_.empty()) {
    std::array<iovec, Socket::kMostPieces> pieces;
    size_t count = 0;
    size_t total = 0;
    size_t skip = sent_;
    const auto add = [&](const void* data, size_t bytes) {
      const size_t skipped = std::min(skip, bytes);
      skip -= skipped;
      if (bytes == skipped) return;
      pieces[count++] = {
          .iov_base = const_cast<std::byte*>(static_cast<const std::byte*>(data)) + skipped,
          .iov_len = bytes - skipped};
      total += bytes - skipped;
    };
    if (!preface_.empty()) add(preface_.data(), preface_.size());
    for (const Part& part : queue_) {
      if (count + 2 > pieces.size()) break;
      add(&part.frame, sizeof part.frame);
      if (part.frame.kind == FrameKind::Part) add(part.payload(), part.frame.length);
    }
    const Transfer done = TRY(socket_.send(std::span<const iovec>(pieces).first(count)));
    advance(done.bytes);
    if (done.bytes < total) {
      update_watch(/*is_blocked=*/true);
      return {};
    }
  }
  update_watch(/*is_blocked=*/false);
  if (is_finishing_ && !has_finished_) {
    has_finished_ = true;
    socket_.end_sending();
  }
  return {};
}

// The kernel has taken that many of the queued bytes.
void Stream::advance(size_t bytes) {
  sent_ += bytes;
  if (!preface_.empty()) {
    if (sent_ < preface_.size()) return;
    sent_ -= preface_.size();
    preface_.clear();
  }
  while (!queue_.empty()) {
    const Part& first = queue_.front();
    const size_t payload = first.frame.kind == FrameKind::Part ? first.frame.length : 0;
    if (sent_ < sizeof first.frame + payload) return;
    sent_ -= sizeof first.frame + payload;
    queued_bytes_ -= payload;
    queue_.pop_front();
  }
}

void Stream::update_watch(bool is_blocked) {
  if (is_blocked == is_blocked_) return;
  is_blocked_ = is_blocked;
  loop_.change(watch_, is_blocked ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void Stream::ready(uint32_t events) {
  if (!is_open()) return;
  if ((events & EPOLLOUT) != 0 && can_send()) push();
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  Status status = receive();
  if (!status.is_ok()) end(is_refused_ ? End::Refused : End::Broken, std::move(status));
}

Status Stream::receive() {
  for (int turn = 0; turn < kTurns && is_open(); ++turn) {
    std::array<iovec, 2> pieces;
    size_t count = 0;
    if (missing_ > 0) pieces[count++] = {.iov_base = target(), .iov_len = missing_};
    pieces[count++] = {.iov_base = stage_.data() + staged_, .iov_len = stage_.size() - staged_};
    const Transfer got = TRY(socket_.receive(std::span<const iovec>(pieces).first(count)));
    if (!got.open) {
      if (missing_ > 0 || staged_ > 0)
        return Status::remote_error("it ended in the middle of a chunk");
      end(End::Finished, {});
      return {};
    }
    if (got.bytes == 0) return {};
    if (heard_ != nullptr)  // relaxed: a time, which publishes nothing
      heard_->store(wire::EventLoop::Clock::now().time_since_epoch().count(),
                    std::memory_order_relaxed);
    const size_t in_place = std::min(missing_, got.bytes);
    staged_ += got.bytes - in_place;
    if (in_place > 0) {
      missing_ -= in_place;
      if (missing_ == 0) owner_.stream_arrived(*this, frame_);
    }
    const bool was_all = got.bytes < (pieces[0].iov_len + (count > 1 ? pieces[1].iov_len : 0));
    Status status = take_staged();
    is_refused_ = !status.is_ok();
    TRY(std::move(status));
    if (was_all) return {};
  }
  return {};
}

// Frames that lie in stage_, and the beginning of the bytes of the last.
Status Stream::take_staged() {
  size_t at = 0;
  while (is_open() && missing_ == 0 && staged_ - at >= sizeof frame_) {
    std::memcpy(&frame_, stage_.data() + at, sizeof frame_);
    at += sizeof frame_;
    TRY(owner_.stream_frame(*this, frame_));
    if (frame_.kind != FrameKind::Part || !is_open()) continue;
    const size_t here = std::min<size_t>(frame_.length, staged_ - at);
    missing_ = frame_.length;
    if (here > 0) std::memcpy(target(), stage_.data() + at, here);
    at += here;
    missing_ -= here;
    if (missing_ == 0) owner_.stream_arrived(*this, frame_);
  }
  std::memmove(stage_.data(), stage_.data() + at, staged_ - at);
  staged_ -= at;
  return {};
}

void Stream::drop() {
  if (!is_open()) return;
  loop_.forget(watch_);
  watch_ = 0;
  socket_.close();
}

void Stream::end(End how, Status why) {
  if (!is_open()) return;
  drop();
  if (how != End::Refused && !send_failure_.is_ok())
    owner_.stream_ended(*this, End::Broken, std::move(send_failure_));
  else
    owner_.stream_ended(*this, how, std::move(why));
}

}  // namespace niccolite::transport::net
