// Reducer: the order of its requests, chunks in the user's memory, and its end. The test plays the
// kernels and the network.
#include "transport/net/reducer.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "executor/protocol/call_tag.h"
#include "gpu/virtual/driver.h"

namespace niccolite::transport::net {
namespace {

using executor::DataType;
using executor::FifoShape;
using executor::PortAddress;
using executor::ReduceOp;
using schedule::Through;
using testing::ElementsAre;
using testing::HasSubstr;

namespace relay = executor::relay;
namespace tag = executor::call_tag;

constexpr uint16_t kCall = 77;
constexpr FifoShape kShape{.channels = 3, .depth = 2, .slot_bytes = 256};
constexpr int kMembers = 2;
constexpr int kPlace = 1;

struct Requested {
  Through through;
  std::byte* send;
  std::byte* receive;
  size_t bytes;
  int place;
};

/// The other member's chunks are as this one's. Requests end when the test says so.
class FakeNetwork final : public CollectiveNetwork {
 public:
  FakeNetwork() {
    name_ = "Fake";
    most_bytes_ = 4096;
  }
  Result<void*> listen(Handle& /*handle*/) override { return nullptr; }
  Result<void*> connect(std::span<Handle> /*handles*/, int /*place*/, void* /*listener*/) override {
    return nullptr;
  }
  Result<bool> can_reduce(DataType /*type*/, ReduceOp /*operation*/) override { return true; }
  bool gathers() const override { return true; }
  Result<void*> register_memory(void* /*collective*/, void* data, size_t bytes) override {
    std::lock_guard lock(mutex_);
    registered_[++last_] = {static_cast<std::byte*>(data), bytes};
    return reinterpret_cast<void*>(last_);
  }
  bool takes_device_memory() const override { return false; }
  Result<void*> register_device_memory(void* /*collective*/, void* /*data*/, size_t /*bytes*/,
                                       const gpu::DmaBuffer& /*memory*/) override {
    return Status::internal("this network takes none");
  }
  void deregister_memory(void* /*collective*/, void* memory) override {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(registered_.erase(reinterpret_cast<uintptr_t>(memory)), 1u);
  }
  Result<void*> all_reduce(void* /*collective*/, const CollectivePiece& send,
                           const CollectivePiece& receive, size_t count, DataType type,
                           ReduceOp /*operation*/) override {
    return ask({Through::Reduction, send.data, receive.data, count * size_of(type), 0}, send,
               receive);
  }
  Result<void*> gather(void* /*collective*/, const CollectivePiece& send,
                       const CollectivePiece& receive, size_t bytes, int place) override {
    return ask({Through::Gathering, send.data, receive.data, bytes, place}, send, receive);
  }
  Result<void*> reduce_to(void* /*collective*/, const CollectivePiece& send,
                          const CollectivePiece& receive, size_t bytes, int place,
                          DataType /*type*/, ReduceOp /*operation*/) override {
    return ask({Through::Scattering, send.data, receive.data, bytes, place}, send, receive);
  }
  Result<bool> test(void* request) override {
    std::lock_guard lock(mutex_);
    if (reinterpret_cast<uintptr_t>(request) > allowed_) return false;
    const Requested& of = requests_[reinterpret_cast<uintptr_t>(request) - 1];
    if (of.through != Through::Scattering || of.place == kPlace)
      std::memcpy(of.receive, of.send, of.bytes);
    return true;
  }
  void close(void* /*collective*/) override {
    std::lock_guard lock(mutex_);
    ++closed_;
  }
  void close_listener(void* /*listener*/) override {}

  void allow(size_t requests) {
    std::lock_guard lock(mutex_);
    allowed_ = requests;
  }
  void have_no_room(int times) {
    std::lock_guard lock(mutex_);
    no_room_ = times;
  }
  void fail() {
    std::lock_guard lock(mutex_);
    fails_ = true;
  }
  std::vector<Requested> wait_for(size_t count) {
    for (;;) {
      {
        std::lock_guard lock(mutex_);
        if (requests_.size() >= count) return requests_;
      }
      std::this_thread::yield();
    }
  }
  size_t registrations() {
    std::lock_guard lock(mutex_);
    return registered_.size();
  }
  int closed() {
    std::lock_guard lock(mutex_);
    return closed_;
  }

 private:
  Result<void*> ask(const Requested& requested, const CollectivePiece& send,
                    const CollectivePiece& receive) {
    std::lock_guard lock(mutex_);
    if (fails_) return Status::remote_error("the network fails");
    for (const CollectivePiece* piece : {&send, &receive}) {
      const auto& [begin, bytes] = registered_.at(reinterpret_cast<uintptr_t>(piece->memory));
      EXPECT_TRUE(piece->data >= begin && piece->data + requested.bytes <= begin + bytes);
    }
    if (no_room_ > 0) {
      --no_room_;
      return nullptr;
    }
    requests_.push_back(requested);
    return reinterpret_cast<void*>(requests_.size());
  }

  std::mutex mutex_;
  std::map<uintptr_t, std::pair<std::byte*, size_t>> registered_;
  uintptr_t last_ = 0;
  std::vector<Requested> requests_;
  size_t allowed_ = SIZE_MAX;
  int no_room_ = 0;
  int closed_ = 0;
  bool fails_ = false;
};

class ReducerTest : public testing::Test {
 protected:
  void start(Through through) {
    reducer_ = Reducer::start(
                   {.network = network_,
                    .members = kMembers,
                    .place = kPlace,
                    .fail =
                        [this](const Status& why) {
                          failure_.set_value(why.message());  // once
                        },
                    .is_registered = [this](const void*, size_t) { return is_registered_.load(); },
                    .export_memory = {},
                    .direct_bytes = 64})
                   .take();
    gpu::Machine& machine = *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion);
    send_ = reducer_->port(machine, through, /*is_send=*/true, kShape).take();
    receive_ = reducer_->port(machine, through, /*is_send=*/false, kShape).take();
  }

  /// The kernel's send of floats; from user memory where there is some.
  void send(uint32_t channel, uint64_t step, uint32_t channels, std::span<const float> data,
            bool is_in_user_memory = false) {
    uint64_t note = relay::note_of(static_cast<uint32_t>(data.size_bytes()), kCall) |
                    relay::elements_of(static_cast<uint8_t>(DataType::Float32),
                                       static_cast<uint8_t>(ReduceOp::Sum), channels);
    const uint64_t slot = step & (kShape.depth - 1);
    if (is_in_user_memory) {
      note |= relay::kInUserMemory;
      place_of(send_, channel, step).address = reinterpret_cast<uint64_t>(data.data());
    } else {
      std::memcpy(send_.slots + kShape.slot_offset(channel, step), data.data(), data.size_bytes());
    }
    std::atomic_ref(send_.notes[channel * kShape.depth + slot]).store(note);
    std::atomic_ref(send_.remote_control[channel].remote).store(tag::tail(step + 1, kCall));
    send_.bells[0]->announce();
  }
  void place(uint32_t channel, uint64_t step, std::span<float> data) {
    relay::Place& place = place_of(receive_, channel, step);
    place.note = relay::note_of(static_cast<uint32_t>(data.size_bytes()), kCall);
    std::atomic_ref(place.address).store(reinterpret_cast<uint64_t>(data.data()));
  }
  static relay::Place& place_of(const PortAddress& port, uint32_t channel, uint64_t step) {
    return port.user_memory->places()[channel * kShape.depth + (step & (kShape.depth - 1))];
  }
  void wait_for(const PortAddress& port, uint32_t channel, uint64_t steps) {
    while (tag::steps_in(std::atomic_ref(port.control[channel].remote).load(), steps) < steps)
      std::this_thread::yield();
  }
  /// The kernel's receive, which gives credit.
  std::vector<float> receive(uint32_t channel, uint64_t step, size_t count) {
    wait_for(receive_, channel, step + 1);
    std::vector<float> data(count);
    std::memcpy(data.data(), receive_.slots + kShape.slot_offset(channel, step),
                count * sizeof(float));
    std::atomic_ref(receive_.remote_control[channel].remote).store(step + 1);
    receive_.bells[0]->announce();
    return data;
  }
  bool is_slot(const PortAddress& port, const std::byte* at) const {
    return at >= port.slots && at < port.slots + kShape.slots_bytes();
  }
  uint32_t channel_of(const std::byte* slot) const {
    return static_cast<uint32_t>(static_cast<size_t>(slot - send_.slots) /
                                 (kShape.depth * kShape.slot_bytes));
  }

  const std::shared_ptr<FakeNetwork> network_ = std::make_shared<FakeNetwork>();
  std::atomic<bool> is_registered_ = true;
  std::promise<std::string> failure_;
  std::unique_ptr<Reducer> reducer_;
  PortAddress send_, receive_;
};

// Whatever the order in which this rank's channels come: other ranks' come in another one.
TEST_F(ReducerTest, ChannelsTakeTurns) {
  start(Through::Reduction);
  const std::vector<float> data{1, 2};
  for (const uint64_t step : {0, 1})
    for (const uint32_t channel : {2u, 0u, 1u}) send(channel, step, 3, data);
  for (const uint64_t step : {0, 1})
    for (const uint32_t channel : {0u, 1u, 2u}) EXPECT_EQ(receive(channel, step, 2), data);
  send(0, 2, 1, data);  // an operation of one channel, twice
  send(0, 3, 1, data);
  receive(0, 2, 2);
  receive(0, 3, 2);
  send(1, 2, 2, data);  // of two
  send(0, 4, 2, data);
  receive(0, 4, 2);
  receive(1, 2, 2);
  std::vector<uint32_t> channels;
  for (const Requested& each : network_->wait_for(10)) channels.push_back(channel_of(each.send));
  EXPECT_THAT(channels, ElementsAre(0, 1, 2, 0, 1, 2, 0, 0, 0, 1));
}

TEST_F(ReducerTest, ChannelsTakeTurnsInCarriesOfAGathering) {
  start(Through::Gathering);
  const std::vector<float> data{1, 2};
  for (const uint32_t channel : {1u, 0u}) send(channel, 0, 2, data);
  for (const uint64_t step : {0, 1})
    for (const uint32_t channel : {0u, 1u}) EXPECT_EQ(receive(channel, step, 2), data);
  std::vector<std::pair<uint32_t, int>> carries;
  for (const Requested& each : network_->wait_for(4))
    carries.emplace_back(channel_of(each.send), each.place);
  EXPECT_THAT(carries,
              ElementsAre(std::pair(0u, 0), std::pair(1u, 0), std::pair(0u, 1), std::pair(1u, 1)));
  wait_for(send_, 0, 1);  // the chunk is used up with the last of them
}

TEST_F(ReducerTest, ScatteringBringsEachMemberItsOwn) {
  start(Through::Scattering);
  const std::vector<float> others{1, 2}, own{3, 4};
  send(0, 0, 1, others);
  send(0, 1, 1, own);
  EXPECT_EQ(receive(0, 0, 2), own);
  wait_for(send_, 0, 2);
}

TEST_F(ReducerTest, RegisteredMemoryNeedsNoSlot) {
  start(Through::Reduction);
  std::vector<float> sent(32), received(32);
  std::ranges::fill(sent, 5.0F);
  reducer_->add_user_memory(sent.data(), sent.size() * sizeof(float));
  reducer_->add_user_memory(received.data(), received.size() * sizeof(float));
  const auto* const bytes = reinterpret_cast<const std::byte*>(sent.data());
  ASSERT_TRUE(send_.user_memory->reaches(bytes, 128));
  EXPECT_FALSE(send_.user_memory->reaches(bytes, 129));
  network_->have_no_room(3);
  network_->allow(0);
  place(0, 0, received);
  send(0, 0, 1, sent, /*is_in_user_memory=*/true);
  const Requested request = network_->wait_for(1)[0];
  EXPECT_EQ(request.send, bytes);
  EXPECT_EQ(request.receive, reinterpret_cast<const std::byte*>(received.data()));
  EXPECT_EQ(std::atomic_ref(send_.control[0].remote).load(), 0u) << "it is still read";
  network_->allow(1);
  wait_for(receive_, 0, 1);
  wait_for(send_, 0, 1);
  EXPECT_EQ(place_of(receive_, 0, 0).is_landed, 1u);
  EXPECT_EQ(received, sent);
}

TEST_F(ReducerTest, PlacesForOtherChunksOrOtherMemoryAreNotTaken) {
  start(Through::Reduction);
  std::vector<float> sent(16, 5.0F), received(32);
  place(0, 0, received);  // not registered
  send(0, 0, 1, sent);
  EXPECT_TRUE(is_slot(receive_, network_->wait_for(1)[0].receive));
  reducer_->add_user_memory(received.data(), received.size() * sizeof(float));
  place(0, 1, received);  // for more bytes
  send(0, 1, 1, sent);
  EXPECT_TRUE(is_slot(receive_, network_->wait_for(2)[1].receive));
  receive(0, 0, 16);
  EXPECT_EQ(place_of(receive_, 0, 0).is_landed, 0u);
  is_registered_ = false;
  EXPECT_FALSE(receive_.user_memory->reaches(reinterpret_cast<std::byte*>(received.data()), 64));
  const size_t before = network_->registrations();
  reducer_->remove_user_memory();
  EXPECT_EQ(network_->registrations(), before - 1);
}

TEST_F(ReducerTest, MemoryDeregisteredUnderAnOperationIsAnError) {
  start(Through::Reduction);
  std::vector<float> sent(32);
  send(0, 0, 1, sent, /*is_in_user_memory=*/true);
  EXPECT_THAT(failure_.get_future().get(), HasSubstr("ncclCommDeregister"));
  while (!send_.user_memory->let_go(0)) std::this_thread::yield();
  EXPECT_EQ(network_->closed(), 1);
  EXPECT_EQ(network_->registrations(), 0u);
}

// Requests cannot be withdrawn: the way out is to leave.
TEST_F(ReducerTest, AKernelThatGivesUpLeavesTheCollectiveWhoseRequestNeverEnds) {
  start(Through::Reduction);
  std::vector<float> sent(32);
  reducer_->add_user_memory(sent.data(), sent.size() * sizeof(float));
  network_->allow(0);
  send(0, 0, 1, sent, /*is_in_user_memory=*/true);
  network_->wait_for(1);
  while (!send_.user_memory->let_go(0)) std::this_thread::yield();
  EXPECT_EQ(network_->closed(), 1);
  EXPECT_EQ(network_->registrations(), 0u);
  send(0, 1, 1, sent);
  gpu::Machine& machine = *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion);
  const Status refused =
      reducer_->port(machine, Through::Gathering, /*is_send=*/true, kShape).status();
  EXPECT_THAT(refused.message(), HasSubstr("has left"));
  reducer_->close();
  EXPECT_EQ(network_->closed(), 1);
}

TEST_F(ReducerTest, AFailureIsToldOnceAndNothingMovesAnyMore) {
  start(Through::Reduction);
  network_->fail();
  send(0, 0, 1, std::vector<float>{1});
  EXPECT_THAT(failure_.get_future().get(), HasSubstr("the network fails"));
  send(0, 1, 1, std::vector<float>{1});
  reducer_->close();
  EXPECT_EQ(network_->registrations(), 0u);
  EXPECT_EQ(network_->closed(), 1);
}

}  // namespace
}  // namespace niccolite::transport::net
