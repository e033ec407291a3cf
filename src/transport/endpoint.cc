#include "transport/endpoint.h"

#include <set>

#include "base/log.h"
#include "transport/messages.h"

namespace niccolite::transport {
namespace {

using executor::Protocol;

// CUDA maps memory in units of 2 MiB; virtual memory costs only what is touched, and descriptors.
size_t chunk_bytes(gpu::Kind machine) { return machine == gpu::Kind::Cuda ? 2 << 20 : 512 << 10; }

ConnectReply::Place place_of(const Span& span) {
  return {span.chunk->token(), span.chunk->bytes(), span.offset};
}

}  // namespace

Endpoint::Endpoint(gpu::Machine& machine, int device, const bootstrap::Member& member,
                   const Shapes& shapes, Ask ask)
    : machine_(machine),
      device_(device),
      member_(member),
      shapes_(shapes),
      ask_(std::move(ask)),
      arena_(machine, device, chunk_bytes(machine.kind())) {}

size_t Endpoint::allocated_bytes() const {
  std::lock_guard lock(mutex_);
  return arena_.allocated_bytes();
}

Result<Endpoint::LocalEnd> Endpoint::local_end(const Name& name) {
  std::lock_guard lock(mutex_);
  if (const auto found = local_ends_.find(name); found != local_ends_.end()) return found->second;
  const executor::FifoShape& shape = shapes_[static_cast<size_t>(name.protocol)];
  LocalEnd end;
  end.control = TRY(arena_.allocate(shape.control_bytes()));
  if (name.role == Role::Receiver) end.slots = TRY(arena_.allocate(shape.slots_bytes()));
  local_ends_.emplace(name, end);
  return end;
}

Result<std::vector<executor::PortAddress>> Endpoint::connect(const executor::Program& program,
                                                             Protocol protocol,
                                                             const Deadline& deadline) {
  const auto name_of = [&](const executor::Port& port) {
    return Name{port.peer, port.tag, protocol, port.is_send ? Role::Sender : Role::Receiver};
  };
  std::map<int, std::set<Name>> missing;
  for (const executor::Port& port : program.ports)
    if (const Name name = name_of(port); !remote_ends_.contains(name))
      missing[port.peer].insert(name);
  for (const auto& [peer, names] : missing)
    TRY(connect_peer(peer, std::vector<Name>(names.begin(), names.end()), deadline)
            .with_context("rank {}: connecting to rank {}", member_.rank(), peer));

  std::vector<executor::PortAddress> addresses;
  for (const executor::Port& port : program.ports) {
    const Name name = name_of(port);
    const LocalEnd local = TRY(local_end(name));
    const RemoteEnd& remote = remote_ends_.at(name);
    executor::PortAddress address;
    address.slots = port.is_send ? remote.slots : local.slots->data();
    address.control = reinterpret_cast<executor::ControlBlock*>(local.control.data());
    address.remote_control = reinterpret_cast<executor::ControlBlock*>(remote.control);
    addresses.push_back(address);
  }
  return addresses;
}

Status Endpoint::connect_peer(int peer, std::span<const Name> names, const Deadline& deadline) {
  ConnectRequest request;
  request.device = static_cast<uint32_t>(device_);
  request.same_process = member_.same_process(peer);
  for (const Name& name : names)
    request.items.push_back({.protocol = static_cast<uint8_t>(name.protocol),
                             .tag = static_cast<uint16_t>(name.tag),
                             .asker_sends = name.role == Role::Sender});
  const auto bytes = TRY(ask_(peer, request.encode(), deadline));
  const ConnectReply reply = TRY(ConnectReply::decode(bytes));
  if (reply.items.size() != names.size())
    return Status::remote_error("rank {} answered {} connections of {}", peer, reply.items.size(),
                                names.size());

  for (size_t i = 0; i < names.size(); ++i) {
    const auto map = [&](const ConnectReply::Place& place, size_t needed) -> Result<std::byte*> {
      const RemoteChunk* chunk =
          TRY(remote_chunk(peer, place.token, place.chunk_bytes, reply.address, deadline));
      if (place.offset > chunk->bytes() || chunk->bytes() - place.offset < needed)
        return Status::remote_error("rank {} offers {} bytes at offset {} of a chunk of {} bytes",
                                    peer, needed, place.offset, chunk->bytes());
      return chunk->data() + place.offset;
    };
    const executor::FifoShape& shape = shapes_[static_cast<size_t>(names[i].protocol)];
    RemoteEnd end;
    end.control = TRY(map(reply.items[i].control, shape.control_bytes()));
    if (names[i].role == Role::Sender)
      end.slots = TRY(map(reply.items[i].slots, shape.slots_bytes()));
    remote_ends_.emplace(names[i], end);
  }
  LOG(Info, P2p, "Channel 00/0 : {}[{}] -> {} via P2P/{}", member_.rank(), device_, peer,
      request.same_process                 ? "direct pointer"
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
    Fd descriptor = TRY(fetch_descriptor(address, token, deadline));
    chunk.imported = TRY(machine_.import_memory(device_, std::move(descriptor), bytes));
  }
  return &remote_chunks_.emplace(token, std::move(chunk)).first->second;
}

Result<Bytes> Endpoint::answer(int from, std::span<const std::byte> bytes) {
  const ConnectRequest request = TRY(ConnectRequest::decode(bytes));
  ConnectReply reply;
  if (!request.same_process) {
    std::lock_guard lock(mutex_);
    if (server_ == nullptr) server_ = TRY(DescriptorServer::instance());
    reply.address = server_->address();
  }
  for (const ConnectRequest::Item& item : request.items) {
    const Name name{from, item.tag, static_cast<Protocol>(item.protocol),
                    item.asker_sends ? Role::Receiver : Role::Sender};
    const LocalEnd end = TRY(local_end(name));
    if (request.same_process) {
      const int device = static_cast<int>(request.device);
      TRY(end.control.chunk->grant_access(device));
      if (end.slots) TRY(end.slots->chunk->grant_access(device));
    }
    ConnectReply::Item answer;
    answer.control = place_of(end.control);
    if (end.slots) answer.slots = place_of(*end.slots);
    reply.items.push_back(answer);
  }
  return reply.encode();
}

}  // namespace niccolite::transport
