#include "registry/gin.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "gpu/machine.h"

namespace niccolite::registry {
namespace {

constexpr size_t kBatch = 64;       // operations under way at a time
constexpr size_t kOfOneQueue = 16;  // of those
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

uint64_t aligned(uint64_t bytes) {
  constexpr uint64_t kLine = 128;
  return (bytes + kLine - 1) / kLine * kLine;
}

uint64_t contexts_bytes(const GinNeeds& needs) {
  return aligned(static_cast<uint64_t>(needs.contexts) * needs.context_bytes);
}
uint64_t indices_bytes(int nranks) {
  return aligned(static_cast<uint64_t>(nranks) * sizeof(uint32_t));
}
// Behind the structs, of each context: three lists of indices by peer, and offsets of signals.
uint64_t context_state_bytes(const GinNeeds& needs, int nranks) {
  return 3 * indices_bytes(nranks) +
         aligned(static_cast<uint64_t>(needs.signals) * sizeof(uint64_t));
}

std::string_view name_of(const GinDescriptor& descriptor) {
  if (descriptor.has(GinDescriptor::kGet)) return "get";
  if (descriptor.has(GinDescriptor::kFlush)) return "flush";
  if (descriptor.has(GinDescriptor::kInMemory)) return "signal in memory";
  return descriptor.bytes > 0 ? "put" : "signal";
}

}  // namespace

void Gin::Name::encode(Writer& writer) const {
  writer.text(address);
  writer.raw(std::as_bytes(std::span(token)));
  writer.u64(chunk_bytes);
  writer.u64(offset);
}

Gin::Name Gin::Name::decode(Reader& reader) {
  Name name;
  name.address = reader.text(256);
  name.token = transport::read_token(reader);
  name.chunk_bytes = reader.u64();
  name.offset = reader.u64();
  return name;
}

Gin::Layout::Layout(const GinNeeds& needs, int nranks) {
  const auto contexts = static_cast<uint64_t>(needs.contexts);
  const uint64_t queue_count = contexts * static_cast<uint64_t>(nranks);
  counters = aligned(signals + contexts * static_cast<uint64_t>(needs.signals) * sizeof(uint64_t));
  cis = aligned(counters + contexts * static_cast<uint64_t>(needs.counters) * sizeof(uint64_t));
  staging = aligned(cis + queue_count * sizeof(uint32_t));
  queues = aligned(staging + kBatch * sizeof(uint64_t));
  bytes = queues + queue_count * needs.depth * kGinWords * sizeof(uint64_t);
}

Gin::Gin(Parts parts, const GinNeeds& needs)
    : parts_(std::move(parts)),
      needs_(needs),
      layout_(needs, parts_.nranks),
      share_(transport::Pool::of(parts_.machine, kHost, transport::Pool::Purpose::Host)),
      peers_(static_cast<size_t>(parts_.nranks)),
      next_(static_cast<size_t>(needs.contexts) * static_cast<size_t>(parts_.nranks)) {}

Result<std::unique_ptr<Gin>> Gin::create(Parts parts, const GinNeeds& needs,
                                         bool has_other_processes) {
  std::unique_ptr<Gin> gin(new Gin(std::move(parts), needs));
  const size_t bytes = gin->layout_.bytes;
  Result<std::vector<transport::Span>> spans = gin->share_.allocate({&bytes, 1});
  if (!spans.is_ok())
    return std::move(spans).status().with_context(
        "page-locked memory for {} contexts of networking by kernels, {} bytes", needs.contexts,
        bytes);
  gin->memory_ = std::move(spans.value().front());
  if (has_other_processes) {
    gin->server_ = TRY(transport::DescriptorServer::instance());
    gin->name_.address = gin->server_->address();
  }
  gin->name_.token = gin->memory_.chunk->token();
  gin->name_.chunk_bytes = gin->memory_.chunk->bytes();
  gin->name_.offset = gin->memory_.offset;
  gin->stream_ = TRY(gin->parts_.machine.create_stream(gin->parts_.device));
  return gin;
}

Gin::~Gin() {
  // relaxed: publishes nothing
  stops_.store(true, std::memory_order_relaxed);
  thread_.join();
  for (const auto& import : imports_) import->leave();
}

Status Gin::connect(int peer, const Name& name, bool is_here) {
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
        parts_.machine, kHost,
        {.address = name.address, .token = name.token, .bytes = name.chunk_bytes},
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

uint64_t Gin::state_bytes(const GinNeeds& needs, int nranks) {
  return contexts_bytes(needs) +
         static_cast<uint64_t>(needs.contexts) * context_state_bytes(needs, nranks);
}

Status Gin::start(std::byte* state) {
  std::vector<std::byte> structs(contexts_bytes(needs_));
  const auto nranks = static_cast<uint64_t>(parts_.nranks);
  for (uint64_t i = 0; i < static_cast<uint64_t>(needs_.contexts); ++i) {
    const std::byte* const own =
        state + contexts_bytes(needs_) + i * context_state_bytes(needs_, parts_.nranks);
    const uint64_t indices = indices_bytes(parts_.nranks);
    const Context context{.nranks = parts_.nranks,
                          .depth = needs_.depth,
                          .queues = at<std::byte>(layout_.queues) +
                                    i * nranks * needs_.depth * kGinWords * sizeof(uint64_t),
                          .produced = own,
                          .consumed = at<std::byte>(layout_.cis) + i * nranks * sizeof(uint32_t),
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
  TRY(parts_.machine.upload(parts_.device, state, structs.data(), structs.size()));
  thread_ = TRY(Thread::start("niccolite gin", [this] { serve(); }));
  return {};
}

void Gin::serve() {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kAwake{1};
  constexpr std::chrono::microseconds kNap{50};
  Clock::time_point last = Clock::now();
  // relaxed: nothing is published with it
  while (!stops_.load(std::memory_order_relaxed)) {
    if (look())
      last = Clock::now();
    else if (Clock::now() - last < kAwake)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kNap);
  }
}

// Takes the next descriptor of a queue, if there is one, into the batch.
bool Gin::take(size_t queue) {
  uint64_t* const slot = at<uint64_t>(layout_.queues) +
                         (queue * needs_.depth + (next_[queue] & (needs_.depth - 1))) * kGinWords;
  uint64_t words[kGinWords];
  for (size_t i = 0; i < kGinWords; ++i) {
    const std::atomic_ref word(slot[i]);
    // [acquire] pairs with the kernel's release before it wrote the descriptor.
    while (((words[i] = word.load(std::memory_order_acquire)) & 1) == 0) {
      if (i == 0 || stops_.load(std::memory_order_relaxed)) return false;
      std::this_thread::yield();
    }
  }
  // relaxed: published by the index that complete() stores.
  for (size_t i = 0; i < kGinWords; ++i)
    std::atomic_ref(slot[i]).store(0, std::memory_order_relaxed);
  ++next_[queue];
  batch_.push_back({.queue = queue, .descriptor = GinDescriptor::decode(words), .windows = {}});
  return true;
}

// One look at all queues. Nothing has come: false.
bool Gin::look() {
  batch_.clear();
  for (size_t i = 0; i < next_.size() && batch_.size() < kBatch; ++i) {
    const size_t queue = (first_queue_ + i) % next_.size();
    for (size_t taken = 0; taken < kOfOneQueue && batch_.size() < kBatch; ++taken)
      if (!take(queue)) break;
  }
  if (batch_.empty()) return false;
  first_queue_ = (batch_.back().queue + 1) % next_.size();
  bool has_copied = false;
  for (size_t i = 0; i < batch_.size(); ++i)
    if (!has_failed_) report(batch_[i], issue(batch_[i], i, has_copied));
  if (has_copied)
    report(batch_.front(), parts_.machine.synchronize_stream(parts_.device, stream_.handle()));
  for (const Item& item : batch_) {
    if (!has_failed_) report(item, complete(item));
    const std::atomic_ref consumed(at<uint32_t>(layout_.cis)[item.queue]);
    // [release] pairs with the acquire of kernels: the slot is empty, and its operation is
    // done.
    consumed.store(consumed.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  return true;
}

Result<std::byte*> Gin::find(uint64_t window, uint64_t offset, uint64_t bytes, int peer,
                             std::shared_ptr<const Window>& keeps) const {
  keeps = parts_.windows.find(reinterpret_cast<const void*>(window));
  if (keeps == nullptr)
    return Status::invalid_argument("0x{:x} is no live window of this communicator", window);
  const uint64_t whole = keeps->bytes_of(peer);
  if (offset > whole || bytes > whole - offset)
    return Status::invalid_argument(
        "{} bytes at offset {} go beyond the window of rank {}, {} bytes", bytes, offset, peer,
        whole);
  return keeps->copy_of(peer) + offset;
}

// Queues the item's copy. All else is done when it has come.
Status Gin::issue(Item& item, size_t place, bool& has_copied) {
  const GinDescriptor& asked = item.descriptor;
  constexpr uint32_t kKnown = GinDescriptor::kFlush * 2 - 1;
  constexpr uint32_t kKinds =
      GinDescriptor::kPut | GinDescriptor::kGet | GinDescriptor::kFlush | GinDescriptor::kInMemory;
  if (!asked.has(kKinds) || (asked.operation & ~kKnown) != 0)
    return Status::invalid_argument("operation 0x{:x} is not known", asked.operation);
  const bool is_get = asked.has(GinDescriptor::kGet);
  if (asked.bytes == 0 || (!is_get && !asked.has(GinDescriptor::kPut))) return {};
  const int peer = peer_of(item);
  std::byte* const target = TRY(find(asked.target_window, asked.target_offset, asked.bytes,
                                     is_get ? parts_.rank : peer, item.windows[0]));
  const void* source = nullptr;
  if (asked.has(GinDescriptor::kInline)) {
    if (asked.bytes > sizeof asked.value)
      return Status::invalid_argument("a value of {} bytes", asked.bytes);
    uint64_t* const staged = at<uint64_t>(layout_.staging) + place;
    *staged = asked.value;
    source = staged;
  } else {
    source = TRY(find(asked.source_window, asked.source_offset, asked.bytes,
                      is_get ? peer : parts_.rank, item.windows[1]));
  }
  TRY(parts_.machine.copy_async(target, source, asked.bytes, parts_.device, stream_.handle()));
  has_copied = true;
  return {};
}

Status Gin::complete(const Item& item) {
  const GinDescriptor& asked = item.descriptor;
  const auto context = static_cast<uint64_t>(context_of(item));
  if (asked.has(GinDescriptor::kIncrement | GinDescriptor::kAdd)) {
    if (asked.has(GinDescriptor::kInMemory)) {
      TRY(add_in_memory(item));
    } else {
      const auto count = static_cast<uint64_t>(needs_.signals);
      if (asked.signal >= count)
        return Status::invalid_argument("signal {} of {}", asked.signal, count);
      auto* const signals =
          reinterpret_cast<uint64_t*>(peers_[static_cast<size_t>(peer_of(item))] + layout_.signals);
      // [release] pairs with the acquire of the kernel that waits: earlier puts have come.
      std::atomic_ref(signals[context * count + asked.signal])
          .fetch_add(asked.amount, std::memory_order_release);
    }
  }
  if (asked.has(GinDescriptor::kCounter)) {
    const auto count = static_cast<uint64_t>(needs_.counters);
    if (asked.counter >= count)
      return Status::invalid_argument("counter {} of {}", asked.counter, count);
    // [release] pairs with the kernel's acquire: the source has been read.
    std::atomic_ref(at<uint64_t>(layout_.counters)[context * count + asked.counter])
        .fetch_add(1, std::memory_order_release);
  }
  return {};
}

// No copy engine adds. The word is read, and written back, by whoever holds the lock of the rank
// that it belongs to, in memory that all ranks map.
Status Gin::add_in_memory(const Item& item) {
  const GinDescriptor& asked = item.descriptor;
  const int peer = peer_of(item);
  std::shared_ptr<const Window> keeps;
  std::byte* const word =
      TRY(find(asked.source_window, asked.source_offset, sizeof(uint64_t), peer, keeps));
  if (asked.source_offset % sizeof(uint64_t) != 0)
    return Status::invalid_argument("offset {} is not one of a word of 8 bytes",
                                    asked.source_offset);
  const std::atomic_ref lock(*reinterpret_cast<uint32_t*>(peers_[static_cast<size_t>(peer)]));
  // [acquire] pairs with the release below: the value before is in the word.
  while (lock.exchange(1, std::memory_order_acquire) != 0) {
    if (stops_.load(std::memory_order_relaxed)) return {};
    std::this_thread::yield();
  }
  uint64_t* const staged = at<uint64_t>(layout_.staging);
  const auto move = [&](void* target, const void* source) -> Status {
    TRY(parts_.machine.copy_async(target, source, sizeof *staged, parts_.device, stream_.handle()));
    return parts_.machine.synchronize_stream(parts_.device, stream_.handle());
  };
  Status status = move(staged, word);
  if (status.is_ok()) {
    *staged += asked.amount;
    status = move(word, staged);
  }
  lock.store(0, std::memory_order_release);
  return status;
}

void Gin::report(const Item& item, Status status) {
  if (status.is_ok() || has_failed_) return;
  has_failed_ = true;
  parts_.fail(std::move(status).with_context("rank {}: a kernel's {} to rank {}, context {}",
                                             parts_.rank, name_of(item.descriptor), peer_of(item),
                                             context_of(item)));
}

}  // namespace niccolite::registry
