// Streams, events and host calls: what comes after what.
#include <algorithm>
#include <atomic>
#include <thread>

#include "conformance/gpu_fixture.h"

namespace niccolite::gpu {
namespace {

using std::chrono::milliseconds;

const StreamHandle kLegacy = nullptr;
const StreamHandle kPerThread = reinterpret_cast<StreamHandle>(2);

TEST_P(Gpu, AStreamRunsItsWorkInOrder) {
  Memory a = allocate(1 << 18);
  Memory b = allocate(1 << 18);
  Stream stream = must(machine->create_stream(0));
  const size_t bytes = size_t{4} << 18;
  for (uint8_t round = 1; round <= 20; ++round) {
    ASSERT_OK(machine->set_async(a.data(), round, bytes, 0, stream.handle()));
    ASSERT_OK(machine->copy_async(b.data(), a.data(), bytes, 0, stream.handle()));
  }
  ASSERT_OK(machine->set_async(a.data(), 0xee, bytes, 0, stream.handle()));
  ASSERT_OK(machine->synchronize_stream(0, stream.handle()));
  EXPECT_EQ(read(b.data(), 1 << 18), std::vector<uint32_t>(1 << 18, 0x14141414));
}

TEST_P(Gpu, QueryTellsWhetherWorkIsLeft) {
  Stream stream = must(machine->create_stream(0));
  EXPECT_TRUE(must(machine->query_stream(0, stream.handle())));
  Gate gate;
  ASSERT_OK(machine->call_host(0, stream.handle(), &Gate::pass, &gate));
  gate.wait_for_arrival();
  EXPECT_FALSE(must(machine->query_stream(0, stream.handle())));
  gate.open();
  ASSERT_OK(machine->synchronize_stream(0, stream.handle()));
  EXPECT_TRUE(must(machine->query_stream(0, stream.handle())));
}

TEST_P(Gpu, AHostCallSeesAllEarlierWork) {
  Memory host = must(machine->allocate_host(4096));
  Stream stream = must(machine->create_stream(0));
  struct Seen {
    const uint8_t* bytes;
    int sum = 0;
  } seen{static_cast<const uint8_t*>(host.data())};
  ASSERT_OK(machine->set_async(host.data(), 3, 4096, 0, stream.handle()));
  const auto look = [](void* data) {
    auto* target = static_cast<Seen*>(data);
    for (int i = 0; i < 4096; ++i) target->sum += target->bytes[i];
  };
  ASSERT_OK(machine->call_host(0, stream.handle(), look, &seen));
  ASSERT_OK(machine->set_async(host.data(), 9, 4096, 0, stream.handle()));
  ASSERT_OK(machine->synchronize_stream(0, stream.handle()));
  EXPECT_EQ(seen.sum, 3 * 4096);
}

TEST_P(Gpu, AnEventOrdersTwoStreams) {
  const int other = machine->device_count() - 1;
  Memory data = must(machine->allocate_host(4));
  Stream first = must(machine->create_stream(0));
  Stream second = must(machine->create_stream(other));
  Event event = must(machine->create_event(0, false));
  Gate gate;
  ASSERT_OK(machine->call_host(0, first.handle(), &Gate::pass, &gate));
  ASSERT_OK(machine->set_async(data.data(), 1, 4, 0, first.handle()));
  ASSERT_OK(machine->record_event(event, 0, first.handle()));
  ASSERT_OK(machine->wait_event(other, second.handle(), event));
  ASSERT_OK(machine->set_async(data.data(), 2, 4, other, second.handle()));
  EXPECT_FALSE(must(machine->query_stream(other, second.handle())));
  gate.open();
  ASSERT_OK(machine->synchronize_event(event));
  ASSERT_OK(machine->synchronize_stream(other, second.handle()));
  EXPECT_EQ(*static_cast<uint32_t*>(data.data()), 0x02020202u);
}

TEST_P(Gpu, AWaitCountsTheLastRecordBeforeIt) {
  Stream first = must(machine->create_stream(0));
  Stream second = must(machine->create_stream(0));
  Event event = must(machine->create_event(0, false));
  ASSERT_OK(machine->wait_event(0, second.handle(), event));  // never recorded: no wait
  ASSERT_OK(machine->synchronize_event(event));
  ASSERT_OK(machine->record_event(event, 0, first.handle()));
  ASSERT_OK(machine->wait_event(0, second.handle(), event));
  Gate gate;
  ASSERT_OK(machine->call_host(0, first.handle(), &Gate::pass, &gate));
  ASSERT_OK(machine->record_event(event, 0, first.handle()));  // later than the wait
  ASSERT_OK(machine->synchronize_stream(0, second.handle()));
  gate.open();
  ASSERT_OK(machine->synchronize_stream(0, first.handle()));
}

TEST_P(Gpu, ElapsedTimeNeedsTimedFinishedEvents) {
  Stream stream = must(machine->create_stream(0));
  Event start = must(machine->create_event(0, true));
  Event stop = must(machine->create_event(0, true));
  Event untimed = must(machine->create_event(0, false));
  Memory memory = allocate(1 << 20);
  EXPECT_EQ(machine->elapsed_milliseconds(start, stop).status().code(), Code::CudaError);
  ASSERT_OK(machine->record_event(start, 0, stream.handle()));
  ASSERT_OK(machine->set_async(memory.data(), 1, memory.bytes(), 0, stream.handle()));
  ASSERT_OK(machine->record_event(stop, 0, stream.handle()));
  ASSERT_OK(machine->record_event(untimed, 0, stream.handle()));
  ASSERT_OK(machine->synchronize_stream(0, stream.handle()));
  EXPECT_GT(must(machine->elapsed_milliseconds(start, stop)), 0.0f);
  EXPECT_EQ(machine->elapsed_milliseconds(start, untimed).status().code(), Code::CudaError);
}

TEST_P(Gpu, LibraryStreamsDoNotWaitForTheLegacyStream) {
  Stream stream = must(machine->create_stream(0));
  Memory memory = allocate(4);
  Gate gate;
  ASSERT_OK(machine->call_host(0, kLegacy, &Gate::pass, &gate));
  gate.wait_for_arrival();
  ASSERT_OK(machine->set_async(memory.data(), 1, 16, 0, stream.handle()));
  ASSERT_OK(machine->synchronize_stream(0, stream.handle()));
  EXPECT_FALSE(must(machine->query_stream(0, kLegacy)));
  gate.open();
  ASSERT_OK(machine->synchronize_stream(0, kLegacy));
}

TEST_P(Gpu, TheThreadsDefaultStreamWaitsForTheLegacyStream) {
  Memory host = must(machine->allocate_host(4));
  Gate gate;
  ASSERT_OK(machine->call_host(0, kLegacy, &Gate::pass, &gate));
  gate.wait_for_arrival();
  ASSERT_OK(machine->set_async(host.data(), 1, 4, 0, kPerThread));
  EXPECT_FALSE(must(machine->query_stream(0, kPerThread)));
  EXPECT_EQ(*static_cast<uint32_t*>(host.data()), 0u);
  gate.open();
  ASSERT_OK(machine->synchronize_stream(0, kPerThread));
  EXPECT_EQ(*static_cast<uint32_t*>(host.data()), 0x01010101u);
}

TEST_P(Gpu, TheLegacyStreamWaitsForEachThreadsDefaultStream) {
  Memory host = must(machine->allocate_host(4));
  Gate gate;
  std::thread other([&] {
    EXPECT_TRUE(machine->call_host(0, kPerThread, &Gate::pass, &gate).is_ok());
    EXPECT_TRUE(machine->set_async(host.data(), 1, 4, 0, kPerThread).is_ok());
  });
  other.join();  // its stream is gone, its work is not
  gate.wait_for_arrival();
  ASSERT_OK(machine->set_async(host.data(), 2, 4, 0, kLegacy));
  EXPECT_FALSE(must(machine->query_stream(0, kLegacy)));
  gate.open();
  ASSERT_OK(machine->synchronize_stream(0, kLegacy));
  EXPECT_EQ(*static_cast<uint32_t*>(host.data()), 0x02020202u);
}

TEST_P(Gpu, BothHandlesOfTheLegacyStreamAreOneStream) {
  Memory host = must(machine->allocate_host(4));
  const StreamHandle named = reinterpret_cast<StreamHandle>(1);
  EXPECT_EQ(must(machine->stream_id(0, kLegacy)), must(machine->stream_id(0, named)));
  Gate gate;
  ASSERT_OK(machine->call_host(0, kLegacy, &Gate::pass, &gate));
  ASSERT_OK(machine->set_async(host.data(), 1, 4, 0, named));
  gate.wait_for_arrival();
  EXPECT_FALSE(must(machine->query_stream(0, named)));
  EXPECT_EQ(*static_cast<uint32_t*>(host.data()), 0u);
  gate.open();
  ASSERT_OK(machine->synchronize_stream(0, named));
  EXPECT_EQ(*static_cast<uint32_t*>(host.data()), 0x01010101u);
}

TEST_P(Gpu, StreamsHaveIdentities) {
  std::vector<uint64_t> ids{must(machine->stream_id(0, kLegacy)),
                            must(machine->stream_id(0, kPerThread))};
  EXPECT_EQ(must(machine->stream_id(0, kPerThread)), ids[1]) << "the same each time";
  for (int i = 0; i < 2; ++i) {
    std::thread other([&] { ids.push_back(must(machine->stream_id(0, kPerThread))); });
    other.join();
  }
  for (int i = 0; i < 3; ++i) {  // perhaps of one handle
    Stream stream = must(machine->create_stream(0));
    ids.push_back(must(machine->stream_id(0, stream.handle())));
    EXPECT_EQ(must(machine->stream_id(0, stream.handle())), ids.back());
  }
  const int last = machine->device_count() - 1;
  if (last > 0) ids.push_back(must(machine->stream_id(last, kLegacy)));
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
}

TEST_P(Gpu, DrainWaitsForDestroyedStreamsToo) {
  Memory host = must(machine->allocate_host(4));
  Gate gate;
  {
    Stream stream = must(machine->create_stream(0));
    ASSERT_OK(machine->call_host(0, stream.handle(), &Gate::pass, &gate));
    ASSERT_OK(machine->set_async(host.data(), 7, 4, 0, stream.handle()));
    gate.wait_for_arrival();
    EXPECT_FALSE(must(machine->drain(0, Deadline::after(milliseconds(1)))));
    if (GetParam() == Kind::Cuda) gate.open();  // its destruction of a stream may wait
  }
  gate.open();
  EXPECT_TRUE(must(machine->drain(0, Deadline::never())));
  EXPECT_EQ(*static_cast<uint32_t*>(host.data()), 0x07070707u);
}

TEST_P(Gpu, ManyThreadsUseTheirOwnStreamsAtOnce) {
  constexpr int kThreads = 8;
  constexpr size_t kWords = 1000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      const int device = t % machine->device_count();
      Stream stream = must(machine->create_stream(device));
      Memory a = must(machine->allocate(device, kWords * 4, false));
      Memory b = must(machine->allocate_host(kWords * 4));
      for (uint32_t round = 0; round < 50; ++round) {
        const auto value = static_cast<uint8_t>(t * 31 + static_cast<int>(round));
        EXPECT_TRUE(
            machine->set_async(a.data(), value, kWords * 4, device, stream.handle()).is_ok());
        EXPECT_TRUE(
            machine->copy_async(b.data(), a.data(), kWords * 4, device, stream.handle()).is_ok());
        EXPECT_TRUE(machine->synchronize_stream(device, stream.handle()).is_ok());
        EXPECT_EQ(static_cast<uint8_t*>(b.data())[kWords * 4 - 1], value);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace niccolite::gpu
