#include "transport/net/outbound.h"

#include <algorithm>

#include "base/log.h"
#include "base/parameters.h"

namespace niccolite::transport::net {

using bootstrap::Link;

namespace {

// Several streams share the parts of a chunk. What a connection that breaks has not carried as a
// whole is sent once more: a bound on that, too.
constexpr uint32_t kPartOfSeveral = 64 << 10;
constexpr uint32_t kPartOfOne = 256 << 10;
constexpr size_t kMostGrants = 1 << 16;  // connections and channels of a pair

}  // namespace

Outbound::Outbound(bootstrap::EventLoop& loop, Options options)
    : loop_(loop), options_(std::move(options)), lanes_(static_cast<size_t>(options_.streams)) {
  for (size_t i = 0; i < lanes_.size(); ++i) lanes_[i].number = static_cast<uint32_t>(i);
}

Outbound::~Outbound() {
  for (Lane& lane : lanes_) {
    loop_.cancel(lane.retry);
    Link::bury(loop_, std::move(lane.link));
  }
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
  for (Lane& lane : lanes_) dial(lane);
}

bool Outbound::has_streams() const {
  return std::ranges::any_of(
      lanes_, [](const Lane& lane) { return lane.connection != nullptr || lane.link != nullptr; });
}

void Outbound::dial(Lane& lane) {
  ++lane.attempts;
  Result<std::unique_ptr<Link>> link =
      Link::dial(loop_, address_, options_.number, options_.link, *this);
  if (!link.is_ok()) return retry(lane, link.status());
  lane.link = std::move(link).take();
}

// Connects once more, after a while if the last attempts brought nothing.
void Outbound::retry(Lane& lane, const Status& why) {
  if (is_finishing_) return;
  if (options_.has_left()) return abandon_ends();
  if (lane.attempts > parameters::socket_retry_count())
    return options_.fail(Status::remote_error(
        "cannot connect to {}, whose connections are awaited at {}: {}. Can this host reach that "
        "address (NCCL_SOCKET_IFNAME, firewalls)?",
        options_.peer, address_.text(), why.message()));
  const auto wait = std::chrono::milliseconds(parameters::socket_retry_sleep() * lane.attempts);
  lane.retry = loop_.after(wait, [this, &lane] { dial(lane); });
}

Outbound::Lane& Outbound::lane_of(const Link& link) {
  return *std::ranges::find_if(lanes_, [&](const Lane& lane) { return lane.link.get() == &link; });
}

void Outbound::link_opened(Link& link) {
  Lane& lane = lane_of(link);
  Result<std::unique_ptr<Stream>> opened = Stream::create(loop_, link.release(), *this);
  Link::bury(loop_, std::move(lane.link));
  if (!opened.is_ok()) return retry(lane, opened.status());
  lane.connection = std::move(opened).take();
  lane.connection->set_label(static_cast<int>(lane.number));
  lane.is_ready = lane.connections == 0;
  lane.connection->send({.frame = {
                             .kind = FrameKind::Begin,
                             .channel = lane.number,
                             .step = lane.connections++,
                         }});
  lane.connection->flush();
}

void Outbound::link_ended(Link& link, Link::End, Status reason) {
  Lane& lane = lane_of(link);
  Link::bury(loop_, std::move(lane.link));
  retry(lane, reason);
}

Result<std::byte*> Outbound::stream_frame(Stream& stream, const Frame& frame) {
  Lane& lane = lanes_[static_cast<size_t>(stream.label())];
  has_moved_ = true;
  switch (frame.kind) {
    case FrameKind::Credit:
      TRY(take_credit(frame));
      return nullptr;
    case FrameKind::Acknowledge:
      TRY(take_acknowledgement(lane, frame.step));
      return nullptr;
    case FrameKind::End:
      lane.has_ended = true;
      return nullptr;
    case FrameKind::Begin:
    case FrameKind::Part:
      break;
  }
  return Status::remote_error("it sends a frame of kind {} to a sender",
                              static_cast<int>(frame.kind));
}

Status Outbound::take_credit(const Frame& frame) {
  if (limits_.size() >= kMostGrants)
    return Status::remote_error("it grants credit for over {} channels", kMostGrants);
  uint64_t& limit = limits_[{key_of(frame), frame.channel}];
  limit = std::max(limit, frame.step);
  if (const auto found = ends_.find(key_of(frame)); found != ends_.end())
    found->second->grant(frame.channel, limit);
  return {};
}

Status Outbound::take_acknowledgement(Lane& lane, uint64_t parts) {
  if (parts < lane.acknowledged || parts - lane.acknowledged > lane.unacknowledged.size())
    return Status::remote_error(
        "it acknowledges {} parts of a stream, of which {} to {} may be there", parts,
        lane.acknowledged, lane.acknowledged + lane.unacknowledged.size());
  for (; lane.acknowledged < parts; ++lane.acknowledged) {
    const Part& part = lane.unacknowledged.front();
    part.from->sent(part.frame);
    lane.unacknowledged.pop_front();
    lane.attempts = 0;
  }
  if (lane.is_ready) return {};
  lane.is_ready = true;  // and does not have what follows
  for (const Part& part : lane.unacknowledged) lane.connection->send(part);
  return {};
}

void Outbound::stream_ended(Stream& stream, Stream::End how, Status why) {
  Lane& lane = lanes_[static_cast<size_t>(stream.label())];
  ended_.push_back(std::move(lane.connection));
  if (is_finishing_) return;
  // Who has left in order needs nothing more.
  if (lane.has_ended || options_.has_left()) return abandon_ends();
  if (how == Stream::End::Refused) {
    abandon_ends();
    return options_.fail(std::move(why).with_context("the connection to {} broke", options_.peer));
  }
  if (how == Stream::End::Finished) why = Status::remote_error("it was closed");
  LOG(Info, Net,
      "NET/Socket : the connection to {} at {} broke ({}) and is replaced; {} parts of chunks are "
      "on their way",
      options_.peer, address_.text(), why.message(), lane.unacknowledged.size());
  if (lane.attempts == 0)
    dial(lane);
  else
    retry(lane, why);
}

void Outbound::abandon_ends() {
  for (const auto& [key, end] : ends_) end->abandon();
}

bool Outbound::progress() {
  ended_.clear();
  bool moved = std::exchange(has_moved_, false);
  const uint32_t part_bytes = options_.streams > 1 ? kPartOfSeveral : kPartOfOne;
  for (const auto& [key, end] : ends_)
    moved |= end->collect(part_bytes, [this](const Part& part) { waiting_.push_back(part); });
  for (Lane& lane : lanes_) {
    if (lane.connection == nullptr || !lane.is_ready) continue;
    while (!waiting_.empty() && lane.connection->wants_more()) {
      lane.unacknowledged.push_back(waiting_.front());
      lane.connection->send(waiting_.front());
      waiting_.pop_front();
      moved = true;
    }
    lane.connection->flush();  // which may end it
  }
  return moved;
}

void Outbound::finish() {
  is_finishing_ = true;
  for (Lane& lane : lanes_) {
    loop_.cancel(lane.retry);
    Link::bury(loop_, std::move(lane.link));
    if (lane.connection == nullptr) continue;
    lane.connection->send({.frame = {.kind = FrameKind::End}});
    lane.connection->finish();
  }
}

}  // namespace niccolite::transport::net
