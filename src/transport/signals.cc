#include "transport/signals.h"

#include "gpu/machine.h"

namespace niccolite::transport {
namespace {

using executor::SignalLine;

struct LineRequest {
  int device = 0;  // of the asker
  bool same_process = false;

  Bytes encode() const {
    Writer writer;
    writer.i32(device);
    writer.u8(same_process ? 1 : 0);
    return std::move(writer).take();
  }
  static Result<LineRequest> decode(std::span<const std::byte> bytes) {
    Reader reader(bytes, "a peer's request for signals");
    LineRequest request;
    request.device = reader.i32();
    request.same_process = reader.u8() != 0;
    TRY(reader.finish());
    return request;
  }
};

struct LineReply {
  std::string address;  // of the descriptor server; empty within a process
  Token token{};
  uint64_t chunk_bytes = 0;
  uint64_t offset = 0;  // of the line in the chunk

  Bytes encode() const {
    Writer writer;
    writer.text(address);
    writer.raw(std::as_bytes(std::span(token)));
    writer.u64(chunk_bytes);
    writer.u64(offset);
    return std::move(writer).take();
  }
  static Result<LineReply> decode(std::span<const std::byte> bytes, std::string_view origin) {
    Reader reader(bytes, origin);
    LineReply reply;
    reply.address = reader.text(256);
    const std::span<const std::byte> token = reader.raw(reply.token.size());
    for (size_t i = 0; i < token.size(); ++i) reply.token[i] = static_cast<uint8_t>(token[i]);
    reply.chunk_bytes = reader.u64();
    reply.offset = reader.u64();
    TRY(reader.finish());
    return reply;
  }
};

}  // namespace

Signals::Signals(gpu::Machine& machine, int device, const bootstrap::Member* member,
                 Endpoint::Ask ask)
    : machine_(machine),
      device_(device),
      member_(member),
      ask_(std::move(ask)),
      share_(Pool::of(machine, device, Pool::Purpose::Persistent)) {}

Signals::~Signals() {
  for (const auto& [peer, remote] : remotes_)
    if (remote.imported != nullptr) remote.imported->leave();
}

Result<Span> Signals::lines() {
  std::lock_guard lock(mutex_);
  if (lines_.chunk == nullptr) {
    const size_t bytes = static_cast<size_t>(nranks()) * sizeof(SignalLine);
    const std::vector<Span> spans = TRY(share_.allocate({&bytes, 1}));
    lines_ = spans.front();
  }
  return lines_;
}

Result<SignalLine*> Signals::line_of(int peer) {
  const Span own = TRY(lines());
  return reinterpret_cast<SignalLine*>(own.data()) + peer;
}

Result<SignalLine*> Signals::remote_line(int peer, const Deadline& deadline) {
  if (peer == rank()) return line_of(peer);
  if (const auto known = remotes_.find(peer); known != remotes_.end()) return known->second.line;
  const bool same_process = member_->same_process(peer);
  const Bytes request = LineRequest{device_, same_process}.encode();
  const bootstrap::Query query{.peer = peer, .message = request};
  std::vector<Result<Bytes>> answers = ask_({&query, 1}, deadline);
  const Bytes answer = TRY(std::move(answers.front()));
  const std::string origin = fmt::format("rank {}", peer);
  const LineReply reply = TRY(LineReply::decode(answer, origin));
  Remote remote;
  size_t bytes = 0;
  std::byte* data = nullptr;
  if (same_process) {
    remote.shared = Chunk::find(reply.token);
    if (remote.shared == nullptr)
      return Status::remote_error("rank {} has given its memory back", peer);
    bytes = remote.shared->bytes();
    data = remote.shared->data();
  } else {
    remote.imported = TRY(Import::open(
        machine_, device_,
        {.address = reply.address, .token = reply.token, .bytes = reply.chunk_bytes}, deadline));
    bytes = remote.imported->bytes();
    data = remote.imported->data();
  }
  if (reply.offset % sizeof(SignalLine) != 0 || reply.offset > bytes ||
      bytes - reply.offset < sizeof(SignalLine)) {
    if (remote.imported != nullptr) remote.imported->leave();
    return Status::remote_error("rank {} offers signals at offset {} of a chunk of {} bytes", peer,
                                reply.offset, bytes);
  }
  remote.line = reinterpret_cast<SignalLine*>(data + reply.offset);
  return remotes_.emplace(peer, std::move(remote)).first->second.line;
}

Result<Bytes> Signals::answer(int from, std::span<const std::byte> bytes) {
  const LineRequest request = TRY(LineRequest::decode(bytes));
  const Span own = TRY(lines());
  LineReply reply;
  if (request.same_process) {
    TRY(own.chunk->grant_access(request.device));
  } else {
    std::lock_guard lock(mutex_);
    if (server_ == nullptr) server_ = TRY(DescriptorServer::instance());
    reply.address = server_->address();
  }
  reply.token = own.chunk->token();
  reply.chunk_bytes = own.chunk->bytes();
  reply.offset = own.offset + static_cast<size_t>(from) * sizeof(SignalLine);
  return reply.encode();
}

}  // namespace niccolite::transport
