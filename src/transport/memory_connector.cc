#include "transport/memory_connector.h"

#include <set>

namespace niccolite::transport {

namespace {

/// The receiver has the slots, but a team has the slots of its connections (team.h).
bool has_slots(const End& end, const executor::FifoShape& shape) {
  return !end.is_send && shape.slots_bytes() > 0;
}

}  // namespace

MemoryConnector::~MemoryConnector() {
  if (lets_go_) return;
  for (const auto& [token, chunk] : remote_chunks_)
    if (chunk.imported != nullptr) chunk.imported->leave();
}

Status MemoryConnector::reserve(std::span<const ShapedEnd> ends) {
  std::lock_guard lock(mutex_);
  std::map<End, executor::FifoShape> missing;  // joined programs have ports that share a connection
  for (const ShapedEnd& shaped : ends)
    if (!own_ends_.contains(shaped.end)) missing.emplace(shaped.end, shaped.shape);
  std::vector<size_t> sizes;  // of each: of its control, at a receiver then of its slots
  for (const auto& [end, shape] : missing) {
    sizes.push_back(shape.control_bytes());
    if (has_slots(end, shape)) sizes.push_back(shape.slots_bytes());
  }
  const std::vector<Span> spans = TRY(share_.allocate(sizes));
  std::set<Chunk*> chunks;
  for (const Span& span : spans)
    if (chunks.insert(span.chunk.get()).second) TRY(prepare(*span.chunk));
  size_t next = 0;
  for (const auto& [end, shape] : missing) {
    OwnEnd own;
    own.control = spans[next++];
    if (has_slots(end, shape)) own.slots = spans[next++];
    own_ends_.emplace(end, std::move(own));
  }
  return {};
}

Status MemoryConnector::ask(int /*peer*/, ConnectRequest& /*request*/) { return {}; }

Status MemoryConnector::answer(int /*asker*/, std::span<const ShapedEnd> ends,
                               const ConnectRequest& request, ConnectReply& reply) {
  TRY(reserve(ends));
  return tell(ends, request.same_process, reply,
              [&](const Chunk& chunk) { return let_in(chunk, static_cast<int>(request.device)); });
}

// The peer lets itself in: it keeps the chunk.
Status MemoryConnector::hand_over(int /*peer*/, bool same_process, std::span<const ShapedEnd> ends,
                                  ConnectReply& reply) {
  return tell(ends, same_process, reply, [](const Chunk& /*chunk*/) { return Status(); });
}

template <typename LetsIn>
Status MemoryConnector::tell(std::span<const ShapedEnd> ends, bool same_process,
                             ConnectReply& reply, const LetsIn& lets_in) {
  std::vector<OwnEnd> own;
  {
    std::lock_guard lock(mutex_);
    if (!same_process) {
      if (server_ == nullptr) server_ = TRY(DescriptorServer::instance());
      reply.address = server_->address();
    }
    for (const ShapedEnd& shaped : ends) own.push_back(own_ends_.at(shaped.end));
  }
  std::set<Chunk*> chunks;  // that the asker can access
  const auto offer = [&](const Span& span) -> Result<ConnectReply::Region> {
    if (chunks.insert(span.chunk.get()).second) TRY(lets_in(*span.chunk));
    return ConnectReply::Region{span.chunk->token(), span.chunk->bytes(), span.offset};
  };
  for (const OwnEnd& end : own) {
    ConnectReply::Item item;
    item.control = TRY(offer(end.control));
    if (end.slots) item.slots = TRY(offer(*end.slots));
    reply.items.push_back(item);
  }
  return {};
}

Status MemoryConnector::adopt(int peer, std::span<const ShapedEnd> ends, const ConnectReply& reply,
                              const Deadline& deadline) {
  if (reply.items.size() != ends.size())
    return Status::remote_error("rank {} answered {} connections of {}", peer, reply.items.size(),
                                ends.size());
  for (size_t i = 0; i < ends.size(); ++i) {
    const auto& [end, shape] = ends[i];
    const auto map = [&](const ConnectReply::Region& place, size_t needed) -> Result<std::byte*> {
      const RemoteChunk* chunk = TRY(remote_chunk(
          peer, {.address = reply.address, .token = place.token, .bytes = place.chunk_bytes},
          deadline));
      if (place.offset > chunk->bytes() || chunk->bytes() - place.offset < needed)
        return Status::remote_error("rank {} offers {} bytes at offset {} of a chunk of {} bytes",
                                    peer, needed, place.offset, chunk->bytes());
      return chunk->data() + place.offset;
    };
    executor::PortAddress port;
    std::byte* const control = TRY(map(reply.items[i].control, shape.control_bytes()));
    port.remote_control = reinterpret_cast<executor::ControlBlock*>(control);
    if (end.is_send && shape.slots_bytes() > 0)
      port.slots = TRY(map(reply.items[i].slots, shape.slots_bytes()));
    {
      std::lock_guard lock(mutex_);
      const OwnEnd& own = own_ends_.at(end);
      port.control = reinterpret_cast<executor::ControlBlock*>(own.control.data());
      if (own.slots) port.slots = own.slots->data();
    }
    port.in_host = kind() == Kind::HostMemory;
    ports_.emplace(end, port);
  }
  return {};
}

std::optional<executor::PortAddress> MemoryConnector::port(const End& end) const {
  const auto found = ports_.find(end);
  if (found == ports_.end()) return std::nullopt;
  return found->second;
}

Status MemoryConnector::keep(int peer, const ConnectReply& reply, const Deadline& deadline) {
  for (const ConnectReply::Item& item : reply.items)
    for (const ConnectReply::Region& place : {item.control, item.slots}) {
      if (place.token == Token{}) continue;
      {
        std::lock_guard lock(mutex_);
        if (kept_.contains(place.token)) continue;
      }
      KeptChunk kept;
      if (reply.address.empty()) {
        kept.shared = TRY(find_here(peer, {.address = {}, .token = place.token})).shared;
        TRY(let_in(*kept.shared, device_));
      } else {
        kept.descriptor = TRY(fetch_descriptor(reply.address, place.token, deadline));
      }
      std::lock_guard lock(mutex_);
      kept_.emplace(place.token, std::move(kept));
    }
  return {};
}

void MemoryConnector::forget_kept() {
  std::lock_guard lock(mutex_);
  kept_.clear();
}

Result<MemoryConnector::RemoteChunk> MemoryConnector::find_here(int peer, const Origin& origin) {
  RemoteChunk chunk;
  chunk.shared = Chunk::find(origin.token);
  if (chunk.shared == nullptr)
    return Status::remote_error("rank {} has given its memory back", peer);
  return chunk;
}

Result<const MemoryConnector::RemoteChunk*> MemoryConnector::remote_chunk(
    int peer, const Origin& origin, const Deadline& deadline) {
  if (const auto found = remote_chunks_.find(origin.token); found != remote_chunks_.end())
    return &found->second;
  KeptChunk kept;
  {
    std::lock_guard lock(mutex_);
    if (auto known = kept_.extract(origin.token); !known.empty()) kept = std::move(known.mapped());
  }
  RemoteChunk chunk{.shared = std::move(kept.shared), .imported = nullptr};
  if (chunk.shared == nullptr)
    chunk = TRY(open(peer, origin, std::move(kept.descriptor), deadline));
  return &remote_chunks_.emplace(origin.token, std::move(chunk)).first->second;
}

}  // namespace niccolite::transport
