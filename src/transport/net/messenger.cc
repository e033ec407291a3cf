#include "transport/net/messenger.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/log.h"

namespace niccolite::transport::net {
namespace {

// So much is under way to hide a network's latency; about 1 MiB a pair of ranks.
constexpr size_t kMessages = 8;
constexpr size_t kMessageBytes = (64 << 10) + 4096;  // a chunk of 64 KiB and what goes with it
using Length = uint64_t;                             // of a message, with itself; first in it
// A peer's proxy answers within a message's time, whatever its kernels do.
constexpr std::chrono::seconds kPatience{1};

}  // namespace

Result<std::unique_ptr<Messenger>> Messenger::create(Options options) {
  std::unique_ptr<Messenger> made(new Messenger(std::move(options)));
  made->listener_ = TRY(made->options_.network->listen(made->own_, made->options_.peer));
  made->is_listening_ = true;
  return made;
}

Messenger::~Messenger() {
  Network& network = *options_.network;
  if (outbox_.memory != nullptr) network.deregister_memory(sending_, outbox_.memory);
  if (inbox_.memory != nullptr) network.deregister_memory(receiving_, inbox_.memory);
  if (sending_ != nullptr) network.close_send(sending_);
  if (receiving_ != nullptr) network.close_receive(receiving_);
  if (is_listening_) network.close_listener(listener_);
}

size_t Messenger::message_bytes() const {
  return std::min(kMessageBytes, options_.network->properties().most_bytes);
}

// Ends' operations that give up wait for what the network has on its way.
template <typename End>
void Messenger::attend(End& end) {
  end.when_leaving([this](Pulse::Clock::time_point since) { hurry(since); });
  if (is_cut_) end.cut();
}

// The thread may have ended.
void Messenger::hurry(Pulse::Clock::time_point since) {
  move();
  const bool is_late = Pulse::Clock::now() - since > kPatience && !options_.has_left();
  if (is_late && !has_failed_)
    LOG(Info, Net, "NET/{} : {} does not answer, and is cut off from buffers of the user",
        options_.network->name(), options_.peer);
  if (is_late || has_failed_ || ends_sent_ > 0 || options_.has_left()) cut();
}

void Messenger::cut() {
  if (std::exchange(is_cut_, true)) return;
  has_failed_ = true;
  abandon();
  void* const connection = sending_ != nullptr ? sending_ : receiving_;
  if (connection != nullptr) options_.network->cut(connection);
  for (const auto& [key, end] : outgoing_) end->cut();
  for (const auto& [key, end] : incoming_) end->cut();
}

void Messenger::add(const Key& key, Outgoing& end) {
  attend(end);
  outgoing_.emplace(key, &end);
  if (has_failed_ || peer_ends()) end.abandon();
  for (const auto& [of, limit] : limits_)
    if (of.first == key) end.grant(of.second, limit);
}

// Its slots are told before any credit for them.
void Messenger::add(const Key& key, Incoming& end) {
  attend(end);
  if (!incoming_.emplace(key, &end).second || end.direct() == nullptr) return;
  waiting_.push_back({.frame = {.kind = FrameKind::Slots,
                                .protocol = static_cast<uint8_t>(key.protocol),
                                .tag = static_cast<uint16_t>(key.tag),
                                .length = sizeof(Slots)}});
}

Status Messenger::meet(const Network::Handle& peer) {
  if (std::exchange(has_met_, true)) return {};
  return options_.network->meet(listener_, peer);
}

void Messenger::reach(const Network::Handle& peer, bool peer_has_met) {
  if (!peer_) peer_ = peer;
  peer_has_met_ |= peer_has_met;
}

bool Messenger::has_finished() const {
  if (has_failed_) return true;
  // A peer that has left the bootstrap may be ending its connections now, as this end does: they
  // are closed with nothing posted. Connections that do not exist yet will never exist.
  const bool has_left = options_.has_left();
  const bool has_told = sending_ == nullptr ? has_left : ends_sent_ == kMessages && sends_ == 0;
  return has_told && (receiving_ == nullptr ? has_left : ends_received_ == kMessages);
}

void Messenger::abandon() {
  for (const auto& [key, end] : outgoing_) end->abandon();
}

// Also where the connection has failed, or is cut: kernels end all the same.
bool Messenger::progress() {
  const bool moved = move();
  for (const auto& [key, end] : outgoing_) end->let_go_for_kernels();
  for (const auto& [key, end] : incoming_) end->let_go_for_kernels();
  return moved;
}

bool Messenger::move() {
  if (has_failed_) return false;
  Result<bool> moved = advance();
  if (moved.is_ok()) return *moved;
  has_failed_ = true;
  abandon();
  // A peer that has ended closes when it has waited long enough for this end's answer. All that it
  // sent has come before its ends, and it takes nothing more.
  if (peer_ends()) return false;
  options_.fail(
      std::move(moved).status().with_context("the connection with {} broke", options_.peer));
  return false;
}

Result<bool> Messenger::advance() {
  bool moved = TRY(make_connections());
  if (receiving_ != nullptr) moved |= TRY(receive_messages());
  if (sending_ != nullptr) moved |= TRY(send_messages());
  return moved;
}

Result<bool> Messenger::make_connections() {
  bool moved = false;
  if (sending_ == nullptr && peer_) {
    sending_ = TRY(options_.network->connect(listener_, *peer_));
    if (sending_ != nullptr) {
      TRY(prepare(sending_, outbox_));
      moved = true;
    }
  }
  if (receiving_ == nullptr) {
    receiving_ = TRY(options_.network->accept(listener_));
    if (receiving_ != nullptr) {
      TRY(prepare(receiving_, inbox_));
      moved = true;
    }
  }
  if (receiving_ != nullptr && std::exchange(peer_has_met_, false))
    options_.network->peer_has_met(receiving_);
  if (is_listening_ && sending_ != nullptr && receiving_ != nullptr) {
    options_.network->close_listener(listener_);
    is_listening_ = false;
  }
  return moved;
}

Status Messenger::prepare(void* connection, Box& box) {
  const size_t bytes = message_bytes();
  box.bytes.resize(kMessages * bytes);
  box.messages.resize(kMessages);
  for (size_t i = 0; i < kMessages; ++i)
    box.messages[i].bytes = std::span(box.bytes).subspan(i * bytes, bytes);
  box.memory =
      TRY(options_.network->register_memory(connection, box.bytes.data(), box.bytes.size()));
  return {};
}

// In order, as they complete.
Result<bool> Messenger::complete_sends() {
  bool moved = false;
  while (sends_ > 0) {
    Message& oldest = outbox_.messages[first_sent_];
    if (!TRY(options_.network->test(oldest.request))) break;
    oldest.request = nullptr;
    options_.pulse->acknowledged(Pulse::Clock::now());
    for (const Part& part : oldest.parts)
      if (part.from != nullptr) {
        if (part.is_of_user) part.from->has_read(part.frame);
        part.from->sent(part.frame);
      }
    oldest.parts.clear();
    oldest.writes.clear();
    oldest.used = oldest.staged = 0;
    first_sent_ = (first_sent_ + 1) % kMessages;
    --sends_;
    moved = true;
  }
  if (moved) give_pulse();
  return moved;
}

// Parts count as acknowledged when the plug-in has done with their messages.
void Messenger::give_pulse() {
  uint64_t parts = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < sends_; ++i) {
    const Message& message = outbox_.messages[(first_sent_ + i) % kMessages];
    parts += message.parts.size();
    bytes += message.used + message.direct_bytes();
  }
  options_.pulse->carries(parts, bytes,
                          sends_ > 0 ? std::optional(Pulse::Clock::now()) : std::nullopt);
}

void Messenger::collect() {
  // The peer may close as soon as it has all ends, while kernels of this rank still free slots.
  if (ends_sent_ > 0) return waiting_.clear();
  const auto most = static_cast<uint32_t>(message_bytes() - sizeof(Length) - sizeof(Frame));
  const auto queue = [this](const Frame& frame) { waiting_.push_back({.frame = frame}); };
  if (receiving_ != nullptr)
    for (const auto& [key, end] : incoming_) {
      end->collect(Incoming::Credit::All, queue);
      end->collect_offers(options_.network->writes_directly(receiving_), queue);
    }
  if (peer_ends()) return;
  for (const auto& [key, end] : outgoing_)
    end->collect({.bytes = most, .is_direct = has_direct_slots(key, *end)},
                 [this](const Part& part) { waiting_.push_back(part); });
}

size_t Messenger::Message::direct_bytes() const {
  size_t sum = 0;
  for (const DirectWrite& write : writes) sum += write.bytes;
  return sum;
}

// Does the network's device write to the receiver's slots? From some moment on it always does.
bool Messenger::has_direct_slots(const Key& key, const Outgoing& end) const {
  const auto found = peer_slots_.find(key);
  return found != peer_slots_.end() && sending_ != nullptr &&
         options_.network->writes_directly(sending_) && found->second.shape == end.whole_shape();
}

// The receiver's slot of a part; none: its bytes go with the message.
std::optional<Offer> Messenger::slot_of(const Part& part) const {
  const Key key = key_of(part.frame);
  if (!has_direct_slots(key, *part.from)) return std::nullopt;
  return Offer{.memory = peer_slots_.at(key).name,
               .offset = part.from->slot_offset(part.frame.channel, part.frame.step)};
}

// False: the message is full. Bytes of host memory are staged in the message's memory, which is
// registered.
Result<bool> Messenger::add_direct(Message& message, Part& part, const Offer& to, uint16_t flags) {
  const uint32_t bytes = part.frame.length;
  const DirectMemory* const memory = part.from->memory_of(part.frame);
  const bool is_staged = memory == nullptr;
  if (message.writes.size() == kMostDirectWrites ||
      (!message.writes.empty() && message.direct_bytes() + bytes > message.bytes.size()) ||
      message.used + sizeof part.frame + message.staged + (is_staged ? bytes : 0) >
          message.bytes.size())
    return false;
  const std::byte* from = part.payload();
  if (is_staged) {
    message.staged += bytes;
    std::byte* const copy = message.bytes.data() + message.bytes.size() - message.staged;
    TRY(part.from->load(part.frame, copy));
    from = copy;
  }
  part.is_of_user = !is_staged && part.from->is_of_user(part.frame);
  if (part.is_of_user) part.from->reads(part.frame);
  Frame frame = part.frame;
  frame.flags |= flags;
  std::memcpy(message.bytes.data() + message.used, &frame, sizeof frame);
  message.used += sizeof frame;
  message.writes.push_back({.from = from,
                            .bytes = bytes,
                            .memory = memory,
                            .to = to.memory,
                            .offset = to.offset + frame.offset,
                            .is_of_user = part.is_of_user,
                            .is_to_user = (flags & kInPlace) != 0});
  return true;
}

size_t Messenger::payload_of(const Part& part) {
  switch (part.frame.kind) {
    case FrameKind::Part:
      return part.frame.length;
    case FrameKind::Slots:
      return sizeof(Slots);
    case FrameKind::Place:
      return sizeof(Offer);
    default:
      return 0;
  }
}

Status Messenger::write_payload(const Part& part, std::byte* to) {
  const Network& network = *options_.network;
  if (part.frame.kind == FrameKind::Slots) {
    const Incoming& end = *incoming_.at(key_of(part.frame));
    const Slots slots{.name = network.name_of(*end.direct()), .shape = end.whole_shape()};
    std::memcpy(to, &slots, sizeof slots);
  } else if (part.frame.kind == FrameKind::Place) {
    // One that is over by now comes too late at the peer, too.
    Offer offer;
    if (const Incoming::Place* const place =
            incoming_.at(key_of(part.frame))->place_offered(part.frame);
        place != nullptr)
      offer = {.memory = network.name_of(*place->memory),
               .offset = static_cast<uint64_t>(place->address - place->memory->data())};
    std::memcpy(to, &offer, sizeof offer);
  } else if (part.frame.kind == FrameKind::Part && part.frame.length > 0) {
    return part.from->load(part.frame, to);
  }
  return {};
}

Status Messenger::fill(Message& message) {
  message.used = sizeof(Length);
  while (!waiting_.empty()) {
    Part& part = waiting_.front();
    if (part.frame.kind == FrameKind::Part && part.frame.length > 0) {
      const Offer* const place = part.from->offer_for(part.frame);
      const std::optional<Offer> to = place != nullptr ? *place : slot_of(part);
      if (to) {
        const uint16_t flags = place != nullptr ? kIsThere | kInPlace : kIsThere;
        if (!TRY(add_direct(message, part, *to, flags))) break;
        message.parts.push_back(part);
        waiting_.pop_front();
        continue;
      }
    }
    const size_t payload = payload_of(part);
    if (message.used + sizeof part.frame + payload + message.staged > message.bytes.size()) break;
    std::memcpy(message.bytes.data() + message.used, &part.frame, sizeof part.frame);
    message.used += sizeof part.frame;
    TRY(write_payload(part, message.bytes.data() + message.used));
    message.used += payload;
    message.parts.push_back(part);
    waiting_.pop_front();
  }
  const Length length = message.used;
  std::memcpy(message.bytes.data(), &length, sizeof length);
  return {};
}

// A message has several slots' parts: its events belong to the first.
void* Messenger::handle_of(const Message& message) const {
  if (options_.observer == nullptr) return nullptr;
  for (const Part& part : message.parts)
    if (part.from != nullptr)
      return options_.observer->handle_for_network(part.from->step_of(part.frame));
  return nullptr;
}

Result<bool> Messenger::send_messages() {
  bool moved = TRY(complete_sends());
  collect();
  while (sends_ < kMessages) {
    Message& next = outbox_.messages[(first_sent_ + sends_) % kMessages];
    // A message that found no room is sent unchanged, because a plug-in may remember the first
    // attempt.
    if (next.used <= sizeof(Length)) TRY(fill(next));
    const bool is_empty = next.used == sizeof(Length);
    const bool is_end = is_empty && is_finishing_ && ends_sent_ < kMessages;
    if (is_empty && !is_end) break;
    if (next.writes.empty())
      next.request =
          TRY(options_.network->send(sending_, next.bytes.data(), next.used, options_.own_rank,
                                     outbox_.memory, handle_of(next)));
    else
      next.request = TRY(options_.network->send_with(sending_, next.bytes.data(), next.used,
                                                     outbox_.memory, next.writes));
    if (next.request == nullptr) break;
    if (is_end) ++ends_sent_;
    if (++sends_ == 1) give_pulse();
    moved = true;
  }
  return moved;
}

Result<bool> Messenger::post(Message& message) {
  if (message.request != nullptr) return true;
  // After the first end only the other ends follow.
  if (peer_ends() && receives_ + ends_received_ >= kMessages) return false;
  // A message that was here before must not be taken for the new one.
  std::memset(message.bytes.data(), 0, sizeof(Length));
  message.request = TRY(options_.network->receive(
      receiving_, message.bytes.data(), message.bytes.size(), options_.peer_rank, inbox_.memory));
  if (message.request == nullptr) return false;
  ++receives_;
  return true;
}

Result<bool> Messenger::receive_messages() {
  bool moved = false;
  for (size_t i = 0; i < kMessages; ++i)
    if (!TRY(post(inbox_.messages[(next_received_ + i) % kMessages]))) break;
  while (inbox_.messages[next_received_].request != nullptr) {
    Message& oldest = inbox_.messages[next_received_];
    if (!TRY(options_.network->test(oldest.request))) break;
    oldest.request = nullptr;
    --receives_;
    // relaxed: a time, which publishes nothing.
    options_.pulse->heard().store(Pulse::Clock::now().time_since_epoch().count(),
                                  std::memory_order_relaxed);
    TRY(take(oldest));
    next_received_ = (next_received_ + 1) % kMessages;
    moved = true;
  }
  return moved;
}

Status Messenger::take(const Message& message) {
  Length length = 0;
  std::memcpy(&length, message.bytes.data(), sizeof length);
  if (length < sizeof length || length > message.bytes.size())
    return Status::remote_error("a message of {} bytes in a buffer of {}", length,
                                message.bytes.size());
  if (length == sizeof length) {  // an end: one comes for each receive
    ++ends_received_;
    for (const auto& [of, end] : incoming_) end->peer_has_ended();
    is_finishing_ = true;  // it waits for the answer, and this rank's end may be far
    abandon();
    return {};
  }
  std::span<const std::byte> rest = message.bytes.first(length).subspan(sizeof length);
  is_flushed_ = false;
  while (!rest.empty()) {
    Frame frame;
    if (rest.size() < sizeof frame) return Status::remote_error("a message that ends in a frame");
    std::memcpy(&frame, rest.data(), sizeof frame);
    rest = rest.subspan(sizeof frame);
    rest = rest.subspan(TRY(take_frame(frame, rest)));
  }
  return {};
}

Status Messenger::take_slots(const Frame& frame, std::span<const std::byte> rest) {
  if (frame.length != sizeof(Slots) || frame.length > rest.size())
    return Status::remote_error("it describes its slots in {} bytes, {} of which came",
                                frame.length, rest.size());
  if (peer_slots_.size() >= kMostGrants)
    return Status::remote_error("it has slots of over {} connections", kMostGrants);
  std::memcpy(&peer_slots_[key_of(frame)], rest.data(), sizeof(Slots));
  return {};
}

// News of an end that is not known yet are of no use: its chunks go to slots. So are offers where
// the own trial has found that this end's device does not write to memory of the peer's GPU.
Result<size_t> Messenger::take_news_of_places(const Frame& frame, std::span<const std::byte> rest) {
  if (frame.kind == FrameKind::Withdrawn) {
    const auto found = incoming_.find(key_of(frame));
    if (found != incoming_.end()) found->second->withdrawn(frame.channel);
    return size_t{0};
  }
  const auto found = outgoing_.find(key_of(frame));
  if (frame.kind == FrameKind::Withdraw) {
    if (found != outgoing_.end()) found->second->forget_offers(frame.channel);
    Frame answer = frame;
    answer.kind = FrameKind::Withdrawn;
    waiting_.push_back({.frame = answer});
    return size_t{0};
  }
  if (rest.size() < sizeof(Offer))
    return Status::remote_error("it offers a place in {} bytes", rest.size());
  Offer offer;
  std::memcpy(&offer, rest.data(), sizeof offer);
  if (found != outgoing_.end() && sending_ != nullptr &&
      options_.network->writes_directly(sending_))
    found->second->offer(frame, offer);
  return sizeof offer;
}

Result<size_t> Messenger::take_frame(const Frame& frame, std::span<const std::byte> rest) {
  const Key key = key_of(frame);
  if (frame.kind == FrameKind::Credit) {
    if (limits_.size() >= kMostGrants)
      return Status::remote_error("it grants credit for over {} channels", kMostGrants);
    uint64_t& limit = limits_[{key, frame.channel}];
    limit = std::max(limit, frame.step);
    if (const auto found = outgoing_.find(key); found != outgoing_.end())
      found->second->grant(frame.channel, limit);
    return size_t{0};
  }
  if (frame.kind == FrameKind::Slots) {
    TRY(take_slots(frame, rest));
    return sizeof(Slots);
  }
  if (frame.kind == FrameKind::Place || frame.kind == FrameKind::Withdraw ||
      frame.kind == FrameKind::Withdrawn)
    return take_news_of_places(frame, rest);
  const bool is_there = frame.kind == FrameKind::Part && (frame.flags & kIsThere) != 0;
  if (frame.kind != FrameKind::Part || (!is_there && frame.length > rest.size()))
    return Status::remote_error("a frame of kind {} and {} bytes, {} of which came",
                                static_cast<int>(frame.kind), frame.length, rest.size());
  const auto found = incoming_.find(key);
  if (found == incoming_.end())
    return Status::remote_error("it sends to a connection that there is not (tag {})", frame.tag);
  if (!is_there && (frame.flags & kInPlace) != 0)
    return Status::remote_error("bytes of a chunk that is elsewhere (tag {})", frame.tag);
  if (is_there && found->second->direct() == nullptr)
    return Status::remote_error("it writes to slots that it does not reach (tag {})", frame.tag);
  TRY(found->second->accept(frame));
  if (is_there) {
    if (!std::exchange(is_flushed_, true)) TRY(options_.network->flush_direct());
    found->second->arrived(frame);
    return size_t{0};
  }
  if (frame.length > 0) TRY(found->second->store(frame, rest.data()));
  found->second->arrived(frame);
  return size_t{frame.length};
}

}  // namespace niccolite::transport::net
