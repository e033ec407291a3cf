#include "transport/endpoint.h"

#include <algorithm>
#include <set>
#include <thread>

#include "base/log.h"
#include "base/parameters.h"
#include "transport/messages.h"

namespace niccolite::transport {
namespace {

using executor::Protocol;

// Peers asked at once: each may cost a link to another process.
constexpr size_t kMostAsked = 64;

int streams_from_environment() {
  const int64_t asked = parameters::socket_nthreads() * parameters::nsocks_perthread();
  return static_cast<int>(std::min<int64_t>(asked, net::kMostStreams));
}

}  // namespace

Endpoint::Endpoint(gpu::Machine& machine, int device, const bootstrap::Member& member,
                   const Shapes& shapes, Reach reach, Ask ask, std::function<void(Status)> fail,
                   std::shared_ptr<net::Network> network)
    : machine_(machine),
      device_(device),
      member_(member),
      shapes_(shapes),
      reach_(std::move(reach)),
      ask_(std::move(ask)),
      fail_(std::move(fail)),
      network_(std::move(network)),
      share_(Pool::of(machine, device, Pool::Purpose::Connections)) {}

Endpoint::~Endpoint() {
  if (peers_are_suspended_) return;
  for (const auto& [token, chunk] : remote_chunks_)
    if (chunk.imported != nullptr) chunk.imported->leave();
}

const executor::FifoShape& Endpoint::shape_of(const Name& name) const {
  const auto& shapes = name.tag == schedule::kMessageTag ? shapes_.of_messages : shapes_.shared;
  return shapes[static_cast<size_t>(name.protocol)];
}

size_t Endpoint::allocated_bytes() const {
  std::lock_guard lock(mutex_);
  return share_.bytes();
}

Status Endpoint::suspend_peers() {
  peers_are_suspended_ = true;
  for (const auto& [token, chunk] : remote_chunks_)
    if (chunk.imported != nullptr) TRY(chunk.imported->suspend());
  return {};
}

Status Endpoint::suspend_own() {
  std::lock_guard lock(mutex_);
  return share_.suspend();
}

Status Endpoint::resume_own() {
  std::lock_guard lock(mutex_);
  return share_.resume();
}

Status Endpoint::resume_peers(const Deadline& deadline) {
  for (const auto& [token, chunk] : remote_chunks_)
    if (chunk.imported != nullptr) TRY(chunk.imported->resume(deadline));
  peers_are_suspended_ = false;
  return {};
}

Result<std::vector<Endpoint::LocalEnd>> Endpoint::local_ends(std::span<const Name> names) {
  std::lock_guard lock(mutex_);
  std::set<Name> missing;  // joined programs have ports that share a connection
  for (const Name& name : names)
    if (!is_remote(name.peer) && !local_ends_.contains(name)) missing.insert(name);
  std::vector<size_t> sizes;  // of each: of its control, at a receiver then of its slots
  for (const Name& name : missing) {
    sizes.push_back(shape_of(name).control_bytes());
    if (name.role == Role::Receiver) sizes.push_back(shape_of(name).slots_bytes());
  }
  const std::vector<Span> spans = TRY(share_.allocate(sizes));
  size_t next = 0;
  for (const Name& name : missing) {
    LocalEnd end;
    end.control = spans[next++];
    if (name.role == Role::Receiver) end.slots = spans[next++];
    local_ends_.emplace(name, std::move(end));
  }
  std::vector<LocalEnd> ends;
  for (const Name& name : names)
    ends.push_back(is_remote(name.peer) ? LocalEnd() : local_ends_.at(name));
  return ends;
}

std::vector<Endpoint::Name> Endpoint::names_of(const executor::Program& program,
                                               Protocol protocol) {
  std::vector<Name> names;
  for (const executor::Port& port : program.ports)
    names.push_back({port.peer, port.tag, protocol, port.is_send ? Role::Sender : Role::Receiver});
  return names;
}

Status Endpoint::reserve(const executor::Program& program, Protocol protocol) {
  return local_ends(names_of(program, protocol)).status();
}

Result<std::vector<executor::PortAddress>> Endpoint::connect(const executor::Program& program,
                                                             Protocol protocol,
                                                             const Deadline& deadline) {
  const std::vector<Name> names = names_of(program, protocol);
  const std::vector<LocalEnd> locals = TRY(local_ends(names));
  std::map<int, std::set<Name>> missing;
  for (const Name& name : names)
    if (!remote_ends_.contains(name) && !relays_.contains(name)) missing[name.peer].insert(name);
  std::vector<Unconnected> peers;
  for (const auto& [peer, of_peer] : missing)
    peers.push_back({peer, {of_peer.begin(), of_peer.end()}});
  for (size_t first = 0; first < peers.size(); first += kMostAsked)
    TRY(connect_peers(std::span(peers).subspan(first, std::min(kMostAsked, peers.size() - first)),
                      deadline));

  std::vector<executor::PortAddress> addresses;
  for (size_t i = 0; i < names.size(); ++i) {
    if (const auto relay = relays_.find(names[i]); relay != relays_.end()) {
      addresses.push_back(relay->second);
      continue;
    }
    const RemoteEnd& remote = remote_ends_.at(names[i]);
    executor::PortAddress address;
    address.slots = names[i].role == Role::Sender ? remote.slots : locals[i].slots->data();
    address.control = reinterpret_cast<executor::ControlBlock*>(locals[i].control.data());
    address.remote_control = reinterpret_cast<executor::ControlBlock*>(remote.control);
    address.can_land = reaches_user(names[i], Role::Sender);
    address.can_lend = reaches_user(names[i], Role::Receiver);
    address.opens_buffers = reach_.in[static_cast<size_t>(names[i].peer)];
    addresses.push_back(address);
  }
  return addresses;
}

bool Endpoint::reaches_user(const Name& name, Role end) const {
  const std::vector<bool>& reach = name.role == end ? reach_.out : reach_.in;
  const auto peer = static_cast<size_t>(name.peer);
  // Of ranks in other processes any buffer may be mapped, of those of this one windows are.
  const bool may_be_mapped = are_windows_open_ || !member_.same_process(name.peer);
  return name.protocol == Protocol::Simple &&
         (reach[peer] || (reach_.windows[peer] && may_be_mapped));
}

Status Endpoint::connect_peers(std::span<const Unconnected> peers, const Deadline& deadline) {
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
    TRY(std::move(status).with_context("rank {}: connecting to rank {}", member_.rank(),
                                       peers[i].peer));
  }
  return {};
}

Result<Bytes> Endpoint::request_for(const Unconnected& of) {
  ConnectRequest request;
  request.device = static_cast<uint32_t>(device_);
  request.same_process = member_.same_process(of.peer);
  for (const Name& name : of.names)
    request.items.push_back({.protocol = static_cast<uint8_t>(name.protocol),
                             .tag = static_cast<uint16_t>(name.tag),
                             .asker_sends = name.role == Role::Sender});
  if (is_remote(of.peer)) TRY(describe_proxy(of.peer, request));
  return request.encode();
}

Status Endpoint::adopt(const Unconnected& of, std::span<const std::byte> bytes,
                       const Deadline& deadline) {
  const int peer = of.peer;
  const ConnectReply reply = TRY(ConnectReply::decode(bytes));
  if (is_remote(peer) != reply.proxy.has_value())
    return Status::remote_error("rank {} does not agree about what is on one machine", peer);
  if (reply.proxy) return adopt_relays(of, reply);
  if (reply.items.size() != of.names.size())
    return Status::remote_error("rank {} answered {} connections of {}", peer, reply.items.size(),
                                of.names.size());

  for (size_t i = 0; i < of.names.size(); ++i) {
    const Name& name = of.names[i];
    const auto map = [&](const ConnectReply::Place& place, size_t needed) -> Result<std::byte*> {
      const RemoteChunk* chunk =
          TRY(remote_chunk(peer, place.token, place.chunk_bytes, reply.address, deadline));
      if (place.offset > chunk->bytes() || chunk->bytes() - place.offset < needed)
        return Status::remote_error("rank {} offers {} bytes at offset {} of a chunk of {} bytes",
                                    peer, needed, place.offset, chunk->bytes());
      return chunk->data() + place.offset;
    };
    const executor::FifoShape& shape = shape_of(name);
    RemoteEnd end;
    end.control = TRY(map(reply.items[i].control, shape.control_bytes()));
    if (name.role == Role::Sender) end.slots = TRY(map(reply.items[i].slots, shape.slots_bytes()));
    remote_ends_.emplace(name, end);
  }
  LOG(Info, P2p, "Channel 00/0 : {}[{}] -> {} via P2P/{}", member_.rank(), device_, peer,
      member_.same_process(peer)           ? "direct pointer"
      : machine_.kind() == gpu::Kind::Cuda ? "CUMEM"
                                           : "memfd");
  return {};
}

Result<const Endpoint::RemoteChunk*> Endpoint::remote_chunk(int peer, const Token& token,
                                                            size_t bytes,
                                                            const std::string& address,
                                                            const Deadline& deadline) {
  if (const auto found = remote_chunks_.find(token); found != remote_chunks_.end())
    return &found->second;
  RemoteChunk chunk;
  if (member_.same_process(peer)) {
    chunk.shared = Chunk::find(token);
    if (chunk.shared == nullptr)
      return Status::remote_error("rank {} has given its memory back", peer);
  } else {
    chunk.imported = TRY(Import::open(
        machine_, device_, {.address = address, .token = token, .bytes = bytes}, deadline));
  }
  return &remote_chunks_.emplace(token, std::move(chunk)).first->second;
}

Result<net::Proxy*> Endpoint::proxy() {
  std::lock_guard lock(mutex_);
  if (proxy_ == nullptr)
    proxy_ = TRY(net::Proxy::start({.machine = machine_,
                                    .member = member_,
                                    .fail = fail_,
                                    .streams = streams_from_environment(),
                                    .network = network_}));
  return proxy_.get();
}

Result<executor::PortAddress> Endpoint::open_relay(net::Proxy& proxy, const Name& name) {
  return proxy.open({.peer = name.peer,
                     .key = {.tag = name.tag, .protocol = name.protocol},
                     .is_send = name.role == Role::Sender},
                    shape_of(name));
}

template <typename Message>
Status Endpoint::describe_proxy(int peer, Message& message) {
  net::Proxy* const own = TRY(proxy());
  message.proxy = own->address();
  if (network_ == nullptr) return {};
  const net::Network::Handle handle = TRY(own->listen_for(peer));
  message.network = network_->name();
  message.handle.assign(handle.begin(), handle.end());
  return {};
}

template <typename Message>
Status Endpoint::reach_proxy(int peer, const Message& message, bool sends) {
  const std::string own_name = network_ == nullptr ? "" : network_->name();
  if (message.network != own_name) {
    const auto spoken = [](const std::string& name) { return name.empty() ? "Socket" : name; };
    return Status::invalid_usage(
        "rank {} reaches other machines by network {} and rank {} by {}: set NCCL_NET_PLUGIN and "
        "NCCL_NET alike on all machines, and install the plug-in on all",
        member_.rank(), spoken(own_name), peer, spoken(message.network));
  }
  net::Proxy* const own = TRY(proxy());
  if (network_ == nullptr) {
    if (sends) own->reach(peer, *message.proxy);
    return {};
  }
  net::Network::Handle handle;
  std::ranges::copy(message.handle, handle.begin());
  own->reach(peer, handle);  // credit comes back by this way
  return {};
}

// The peer has made its ends.
Status Endpoint::adopt_relays(const Unconnected& of, const ConnectReply& reply) {
  net::Proxy* const own = TRY(proxy());
  bool sends = false;
  for (const Name& name : of.names) {
    const executor::PortAddress port = TRY(open_relay(*own, name));
    relays_.emplace(name, port);
    sends |= name.role == Role::Sender;
    LOG(Info, Net, "Channel 00/0 : {}[{}] -> {} [{}] via NET/{}/0",
        name.role == Role::Sender ? member_.rank() : of.peer, device_,
        name.role == Role::Sender ? of.peer : member_.rank(),
        name.role == Role::Sender ? "send" : "receive",
        network_ == nullptr ? "Socket" : network_->name());
  }
  return reach_proxy(of.peer, reply, sends);
}

Result<Bytes> Endpoint::answer_remote(int asker, std::span<const Name> names,
                                      const ConnectRequest& request) {
  net::Proxy* const own = TRY(proxy());
  bool sends = false;
  for (const Name& name : names) {
    TRY(open_relay(*own, name).status());
    sends |= name.role == Role::Sender;
  }
  ConnectReply reply;
  TRY(describe_proxy(asker, reply));
  TRY(reach_proxy(asker, request, sends));
  return reply.encode();
}

bool Endpoint::await_flush(const Deadline& deadline) const {
  const net::Proxy* proxy = nullptr;  // it lives as long as the endpoint
  {
    std::lock_guard lock(mutex_);
    proxy = proxy_.get();
  }
  // At the end of a communicator, and mostly true at once: not worth a signal of the proxy's.
  while (proxy != nullptr && !proxy->is_flushed()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

Result<Bytes> Endpoint::answer(int from, std::span<const std::byte> bytes) {
  const ConnectRequest request = TRY(ConnectRequest::decode(bytes));
  std::vector<Name> names;
  for (const ConnectRequest::Item& item : request.items)
    names.push_back({from, item.tag, static_cast<Protocol>(item.protocol),
                     item.asker_sends ? Role::Receiver : Role::Sender});
  if (is_remote(from) != request.proxy.has_value())
    return Status::remote_error("rank {} does not agree about what is on one machine", from);
  if (request.proxy) return answer_remote(from, names, request);
  ConnectReply reply;
  if (!request.same_process) {
    std::lock_guard lock(mutex_);
    if (server_ == nullptr) server_ = TRY(DescriptorServer::instance());
    reply.address = server_->address();
  }
  std::set<Chunk*> chunks;  // that the asker can access
  const auto offer = [&](const Span& span) -> Result<ConnectReply::Place> {
    if (request.same_process && chunks.insert(span.chunk.get()).second)
      TRY(span.chunk->grant_access(static_cast<int>(request.device)));
    return ConnectReply::Place{span.chunk->token(), span.chunk->bytes(), span.offset};
  };
  const std::vector<LocalEnd> ends = TRY(local_ends(names));
  for (const LocalEnd& end : ends) {
    ConnectReply::Item answer;
    answer.control = TRY(offer(end.control));
    if (end.slots) answer.slots = TRY(offer(*end.slots));
    reply.items.push_back(answer);
  }
  return reply.encode();
}

}  // namespace niccolite::transport
