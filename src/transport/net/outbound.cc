#include "transport/net/outbound.h"

#include <algorithm>

#include "base/parameters.h"

namespace niccolite::transport::net {

using bootstrap::Link;

namespace {

// Several streams share the parts of a chunk.
constexpr uint32_t kPartOfSeveral = 64 << 10;
constexpr size_t kMostGrants = 1 << 16;  // connections and channels of a pair

}  // namespace

Outbound::~Outbound() {
  for (const auto id : retries_) loop_.cancel(id);
  for (Dialing& dialing : dialing_) Link::bury(loop_, std::move(dialing.link));
}

void Outbound::add(const Key& key, Outgoing& end) {
  ends_.emplace(key, &end);
  for (const auto& [of, limit] : limits_)
    if (of.first == key) end.grant(of.second, limit);
}

void Outbound::reach(const Address& address) {
  if (is_dialed_) return;
  is_dialed_ = true;
  address_ = address;
  for (int i = 0; i < options_.streams; ++i) dial(0);
}

void Outbound::dial(int attempts) {
  Result<std::unique_ptr<Link>> link =
      Link::dial(loop_, address_, options_.number, options_.link, *this);
  if (!link.is_ok()) return retry(attempts + 1, link.status());
  dialing_.push_back({.link = std::move(link).take(), .attempts = attempts + 1});
}

void Outbound::retry(int attempts, const Status& why) {
  if (is_finishing_) return;
  if (options_.has_left()) return abandon_ends();
  if (attempts > parameters::socket_retry_count())
    return options_.fail(Status::remote_error(
        "cannot connect to {}, whose connections are awaited at {}: {}. Can this host reach that "
        "address (NCCL_SOCKET_IFNAME, firewalls)?",
        options_.peer, address_.text(), why.message()));
  const auto wait = std::chrono::milliseconds(parameters::socket_retry_sleep() * attempts);
  const auto id = std::make_shared<bootstrap::EventLoop::Id>();
  *id = loop_.after(wait, [this, id, attempts] {
    retries_.erase(*id);
    dial(attempts);
  });
  retries_.insert(*id);
}

Outbound::Dialing Outbound::take(Link& link) {
  const auto found = std::ranges::find_if(
      dialing_, [&](const Dialing& dialing) { return dialing.link.get() == &link; });
  Dialing taken = std::move(*found);
  dialing_.erase(found);
  return taken;
}

void Outbound::link_opened(Link& link) {
  Dialing dialing = take(link);
  Result<std::unique_ptr<Stream>> stream = Stream::create(loop_, link.release(), *this);
  Link::bury(loop_, std::move(dialing.link));
  if (!stream.is_ok()) return retry(dialing.attempts, stream.status());
  Stream& opened = *stream.value();
  streams_.push_back(std::move(stream).take());
  opened.send({.frame = {.kind = FrameKind::Begin}});
  opened.flush();
  if (is_finishing_) opened.finish();
}

void Outbound::link_ended(Link& link, Link::End, Status reason) {
  Dialing dialing = take(link);
  Link::bury(loop_, std::move(dialing.link));
  retry(dialing.attempts, reason);
}

Result<std::byte*> Outbound::stream_frame(Stream&, const Frame& frame) {
  if (frame.kind != FrameKind::Credit)
    return Status::remote_error("it sends a frame of kind {} to a sender",
                                static_cast<int>(frame.kind));
  if (limits_.size() >= kMostGrants)
    return Status::remote_error("it grants credit for over {} channels", kMostGrants);
  uint64_t& limit = limits_[{key_of(frame), frame.channel}];
  limit = std::max(limit, frame.step);
  if (const auto found = ends_.find(key_of(frame)); found != ends_.end())
    found->second->grant(frame.channel, limit);
  has_moved_ = true;
  return nullptr;
}

void Outbound::stream_sent(const Part& part) {
  if (part.from != nullptr) part.from->sent(part.frame);
  has_moved_ = true;
}

void Outbound::stream_ended(Stream& stream, Status why) {
  const auto found = std::ranges::find_if(
      streams_, [&](const std::unique_ptr<Stream>& own) { return own.get() == &stream; });
  ended_.push_back(std::move(*found));
  streams_.erase(found);
  // Who ends its side in order has left, and needs nothing more.
  abandon_ends();
  if (!why.is_ok() && !is_finishing_)
    options_.fail(std::move(why).with_context("the connection to {} broke", options_.peer));
}

void Outbound::abandon_ends() {
  for (const auto& [key, end] : ends_) end->abandon();
}

bool Outbound::progress() {
  ended_.clear();
  if (streams_.empty()) return false;
  bool moved = std::exchange(has_moved_, false);
  const uint32_t part_bytes = options_.streams > 1 ? kPartOfSeveral : UINT32_MAX;
  for (const auto& [key, end] : ends_)
    moved |= end->collect(part_bytes, [this](const Part& part) { waiting_.push_back(part); });
  for (size_t i = 0; i < streams_.size(); ++i) {  // a stream that ends leaves the list
    Stream& stream = *streams_[i];
    while (!waiting_.empty() && stream.wants_more()) {
      stream.send(waiting_.front());
      waiting_.pop_front();
    }
    stream.flush();
  }
  return moved;
}

void Outbound::finish() {
  is_finishing_ = true;
  for (const auto id : retries_) loop_.cancel(id);
  retries_.clear();
  for (Dialing& dialing : dialing_) Link::bury(loop_, std::move(dialing.link));
  dialing_.clear();
  const size_t count = streams_.size();
  for (size_t i = count; i-- > 0;) streams_[i]->finish();
}

}  // namespace niccolite::transport::net
