#include "bootstrap/mesh.h"

#include <algorithm>
#include <utility>

#include "base/interfaces.h"
#include "base/log.h"

namespace niccolite::bootstrap {
namespace {

using namespace std::chrono_literals;

// A process listens before others learn its address, so a refused connection means that it has
// gone: few attempts. A dropped one means that its accept loop is crowded by strangers: more.
constexpr int kUnreachableAttempts = 3;
constexpr int kDroppedAttempts = 20;
constexpr auto kRetryPause = std::chrono::milliseconds(50);  // grows linearly
constexpr auto kPatience = std::chrono::seconds(5);          // three SYNs

}  // namespace

Mesh::Mesh(wire::EventLoop& loop, const authentication::Identity& self, Events& events)
    : loop_(loop),
      options_{
          .self = self, .identity_of = {}, .max_frame = wire::kMaxFrame, .patience = kPatience},
      events_(events) {}

Mesh::~Mesh() {
  loop_.cancel(patience_);
  loop_.cancel(answers_);
  for (Peer& peer : peers_) loop_.cancel(peer.retry);
}

Status Mesh::listen(const Address& interface) {
  Socket listener = TRY(Socket::listen(interface.with_port(0)));
  acceptor_ = TRY(wire::Acceptor::create(
      loop_, std::move(listener), options_,
      [this](std::unique_ptr<wire::Link> link) { welcome(std::move(link)); },
      [this](const Status& why) { events_.mesh_exhausted(why); }));
  acceptor_->turn_away_when_short();
  return {};
}

void Mesh::place(const messages::Assignment& place) {
  peers_.resize(place.nprocesses);
  for (const messages::Neighbor& neighbor : place.neighbors) {
    neighbors_.push_back(neighbor.process);
    peers_[neighbor.process].dials_us = neighbor.process < place.process;
    introduce(neighbor.process, neighbor.address, neighbor.number);
    if (!peers_[neighbor.process].dials_us) dial(neighbor.process);
  }
}

void Mesh::introduce(uint32_t process, const Address& address, uint64_t number) {
  Peer& peer = peers_[process];
  if (peer.known) return;
  peer.known = true;
  // A link-local address is good on our link to it: the scope is of this host.
  peer.address = address.is_link_local() && acceptor_ != nullptr
                     ? address.with_scope(acceptor_->address().scope())
                     : address;
  peer.number = number;
  process_of_[number] = process;
  for (auto& [link, held] : links_)
    if (held.process < 0 && link->peer_number() == number) attach(*link, process);
}

void Mesh::identify(uint32_t process, const ProcessId& id) {
  peers_[process].id = id;
  for (auto& [link, held] : links_)
    if (held.process == int64_t{process} && link->is_open()) link->end_with(id);
}

void Mesh::welcome(std::unique_ptr<wire::Link> link) {
  wire::Link& opened = *link;
  opened.set_owner(*this);
  links_[&opened].link = std::move(link);
  if (const auto process = process_of_.find(opened.peer_number()); process != process_of_.end()) {
    attach(opened, process->second);
  } else {
    opened.pause();  // it is ahead of us: we shall know it soon
  }
}

void Mesh::attach(wire::Link& link, uint32_t process) {
  Peer& peer = peers_[process];
  links_[&link].process = process;
  ++peer.links;
  link.end_with(peer.id);
  if (std::exchange(peer.unreachable, false)) peer.gone = false;  // it has come itself
  if (peer.sending == nullptr) {
    peer.sending = &link;
    for (const Frame& frame : peer.waiting) link.send(*frame);
    peer.waiting.clear();
    events_.mesh_linked(process);
  }
  link.resume();
  if (leaving_) part(link);
}

void Mesh::send(uint32_t process, Frame frame) {
  Peer& peer = peers_[process];
  if (peer.gone || leaving_) return;
  if (peer.sending != nullptr) return peer.sending->send(*frame);
  peer.waiting.push_back(std::move(frame));
  probe(process);
}

void Mesh::tell(uint32_t process, const Frame& frame) {
  const Peer& peer = peers_[process];
  if (peer.sending != nullptr) peer.sending->send(*frame);
}

void Mesh::broadcast(const Frame& frame) {
  for (Peer& peer : peers_)
    if (peer.sending != nullptr) peer.sending->send(*frame);
}

void Mesh::probe(uint32_t process) {
  Peer& peer = peers_[process];
  if (peer.gone || peer.sending != nullptr || peer.dialing != nullptr || peer.retry != 0 ||
      peer.dials_us)
    return;
  dial(process);
}

void Mesh::dial(uint32_t process) {
  Peer& peer = peers_[process];
  peer.retry = 0;
  ++peer.attempts;
  int error = 0;
  Result<std::unique_ptr<wire::Link>> link =
      wire::Link::dial(loop_, peer.address, peer.number, options_, *this, &error);
  if (!link.is_ok() && is_shortage(error)) return shortage(process, link.status());
  if (!link.is_ok())
    return dial_failed(process, wire::Link::End::Unreachable, std::move(link).status());
  peer.dialing = link.value().get();
  links_[peer.dialing] = {
      .link = std::move(link.value()), .process = process, .said_goodbye = false};
}

void Mesh::dial_failed(uint32_t process, wire::Link::End end, Status reason) {
  Peer& peer = peers_[process];
  if (end == wire::Link::End::Short) return shortage(process, reason);
  peer.short_since.reset();
  peer.dialing = nullptr;
  if (peer.sending != nullptr || peer.gone) return;  // it dialed us meanwhile
  const int most = end == wire::Link::End::Dropped ? kDroppedAttempts : kUnreachableAttempts;
  if (end == wire::Link::End::Refused || peer.attempts >= most || leaving_) {
    const std::string trouble = acceptor_ == nullptr ? "" : trouble_of(acceptor_->address());
    return give_up(process,
                   Status::remote_error("from {} to {}, {} attempts: {}{}{}",
                                        acceptor_ == nullptr ? "here" : acceptor_->address().host(),
                                        peer.address.text(), peer.attempts, reason.message(),
                                        trouble.empty() ? "" : "; ", trouble));
  }
  peer.retry = loop_.after(kRetryPause * peer.attempts, [this, process] { dial(process); });
}

void Mesh::shortage(uint32_t process, const Status& reason) {
  Peer& peer = peers_[process];
  --peer.attempts;
  peer.dialing = nullptr;
  if (peer.sending != nullptr || peer.gone) return;  // it dialed us meanwhile
  const auto now = wire::EventLoop::Clock::now();
  if (!peer.short_since) peer.short_since = now;
  if (!leaving_ && now - *peer.short_since < kShortagePatience) {
    peer.retry = loop_.after(kRetryPause, [this, process] { dial(process); });
    return;
  }
  Status why = Status::remote_error("no connection to {} came about: {}", peer.address.text(),
                                    reason.message());
  events_.mesh_exhausted(why);
  give_up(process, std::move(why));
}

void Mesh::give_up(uint32_t process, Status why) {
  Peer& peer = peers_[process];
  peer.gone = true;
  peer.unreachable = true;
  peer.waiting.clear();
  events_.mesh_unreachable(process, std::move(why));
  finish_if_over();
}

void Mesh::link_opened(wire::Link& link) {
  const auto process = static_cast<uint32_t>(links_[&link].process);  // only dialed links open here
  peers_[process].dialing = nullptr;
  peers_[process].attempts = 0;
  peers_[process].short_since.reset();
  attach(link, process);
}

void Mesh::link_frame(wire::Link& link, std::span<const std::byte> payload) {
  Held& held = links_[&link];
  if (payload[0] == static_cast<std::byte>(MessageType::Goodbye)) return heard_goodbye(held);
  events_.mesh_frame(static_cast<uint32_t>(held.process), payload);
}

void Mesh::heard_goodbye(Held& held) {
  held.said_goodbye = true;
  const auto process = static_cast<uint32_t>(held.process);
  Peer& peer = peers_[process];
  if (peer.sending == held.link.get()) peer.sending = nullptr;
  held.link->finish();
  // Messages that the process sent before it left may still be in another link.
  if (--peer.links > 0) return;
  peer.gone = true;
  peer.waiting.clear();
  loop_.cancel(peer.retry);
  peer.retry = 0;
  events_.mesh_departed(process);
}

void Mesh::link_ended(wire::Link& link, wire::Link::End end, Status reason) {
  const Held& held = links_[&link];
  const int64_t process = held.process;
  const bool expected = held.said_goodbye || leaving_ || process < 0;
  drop(link);
  if (process >= 0) {
    Peer& peer = peers_[static_cast<uint32_t>(process)];
    if (peer.dialing == &link) {
      dial_failed(static_cast<uint32_t>(process), end, std::move(reason));
    } else if (!expected) {
      if (peer.sending == &link) peer.sending = nullptr;
      peer.gone = true;
      peer.waiting.clear();
      events_.mesh_lost(static_cast<uint32_t>(process), std::move(reason));
    }
  }
  finish_if_over();
}

void Mesh::drop(wire::Link& link) {
  auto node = links_.extract(&link);
  if (!node.empty()) wire::Link::bury(loop_, std::move(node.mapped().link));
}

void Mesh::farewell(wire::EventLoop::Clock::duration patience,
                    wire::EventLoop::Clock::duration answer) {
  leaving_ = true;
  patience_ = loop_.after(patience, [this] {
    for (Peer& peer : peers_) peer.waiting.clear();
    while (!links_.empty()) drop(*links_.begin()->first);
    finish_if_over();
  });
  std::vector<wire::Link*> links;
  for (auto& [link, held] : links_) links.push_back(link);
  for (wire::Link* link : links) {
    const Held& held = links_[link];
    if (link->is_open()) {
      if (!link->is_finishing()) part(*link);
    } else if (link->is_confirming()) {
      continue;  // the peer may have let it in: attach() parts it
    } else if (held.process < 0 || peers_[static_cast<uint32_t>(held.process)].waiting.empty()) {
      drop(*link);
    }
  }
  await_answers(answer);
  finish_if_over();
}

void Mesh::await_answers(wire::EventLoop::Clock::duration answer) {
  answers_ = loop_.after(answer, [this, answer] {
    std::vector<wire::Link*> unanswered;
    for (auto& [link, held] : links_)
      if (link->is_finishing()) unanswered.push_back(link);
    for (wire::Link* link : unanswered) drop(*link);
    await_answers(answer);  // to goodbyes on links that are still to open
    finish_if_over();
  });
}

std::vector<uint32_t> Mesh::linked() const {
  std::vector<uint32_t> processes;
  for (const auto& [link, held] : links_)
    if (held.process >= 0) processes.push_back(static_cast<uint32_t>(held.process));
  return processes;
}

void Mesh::leave_behind(uint32_t process) {
  peers_[process].waiting.clear();
  std::vector<wire::Link*> links;
  for (auto& [link, held] : links_)
    if (held.process == int64_t{process}) links.push_back(link);
  for (wire::Link* link : links) drop(*link);
  finish_if_over();
}

// Says goodbye on one link. Its end follows when the peer has answered by closing.
void Mesh::part(wire::Link& link) {
  link.send(messages::encode_type(MessageType::Goodbye));
  link.finish();
}

bool Mesh::has_waiting() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return !peer.gone && !peer.waiting.empty(); });
}

void Mesh::finish_if_over() {
  if (!leaving_ || over_ || has_waiting()) return;
  // Nobody is let in any more. Later, since the acceptor may be on the stack.
  if (acceptor_ != nullptr)
    loop_.post([acceptor = std::shared_ptr<wire::Acceptor>(std::move(acceptor_))] {});
  if (!links_.empty()) return;
  over_ = true;
  loop_.cancel(patience_);
  loop_.cancel(answers_);
  events_.mesh_over();
}

}  // namespace niccolite::bootstrap
