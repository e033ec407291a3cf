// What is wrong is an error of the call, and nothing else: no crash, no hang, and the machine goes
// on.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "gpu/virtual/driver.h"
#include "gpu/virtual/runtime.h"

namespace niccolite::gpu::virtual_ {
namespace {

Runtime& runtime() { return *Runtime::instance(); }

std::vector<void*> bad_handles() {
  StreamHandle destroyed = nullptr;
  void* event = nullptr;
  EXPECT_EQ(runtime().create_stream(0, false, 0, &destroyed), Error::None);
  EXPECT_EQ(runtime().destroy_stream(destroyed), Error::None);
  EXPECT_EQ(runtime().create_event(false, &event), Error::None);
  EXPECT_EQ(runtime().destroy_event(event), Error::None);
  return {destroyed, event, reinterpret_cast<void*>(3), reinterpret_cast<void*>(0x1234567890),
          reinterpret_cast<void*>(~uintptr_t{0})};
}

TEST(Misuse, StreamsThatDoNotExistAreRefused) {
  void* event = nullptr;
  ASSERT_EQ(runtime().create_event(true, &event), Error::None);
  for (void* bad : bad_handles()) {
    SCOPED_TRACE(bad);
    CaptureInfo info;
    void* graph = nullptr;
    EXPECT_EQ(runtime().submit(0, bad, Nothing{}), Error::InvalidResourceHandle);
    EXPECT_EQ(runtime().synchronize_stream(0, bad), Error::InvalidResourceHandle);
    EXPECT_EQ(runtime().query_stream(0, bad), Error::InvalidResourceHandle);
    EXPECT_EQ(runtime().record_event(event, 0, bad), Error::InvalidResourceHandle);
    EXPECT_EQ(runtime().wait_event(0, bad, event), Error::InvalidResourceHandle);
    EXPECT_EQ(runtime().begin_capture(0, bad, CaptureMode::Global), Error::InvalidResourceHandle);
    EXPECT_EQ(runtime().end_capture(0, bad, &graph), Error::InvalidResourceHandle);
    EXPECT_EQ(runtime().capture_info(0, bad, &info), Error::InvalidResourceHandle);
    EXPECT_EQ(runtime().destroy_stream(bad), Error::InvalidResourceHandle);
  }
  EXPECT_EQ(runtime().destroy_event(event), Error::None);
}

TEST(Misuse, EventsAndGraphsThatDoNotExistAreRefused) {
  float milliseconds = 0;
  for (void* bad : bad_handles()) {
    SCOPED_TRACE(bad);
    void* executable = nullptr;
    EXPECT_EQ(runtime().record_event(bad, 0, nullptr), Error::InvalidResourceHandle);
    EXPECT_EQ(runtime().wait_event(0, nullptr, bad), Error::InvalidResourceHandle);
    EXPECT_EQ(runtime().query_event(bad), Error::InvalidResourceHandle);
    EXPECT_EQ(runtime().synchronize_event(bad), Error::InvalidResourceHandle);
    EXPECT_EQ(runtime().elapsed_milliseconds(bad, bad, &milliseconds),
              Error::InvalidResourceHandle);
    EXPECT_EQ(runtime().destroy_event(bad), Error::InvalidResourceHandle);
    EXPECT_EQ(runtime().instantiate(bad, &executable), Error::InvalidResourceHandle);
    EXPECT_EQ(runtime().launch(bad, 0, nullptr), Error::InvalidResourceHandle);
    EXPECT_EQ(runtime().destroy_graph(bad), Error::InvalidResourceHandle);
    EXPECT_EQ(runtime().destroy_executable(bad), Error::InvalidResourceHandle);
  }
}

TEST(Misuse, AStreamOfAnotherDeviceIsRefused) {
  StreamHandle stream = nullptr;
  ASSERT_EQ(runtime().create_stream(1, false, 0, &stream), Error::None);
  EXPECT_EQ(runtime().submit(0, stream, Nothing{}), Error::InvalidResourceHandle);
  EXPECT_EQ(runtime().submit(1, stream, Nothing{}), Error::None);
  EXPECT_EQ(runtime().destroy_stream(stream), Error::None);
}

TEST(Misuse, CopiesOutOfBoundsAreRefused) {
  MemoryProperties memory;
  ASSERT_EQ(runtime().memory().allocate(0, 100, PointerKind::Device, false, &memory), Error::None);
  std::byte local[200] = {};
  const auto copy = [](std::byte* target, const std::byte* source, size_t bytes) {
    return runtime().copy(0, nullptr, Copy{target, source, bytes}, true);
  };
  EXPECT_EQ(copy(memory.base, local, 101), Error::InvalidValue);
  EXPECT_EQ(copy(local, memory.base + 1, 100), Error::InvalidValue);
  EXPECT_EQ(copy(memory.base, nullptr, 1), Error::InvalidValue);
  EXPECT_EQ(copy(memory.base, nullptr, 0), Error::None);
  EXPECT_EQ(runtime().set(0, nullptr, Set{local, 1, 10}), Error::InvalidValue);
  EXPECT_EQ(copy(memory.base, local, 100), Error::None);
  ASSERT_EQ(runtime().memory().release(memory.base), Error::None);
  EXPECT_EQ(copy(memory.base, local, 1), Error::InvalidValue);
}

TEST(Misuse, CaptureRulesAreThoseOfCuda) {
  StreamHandle a = nullptr;
  StreamHandle b = nullptr;
  void* inside = nullptr;
  void* outside = nullptr;
  void* graph = nullptr;
  ASSERT_EQ(runtime().create_stream(0, true, 0, &a), Error::None);
  ASSERT_EQ(runtime().create_stream(0, true, 0, &b), Error::None);
  ASSERT_EQ(runtime().create_event(false, &inside), Error::None);
  ASSERT_EQ(runtime().create_event(false, &outside), Error::None);
  ASSERT_EQ(runtime().record_event(outside, 0, b), Error::None);
  const auto begin = [&](StreamHandle stream) {
    ASSERT_EQ(runtime().begin_capture(0, stream, CaptureMode::ThreadLocal), Error::None);
  };

  EXPECT_EQ(runtime().end_capture(0, a, &graph), Error::IllegalState);

  begin(a);  // the legacy stream would have to wait for captured work
  EXPECT_EQ(runtime().begin_capture(0, a, CaptureMode::Relaxed), Error::IllegalState);
  EXPECT_EQ(runtime().submit(0, nullptr, Nothing{}), Error::StreamCaptureImplicit);
  EXPECT_EQ(runtime().submit(0, a, Nothing{}), Error::StreamCaptureInvalidated);
  EXPECT_EQ(runtime().end_capture(0, a, &graph), Error::StreamCaptureInvalidated);

  begin(a);  // work from outside
  EXPECT_EQ(runtime().wait_event(0, a, outside), Error::StreamCaptureIsolation);
  EXPECT_EQ(runtime().end_capture(0, a, &graph), Error::StreamCaptureInvalidated);

  begin(a);  // two captures cannot become one
  begin(b);
  ASSERT_EQ(runtime().record_event(inside, 0, a), Error::None);
  EXPECT_EQ(runtime().query_event(inside), Error::CapturedEvent);
  EXPECT_EQ(runtime().wait_event(0, b, inside), Error::StreamCaptureMerge);
  EXPECT_EQ(runtime().end_capture(0, a, &graph), Error::StreamCaptureInvalidated);
  EXPECT_EQ(runtime().end_capture(0, b, &graph), Error::StreamCaptureInvalidated);

  begin(a);  // only its origin ends a capture
  ASSERT_EQ(runtime().record_event(inside, 0, a), Error::None);
  ASSERT_EQ(runtime().wait_event(0, b, inside), Error::None);
  EXPECT_EQ(runtime().end_capture(0, b, &graph), Error::StreamCaptureUnmatched);
  EXPECT_EQ(runtime().end_capture(0, a, &graph), Error::StreamCaptureInvalidated);

  begin(a);  // allocation in the capturing thread is not safe, unless it says that it knows
  EXPECT_EQ(Runtime::exchange_capture_mode(CaptureMode::Relaxed), CaptureMode::Global);
  EXPECT_EQ(runtime().check_unsafe_call(), Error::None);
  EXPECT_EQ(Runtime::exchange_capture_mode(CaptureMode::Global), CaptureMode::Relaxed);
  EXPECT_EQ(runtime().check_unsafe_call(), Error::StreamCaptureUnsupported);
  EXPECT_EQ(runtime().end_capture(0, a, &graph), Error::StreamCaptureInvalidated);

  begin(a);  // a stream that goes away takes its capture with it
  EXPECT_EQ(runtime().destroy_stream(a), Error::None);
  EXPECT_EQ(runtime().submit(0, nullptr, Nothing{}), Error::None);

  EXPECT_EQ(runtime().destroy_stream(b), Error::None);
  EXPECT_EQ(runtime().destroy_event(inside), Error::None);
  EXPECT_EQ(runtime().destroy_event(outside), Error::None);
}

/// Runs `call` on a thread that has a stack of 512 KiB.
void with_small_stack(std::function<void()> call) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 512 << 10), 0);
  pthread_t thread{};
  const auto run = [](void* of) -> void* {
    (*static_cast<std::function<void()>*>(of))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, &call), 0);
  EXPECT_EQ(pthread_join(thread, nullptr), 0);
  EXPECT_EQ(pthread_attr_destroy(&attributes), 0);
}

// What has been made of a graph for a launch that is refused comes apart without a deep stack.
TEST(Misuse, ALongGraphCannotBeLaunchedInACapture) {
  StreamHandle stream = nullptr;
  void* graph = nullptr;
  void* executable = nullptr;
  ASSERT_EQ(runtime().create_stream(0, true, 0, &stream), Error::None);
  ASSERT_EQ(runtime().begin_capture(0, stream, CaptureMode::Relaxed), Error::None);
  for (int i = 0; i < 50'000; ++i)
    ASSERT_EQ(runtime().submit(0, stream, HostCall{.call = [] {}}), Error::None);
  ASSERT_EQ(runtime().end_capture(0, stream, &graph), Error::None);
  ASSERT_EQ(runtime().instantiate(graph, &executable), Error::None);
  ASSERT_EQ(runtime().begin_capture(0, stream, CaptureMode::Relaxed), Error::None);
  with_small_stack(
      [&] { EXPECT_EQ(runtime().launch(executable, 0, stream), Error::StreamCaptureUnsupported); });
  void* none = nullptr;
  EXPECT_EQ(runtime().end_capture(0, stream, &none), Error::StreamCaptureInvalidated);
  // Afterwards it can be.
  EXPECT_EQ(runtime().launch(executable, 0, stream), Error::None);
  EXPECT_EQ(runtime().synchronize_stream(0, stream), Error::None);
  EXPECT_EQ(runtime().destroy_executable(executable), Error::None);
  EXPECT_EQ(runtime().destroy_graph(graph), Error::None);
  EXPECT_EQ(runtime().destroy_stream(stream), Error::None);
}

// Products of sizes wrap around: 2^64 bytes look like none.
TEST(Misuse, MoreBytesThanANumberCanSayAreRefused) {
  constexpr size_t kHuge = size_t{1} << 32;
  MemoryProperties made;
  ASSERT_EQ(runtime().memory().allocate(0, 64, PointerKind::Device, false, &made), Error::None);
  for (const size_t pitch : {size_t{0}, size_t{1}, kHuge}) {
    Copy copy{.target = made.base, .source = made.base, .width = kHuge};
    copy.rows = kHuge;
    copy.target_pitch = copy.source_pitch = pitch;
    EXPECT_EQ(runtime().copy(0, nullptr, copy, true), Error::InvalidValue);
    copy.rows = kHuge / 4;
    copy.slices = 4;
    EXPECT_EQ(runtime().copy(0, nullptr, copy, true), Error::InvalidValue);
    Set set{.target = made.base, .value = 0, .width = kHuge};
    set.rows = kHuge;
    set.pitch = pitch;
    EXPECT_EQ(runtime().set(0, nullptr, set, true), Error::InvalidValue);
  }
  DriverCalls& calls = open(kInterfaceVersion)->driver_calls();
  EXPECT_EQ(calls.fill(0, nullptr, made.base, 0, 4, size_t{1} << 62, true), Error::InvalidValue);
  EXPECT_EQ(runtime().memory().release(made.base), Error::None);
}

TEST(Misuse, NodesAreAddedToGraphsInCaptureOnly) {
  StreamHandle stream = nullptr;
  void* event = nullptr;
  void* graph = nullptr;
  void* ended = nullptr;
  NodeIndex record = 0;
  std::vector<NodeIndex> tips;
  ASSERT_EQ(runtime().create_stream(0, false, 0, &stream), Error::None);
  ASSERT_EQ(runtime().create_event(false, &event), Error::None);
  EXPECT_EQ(runtime().record_event(event, 0, stream, true), Error::IllegalState);
  EXPECT_EQ(runtime().wait_event(0, stream, event, true), Error::IllegalState);
  EXPECT_EQ(runtime().capture_point(0, stream, &graph, &tips), Error::IllegalState);
  EXPECT_EQ(runtime().capture_after(0, stream, nullptr, {}), Error::IllegalState);
  EXPECT_EQ(runtime().add_record_node(nullptr, {}, event, &record), Error::IllegalState);

  ASSERT_EQ(runtime().begin_capture(0, stream, CaptureMode::ThreadLocal), Error::None);
  ASSERT_EQ(runtime().submit(0, stream, Nothing{}), Error::None);
  ASSERT_EQ(runtime().capture_point(0, stream, &graph, &tips), Error::None);
  EXPECT_EQ(tips, std::vector<NodeIndex>({0}));
  EXPECT_EQ(runtime().add_record_node(graph, {7}, event, &record), Error::InvalidValue);
  EXPECT_EQ(runtime().add_record_node(graph, tips, stream, &record), Error::InvalidResourceHandle);
  ASSERT_EQ(runtime().add_record_node(graph, tips, event, &record), Error::None);
  // Nothing comes after the record, it has each edge once, and no other node is one.
  EXPECT_EQ(runtime().capture_after(0, stream, graph, {record}), Error::InvalidValue);
  EXPECT_EQ(runtime().move_record_node(graph, record, {}, {record}), Error::InvalidValue);
  EXPECT_EQ(runtime().move_record_node(graph, record, {}, tips), Error::InvalidValue);
  EXPECT_EQ(runtime().move_record_node(graph, record, {record}, {}), Error::InvalidValue);
  EXPECT_EQ(runtime().move_record_node(graph, tips[0], {}, {}), Error::InvalidValue);
  EXPECT_EQ(runtime().capture_after(0, stream, event, tips), Error::InvalidValue);
  ASSERT_EQ(runtime().end_capture(0, stream, &ended), Error::None);
  EXPECT_EQ(runtime().move_record_node(graph, record, {}, {}), Error::IllegalState);

  EXPECT_EQ(runtime().destroy_graph(ended), Error::None);
  EXPECT_EQ(runtime().destroy_event(event), Error::None);
  EXPECT_EQ(runtime().destroy_stream(stream), Error::None);
}

TEST(Misuse, AForkedChildIsToldThatItHasNoWorkers) {
  ASSERT_EQ(runtime().submit(0, nullptr, Nothing{}), Error::None);
  ASSERT_EQ(runtime().synchronize_stream(0, nullptr), Error::None);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool refused = runtime().submit(0, nullptr, Nothing{}) == Error::InitializationError &&
                         runtime().synchronize_stream(0, nullptr) == Error::InitializationError;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// The child has the tables of memory that it shares with its parent.
TEST(Misuse, AForkedChildGetsNoMemoryAndFreesNone) {
  VirtualMachine& machine = *open(kInterfaceVersion);
  Memory memory = machine.allocate(0, 4096, false).take();
  std::memset(memory.data(), 7, memory.bytes());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Status refused = machine.allocate(0, 4096, false).status().copy();
    const bool is_told =
        refused.message().find("cudaErrorInitializationError") != std::string::npos;
    memory = Memory();
    _exit(is_told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(*static_cast<const char*>(memory.data()), 7);
}

TEST(Misuse, AWrongInterfaceVersionGetsNoDriver) {
  EXPECT_EQ(open(kInterfaceVersion + 1), nullptr);
  EXPECT_NE(open(kInterfaceVersion), nullptr);
}

TEST(Misuse, MessagesNameCallObjectAndCause) {
  VirtualMachine& machine = *open(kInterfaceVersion);
  const Status status = machine.synchronize_stream(0, reinterpret_cast<void*>(0x30));
  EXPECT_EQ(status.code(), Code::CudaError);
  EXPECT_NE(status.message().find("stream 0x30"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("cudaErrorInvalidResourceHandle"), std::string::npos);
  const Status missing = machine.allocate(99, 16, false).status().copy();
  EXPECT_NE(missing.message().find("no virtual GPU 99"), std::string::npos) << missing.message();
  // Of what is nowhere, no GPU is named.
  const Status unknown = machine.name_allocation(&machine).status().copy();
  EXPECT_NE(unknown.message().find("of virtual GPUs: invalid argument"), std::string::npos)
      << unknown.message();
}

}  // namespace
}  // namespace niccolite::gpu::virtual_
