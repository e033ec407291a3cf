#include "transport/net/reducer.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/log.h"
#include "executor/numeric.h"
#include "executor/protocol/call_tag.h"

namespace niccolite::transport::net {

using executor::FifoShape;
using executor::PortAddress;
using schedule::Through;

namespace relay = executor::relay;
namespace tag = executor::call_tag;

namespace {

// Looks in vain before the thread lets others have the core.
constexpr int kLooks = 200;
constexpr std::chrono::microseconds kBetweenLooks{20};

// For kernels that do not ring.
constexpr std::chrono::milliseconds kBusyTime{100};
constexpr std::chrono::microseconds kBetweenIdleLooks{2000};

}  // namespace

Reducer::Reducer(Options options)
    : options_(std::move(options)),
      bell_([](void* self, uint64_t) { static_cast<Reducer*>(self)->ring(); }, this) {}

Result<std::unique_ptr<Reducer>> Reducer::start(Options options) {
  std::unique_ptr<Reducer> reducer(new Reducer(std::move(options)));
  reducer->thread_ = TRY(Thread::start("nccl reducer", [self = reducer.get()] { self->run(); }));
  return reducer;
}

Reducer::~Reducer() { close(); }

void Reducer::close() {
  {
    std::lock_guard lock(mutex_);
    if (is_closed_) return;
    is_closed_ = true;
  }
  rung_.notify_all();
  thread_.join();
  std::lock_guard lock(mutex_);
  leave();
}

void Reducer::leave() {
  if (has_left_.load()) return;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane == nullptr) continue;
    for (const auto& end : {&lane->send, &lane->receive})
      options_.network->deregister_memory(options_.collective, (*end)->registered);
  }
  {
    std::lock_guard user(user_mutex_);
    for (const UserRange& range : user_ranges_)
      options_.network->deregister_memory(options_.collective, range.registered);
    user_ranges_.clear();
  }
  options_.network->close(options_.collective);
  has_left_.store(true);
}

// Called again until it is true. The thread looks at the flag whenever it has looked at all lanes.
bool Reducer::let_go() {
  has_to_leave_.store(true);
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) rung_.notify_all();
  return has_left_.load();
}

void Reducer::ring() {
  {
    std::lock_guard lock(mutex_);
    is_rung_ = true;
  }
  rung_.notify_one();
}

// ---- memory

Reducer::RegisteredEnd::RegisteredEnd(Reducer& reducer, std::shared_ptr<const EndMemory> memory)
    : UserMemory(reducer.options_.direct_bytes), reducer_(reducer), share_(std::move(memory)) {
  places_ = share_.memory().places();
}

relay::Place& Reducer::RegisteredEnd::place_of(uint32_t channel, uint64_t step) {
  const uint64_t depth = share_.shape().depth;
  return places_[channel * depth + (step & (depth - 1))];
}

Result<std::unique_ptr<Reducer::RegisteredEnd>> Reducer::make_end(gpu::Allocations& allocations,
                                                                  bool is_send,
                                                                  const FifoShape& shape) {
  auto end =
      std::make_unique<RegisteredEnd>(*this, TRY(EndMemory::allocate(allocations, shape, is_send)));
  end->registered = TRY(options_.network->register_memory(
      options_.collective, end->share().slot(0, 0), shape.slots_bytes()));
  return end;
}

PortAddress Reducer::port_of(RegisteredEnd& end) {
  PortAddress address = end.share().memory().port();
  address.bells.fill(&bell_);
  if (options_.is_registered) address.user_memory = &end;
  return address;
}

Result<PortAddress> Reducer::port(gpu::Allocations& allocations, Through through, bool is_send,
                                  const FifoShape& shape) {
  if (shape.slot_bytes > options_.network->most_bytes())
    return Status::invalid_usage(
        "CollNet plug-in {}: a slot has {} bytes, and maxCollBytes is {}: set NCCL_BUFFSIZE to {}",
        options_.network->name(), shape.slot_bytes, options_.network->most_bytes(),
        options_.network->most_bytes() * shape.depth);
  std::lock_guard lock(mutex_);
  if (is_closed_ || has_left_.load())
    return Status::invalid_usage("this rank has left the network's reducer");
  std::unique_ptr<Lane>& lane = lanes_[static_cast<size_t>(through)];
  if (lane == nullptr) {
    std::unique_ptr<RegisteredEnd> send = TRY(make_end(allocations, /*is_send=*/true, shape));
    Result<std::unique_ptr<RegisteredEnd>> receive =
        make_end(allocations, /*is_send=*/false, shape);
    if (!receive.is_ok()) {
      options_.network->deregister_memory(options_.collective, send->registered);
      return std::move(receive).status();
    }
    lane.reset(new Lane{.through = through,
                        .send = std::move(send),
                        .receive = std::move(receive).take(),
                        .channels = std::vector<Channel>(shape.channels),
                        .taking_turns = 1});
  }
  return port_of(is_send ? *lane->send : *lane->receive);
}

// As device memory, where there is such memory and the network takes it; else as host memory, which
// memory of virtual GPUs is, too.
Result<void*> Reducer::register_user_memory(void* memory, size_t bytes) {
  CollectiveNetwork& network = *options_.network;
  if (options_.export_memory && network.takes_device_memory()) {
    const Result<gpu::DmaBuffer> exported = options_.export_memory(memory, bytes);
    if (exported.is_ok()) {
      Result<void*> registered =
          network.register_device_memory(options_.collective, memory, bytes, exported.value());
      if (registered.is_ok()) return registered;
      LOG(Info, Reg, "the network takes the buffer of {} bytes at {} as host memory: {}", bytes,
          static_cast<const void*>(memory), registered.status().message());
    }
  }
  return network.register_memory(options_.collective, memory, bytes);
}

void Reducer::add_user_memory(void* memory, size_t bytes) {
  if (!options_.is_registered || memory == nullptr || bytes == 0) return;
  const auto begin = static_cast<std::byte*>(memory);
  if (find_user_memory(begin, bytes) != nullptr) return;
  std::lock_guard lock(mutex_);
  if (is_closed_ || has_to_leave_.load()) return;
  Result<void*> registered = register_user_memory(memory, bytes);
  if (!registered.is_ok()) {
    LOG(Info, Reg, "the network reads and writes no buffer of {} bytes at {}: {}", bytes,
        static_cast<const void*>(memory), registered.status().message());
    return;
  }
  LOG(Info, Reg, "the network knows the buffer of {} bytes at {} (CollNet {})", bytes,
      static_cast<const void*>(memory), options_.network->name());
  std::lock_guard user(user_mutex_);
  user_ranges_.push_back({.begin = begin, .bytes = bytes, .registered = *registered});
}

void Reducer::remove_user_memory() {
  std::lock_guard lock(mutex_);
  std::lock_guard user(user_mutex_);
  std::erase_if(user_ranges_, [&](const UserRange& range) {
    if (options_.is_registered(range.begin, range.bytes)) return false;
    options_.network->deregister_memory(options_.collective, range.registered);
    return true;
  });
}

void* Reducer::find_user_memory(const std::byte* memory, uint64_t bytes) const {
  std::lock_guard user(user_mutex_);
  for (const UserRange& range : user_ranges_)
    if (memory >= range.begin && memory + bytes <= range.begin + range.bytes &&
        options_.is_registered(range.begin, range.bytes))
      return range.registered;
  return nullptr;
}

// ---- the thread

// No bell tells when requests are done, or when the network has room.
bool Reducer::awaits_network() const {
  return lacks_room_ || std::ranges::any_of(lanes_, [](const std::unique_ptr<Lane>& lane) {
           return lane != nullptr &&
                  std::ranges::any_of(lane->channels, [](const Channel& channel) {
                    return !channel.under_way.empty();
                  });
         });
}

void Reducer::run() {
  int vain = 0;
  std::unique_lock lock(mutex_);
  while (!is_closed_) {
    if (has_to_leave_.load()) {
      leave();
      return;
    }
    bool moved = false;
    Status why = look(moved);
    if (why.is_ok() && !moved && !awaits_network()) {
      bell_.go_to_sleep();
      why = look(moved);  // a counter may have moved before
      if (why.is_ok() && !moved && !awaits_network()) sleep(lock);
      bell_.wake_up();
    }
    if (!why.is_ok()) {
      // Nothing moves any more: the plug-in is not asked again.
      lock.unlock();
      options_.fail(std::move(why));
      lock.lock();
      rung_.wait(lock, [this]() REQUIRES(mutex_) { return is_closed_ || has_to_leave_.load(); });
      leave();
      return;
    }
    vain = moved ? 0 : vain + 1;
    if (moved) last_moved_ = std::chrono::steady_clock::now();
    if (vain < kLooks) continue;
    // Whoever rings, opens a port or closes needs the mutex.
    lock.unlock();
    std::this_thread::sleep_for(kBetweenLooks);
    lock.lock();
  }
}

// The launch of a GPU's kernel rings, and the kernel does not: it is looked at often while it may
// run, and less often later.
void Reducer::sleep(std::unique_lock<std::mutex>& lock) {
  const auto is_woken = [this]() REQUIRES(mutex_) {
    return is_rung_ || is_closed_ || has_to_leave_.load();
  };
  if (options_.kernels_ring) {
    rung_.wait(lock, is_woken);
  } else {
    const bool is_busy = std::chrono::steady_clock::now() - last_moved_ < kBusyTime;
    rung_.wait_for(lock, is_busy ? kBetweenLooks : kBetweenIdleLooks, is_woken);
  }
  if (std::exchange(is_rung_, false)) last_moved_ = std::chrono::steady_clock::now();
}

Status Reducer::look(bool& moved) {
  lacks_room_ = false;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane == nullptr) continue;
    const bool started = TRY(start(*lane));
    const bool finished = TRY(finish(*lane));
    moved |= started || finished;
  }
  return {};
}

Result<bool> Reducer::start(Lane& lane) {
  const auto members = static_cast<uint64_t>(options_.members);
  const EndShare& send = lane.send->share();
  const EndShare& receive = lane.receive->share();
  const uint64_t depth = send.shape().depth;
  for (bool any = false;; any = true) {
    Channel& channel = lane.channels[lane.turn];
    const uint64_t step =
        lane.through == Through::Gathering ? channel.started / members : channel.started;
    // [arrival] of the proxy: pairs with the kernel's [publish]; slot and note are there.
    const uint64_t tail =
        std::atomic_ref(send.far(lane.turn).remote).load(std::memory_order_acquire);
    if (tag::steps_in(tail, step) <= step) return any;
    const auto turn = static_cast<int>(channel.started % members);
    const bool receives = lane.through != Through::Scattering || turn == options_.place;
    // [credit] of the proxy: the kernel has read the slots. Pairs with the kernel's [consume].
    const uint64_t head =
        std::atomic_ref(receive.far(lane.turn).remote).load(std::memory_order_acquire);
    if (receives && channel.awaited >= head + depth) return any;
    const uint64_t note = std::atomic_ref(send.note(lane.turn, step & (depth - 1)))
                              .load(std::memory_order_relaxed);  // [arrival] acquired it
    std::optional<Carry> carry = TRY(begin(lane, step, note));
    if (!carry) {
      lacks_room_ = true;
      return any;
    }
    carry->receives = receives;
    carry->uses_up = lane.through != Through::Gathering || turn == options_.members - 1;
    if (receives) ++channel.awaited;
    ++channel.started;
    channel.under_way.push_back(*carry);
    if (lane.turn == 0)
      lane.taking_turns = std::min(relay::channels_in(note), send.shape().channels);
    lane.turn = (lane.turn + 1) % lane.taking_turns;
  }
}

Result<CollectivePiece> Reducer::source_of(const Lane& lane, uint64_t step, uint64_t note) const {
  if ((note & relay::kInUserMemory) == 0) return lane.send->slot(lane.turn, step);
  // relaxed: [arrival] acquired it.
  const uint64_t address =
      std::atomic_ref(lane.send->place_of(lane.turn, step).address).load(std::memory_order_relaxed);
  auto* const data = reinterpret_cast<std::byte*>(address);
  void* const registered = find_user_memory(data, relay::bytes_in(note));
  if (registered == nullptr)
    return Status::invalid_usage(
        "the buffer at {} was deregistered (ncclCommDeregister) or freed while an operation sent "
        "from it: wait for the operation first",
        static_cast<const void*>(data));
  return CollectivePiece{data, registered};
}

// The user's memory, if the kernel has made a place there for this very chunk; else the slot. The
// kernel takes a place back only after the step.
CollectivePiece Reducer::target_of(const Lane& lane, uint64_t note) const {
  const uint64_t step = lane.channels[lane.turn].awaited;
  const relay::Place& place = lane.receive->place_of(lane.turn, step);
  const CollectivePiece slot = lane.receive->slot(lane.turn, step);
  const uint64_t bytes = relay::bytes_in(note);
  // Acquire, pairs with the kernel's [place]. (No std::atomic_ref of a const before C++26.)
  const uint64_t address =
      std::atomic_ref(const_cast<uint64_t&>(place.address)).load(std::memory_order_acquire);
  if (address == 0) return slot;
  const uint64_t placed =
      std::atomic_ref(const_cast<uint64_t&>(place.note)).load(std::memory_order_relaxed);
  if (placed != relay::note_of(static_cast<uint32_t>(bytes), relay::tag_in(note))) return slot;
  auto* const data = reinterpret_cast<std::byte*>(address);
  void* const registered = find_user_memory(data, bytes);
  return registered == nullptr ? slot : CollectivePiece{data, registered};
}

// None: the network has no room for now.
Result<std::optional<Reducer::Carry>> Reducer::begin(const Lane& lane, uint64_t step,
                                                     uint64_t note) const {
  Carry carry{.call = relay::tag_in(note)};
  const size_t bytes = std::min(relay::bytes_in(note), lane.send->share().shape().slot_bytes);
  if (bytes == 0) return std::optional(carry);
  const auto type = static_cast<executor::DataType>(relay::type_in(note));
  const auto operation = static_cast<executor::ReduceOp>(relay::operation_in(note));
  if (static_cast<int>(type) >= executor::kDataTypes ||
      static_cast<int>(operation) >= executor::kReduceOps)
    return Status::internal("a chunk of type {} and operation {} for the network's reducer",
                            relay::type_in(note), relay::operation_in(note));
  const uint64_t started = lane.channels[lane.turn].started;
  const auto turn = static_cast<int>(started % static_cast<uint64_t>(options_.members));
  const bool receives = lane.through != Through::Scattering || turn == options_.place;
  const CollectivePiece from = TRY(source_of(lane, step, note));
  // Whoever receives nothing has a slot all the same, which the network does not write.
  const CollectivePiece to = receives
                                 ? target_of(lane, note)
                                 : lane.receive->slot(lane.turn, lane.channels[lane.turn].awaited);
  CollectiveNetwork& network = *options_.network;
  void* const collective = options_.collective;
  Result<void*> request =
      lane.through == Through::Gathering ? network.gather(collective, from, to, bytes, turn)
      : lane.through == Through::Scattering
          ? network.reduce_to(collective, from, to, bytes, turn, type, operation)
          : network.all_reduce(collective, from, to, bytes / executor::size_of(type), type,
                               operation);
  carry.request = TRY(std::move(request));
  if (carry.request == nullptr) return std::optional<Carry>();
  if (receives && to.memory != lane.receive->registered) {
    // relaxed, both: [publish] releases them.
    relay::Place& place = lane.receive->place_of(lane.turn, lane.channels[lane.turn].awaited);
    std::atomic_ref(place.address).store(0, std::memory_order_relaxed);
    std::atomic_ref(place.is_landed).store(1, std::memory_order_relaxed);
  }
  return std::optional(carry);
}

Result<bool> Reducer::finish(Lane& lane) const {
  bool any = false;
  for (uint32_t number = 0; number < lane.channels.size(); ++number) {
    Channel& channel = lane.channels[number];
    for (; !channel.under_way.empty(); any = true) {
      const Carry& first = channel.under_way.front();
      if (first.request != nullptr && !TRY(options_.network->test(first.request))) break;
      if (first.receives) {
        ++channel.published;
        // [publish] of the proxy: the slot's content. Pairs with the kernel's [arrival].
        std::atomic_ref(lane.receive->share().own(number).remote)
            .store(tag::tail(channel.published, first.call), std::memory_order_release);
      }
      if (first.uses_up) {
        ++channel.freed;
        // [consume] of the proxy: the network has read the slot. Pairs with the kernel's [credit].
        std::atomic_ref(lane.send->share().own(number).remote)
            .store(channel.freed, std::memory_order_release);
      }
      channel.under_way.pop_front();
    }
  }
  return any;
}

}  // namespace niccolite::transport::net
