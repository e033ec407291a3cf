#include "transport/endpoint.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/log.h"
#include "executor/protocol/put.h"
#include "gpu/machine.h"
#include "transport/gpu_memory.h"
#include "transport/host_memory.h"
#include "transport/messages.h"
#include "transport/net/reducer.h"
#include "transport/network_connector.h"
#include "transport/same_process.h"

namespace niccolite::transport {
namespace {

using executor::Protocol;

// Peers asked at once: each may cost a link to another process.
constexpr size_t kMostAsked = 64;

bool is_reduced(const End& end) {
  return schedule::through_of(end.tag) != schedule::Through::Nothing;
}

std::vector<Pair> pairs_of(const bootstrap::Member& member, const std::vector<Pair>& given) {
  std::vector<Pair> pairs = given;
  pairs.resize(static_cast<size_t>(member.nranks()));
  for (int peer = 0; peer < member.nranks(); ++peer)
    pairs[static_cast<size_t>(peer)].same_process = member.same_process(peer);
  return pairs;
}

}  // namespace

Endpoint::Endpoint(gpu::Machine& machine, int device, const bootstrap::Member& member,
                   const Shapes& shapes, Reach reach, Ask ask, std::function<void(Status)> fail,
                   Carrier carrier, std::shared_ptr<Observer> observer, std::unique_ptr<Team> team,
                   PutSinks sinks)
    : machine_(machine),
      device_(device),
      member_(member),
      observer_(std::move(observer)),
      shapes_(shapes),
      reach_(std::move(reach)),
      team_(std::move(team)),
      takes_puts_(sinks.puts != nullptr),
      is_virtual_(machine.kind() == gpu::Kind::Virtual),
      ask_(std::move(ask)),
      pairs_(pairs_of(member, reach_.pairs)) {
  connectors_.push_back(std::make_unique<SameProcess>(machine, device));
  connectors_.push_back(std::make_unique<GpuMemory>(machine, device));
  connectors_.push_back(std::make_unique<HostMemory>(machine));
  connectors_.push_back(std::make_unique<NetworkConnector>(
      machine, member, std::move(fail), std::move(carrier), observer_, std::move(sinks)));
  for (const Pair& pair : pairs_) {
    const auto serves = [&](const auto& connector) { return connector->objection(pair).empty(); };
    by_peer_.push_back(std::ranges::find_if(connectors_, serves)->get());  // the last always does
  }
}

Endpoint::~Endpoint() = default;

executor::FifoShape Endpoint::shape_of(const End& end) const {
  if (team_ != nullptr && lowering::is_team_tag(end.tag)) {
    executor::FifoShape counters = team_->slots().of(end.protocol);
    counters.slot_bytes = 0;
    return counters;
  }
  if (has_sink(end.tag)) return executor::kPutShape;
  const auto& shapes = end.tag == schedule::kMessageTag ? shapes_.of_messages : shapes_.shared;
  return shapes[static_cast<size_t>(end.protocol)];
}

std::shared_ptr<TeamRange> Endpoint::team_range() const {
  return team_ != nullptr ? team_->range() : nullptr;
}

size_t Endpoint::allocated_bytes() const {
  size_t bytes = 0;
  for (const auto& connector : connectors_) bytes += connector->device_bytes();
  if (team_ != nullptr) bytes += team_->bytes();
  return bytes;
}

size_t Endpoint::lasting_bytes() const {
  size_t bytes = 0;
  for (const auto& connector : connectors_) bytes += connector->lasting_bytes();
  return bytes;
}

Status Endpoint::suspend_peers() {
  {
    std::lock_guard lock(ends_mutex_);
    kept_.clear();
  }
  for (const auto& connector : connectors_) TRY(connector->suspend_peers());
  return {};
}

Status Endpoint::suspend_own() {
  for (const auto& connector : connectors_) TRY(connector->suspend_own());
  return team_ != nullptr ? team_->suspend() : Status();
}

Status Endpoint::resume_own() {
  for (const auto& connector : connectors_) TRY(connector->resume_own());
  return team_ != nullptr ? team_->resume() : Status();
}

Status Endpoint::resume_peers(const Deadline& deadline) {
  for (const auto& connector : connectors_) TRY(connector->resume_peers(deadline));
  return {};
}

std::optional<NetworkState> Endpoint::network_state() const {
  for (const auto& connector : connectors_)
    if (std::optional<NetworkState> state = connector->network_state()) return state;
  return std::nullopt;
}

bool Endpoint::await_flush(const Deadline& deadline) const {
  return std::ranges::all_of(
      connectors_, [&](const auto& connector) { return connector->await_flush(deadline); });
}

void Endpoint::set_farewell(Farewell farewell) {
  for (const auto& connector : connectors_) connector->set_farewell(farewell);
}

void Endpoint::close() {
  if (reducer_ != nullptr) reducer_->close();
  for (const auto& connector : connectors_) connector->close();
}

void Endpoint::set_reducer(std::shared_ptr<net::Reducer> reducer) { reducer_ = std::move(reducer); }

// No peer has to make an end: all members made theirs when they connected to the network.
Result<executor::PortAddress> Endpoint::reducer_port(const ShapedEnd& shaped) const {
  if (reducer_ == nullptr)
    return Status::internal("a connection through the network's reducer, which rank {} has not",
                            member_.rank());
  return reducer_->port(machine_, schedule::through_of(shaped.end.tag), shaped.end.is_send,
                        shaped.shape);
}

std::vector<ShapedEnd> Endpoint::ends_of(const executor::Program& program,
                                         Protocol protocol) const {
  std::vector<ShapedEnd> ends;
  for (const executor::Port& port : program.ports) {
    const End end{
        .peer = port.peer, .tag = port.tag, .protocol = protocol, .is_send = port.is_send};
    ends.push_back({end, shape_of(end)});
  }
  return ends;
}

Status Endpoint::reserve(std::span<const ShapedEnd> ends) {
  std::map<Connector*, std::vector<ShapedEnd>> by_connector;
  for (const ShapedEnd& shaped : ends)
    if (!is_reduced(shaped.end)) by_connector[&connector_to(shaped.end.peer)].push_back(shaped);
  for (const auto& [connector, of_it] : by_connector) TRY(connector->reserve(of_it));
  return {};
}

Status Endpoint::reserve(const executor::Program& program, Protocol protocol) {
  return reserve(ends_of(program, protocol));
}

Result<std::vector<executor::PortAddress>> Endpoint::connect(const executor::Program& program,
                                                             Protocol protocol,
                                                             const Deadline& deadline) {
  const std::vector<ShapedEnd> ends = ends_of(program, protocol);
  TRY(reserve(ends));
  std::map<int, std::map<End, executor::FifoShape>> missing;
  for (const auto& [end, shape] : ends)
    if (!is_reduced(end) && !connector_to(end.peer).port(end))
      missing[end.peer].emplace(end, shape);
  std::vector<Unconnected> peers;
  for (const auto& [peer, of_peer] : missing) {
    Unconnected& of = peers.emplace_back(Unconnected{peer, {}});
    for (const auto& [end, shape] : of_peer) of.ends.push_back({end, shape});
  }
  for (size_t first = 0; first < peers.size(); first += kMostAsked)
    TRY(connect_peers(std::span(peers).subspan(first, std::min(kMostAsked, peers.size() - first)),
                      deadline));

  std::vector<executor::PortAddress> addresses;
  for (size_t port = 0; port < ends.size(); ++port) {
    const End& end = ends[port].end;
    if (is_reduced(end)) {
      addresses.push_back(TRY(reducer_port(ends[port])));
      continue;
    }
    executor::PortAddress address = connector_to(end.peer).port(end).value();
    if (lowering::is_team_tag(end.tag)) {
      if (team_ == nullptr) return Status::internal("a program goes by a team that there is not");
      team_->set_slots(program.ports[port], end.protocol, address);
    }
    address.can_put = reaches_user(end, /*at_sender=*/true);
    address.fills_slots_first = is_virtual_ && member_.same_process(end.peer);
    // A virtual GPU reduces faster from slots, which are in its core's cache: an all-reduce of 16
    // MiB over 4 ranks takes 8.2 ms of processor time, and 12.4 ms by gets.
    address.can_get =
        reaches_user(end, /*at_sender=*/false) && (!address.fills_slots_first || are_windows_open_);
    address.opens_buffers = !address.in_host && reach_.in[static_cast<size_t>(end.peer)];
    addresses.push_back(address);
  }
  return addresses;
}

bool Endpoint::reaches_user(const End& end, bool at_sender) const {
  const auto peer = static_cast<size_t>(end.peer);
  const Connector::Kind kind = connector_to(end.peer).kind();
  if (kind != Connector::Kind::SameProcess && kind != Connector::Kind::GpuMemory) return false;
  const std::vector<bool>& reach = end.is_send == at_sender ? reach_.out : reach_.in;
  // Ranks of other processes may map any buffer. Within this process only windows are mapped, once
  // they are open.
  const bool may_be_mapped = are_windows_open_ || !member_.same_process(end.peer);
  return end.protocol == Protocol::Simple &&
         (reach[peer] || (reach_.windows[peer] && may_be_mapped));
}

Status Endpoint::connect_peers(std::span<const Unconnected> all, const Deadline& deadline) {
  std::vector<Unconnected> peers;
  for (const Unconnected& of : all)
    if (!TRY(adopt_kept(of, deadline))) peers.push_back(of);
  if (peers.empty()) return {};
  std::vector<Bytes> requests;
  std::vector<bootstrap::Query> queries;
  for (const Unconnected& of : peers) {
    Bytes request = TRY(request_for(of));
    requests.push_back(std::move(request));
  }
  for (size_t i = 0; i < peers.size(); ++i)
    queries.push_back({.peer = peers[i].peer, .message = requests[i]});
  std::vector<Result<Bytes>> replies = ask_(queries, deadline);
  for (size_t i = 0; i < replies.size(); ++i) {
    Status status = replies[i].is_ok() ? adopt(peers[i], *replies[i], deadline)
                                       : std::move(replies[i]).status();
    // The peer may have left meanwhile.
    if (!status.is_ok() && TRY(adopt_kept(peers[i], deadline))) status = {};
    TRY(std::move(status).with_context("rank {}: connecting to rank {}", member_.rank(),
                                       peers[i].peer));
  }
  if (replies.size() == peers.size()) return {};
  return connect_peers(std::span(peers).subspan(replies.size()), deadline);
}

Result<Bytes> Endpoint::request_for(const Unconnected& of) {
  Connector& connector = connector_to(of.peer);
  ConnectRequest request;
  request.connector = static_cast<uint8_t>(connector.kind());
  request.device = static_cast<uint32_t>(device_);
  request.same_process = member_.same_process(of.peer);
  for (const auto& [end, shape] : of.ends)
    request.items.push_back({.protocol = static_cast<uint8_t>(end.protocol),
                             .tag = static_cast<uint16_t>(end.tag),
                             .asker_sends = end.is_send});
  TRY(connector.ask(of.peer, request));
  return request.encode();
}

Status Endpoint::adopt(const Unconnected& of, std::span<const std::byte> bytes,
                       const Deadline& deadline) {
  const ConnectReply reply = TRY(ConnectReply::decode(bytes));
  TRY(connector_to(of.peer).adopt(of.peer, of.ends, reply, deadline));
  note_adopted(of, reply);
  return {};
}

Result<bool> Endpoint::adopt_kept(const Unconnected& of, const Deadline& deadline) {
  std::vector<ConnectReply> replies;
  {
    std::lock_guard lock(ends_mutex_);
    for (const ShapedEnd& shaped : of.ends) {
      const auto kept = kept_.find(shaped.end);
      if (kept == kept_.end()) return false;
      replies.push_back(kept->second);
    }
  }
  for (size_t i = 0; i < of.ends.size(); ++i)
    TRY(connector_to(of.peer).adopt(of.peer, std::span(of.ends).subspan(i, 1), replies[i],
                                    deadline));
  note_adopted(of, {});
  return true;
}

void Endpoint::note_adopted(const Unconnected& of, const ConnectReply& reply) {
  {
    std::lock_guard lock(ends_mutex_);
    for (size_t i = 0; i < of.ends.size(); ++i) {
      const End& end = of.ends[i].end;
      adopted_.insert(end);
      kept_.erase(end);
      if (i < reply.is_joined.size() && reply.is_joined[i] != 0)
        awaited_.erase(end);
      else
        awaited_.insert(end);
    }
  }
  if (observer_ != nullptr) observer_->connected(of.peer);
  log_connection(of);
}

// Logs as NCCL does: senders name the carrier, and with the network both ends do.
void Endpoint::log_connection(const Unconnected& of) const {
  const Connector& connector = connector_to(of.peer);
  const Pair& pair = pairs_[static_cast<size_t>(of.peer)];
  const bool by_network = connector.kind() == Connector::Kind::Network;
  std::set<bool> directions;
  for (const ShapedEnd& shaped : of.ends) directions.insert(shaped.end.is_send);
  for (const bool is_send : directions) {
    if (!is_send && !by_network) continue;
    const auto self = fmt::format("{}[{}]", member_.rank(), device_);
    const auto peer = fmt::format("{}[{}]", of.peer, pair.peer_device);
    const std::string line =
        fmt::format("Channel 00/0 : {} -> {}{} via ", is_send ? self : peer, is_send ? peer : self,
                    !by_network ? ""
                    : is_send   ? " [send]"
                                : " [receive]");
    if (by_network) {
      std::vector<ShapedEnd> ends;
      std::ranges::copy_if(of.ends, std::back_inserter(ends),
                           [&](const ShapedEnd& shaped) { return shaped.end.is_send == is_send; });
      for (const std::string& name : connector.devices(ends)) LOG(Info, Net, "{}{}", line, name);
    } else if (connector.kind() == Connector::Kind::HostMemory)
      LOG(Info, Shm, "{}{}", line, connector.name());
    else
      LOG(Info, P2p, "{}{}", line, connector.name());
  }
  if (!by_network && connector.kind() != Connector::Kind::HostMemory) return;
  for (const auto& other : connectors_) {
    if (other.get() == &connector) break;
    LOG(Info, P2p, "ranks {} and {} are not connected by {}: {}", member_.rank(), of.peer,
        other->name(), other->objection(pair));
  }
}

Result<executor::PortAddress> Endpoint::connect_to_sink(int peer, int tag,
                                                        const Deadline& deadline) {
  executor::Program program;
  program.ports.push_back(
      {.peer = peer, .tag = tag, .channel = 0, .is_send = true, .steps = 1, .work = 0});
  return TRY(connect(program, Protocol::Simple, deadline)).front();
}

Result<Bytes> Endpoint::answer(int from, std::span<const std::byte> bytes) {
  const ConnectRequest request = TRY(ConnectRequest::decode(bytes));
  Connector& connector = connector_to(from);
  if (request.connector != static_cast<uint8_t>(connector.kind()))
    return Status::remote_error(
        "rank {} asks for another way of connection than rank {} knows between them ({})", from,
        member_.rank(), connector.name());
  std::vector<ShapedEnd> ends;
  for (const ConnectRequest::Item& item : request.items) {
    const End end{.peer = from,
                  .tag = item.tag,
                  .protocol = static_cast<Protocol>(item.protocol),
                  .is_send = !item.asker_sends};
    if (has_sink(end.tag) && (!takes_puts_ || connector.kind() != Connector::Kind::Network ||
                              end.protocol != Protocol::Simple))
      return Status::remote_error(
          "rank {} asks for a connection for puts, which rank {} does not take from it by {}", from,
          member_.rank(), connector.name());
    ends.push_back({end, shape_of(end)});
  }
  ConnectReply reply;
  TRY(connector.answer(from, ends, request, reply));
  std::lock_guard lock(ends_mutex_);
  for (const ShapedEnd& shaped : ends) {
    awaited_.insert(shaped.end);
    reply.is_joined.push_back(adopted_.contains(shaped.end) ? 1 : 0);
  }
  return reply.encode();
}

Result<std::vector<Endpoint::Legacy>> Endpoint::hand_over() {
  std::map<int, std::vector<ShapedEnd>> by_peer;
  {
    std::lock_guard lock(ends_mutex_);
    for (const End& end : awaited_) by_peer[end.peer].push_back({end, shape_of(end)});
  }
  std::vector<Legacy> legacies;
  for (const auto& [peer, ends] : by_peer) {
    if (member_.has_left(peer)) continue;
    Connector& connector = connector_to(peer);
    HandOver told{.connector = static_cast<uint8_t>(connector.kind()), .items = {}, .reply = {}};
    for (const auto& [end, shape] : ends)
      told.items.push_back({.protocol = static_cast<uint8_t>(end.protocol),
                            .tag = static_cast<uint16_t>(end.tag),
                            .asker_sends = !end.is_send});
    TRY(connector.hand_over(peer, member_.same_process(peer), ends, told.reply));
    legacies.push_back({peer, told.encode()});
  }
  return legacies;
}

Status Endpoint::keep(int from, std::span<const std::byte> message) {
  constexpr std::chrono::milliseconds kMoment{2000};  // of a service thread, for a peer that waits
  HandOver told = TRY(HandOver::decode(message));
  Connector& connector = connector_to(from);
  if (told.connector != static_cast<uint8_t>(connector.kind()))
    return Status::remote_error("rank {} hands over another kind of connection", from);
  std::map<End, ConnectReply> kept;
  ConnectReply fetched = told.reply;
  fetched.items.clear();
  {
    std::lock_guard lock(ends_mutex_);
    for (size_t i = 0; i < told.items.size(); ++i) {
      const ConnectRequest::Item& item = told.items[i];
      const End end{.peer = from,
                    .tag = item.tag,
                    .protocol = static_cast<Protocol>(item.protocol),
                    .is_send = item.asker_sends};
      if (adopted_.contains(end)) continue;
      ConnectReply& reply = kept[end] = told.reply;
      reply.items.clear();
      if (i >= told.reply.items.size()) continue;  // of the network
      reply.items.push_back(told.reply.items[i]);
      fetched.items.push_back(told.reply.items[i]);
    }
  }
  if (kept.empty()) return {};
  TRY(connector.keep(from, fetched, Deadline::after(kMoment)));
  std::lock_guard lock(ends_mutex_);
  kept_.merge(kept);
  return {};
}

}  // namespace niccolite::transport
