#include "transport/arena.h"

#include <sys/random.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>

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

Result<std::vector<Span>> Arena::allocate(std::span<const size_t> sizes) {
  // The largest first: small pieces find room in what these leave.
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t i) { return sizes[i]; });

  std::vector<size_t> used;  // of each chunk, and at last of the new one
  for (const Carved& carved : chunks_) used.push_back(carved.used);
  used.push_back(0);
  std::vector<std::pair<size_t, size_t>> places(sizes.size());  // chunk and offset
  for (const size_t i : order) {
    const size_t bytes = (sizes[i] + kAlignment - 1) / kAlignment * kAlignment;
    size_t c = 0;
    while (c < chunks_.size() && chunks_[c].chunk->bytes() - used[c] < bytes) ++c;
    places[i] = {c, used[c]};
    used[c] += bytes;
  }
  if (used.back() > 0) {
    chunks_.push_back(
        {TRY(Chunk::create(machine_, device_, std::max(used.back(), chunk_bytes_))), 0});
  }
  for (size_t c = 0; c < chunks_.size(); ++c) chunks_[c].used = used[c];

  std::vector<Span> spans;
  for (const auto& [c, offset] : places) spans.push_back({chunks_[c].chunk, offset});
  return spans;
}

size_t Arena::allocated_bytes() const {
  size_t bytes = 0;
  for (const Carved& carved : chunks_) bytes += carved.chunk->bytes();
  return bytes;
}

}  // namespace niccolite::transport
