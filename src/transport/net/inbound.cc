#include "transport/net/inbound.h"

#include <algorithm>

#include "base/log.h"

namespace niccolite::transport::net {
namespace {

// Parts are acknowledged with the next credit; without waiting for that when the sender's slots may
// run short, and when nothing moves. Of a FIFO never more than half is kept back for longer than
// until tell_soon().
constexpr uint64_t kMostUnacknowledged = 4;
constexpr uint64_t kMostUnacknowledgedBytes = 512 << 10;
constexpr int kIdleLooks = 4;

}  // namespace

Inbound::Inbound(wire::EventLoop& loop, Options options)
    : loop_(loop), options_(std::move(options)), most_unacknowledged_(kMostUnacknowledged) {}

void Inbound::add(const Key& key, Incoming& end) {
  ends_.emplace(key, &end);
  most_unacknowledged_ = std::clamp<uint64_t>(end.depth() / 2, 1, most_unacknowledged_);
}

Inbound::~Inbound() {
  for (const auto& [number, flow] : flows_) loop_.cancel(flow.awaited);
}

void Inbound::welcome(wire::Link::Stream from) {
  if (unnamed_.size() >= kMostStreams) unnamed_.erase(unnamed_.begin());
  Result<std::unique_ptr<Stream>> stream = Stream::create(loop_, std::move(from), *this);
  // The peer finds its connection closed, and tries again.
  if (!stream.is_ok()) return;
  unnamed_.push_back(std::move(stream).take());
  unnamed_.back()->set_pulse(options_.pulse->heard());
  unnamed_.back()->flush();
}

std::unique_ptr<Stream> Inbound::take_unnamed(const Stream& stream) {
  const auto found = std::ranges::find_if(
      unnamed_, [&](const std::unique_ptr<Stream>& own) { return own.get() == &stream; });
  std::unique_ptr<Stream> taken = std::move(*found);
  unnamed_.erase(found);
  return taken;
}

Status Inbound::stream_frame(Stream& stream, const Frame& frame) {
  has_moved_ = true;
  if ((frame.kind == FrameKind::Begin) != (stream.label() < 0))
    return Status::remote_error("it begins a stream with a frame of kind {}, or twice",
                                static_cast<int>(frame.kind));
  if (frame.kind == FrameKind::Begin) {
    return begin(stream, frame);
  }
  Flow& flow = flows_.at(stream.label());
  heard_last_ = stream.label();
  if (frame.kind == FrameKind::Part) return accept(flow, frame);
  if (frame.kind == FrameKind::Ask) {
    acknowledge(flow);
    flow.connection->flush();
    for (const auto& [key, end] : ends_) end->tell_again();
    return {};
  }
  if (frame.kind == FrameKind::Want) {
    if (const auto found = ends_.find(key_of(frame)); found != ends_.end())
      found->second->want(frame.channel);
    return {};
  }
  if (options_.take_news &&
      (frame.kind == FrameKind::Credit || frame.kind == FrameKind::Acknowledge))
    return options_.take_news(frame);
  if (frame.kind != FrameKind::End)
    return Status::remote_error("it sends a frame of kind {} to a receiver",
                                static_cast<int>(frame.kind));
  flow.has_ended = true;
  return {};
}

Status Inbound::begin(Stream& stream, const Frame& frame) {
  if (frame.channel >= kMostStreams)
    return Status::remote_error("stream {} of at most {}", frame.channel, kMostStreams);
  const int label = static_cast<int>(frame.channel);
  std::unique_ptr<Stream> taken = take_unnamed(stream);
  const auto [found, is_first] = flows_.try_emplace(label);
  Flow& flow = found->second;
  if (!is_first && frame.step <= flow.number) {
    // Drops a stream that broke before it was read, and has been replaced since.
    stream.drop();
    ended_.push_back(std::move(taken));
    return {};
  }
  if (flow.connection != nullptr) {
    // The sender knows that the connection broke. From here on none of its bytes reaches a slot.
    flow.connection->drop();
    ended_.push_back(std::move(flow.connection));
  }
  loop_.cancel(flow.awaited);
  flow.connection = std::move(taken);
  flow.connection->set_label(label);
  flow.number = frame.step;
  heard_last_ = label;
  if (frame.step == 0) return {};
  acknowledge(flow);
  flow.connection->flush();
  for (const auto& [key, end] : ends_) end->tell_again();
  return {};
}

Status Inbound::accept(Flow& flow, const Frame& frame) {
  const auto found = ends_.find(key_of(frame));
  if (found == ends_.end())
    return Status::remote_error("it sends to a connection that there is not (tag {})", frame.tag);
  TRY(found->second->accept(frame));
  if (frame.length == 0) count(flow, frame);
  return {};
}

void Inbound::stream_arrived(Stream& stream, const Frame& frame) {
  has_moved_ = true;
  if (frame.kind == FrameKind::Part && frame.length > 0) count(flows_.at(stream.label()), frame);
}

void Inbound::count(Flow& flow, const Frame& frame) {
  ends_.at(key_of(frame))->arrived(frame);
  ++flow.received;
  flow.unacknowledged_bytes += frame.length;
  flow.is_awaited |= frame.flags == kAtOnce;
}

Frame Inbound::acknowledgement(Flow& flow) {
  flow.acknowledged = flow.received;
  flow.unacknowledged_bytes = 0;
  flow.is_awaited = false;
  flow.is_told = true;
  return {.kind = FrameKind::Acknowledge, .step = flow.received};
}

void Inbound::acknowledge(Flow& flow) { flow.connection->send({.frame = acknowledgement(flow)}); }

void Inbound::stream_ended(Stream& stream, Stream::End how, Status why) {
  if (stream.label() < 0) {
    ended_.push_back(take_unnamed(stream));
    if (how == Stream::End::Refused)
      options_.fail(std::move(why).with_context("the connection from {} broke", options_.peer));
    return;
  }
  Flow& flow = flows_.at(stream.label());
  ended_.push_back(std::move(flow.connection));
  if (flow.has_ended) return;
  if (how == Stream::End::Finished) why = Status::remote_error("it was closed");
  auto reason = std::make_shared<Status>(
      std::move(why).with_context("the connection from {} broke", options_.peer));
  if (how == Stream::End::Refused) return options_.fail(std::move(*reason));
  LOG(Info, Net, "NET/Socket : {}; it should be replaced", reason->message());
  flow.awaited =
      loop_.after(options_.patience, [this, reason] { not_replaced(reason->message()); });
}

// The sender does without the stream while it has others, or fails itself (Outbound::give_up).
void Inbound::not_replaced(const std::string& reason) {
  const auto is_there = [](const auto& of) { return of.second.connection != nullptr; };
  if (std::ranges::any_of(flows_, is_there)) {
    LOG(Info, Net, "NET/Socket : one stream less: {}, and was not replaced", reason);
    return;
  }
  options_.fail(Status::remote_error("{}, and was not replaced within {} s", reason,
                                     std::chrono::duration<double>(options_.patience).count()));
}

bool Inbound::progress() {
  ended_.clear();
  const bool moved = std::exchange(has_moved_, false);
  using enum Incoming::Credit;
  if (options_.keeps_back) return tell({.credit = Wanted, .least_parts = UINT64_MAX}) || moved;
  const bool told =
      tell({.credit = All, .least_parts = idle_ == kIdleLooks ? 1 : most_unacknowledged_});
  idle_ = moved || told ? 0 : std::min(idle_ + 1, kIdleLooks);
  return moved || told;
}

void Inbound::tell_soon() {
  tell({.credit = Incoming::Credit::Half, .least_parts = most_unacknowledged_});
}

void Inbound::settle() { tell({.credit = Incoming::Credit::All, .least_parts = 1}); }

// Returns the unacknowledged parts of all streams together. Slots are freed in order, regardless of
// the stream that brought their parts.
uint64_t Inbound::kept_back() const {
  uint64_t parts = 0;
  for (const auto& [number, flow] : flows_)
    if (flow.connection != nullptr) parts += flow.received - flow.acknowledged;
  return parts;
}

bool Inbound::collect_credit(Incoming::Credit which,
                             const std::function<void(const Frame&)>& queue) {
  bool any = false;
  for (const auto& [key, end] : ends_)
    any |= end->collect(which, [&](Frame frame) {
      if (options_.keeps_back) frame.call = kMoreLater;
      queue(frame);
    });
  return any;
}

void Inbound::give_news(const std::function<void(const Frame&)>& queue) {
  using enum Incoming::Credit;
  const bool is_due = kept_back() >= most_unacknowledged_;
  if (!collect_credit(is_due ? All : Half, queue) && !is_due) return;
  for (auto& [number, flow] : flows_) {
    if (flow.connection == nullptr || flow.received == flow.acknowledged) continue;
    Frame frame = acknowledgement(flow);
    frame.flags = kBehindPart;
    frame.channel = static_cast<uint32_t>(number);
    queue(frame);
  }
}

void Inbound::tell_again() {
  for (const auto& [key, end] : ends_) end->tell_again();
  for (auto& [number, flow] : flows_) flow.is_told = flow.acknowledged == 0;
}

bool Inbound::tell(Due due) {
  // Credit goes by the stream that was heard last: that way surely works.
  const auto is_ready = [](const auto& flow) {
    return flow.second.connection != nullptr && flow.second.connection->wants_more();
  };
  auto ready = flows_.find(heard_last_);
  if (ready == flows_.end() || !is_ready(*ready)) ready = std::ranges::find_if(flows_, is_ready);
  if (ready == flows_.end()) return false;
  bool is_urgent = kept_back() >= due.least_parts;
  for (const auto& [number, flow] : flows_)
    is_urgent |=
        flow.connection != nullptr &&
        (flow.is_awaited || !flow.is_told || flow.unacknowledged_bytes >= kMostUnacknowledgedBytes);
  // If something has to be told, all is.
  const bool has_credit =
      collect_credit(is_urgent ? Incoming::Credit::All : due.credit,
                     [&](const Frame& frame) { ready->second.connection->send({.frame = frame}); });
  bool any = has_credit;
  for (auto& [number, flow] : flows_) {
    if (flow.connection == nullptr) continue;
    const bool has_news = flow.received > flow.acknowledged || !flow.is_told;
    if (has_news && (has_credit || is_urgent))
      acknowledge(flow);
    else if (!has_credit || number != ready->first)
      continue;
    flow.connection->flush();
    any = true;
  }
  return any;
}

void Inbound::finish() {
  for (auto& [number, flow] : flows_) {
    if (flow.connection == nullptr) continue;
    flow.connection->send({.frame = {.kind = FrameKind::End}});
    flow.connection->flush();
  }
}

}  // namespace niccolite::transport::net
