#include "registry/gin_memory.h"

#include <chrono>
#include <cstring>
#include <span>
#include <thread>

#include "base/wait.h"
#include "gpu/machine.h"

namespace niccolite::registry {
namespace {

constexpr std::chrono::minutes kMapTime{2};
constexpr int kHost = -1;

// The struct that kernels read of a context. Headers before 2.30.5 end behind `signals`, those
// before 2.32 behind `visible`. Source: device-api reference, section 9.1.
struct Context {
  int32_t nranks = 0;
  uint32_t depth = 0;
  const std::byte* queues = nullptr;
  const std::byte* produced = nullptr;  // indices, which kernels add to
  const std::byte* consumed = nullptr;
  const std::byte* counters = nullptr;
  const std::byte* signals = nullptr;
  const std::byte* signal_offsets = nullptr;
  const std::byte* issued_gets = nullptr;
  const std::byte* visible_gets = nullptr;
  uint64_t flushes_all = 0;
};
static_assert(sizeof(Context) == 80 && offsetof(Context, signals) == 40);

uint64_t contexts_bytes(const GinNeeds& needs) {
  return gin_aligned(static_cast<uint64_t>(needs.contexts) * needs.context_bytes);
}
uint64_t indices_bytes(int nranks) {
  return gin_aligned(static_cast<uint64_t>(nranks) * sizeof(uint32_t));
}
// Behind the structs, of each context: three lists of indices by peer, and offsets of signals.
uint64_t context_state_bytes(const GinNeeds& needs, int nranks) {
  return 3 * indices_bytes(nranks) +
         gin_aligned(static_cast<uint64_t>(needs.signals) * sizeof(uint64_t));
}

}  // namespace

void GinMemory::Name::encode(Writer& writer) const {
  writer.text(address);
  writer.raw(std::as_bytes(std::span(token)));
  writer.u64(chunk_bytes);
  writer.u64(offset);
}

GinMemory::Name GinMemory::Name::decode(Reader& reader) {
  Name name;
  name.address = reader.text(256);
  name.token = transport::read_token(reader);
  name.chunk_bytes = reader.u64();
  name.offset = reader.u64();
  return name;
}

GinMemory::Layout::Layout(const GinNeeds& needs, int nranks) {
  const auto contexts = static_cast<uint64_t>(needs.contexts);
  const uint64_t queue_count = contexts * static_cast<uint64_t>(nranks);
  counters =
      gin_aligned(signals + contexts * static_cast<uint64_t>(needs.signals) * sizeof(uint64_t));
  consumed =
      gin_aligned(counters + contexts * static_cast<uint64_t>(needs.counters) * sizeof(uint64_t));
  staging = gin_aligned(consumed + queue_count * sizeof(uint32_t));
  queues = gin_aligned(staging + kGinBatch * sizeof(uint64_t));
  bytes = queues + queue_count * needs.depth * kGinWords * sizeof(uint64_t);
}

GinMemory::GinMemory(gpu::Machine& machine, const GinNeeds& needs, int nranks)
    : machine_(machine),
      needs_(needs),
      nranks_(nranks),
      layout_(needs, nranks),
      share_(transport::Pool::of(machine, kHost, transport::Pool::Purpose::Host)),
      peers_(static_cast<size_t>(nranks)) {}

Result<std::unique_ptr<GinMemory>> GinMemory::create(gpu::Machine& machine, const GinNeeds& needs,
                                                     int nranks, bool has_other_processes) {
  std::unique_ptr<GinMemory> made(new GinMemory(machine, needs, nranks));
  const size_t bytes = made->layout_.bytes;
  Result<std::vector<transport::Span>> spans = made->share_.allocate({&bytes, 1});
  if (!spans.is_ok())
    return std::move(spans).status().with_context(
        "page-locked memory for {} contexts of networking by kernels, {} bytes", needs.contexts,
        bytes);
  made->memory_ = std::move(spans.value().front());
  if (has_other_processes) {
    made->server_ = TRY(transport::DescriptorServer::instance());
    made->name_.address = made->server_->address();
  }
  made->name_.token = made->memory_.chunk->token();
  made->name_.chunk_bytes = made->memory_.chunk->bytes();
  made->name_.offset = made->memory_.offset;
  return made;
}

GinMemory::~GinMemory() {
  for (const auto& import : imports_) import->leave();
}

Status GinMemory::connect(int peer, const Name& name, bool is_here) {
  std::byte* data = nullptr;
  size_t bytes = 0;
  if (is_here) {
    const std::shared_ptr<transport::Chunk> chunk = transport::Chunk::find(name.token);
    if (chunk == nullptr)
      return Status::remote_error("rank {} has given the memory of its signals back", peer);
    chunks_.push_back(chunk);
    data = chunk->data();
    bytes = chunk->bytes();
  } else {
    imports_.push_back(TRY(transport::Import::open(
        machine_, kHost, {.address = name.address, .token = name.token, .bytes = name.chunk_bytes},
        Deadline::after(kMapTime))));
    data = imports_.back()->data();
    bytes = imports_.back()->bytes();
  }
  if (name.offset % sizeof(uint64_t) != 0 || name.offset > bytes ||
      bytes - name.offset < layout_.bytes)
    return Status::remote_error("rank {} offers signals at offset {} of a chunk of {} bytes", peer,
                                name.offset, bytes);
  peers_[static_cast<size_t>(peer)] = data + name.offset;
  return {};
}

uint64_t GinMemory::state_bytes(const GinNeeds& needs, int nranks) {
  return contexts_bytes(needs) +
         static_cast<uint64_t>(needs.contexts) * context_state_bytes(needs, nranks);
}

Status GinMemory::write_contexts(int device, std::byte* state) const {
  std::vector<std::byte> structs(contexts_bytes(needs_));
  const auto nranks = static_cast<uint64_t>(nranks_);
  for (uint64_t i = 0; i < static_cast<uint64_t>(needs_.contexts); ++i) {
    const std::byte* const own =
        state + contexts_bytes(needs_) + i * context_state_bytes(needs_, nranks_);
    const uint64_t indices = indices_bytes(nranks_);
    const Context context{
        .nranks = nranks_,
        .depth = needs_.depth,
        .queues = at<std::byte>(layout_.queues) +
                  i * nranks * needs_.depth * kGinWords * sizeof(uint64_t),
        .produced = own,
        .consumed = at<std::byte>(layout_.consumed) + i * nranks * sizeof(uint32_t),
        .counters = at<std::byte>(layout_.counters) +
                    i * static_cast<uint64_t>(needs_.counters) * sizeof(uint64_t),
        .signals = at<std::byte>(layout_.signals) +
                   i * static_cast<uint64_t>(needs_.signals) * sizeof(uint64_t),
        .signal_offsets = own + 3 * indices,
        .issued_gets = own + indices,
        .visible_gets = own + 2 * indices,
        .flushes_all = 0};
    std::memcpy(structs.data() + i * needs_.context_bytes, &context, needs_.context_bytes);
  }
  return machine_.upload(device, state, structs.data(), structs.size());
}

std::optional<GinDescriptor> GinMemory::take(size_t queue, uint32_t number,
                                             const std::atomic<bool>& stops) const {
  uint64_t* const slot = at<uint64_t>(layout_.queues) +
                         (queue * needs_.depth + (number & (needs_.depth - 1))) * kGinWords;
  uint64_t words[kGinWords];
  for (size_t i = 0; i < kGinWords; ++i) {
    const std::atomic_ref word(slot[i]);
    // [acquire] pairs with the kernel's release before it wrote the descriptor.
    while (((words[i] = word.load(std::memory_order_acquire)) & 1) == 0) {
      if (i == 0 || stops.load(std::memory_order_relaxed)) return std::nullopt;
      std::this_thread::yield();
    }
  }
  // relaxed: published by the index that give_back() stores.
  for (size_t i = 0; i < kGinWords; ++i)
    std::atomic_ref(slot[i]).store(0, std::memory_order_relaxed);
  return GinDescriptor::decode(words);
}

void GinMemory::give_back(size_t queue) const {
  const std::atomic_ref consumed(at<uint32_t>(layout_.consumed)[queue]);
  // [release] pairs with the acquire of kernels: the slot is empty, and its operation is done.
  consumed.store(consumed.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

}  // namespace niccolite::registry
