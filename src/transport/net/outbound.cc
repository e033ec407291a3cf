#include "transport/net/outbound.h"

#include <algorithm>
#include <bit>

#include "base/log.h"
#include "base/parameters.h"

namespace niccolite::transport::net {

using bootstrap::Link;

namespace {

// Of one stream; several share the parts of a chunk. What a connection that breaks has not carried
// as a whole is sent once more: a bound on that, too.
constexpr uint32_t kPartOfOne = 256 << 10;
constexpr size_t kMostGrants = 1 << 16;  // connections and channels of a pair
// Smaller parts stay on the rank's own rail while nothing else is on the way.
constexpr uint32_t kWorthSpreading = 16 << 10;
// Looks for silence. What begins between two of them is not a whole one long: after three in a row
// nothing has been heard for two seconds.
constexpr auto kLook = std::chrono::seconds(1);
constexpr uint32_t kSilentLooks = 3;
constexpr uint32_t kLooksAway = 30;  // before a stream tries its own rail again: some 30 s
// The longest that a peer is tried which no connection has ever reached.
constexpr auto kFirstMeeting = std::chrono::seconds(20);

// At the third look in a row, and then ever less often: who is stopped is not tried all the time.
bool is_time_to_act(uint32_t looks) {
  return looks >= kSilentLooks && std::has_single_bit(looks - 1);
}

}  // namespace

Outbound::Outbound(bootstrap::EventLoop& loop, Options options)
    : loop_(loop),
      options_(std::move(options)),
      lanes_(std::min(static_cast<size_t>(options_.streams) * options_.rails.interfaces.size(),
                      size_t{kMostStreams})) {
  for (size_t i = 0; i < lanes_.size(); ++i) lanes_[i].number = static_cast<uint32_t>(i);
}

Outbound::~Outbound() {
  loop_.cancel(watch_);
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

void Outbound::reach(std::span<const Address> addresses) {
  if (is_dialed_) return;
  is_dialed_ = true;
  dialed_at_ = bootstrap::EventLoop::Clock::now();
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
  for (Lane& lane : lanes_) dial(lane);
}

bool Outbound::has_streams() const {
  return std::ranges::any_of(
      lanes_, [](const Lane& lane) { return lane.connection != nullptr || lane.link != nullptr; });
}

// Of a stream's paths the first are the rails, from its own on.
size_t Outbound::path_number(const Lane& lane) const {
  const size_t rails = paths_.rails.size();
  const size_t turn = lane.turn % tried_.size();
  return turn < rails ? (lane.number + turn) % rails : turn;
}

const Path& Outbound::path(size_t number) const {
  const size_t rails = paths_.rails.size();
  return number < rails ? paths_.rails[number] : paths_.detours[number - rails];
}

void Outbound::dial(Lane& lane) {
  ++lane.attempts;
  if (!lane.dialing_since) lane.dialing_since = Pulse::Clock::now();
  has_moved_ = true;
  const Path& way = path(path_number(lane));
  Link::Options options = options_.link;
  if (options_.rails.interfaces.size() > 1) options.from = way.from;
  Result<std::unique_ptr<Link>> link = Link::dial(loop_, way.to, options_.number, options, *this);
  if (!link.is_ok()) return dial_failed(lane, link.status());
  lane.link = std::move(link).take();
}

void Outbound::dial_failed(Lane& lane, const Status& why) {
  tried_[path_number(lane)] = why.message();
  ++lane.turn;
  if (lane.connection == nullptr) retry(lane, why);  // else it was tried beside a silent one
}

// Connects once more, by the next path; after a while if all have been tried.
void Outbound::retry(Lane& lane, const Status& why) {
  if (is_finishing_) return;
  if (options_.has_left()) return abandon_ends();
  const auto paths = static_cast<int64_t>(tried_.size());
  const int64_t rounds = lane.attempts / paths;
  const bool is_unknown =
      !has_met_ && bootstrap::EventLoop::Clock::now() - dialed_at_ > kFirstMeeting;
  if (lane.attempts % paths == 0 && (rounds > parameters::socket_retry_count() || is_unknown))
    return give_up(lane, why);
  const auto wait = lane.attempts % paths != 0
                        ? std::chrono::milliseconds(0)
                        : std::chrono::milliseconds(parameters::socket_retry_sleep() * rounds);
  lane.retry = loop_.after(wait, [this, &lane] { dial(lane); });
}

void Outbound::give_up(Lane& lane, const Status& why) {
  const bool others_serve =
      std::ranges::any_of(lanes_, [](const Lane& other) { return other.connection != nullptr; });
  if (others_serve && lane.unacknowledged.empty()) {
    LOG(Info, Net, "NET/Socket : one stream less to {}, which cannot be reached {}: {}",
        options_.peer, describe(path(path_number(lane))), why.message());
    return;
  }
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
      options_.peer, tried, lane.attempts));
}

Outbound::Lane& Outbound::lane_of(const Link& link) {
  return *std::ranges::find_if(lanes_, [&](const Lane& lane) { return lane.link.get() == &link; });
}

void Outbound::link_opened(Link& link) {
  Lane& lane = lane_of(link);
  Result<std::unique_ptr<Stream>> opened = Stream::create(loop_, link.release(), *this);
  Link::bury(loop_, std::move(lane.link));
  if (!opened.is_ok()) return dial_failed(lane, opened.status());
  has_met_ = true;
  lane.path = path_number(lane);
  if (lane.connections > 0)
    LOG(Info, Net, "NET/Socket : a connection {} to {} replaces {}", describe(path(lane.path)),
        options_.peer,
        lane.connection == nullptr ? "the one that broke"
        : lane.silences > 0        ? "one that is silent"
                                   : "one on another rail");
  if (lane.connection != nullptr) {
    lane.connection->drop();
    ended_.push_back(std::move(lane.connection));
  }
  lane.is_asked = false;
  lane.silences = 0;
  lane.connection = std::move(opened).take();
  lane.dialing_since.reset();
  has_moved_ = true;
  lane.connection->set_label(static_cast<int>(lane.number));
  lane.connection->set_pulse(options_.pulse->heard());
  lane.is_ready = lane.connections == 0;
  if (!lane.is_ready) watch();
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
  dial_failed(lane, reason);
}

Result<std::byte*> Outbound::stream_frame(Stream& stream, const Frame& frame) {
  Lane& lane = lanes_[static_cast<size_t>(stream.label())];
  has_moved_ = true;
  ++lane.heard;
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
    case FrameKind::Ask:
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
  lane.is_asked = false;
  // Before the slots are free, by which others see that the parts have arrived.
  if (lane.acknowledged < parts) {
    lane.moved_at = Pulse::Clock::now();
    options_.pulse->acknowledged(lane.moved_at);
  }
  for (; lane.acknowledged < parts; ++lane.acknowledged) {
    const Part& part = lane.unacknowledged.front();
    part.from->sent(part.frame);
    lane.on_way -= part.frame.length;
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
  has_moved_ = true;
  if (is_finishing_) return;
  // Who has left in order needs nothing more.
  if (lane.has_ended || options_.has_left()) return abandon_ends();
  if (how == Stream::End::Refused) {
    abandon_ends();
    return options_.fail(std::move(why).with_context("the connection to {} broke", options_.peer));
  }
  if (how == Stream::End::Finished) why = Status::remote_error("it was closed");
  const Path& way = path(lane.path);
  const std::string trouble = trouble_of(way.from);
  LOG(Info, Net,
      "NET/Socket : the connection {} to {} broke ({}{}{}) and is replaced; {} parts of chunks are "
      "on their way",
      describe(way), options_.peer, why.message(), trouble.empty() ? "" : "; ", trouble,
      lane.unacknowledged.size());
  if (lane.link != nullptr) return;  // another one is on its way
  if (lane.attempts == 0)
    dial(lane);
  else
    dial_failed(lane, why);  // it brought nothing
}

void Outbound::abandon_ends() {
  for (const auto& [key, end] : ends_) end->abandon();
}

// Small parts go by the rank's own rail while it is free; otherwise streams have as much on their
// way as each other, so that a faster one carries more. Null: none has room.
Outbound::Lane* Outbound::lane_for(const Part& part) {
  const bool is_spread = part.frame.length >= kWorthSpreading;
  Lane* best = nullptr;
  for (Lane& lane : lanes_) {
    if (lane.connection == nullptr || !lane.is_ready || !lane.connection->wants_more()) continue;
    if (best == nullptr || lane.on_way < best->on_way ||
        (is_spread && lane.on_way == best->on_way && lane.carried < best->carried))
      best = &lane;
  }
  return best;
}

void Outbound::hand_out() {
  while (!waiting_.empty()) {
    const Part& part = waiting_.front();
    Lane* const lane = lane_for(part);
    if (lane == nullptr) return;
    if (lane->unacknowledged.empty()) lane->moved_at = Pulse::Clock::now();
    lane->on_way += part.frame.length;
    lane->carried += part.frame.length;
    lane->unacknowledged.push_back(part);
    lane->connection->send(part);
    waiting_.pop_front();
    has_sent_ = true;
  }
}

bool Outbound::progress() {
  ended_.clear();
  bool moved = std::exchange(has_moved_, false);
  const uint32_t part_bytes =
      lanes_.size() > 1 ? static_cast<uint32_t>(parameters::socket_min_tasksize()) : kPartOfOne;
  for (const auto& [key, end] : ends_)
    moved |= end->collect(part_bytes, [this](const Part& part) { waiting_.push_back(part); });
  const size_t waiting = waiting_.size();
  hand_out();
  moved |= waiting_.size() < waiting;
  for (Lane& lane : lanes_)
    if (lane.connection != nullptr && lane.is_ready) lane.connection->flush();  // which may end it
  if (has_sent_) watch();
  if (moved) give_pulse();
  return moved;
}

void Outbound::watch() {
  if (watch_ != 0 || is_finishing_) return;
  watch_ = loop_.after(kLook, [this] {
    watch_ = 0;
    look();
  });
}

// An interface that goes down, or a wire that is cut, ends no connection for half a minute.
void Outbound::look() {
  bool is_waiting = std::exchange(has_sent_, false);
  bool any_heard = false;
  for (Lane& lane : lanes_) {
    const bool is_heard = lane.heard != std::exchange(lane.heard_before, lane.heard);
    const bool should_hear = lane.connection != nullptr &&
                             (!lane.unacknowledged.empty() || lane.is_asked || !lane.is_ready);
    any_heard |= is_heard;
    is_waiting |= should_hear;
    if (is_heard || !should_hear) {
      lane.silences = 0;
      try_own_rail(lane);
      continue;
    }
    ++lane.silences;
    if (lane.link != nullptr || !is_time_to_act(lane.silences)) continue;
    // Beside the one that it has, which a peer that is merely stopped, or slow, keeps.
    ++lane.turn;
    dial(lane);
  }
  // The credit that kernels wait for may have been lost with an interface of the peer's.
  const bool is_hungry =
      std::ranges::any_of(ends_, [](const auto& end) { return end.second->waits_for_credit(); });
  hungry_looks_ = is_hungry && !any_heard ? hungry_looks_ + 1 : 0;
  if (is_time_to_act(hungry_looks_)) ask();
  if (is_waiting || is_hungry) watch();
  give_pulse();  // silences count
}

// A stream that an interface's failure has driven elsewhere goes back when it can.
void Outbound::try_own_rail(Lane& lane) {
  const bool is_away = lane.connection != nullptr && lane.path != lane.number % paths_.rails.size();
  lane.looks_away = is_away ? lane.looks_away + 1 : 0;
  if (lane.looks_away < kLooksAway || lane.link != nullptr) return;
  lane.looks_away = 0;
  lane.turn = 0;
  dial(lane);
}

void Outbound::ask() {
  for (Lane& lane : lanes_) {
    if (lane.connection == nullptr || !lane.is_ready) continue;
    lane.is_asked = true;
    lane.connection->send({.frame = {.kind = FrameKind::Ask}});
    lane.connection->flush();
  }
}

// Of the lane that has waited longest, for an acknowledgement or for its connection.
void Outbound::give_pulse() {
  const Lane* oldest = nullptr;
  std::optional<Pulse::Clock::time_point> since;
  uint64_t parts = waiting_.size();
  uint64_t bytes = 0;
  for (const Lane& lane : lanes_) {
    parts += lane.unacknowledged.size();
    bytes += lane.on_way;
    const auto waits = lane.unacknowledged.empty() ? lane.dialing_since : lane.moved_at;
    if (!waits || (since && *since <= *waits)) continue;
    oldest = &lane;
    since = waits;
  }
  // From the third look on another path is tried, and at the next one it has had its time.
  const bool has_another_way = oldest != nullptr && oldest->connection != nullptr &&
                               tried_.size() > 1 && oldest->silences <= kSilentLooks + 1;
  options_.pulse->carries(parts, bytes, since, has_another_way);
  if (oldest == nullptr) return;
  const Lane& of = *oldest;
  const bool is_connected = of.connection != nullptr;
  const std::pair now{int64_t{of.number}, is_connected ? of.connections : 0};
  if (std::exchange(told_, now) == now) return;
  const Result<Address> local =
      is_connected ? of.connection->local_address() : Status::remote_error("not connected");
  const size_t way = is_connected ? of.path : path_number(of);
  options_.pulse->waits_on(local.is_ok() ? local.value().text() : "", path(way).to.text());
}

void Outbound::finish() {
  is_finishing_ = true;
  loop_.cancel(watch_);
  for (Lane& lane : lanes_) {
    loop_.cancel(lane.retry);
    Link::bury(loop_, std::move(lane.link));
    if (lane.connection == nullptr) continue;
    lane.connection->send({.frame = {.kind = FrameKind::End}});
    lane.connection->finish();
  }
}

}  // namespace niccolite::transport::net
