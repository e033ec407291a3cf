#include "transport/pool.h"

#include "gpu/machine.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

namespace niccolite::transport {
namespace {

struct Table {
  std::mutex mutex;
  std::map<std::tuple<const gpu::Machine*, int, Pool::Purpose>, std::weak_ptr<Pool>> pools;
};

// Never destroyed: communicators may outlive static destruction.
Table& table() {
  static Table* const instance = new Table;
  return *instance;
}

constexpr size_t kAlignment = 256;

// CUDA maps memory in units of 2 MiB. On virtual GPUs memory costs only its touched pages, and
// descriptors.
size_t chunk_bytes(gpu::Kind machine) { return machine == gpu::Kind::Cuda ? 2 << 20 : 512 << 10; }

}  // namespace

Result<std::shared_ptr<Chunk>> Chunk::create(gpu::Machine& machine, int device, size_t bytes) {
  gpu::Memory memory = TRY(device < 0 ? machine.allocate_shared_host(bytes)
                                      : machine.allocate(device, bytes, /*shareable=*/true));
  const Token token = TRY(draw_token());
  std::shared_ptr<Chunk> chunk(new Chunk(machine, std::move(memory), token));
  publish(chunk);
  return chunk;
}

std::shared_ptr<Chunk> Chunk::find(const Token& token) {
  return std::dynamic_pointer_cast<Chunk>(Shareable::find(token));
}

Result<Fd> Chunk::export_descriptor() const {
  std::lock_guard lock(mutex_);
  if (is_suspended_)
    return Status::invalid_usage("memory of GPU {} is suspended (ncclCommSuspend)", device());
  return held_.valid() ? held_.duplicate() : machine_.export_memory(memory_);
}

Status Chunk::hold_descriptor() {
  std::lock_guard lock(mutex_);
  holds_descriptor_ = true;
  if (!held_.valid() && !is_suspended_) held_ = TRY(machine_.export_memory(memory_));
  return {};
}

Status Chunk::grant_access(int device) const {
  if (device == memory_.device()) return {};
  if (!machine_.can_access_peer(device, memory_.device()))
    return Status::system_error(
        "GPU {} cannot access the memory of GPU {} (no NVLink or PCIe peer access between them)",
        device, memory_.device());
  return machine_.grant_access(memory_, device);
}

std::optional<size_t> Chunk::carve(size_t bytes) {
  std::lock_guard lock(mutex_);
  // A suspended chunk would have to come back for it.
  if (is_suspended_ || this->bytes() - carved_ < bytes) return std::nullopt;
  return std::exchange(carved_, carved_ + bytes);
}

size_t Chunk::share_of(size_t carved) const {
  std::lock_guard lock(mutex_);
  if (carved_ == 0) return 0;
  return static_cast<size_t>(static_cast<unsigned __int128>(bytes()) * carved / carved_);
}

Result<bool> Chunk::use() {
  std::lock_guard lock(mutex_);
  const bool was_suspended = is_suspended_;
  if (was_suspended) {
    TRY(machine_.resume_memory(memory_));
    if (holds_descriptor_) held_ = TRY(machine_.export_memory(memory_));
  }
  is_suspended_ = false;
  ++users_;
  return was_suspended;
}

Status Chunk::suspend() {
  std::lock_guard lock(mutex_);
  if (--users_ > 0) return {};
  held_ = Fd();
  TRY(machine_.suspend_memory(memory_));
  is_suspended_ = true;
  return {};
}

void Chunk::leave() {
  std::lock_guard lock(mutex_);
  --users_;
}

std::shared_ptr<Pool> Pool::of(gpu::Machine& machine, int device, Purpose purpose) {
  std::lock_guard lock(table().mutex);
  std::weak_ptr<Pool>& known = table().pools[{&machine, device, purpose}];
  std::shared_ptr<Pool> pool = known.lock();
  if (pool == nullptr) {
    pool = std::make_shared<Pool>(machine, device, chunk_bytes(machine.kind()));
    known = pool;
  }
  return pool;
}

size_t Pool::rounded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

Result<std::vector<Span>> Pool::allocate(std::span<const size_t> sizes) {
  // The largest piece first: small pieces find room in the gaps that large ones leave.
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t i) { return sizes[i]; });

  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Chunk>> chunks;
  for (const std::weak_ptr<Chunk>& known : chunks_)
    if (auto chunk = known.lock()) chunks.push_back(std::move(chunk));

  std::vector<Span> spans(sizes.size());
  std::vector<size_t> homeless;  // largest first
  size_t homeless_bytes = 0;
  for (const size_t i : order) {
    const size_t bytes = rounded(sizes[i]);
    for (const auto& chunk : chunks) {
      const std::optional<size_t> offset = chunk->carve(bytes);
      if (!offset) continue;
      spans[i] = {chunk, *offset};
      break;
    }
    if (spans[i].chunk != nullptr) continue;
    homeless.push_back(i);
    homeless_bytes += bytes;
  }
  if (!homeless.empty()) {
    auto chunk = TRY(Chunk::create(machine_, device_, std::max(homeless_bytes, chunk_bytes_)));
    for (const size_t i : homeless) spans[i] = {chunk, *chunk->carve(rounded(sizes[i]))};
    chunks.push_back(std::move(chunk));
  }
  chunks_.assign(chunks.begin(), chunks.end());
  return spans;
}

Share::~Share() {
  if (is_suspended_) return;
  for (const auto& [chunk, pieces] : pieces_) chunk->leave();
}

Result<std::vector<Span>> Share::allocate(std::span<const size_t> sizes) {
  std::vector<Span> spans = TRY(pool_->allocate(sizes));
  for (size_t i = 0; i < spans.size(); ++i) {
    auto mine = pieces_.find(spans[i].chunk);
    if (mine == pieces_.end()) {
      TRY(spans[i].chunk->use());
      mine = pieces_.try_emplace(spans[i].chunk).first;
    }
    mine->second.push_back({spans[i].offset, Pool::rounded(sizes[i])});
  }
  return spans;
}

size_t Share::bytes() const {
  size_t bytes = 0;
  for (const auto& [chunk, pieces] : pieces_) {
    size_t carved = 0;
    for (const Piece& piece : pieces) carved += piece.bytes;
    bytes += chunk->share_of(carved);
  }
  return bytes;
}

Status Share::suspend() {
  is_suspended_ = true;
  for (const auto& [chunk, pieces] : pieces_) TRY(chunk->suspend());
  return {};
}

Status Share::resume() {
  for (const auto& [chunk, pieces] : pieces_) {
    const bool is_fresh = TRY(chunk->use());
    if (!is_fresh) TRY(clear(*chunk, pieces));
  }
  is_suspended_ = false;
  return {};
}

Status Share::clear(const Chunk& chunk, std::span<const Piece> pieces) {
  gpu::Machine& machine = pool_->machine();
  const int device = pool_->device();
  const gpu::Stream stream = TRY(machine.create_stream(device));
  for (const Piece& piece : pieces)
    TRY(machine.set_async(chunk.data() + piece.offset, 0, piece.bytes, device, stream.handle()));
  return machine.synchronize_stream(device, stream.handle());
}

}  // namespace niccolite::transport
