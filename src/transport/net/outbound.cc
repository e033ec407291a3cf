#include "transport/net/outbound.h"

#include <algorithm>

#include "base/log.h"
#include "base/parameters.h"

namespace niccolite::transport::net {

using wire::Link;

namespace {

// Largest part. Several idle rails share a chunk. A part that a broken connection has not carried
// as a whole is sent once more, so this bounds the repeated bytes, too.
constexpr uint32_t kMostOfPart = 256 << 10;
// Smaller parts stay on the rank's own rail until their sum reaches this size.
constexpr uint32_t kWorthARail = 16 << 10;
// Bytes that must be on their way on one socket before another socket of the rail is used. Chunks
// that share a rail arrive later than chunks that follow each other, and each socket has
// acknowledgements of its own.
constexpr uint32_t kWorthASocket = 256 << 10;
// The longest time in which a peer is tried while no connection has ever reached it.
constexpr auto kFirstMeeting = std::chrono::seconds(20);

}  // namespace

Outbound::Outbound(wire::EventLoop& loop, Options options)
    : loop_(loop),
      options_(std::move(options)),
      flows_(std::min(static_cast<size_t>(options_.streams) * options_.rails.interfaces.size(),
                      size_t{kMostStreams})) {
  for (size_t i = 0; i < flows_.size(); ++i) flows_[i].number = static_cast<uint32_t>(i);
}

Outbound::~Outbound() {
  loop_.cancel(watch_);
  loop_.cancel(hunger_);
  for (Flow& flow : flows_) {
    loop_.cancel(flow.retry);
    Link::bury(loop_, std::move(flow.link));
  }
}

void Outbound::add(const Key& key, Outgoing& end) {
  ends_.emplace(key, &end);
  if (is_abandoned_) end.abandon();
  for (const auto& [of, limit] : limits_)
    if (of.first == key) end.grant(of.second, limit);
}

void Outbound::reach(std::span<const Address> addresses) {
  if (is_dialed_) return;
  is_dialed_ = true;
  dialed_at_ = wire::EventLoop::Clock::now();
  paths_ = paths_between(options_.rails, addresses);
  if (paths_.rails.empty()) {
    std::string theirs;
    for (const Address& address : addresses)
      theirs += fmt::format("{}{}", theirs.empty() ? "" : ", ", address.host());
    return options_.fail(Status::invalid_usage(
        "{} listens at {}, and this process connects from {}: set NCCL_SOCKET_FAMILY and "
        "NCCL_SOCKET_IFNAME so that both use IPv4, or both IPv6",
        options_.peer, theirs, niccolite::describe(options_.rails.interfaces)));
  }
  tried_.resize(paths_.rails.size() + paths_.detours.size());
  for (Flow& flow : flows_) dial(flow);
}

bool Outbound::has_streams() const {
  return std::ranges::any_of(
      flows_, [](const Flow& flow) { return flow.connection != nullptr || flow.link != nullptr; });
}

// The first paths of a stream are the rails, beginning with the stream's own one.
size_t Outbound::path_number(const Flow& flow) const {
  const size_t rails = paths_.rails.size();
  const size_t turn = flow.turn % tried_.size();
  return turn < rails ? (flow.number + turn) % rails : turn;
}

const Path& Outbound::path(size_t number) const {
  const size_t rails = paths_.rails.size();
  return number < rails ? paths_.rails[number] : paths_.detours[number - rails];
}

void Outbound::dial(Flow& flow) {
  ++flow.attempts;
  if (flow.connection == nullptr && !flow.dialing_since) flow.dialing_since = Pulse::Clock::now();
  has_moved_ = true;
  const Path& way = path(path_number(flow));
  Link::Options options = options_.link;
  if (options_.rails.interfaces.size() > 1) options.from = way.from;
  int error = 0;
  Result<std::unique_ptr<Link>> link =
      Link::dial(loop_, way.to, options_.number, options, *this, &error);
  if (!link.is_ok()) {
    note_shortage(flow, is_shortage(error));
    return dial_failed(flow, link.status());
  }
  flow.link = std::move(link).take();
}

void Outbound::note_shortage(Flow& flow, bool is_short) {
  if (!is_short) {
    flow.short_since.reset();
  } else if (!flow.short_since) {
    flow.short_since = wire::EventLoop::Clock::now();
  }
}

void Outbound::dial_failed(Flow& flow, const Status& why) {
  tried_[path_number(flow)] = why.message();
  if (flow.connection == nullptr) retry(flow, why);  // else it was tried beside a silent one
  ++flow.turn;
}

// Connects once more, by the next path; after a while if all have been tried.
void Outbound::retry(Flow& flow, const Status& why) {
  if (is_finishing_) return;
  if (options_.has_left()) return abandon();
  const auto paths = static_cast<int64_t>(tried_.size());
  const int64_t most = parameters::socket_retry_count();
  const int64_t rounds = (flow.attempts - flow.unanswered) / paths;
  const bool is_unknown = !has_met_ && wire::EventLoop::Clock::now() - dialed_at_ > kFirstMeeting;
  const bool is_short =
      flow.short_since && wire::EventLoop::Clock::now() - *flow.short_since > kShortagePatience;
  if (flow.attempts % paths == 0 && (rounds > most || is_unknown || is_short))
    return give_up(flow, why);
  const auto wait = flow.attempts % paths != 0
                        ? std::chrono::milliseconds(0)
                        : std::chrono::milliseconds(parameters::socket_retry_sleep() *
                                                    std::min(flow.attempts / paths, most));
  flow.retry = loop_.after(wait, [this, &flow] { dial(flow); });
}

void Outbound::give_up(Flow& flow, const Status& why) {
  const bool others_serve =
      std::ranges::any_of(flows_, [](const Flow& other) { return other.connection != nullptr; });
  if (others_serve && flow.unacknowledged.empty()) {
    flow.dialing_since.reset();
    LOG(Info, Net, "NET/Socket : one stream less to {}, which cannot be reached {}: {}",
        options_.peer, describe(path(path_number(flow))), why.message());
    return;
  }
  if (flow.short_since)
    return options_.fail(Status::system_error("no connection to {} {} came about: {}",
                                              options_.peer, describe(path(path_number(flow))),
                                              why.message()));
  std::string tried;
  for (size_t i = 0; i < tried_.size(); ++i) {
    const Path& way = path(i);
    const std::string trouble = trouble_of(way.from);
    tried += fmt::format("{}{}: {}{}{}", tried.empty() ? "" : "; ", describe(way), tried_[i],
                         trouble.empty() ? "" : ", and ", trouble);
  }
  options_.fail(Status::remote_error(
      "cannot connect to {} {} ({} attempts). Are these interfaces joined (NCCL_SOCKET_IFNAME), "
      "and does a firewall let TCP through to these ports (net.ipv4.ip_local_port_range)?",
      options_.peer, tried, flow.attempts));
}

Outbound::Flow& Outbound::flow_of(const Link& link) {
  return *std::ranges::find_if(flows_, [&](const Flow& flow) { return flow.link.get() == &link; });
}

void Outbound::link_opened(Link& link) {
  Flow& flow = flow_of(link);
  Result<std::unique_ptr<Stream>> opened = Stream::create(loop_, link.release(), *this);
  Link::bury(loop_, std::move(flow.link));
  if (!opened.is_ok()) return dial_failed(flow, opened.status());
  has_met_ = true;
  flow.path = path_number(flow);
  if (flow.connections > 0)
    LOG(Info, Net, "NET/Socket : a connection {} to {} replaces {}", describe(path(flow.path)),
        options_.peer,
        flow.connection == nullptr ? "the one that broke"
        : flow.silences > 0        ? "one that is silent"
                                   : "one on another rail");
  if (flow.connection != nullptr) {
    if (flow.silences > 0) was_silent(flow);
    flow.connection->drop();
    ended_.push_back(std::move(flow.connection));
    connection_lost();
  }
  flow.asked_since.reset();
  flow.silences = 0;
  flow.connection = std::move(opened).take();
  flow.dialing_since.reset();
  has_moved_ = true;
  flow.connection->set_label(static_cast<int>(flow.number));
  flow.connection->set_pulse(options_.pulse->heard());
  flow.is_ready = flow.connections == 0;
  if (!flow.is_ready) {
    flow.asked_since = Pulse::Clock::now();  // how much the peer has
    watch();
  }
  flow.connection->send({.frame = {
                             .kind = FrameKind::Begin,
                             .channel = flow.number,
                             .step = flow.connections++,
                         }});
  flow.connection->flush();
}

// A process that is stopped in a debugger is there, though its connections end when their data were
// in the system's hands for long (NICCOLITE_NET_TIMEOUT). Whether it has died the bootstrap says.
void Outbound::link_ended(Link& link, Link::End how, Status reason) {
  Flow& flow = flow_of(link);
  if (how == Link::End::Dropped && has_met_) ++flow.unanswered;
  note_shortage(flow, how == Link::End::Short);
  Link::bury(loop_, std::move(flow.link));
  dial_failed(flow, reason);
}

Status Outbound::stream_frame(Stream& stream, const Frame& frame) {
  Flow& flow = flows_[static_cast<size_t>(stream.label())];
  has_moved_ = true;
  ++flow.heard;
  switch (frame.kind) {
    case FrameKind::Credit:
      return take_credit(frame);
    case FrameKind::Acknowledge:
      return take_acknowledgement(flow, frame);
    case FrameKind::End:
      flow.has_ended = true;
      return {};
    case FrameKind::Begin:
    case FrameKind::Part:
    case FrameKind::Ask:
    case FrameKind::Want:
    case FrameKind::Slots:
    case FrameKind::Place:
    case FrameKind::Withdraw:
    case FrameKind::Withdrawn:
      break;
  }
  return Status::remote_error("it sends a frame of kind {} to a sender",
                              static_cast<int>(frame.kind));
}

Status Outbound::take_credit(const Frame& frame) {
  if (limits_.size() >= kMostGrants)
    return Status::remote_error("it grants credit for over {} channels", kMostGrants);
  keeps_credit_back_ = frame.call == kMoreLater;
  uint64_t& limit = limits_[{key_of(frame), frame.channel}];
  limit = std::max(limit, frame.step);
  if (const auto found = ends_.find(key_of(frame)); found != ends_.end())
    found->second->grant(frame.channel, limit);
  return {};
}

Status Outbound::take_news(const Frame& frame) {
  if (frame.kind == FrameKind::Credit) return take_credit(frame);
  if (frame.flags != kBehindPart || frame.channel >= flows_.size())
    return Status::remote_error("it acknowledges parts of stream {} of {}", frame.channel,
                                flows_.size());
  Flow& flow = flows_[frame.channel];
  has_moved_ = true;
  ++flow.heard;
  return take_acknowledgement(flow, frame);
}

// One of two that travel on different streams may come behind the other, which says more.
Status Outbound::take_acknowledgement(Flow& flow, const Frame& frame) {
  const uint64_t parts = frame.step;
  const bool is_old = parts < flow.acknowledged;
  const bool is_answer = frame.flags != kBehindPart;
  if (is_old ? is_answer && !flow.is_ready : parts - flow.acknowledged > flow.unacknowledged.size())
    return Status::remote_error(
        "it acknowledges {} parts of a stream, of which {} to {} may be there", parts,
        flow.acknowledged, flow.acknowledged + flow.unacknowledged.size());
  if (is_answer) flow.asked_since.reset();
  // Before the slots are free, by which others see that the parts have arrived.
  if (flow.acknowledged < parts) {
    flow.moved_at = Pulse::Clock::now();
    options_.pulse->acknowledged(flow.moved_at);
    has_brought_parts(flow);
  }
  for (; flow.acknowledged < parts; ++flow.acknowledged) {
    const Part& part = flow.unacknowledged.front();
    part.from->sent(part.frame);
    flow.on_way -= part.frame.length;
    flow.unacknowledged.pop_front();
    flow.attempts = flow.unanswered = 0;
  }
  if (flow.is_ready || !is_answer) return {};
  flow.is_ready = true;  // and does not have the following parts
  for (const Part& part : flow.unacknowledged) flow.connection->send(part);
  return {};
}

void Outbound::stream_ended(Stream& stream, Stream::End how, Status why) {
  Flow& flow = flows_[static_cast<size_t>(stream.label())];
  ended_.push_back(std::move(flow.connection));
  connection_lost();
  has_moved_ = true;
  if (is_finishing_) return;
  // A peer that has left in order needs nothing more.
  if (flow.has_ended || options_.has_left()) return abandon();
  if (how == Stream::End::Refused) {
    abandon();
    return options_.fail(std::move(why).with_context("the connection to {} broke", options_.peer));
  }
  if (how == Stream::End::Finished) why = Status::remote_error("it was closed");
  const Path& way = path(flow.path);
  const std::string trouble = trouble_of(way.from);
  LOG(Info, Net,
      "NET/Socket : the connection {} to {} broke ({}{}{}) and is replaced; {} parts of chunks are "
      "on their way",
      describe(way), options_.peer, why.message(), trouble.empty() ? "" : "; ", trouble,
      flow.unacknowledged.size());
  flow.dialing_since = Pulse::Clock::now();
  if (flow.link != nullptr) return;                      // another one is on its way
  if (flow.attempts > 0) return dial_failed(flow, why);  // it brought nothing
  // The loop's own thread dials, because the serving thread may have other things to do.
  flow.retry = loop_.after(std::chrono::milliseconds(0), [this, &flow] { dial(flow); });
}

// Requests and news that were sent on a broken connection may be lost with it.
void Outbound::connection_lost() {
  for (const auto& [key, end] : ends_) end->ask_again();
  if (options_.lose_news) options_.lose_news();
}

void Outbound::abandon() {
  is_abandoned_ = true;
  for (const auto& [key, end] : ends_) end->abandon();
}

// Rails have as much on their way as each other, so that a faster one carries more; small parts go
// by the rank's own. The sockets of one rail are used one after the other, as each has enough, and
// have the parts of a chunk together, which saves system calls at both ends. Null: none has room.
Outbound::Flow* Outbound::flow_for(const Part& part) {
  const bool has_one_rail = paths_.rails.size() == 1;
  if (part.frame.offset > 0 && has_one_rail && has_room(flows_[last_])) return &flows_[last_];
  const auto load = [&](const Flow& flow) {
    if (has_one_rail) return std::pair(flow.on_way / kWorthASocket, uint64_t{0});
    return part.frame.length >= kWorthARail ? std::pair(flow.on_way, flow.carried)
                                            : std::pair(flow.on_way / kWorthARail, uint64_t{0});
  };
  Flow* best = nullptr;
  for (Flow& flow : flows_)
    if (has_room(flow) && (best == nullptr || load(flow) < load(*best))) best = &flow;
  return best;
}

Outbound::Flow* Outbound::any_flow() {
  const auto found = std::ranges::find_if(flows_, has_room);
  return found == flows_.end() ? nullptr : &*found;
}

void Outbound::hand_out() {
  while (!waiting_.empty()) {
    const Part& part = waiting_.front();
    Flow* const flow = flow_for(part);
    if (flow == nullptr) return;
    if (flow->unacknowledged.empty()) flow->moved_at = Pulse::Clock::now();
    last_ = flow->number;
    flow->on_way += part.frame.length;
    flow->carried += part.frame.length;
    flow->unacknowledged.push_back(part);
    flow->connection->send(part);
    waiting_.pop_front();
    has_sent_ = true;
    has_asked_ = false;
  }
}

// Small parts, as long as they keep rails busy that would have nothing to do. Streams on one rail
// share chunks, not a chunk: each part costs system calls at both ends.
uint32_t Outbound::part_bytes() const {
  const auto least = static_cast<uint32_t>(parameters::socket_min_tasksize());
  const size_t rails = paths_.rails.size();
  size_t on_way = 0;
  for (const Flow& flow : flows_) on_way += flow.on_way;
  return rails > 1 && on_way < rails * least ? std::min(least, kMostOfPart) : kMostOfPart;
}

bool Outbound::progress() {
  ended_.clear();
  bool moved = std::exchange(has_moved_, false);
  for (const auto& [key, end] : ends_)
    moved |= end->collect({.bytes = part_bytes()},
                          [this](const Part& part) { waiting_.push_back(part); });
  const size_t waiting = waiting_.size();
  hand_out();
  const bool has_handed_out = waiting_.size() < waiting;
  if (has_handed_out && options_.give_news)
    options_.give_news(
        [&](const Frame& frame) { flows_[last_].connection->send({.frame = frame}); });
  moved |= has_handed_out;
  if (Flow* const flow = keeps_credit_back_ ? any_flow() : nullptr; flow != nullptr)
    for (const auto& [key, end] : ends_)
      end->ask_for_credit([flow](const Frame& frame) { flow->connection->send({.frame = frame}); });
  for (Flow& flow : flows_)
    if (flow.connection != nullptr && flow.is_ready) flow.connection->flush();
  if (has_sent_) watch();
  if (moved)
    give_pulse();
  else if (hunger_ == 0 && !has_asked_ && is_hungry())
    watch_hunger();
  return moved;
}

void Outbound::finish() {
  is_finishing_ = true;
  loop_.cancel(watch_);
  loop_.cancel(hunger_);
  for (Flow& flow : flows_) {
    loop_.cancel(flow.retry);
    Link::bury(loop_, std::move(flow.link));
    if (flow.connection == nullptr) continue;
    flow.connection->send({.frame = {.kind = FrameKind::End}});
    flow.connection->finish();
  }
}

}  // namespace niccolite::transport::net
