#include "transport/arena.h"

#include <sys/random.h>

#include <map>
#include <mutex>

namespace niccolite::transport {
namespace {

struct Table {
  std::mutex mutex;
  std::map<Token, std::weak_ptr<Chunk>> chunks;
};

// Never destroyed: communicators may outlive static destruction.
Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

constexpr size_t kAlignment = 256;

}  // namespace

Result<std::shared_ptr<Chunk>> Chunk::create(gpu::Machine& machine, int device, size_t bytes) {
  gpu::Memory memory = TRY(machine.allocate(device, bytes, /*shareable=*/true));
  Token token;
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size()))
    return Status::from_errno(errno, "cannot draw a random token (getrandom)");
  std::shared_ptr<Chunk> chunk(new Chunk(machine, std::move(memory), token));
  std::lock_guard lock(table().mutex);
  table().chunks.emplace(token, chunk);
  return chunk;
}

Chunk::~Chunk() {
  std::lock_guard lock(table().mutex);
  table().chunks.erase(token_);
}

std::shared_ptr<Chunk> Chunk::find(const Token& token) {
  std::lock_guard lock(table().mutex);
  const auto found = table().chunks.find(token);
  return found == table().chunks.end() ? nullptr : found->second.lock();
}

Status Chunk::grant_access(int device) const {
  if (device == memory_.device()) return {};
  if (!machine_.can_access_peer(device, memory_.device()))
    return Status::system_error(
        "GPU {} cannot access the memory of GPU {} (no NVLink or PCIe peer access between them), "
        "and this version has no "
        "other way between two GPUs",
        device, memory_.device());
  return machine_.grant_access(memory_, device);
}

Result<Span> Arena::allocate(size_t bytes) {
  bytes = rounded(bytes);
  TRY(reserve(bytes));
  Span span{chunks_.back(), used_};
  used_ += bytes;
  return span;
}

Status Arena::reserve(size_t bytes) {
  if (!chunks_.empty() && chunks_.back()->bytes() - used_ >= bytes) return {};
  chunks_.push_back(TRY(Chunk::create(machine_, device_, std::max(bytes, chunk_bytes_))));
  used_ = 0;
  return {};
}

size_t Arena::rounded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

size_t Arena::allocated_bytes() const {
  size_t bytes = 0;
  for (const auto& chunk : chunks_) bytes += chunk->bytes();
  return bytes;
}

}  // namespace niccolite::transport
