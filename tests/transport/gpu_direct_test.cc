// GPUDirect RDMA over virtual NICs: of virtual GPUs, and of the CUDA back end, whose driver is that
// of the virtual GPUs. With NICCOLITE_TEST_CUDA=real it is CUDA's; its memory cannot be mapped, so
// that virtual NICs refuse it.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gpu/cuda/open.h"
#include "gpu/machine.h"
#include "gpu/virtual/tasks.h"
#include "tests/transport/hidden_memory.h"
#include "transport/net/verbs/gpu_access.h"
#include "transport/net/verbs/memory.h"
#include "transport/net/verbs/peer_memory.h"
#include "transport/net/verbs/trial.h"
#include "transport/net/verbs/verbs.h"

extern "C" niccolite::gpu::virtual_::VirtualMachine* niccolite_virtual_driver(int);

namespace niccolite::transport::net::verbs {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr size_t kBytes = 300'000;
constexpr unsigned kReceives = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

template <typename T>
T must(Result<T> result) {
  if (!result.is_ok()) {
    ADD_FAILURE() << result.status().message();
    std::abort();
  }
  return std::move(result).take();
}
void must(const Status& status) { ASSERT_TRUE(status.is_ok()) << status.message(); }

bool is_real() {
  const char* const kind = std::getenv("NICCOLITE_TEST_CUDA");
  return kind != nullptr && std::string(kind) == "real";
}

gpu::Machine& machine_of(gpu::Kind kind) {
  if (kind == gpu::Kind::Virtual)
    return *niccolite_virtual_driver(gpu::virtual_::kInterfaceVersion);
  if (!is_real()) {
    static void* const driver = dlopen(NICCOLITE_VCUDA_DRIVER "/libcuda.so.1", RTLD_NOW);
    EXPECT_NE(driver, nullptr) << dlerror();
  }
  return *must(gpu::cuda::open());
}

class GpuDirect : public ::testing::TestWithParam<gpu::Kind> {
 protected:
  gpu::Machine& machine() { return machine_of(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(, GpuDirect, ::testing::Values(gpu::Kind::Virtual, gpu::Kind::Cuda),
                         [](const auto& instance) {
                           return std::string(instance.param == gpu::Kind::Virtual ? "Virtual"
                                                                                   : "Cuda");
                         });

/// One end of a connection in this process.
struct Rank {
  explicit Rank(gpu::Machine& machine)
      : network(must(open({.name = {}, .machine = &machine, .device = 0}))) {}
  ~Rank() {
    if (memory != nullptr) network->deregister_memory(sending, memory);
    if (inbox != nullptr) network->deregister_memory(receiving, inbox);
    if (sending != nullptr) network->close_send(sending);
    if (receiving != nullptr) network->close_receive(receiving);
    if (listener != nullptr) network->close_listener(listener);
  }
  void permit() {
    std::vector<std::string> names;
    for (const Network::Port& port : network->ports()) names.push_back(port.name);
    network->permit_direct(names);
  }
  void listen() { listener = must(network->listen(handle, "the other")); }
  void join(const Rank& other) {
    must(network->meet(listener, other.handle));
    Network::Handle unused = other.handle;
    sending = must(network->connect(listener, unused));
    receiving = must(network->accept(listener));
    network->peer_has_met(receiving);
    memory = must(network->register_memory(sending, message.data(), message.size()));
    inbox = must(network->register_memory(receiving, received.data(), received.size()));
  }

  std::shared_ptr<Network> network;
  Network::Handle handle{};
  void* listener = nullptr;
  void* sending = nullptr;
  void* receiving = nullptr;
  void* memory = nullptr;
  void* inbox = nullptr;
  std::array<std::byte, 64> message{};
  std::array<std::byte, 64> received{};
};

std::vector<std::byte> pattern() {
  std::vector<std::byte> made(kBytes);
  for (size_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::byte>(i * 7 + i / 256);
  return made;
}

// A chunk from memory of one GPU to memory of another one, and the message behind it.
TEST_P(GpuDirect, CarriesMemoryOfGpus) {
  if (is_real()) GTEST_SKIP() << "virtual NICs do not reach it";
  Rank a(machine()), b(machine());
  for (Rank* const rank : {&a, &b}) {
    EXPECT_FALSE(rank->network->is_direct(/*is_send=*/true)) << "nobody has permitted it";
    rank->permit();
    EXPECT_TRUE(rank->network->is_direct(/*is_send=*/true));
    EXPECT_TRUE(rank->network->is_direct(/*is_send=*/false));
    rank->listen();
  }
  a.join(b);
  b.join(a);
  const std::shared_ptr<DirectMemory> from = must(a.network->allocate_direct(kBytes, true));
  const std::shared_ptr<DirectMemory> to = must(b.network->allocate_direct(kBytes, false));
  const std::vector<std::byte> wanted = pattern();
  must(machine().upload(0, from->data(), wanted.data(), kBytes));
  void* const receive =
      must(b.network->receive(b.receiving, b.received.data(), b.received.size(), 0, b.inbox));
  const DirectWrite write{.from = from->data() + 1,
                          .bytes = kBytes - 1,
                          .memory = from.get(),
                          .to = b.network->name_of(*to),
                          .offset = 1};
  void* send = nullptr;
  while (send == nullptr) {
    send = must(a.network->send_with(a.sending, a.message.data(), a.message.size(), a.memory,
                                     std::array{write}));
    static_cast<void>(must(b.network->test(receive)));  // tries its queue pairs, and grants
  }
  EXPECT_TRUE(a.network->writes_directly(a.sending)) << "a trial has failed";
  while (!must(b.network->test(receive))) static_cast<void>(must(a.network->test(send)));
  must(b.network->flush_direct());
  std::vector<std::byte> came(kBytes);
  must(machine().download(0, came.data(), to->data(), kBytes));
  EXPECT_EQ(came[0], std::byte{0});
  EXPECT_EQ(std::memcmp(came.data() + 1, wanted.data() + 1, kBytes - 1), 0);
  while (!must(a.network->test(send))) continue;
}

TEST_P(GpuDirect, IsForTheNamedPortsAlone) {
  Rank rank(machine());
  rank.network->permit_direct({});
  EXPECT_FALSE(rank.network->is_direct(/*is_send=*/false));
  rank.network->permit_direct({"mlx5_0"});
  EXPECT_FALSE(rank.network->is_direct(/*is_send=*/false));
}

// ... with one line for all connections, and they work through host memory.
TEST(GpuDirectOfCuda, IsGivenUpWhereNicsRefuseItsMemory) {
  const std::string nics = std::getenv("NICCOLITE_NICS");
  if (!is_real() && nics.find("dmabuf") == std::string::npos)
    GTEST_SKIP() << "runs with NICs that refuse memory of GPUs, and on a GPU";
  Rank a(machine_of(gpu::Kind::Cuda)), b(machine_of(gpu::Kind::Cuda));
  ::testing::internal::CaptureStderr();
  for (Rank* const rank : {&a, &b}) {
    rank->permit();
    rank->listen();
    EXPECT_FALSE(rank->network->is_direct(/*is_send=*/true));
    EXPECT_FALSE(rank->network->is_direct(/*is_send=*/false));
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, ContainsRegex("NCCL WARN NET/IB : data pass through host memory: vnic0:1 on "
                                  "host .* refuses to register .* of memory of a GPU "
                                  "\\(ibv_reg_dmabuf_mr\\): .*; load nvidia_peermem, "));
  a.join(b);
  b.join(a);
  void* const receive =
      must(b.network->receive(b.receiving, b.received.data(), b.received.size(), 0, b.inbox));
  a.message[5] = std::byte{5};
  void* send = nullptr;
  while (send == nullptr) {
    send =
        must(a.network->send(a.sending, a.message.data(), a.message.size(), 0, a.memory, nullptr));
    static_cast<void>(must(b.network->test(receive)));
  }
  while (!must(b.network->test(receive))) static_cast<void>(must(a.network->test(send)));
  EXPECT_EQ(b.received[5], std::byte{5});
  EXPECT_FALSE(a.network->writes_directly(a.sending));
  while (!must(a.network->test(send))) continue;
}

// ---- how memory of a GPU is registered

std::vector<Rail> rails() {
  std::vector<Rail> rails;
  for (Port& port : must(list_ports(*must(Library::open())))) {
    rails.push_back({.port = std::move(port), .gid = {}});
  }
  return rails;
}

ibv_mr* refuse_dma_buffer(ibv_pd*, uint64_t, size_t, uint64_t, int, int) {
  errno = EOPNOTSUPP;
  return nullptr;
}

TEST(GpuRegistration, FallsBackOnPeerMemory) {
  gpu::Machine& machine = machine_of(gpu::Kind::Virtual);
  const gpu::Memory memory = must(machine.allocate(0, kBytes, /*shareable=*/true));
  Library library = *must(Library::open());
  library.reg_dmabuf_mr = refuse_dma_buffer;
  const std::vector<Rail> rails = verbs::rails();
  ASSERT_FALSE(rails.empty());
  const auto add = [&](bool has_dma_buffers, bool has_peer_memory) {
    const GpuAccess access{.machine = machine,
                           .device = 0,
                           .has_dma_buffers = has_dma_buffers,
                           .has_peer_memory = has_peer_memory};
    return Registered::create_on_gpu(library, rails, access, memory.data(), kBytes, kReceives);
  };
  EXPECT_TRUE(add(true, true).is_ok());
  EXPECT_TRUE(add(false, true).is_ok());
  const Result<std::unique_ptr<Registered>> refused = add(true, false);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_THAT(refused.status().message(), AllOf(HasSubstr("vnic0:1 on host "),
                                                HasSubstr("refuses to register 293 KiB of "
                                                          "memory of a GPU (ibv_reg_dmabuf_mr)"),
                                                HasSubstr("not supported")));
}

TEST(PeerMemory, IsThereWhereItsModuleIs) {
  const auto root = std::filesystem::temp_directory_path() /
                    ("niccolite_peer_memory_" + std::to_string(getpid()));
  EXPECT_FALSE(has_peer_memory(root.string()));
  for (const char* const file : kPeerMemoryFiles) {
    const std::filesystem::path path = root.string() + file;
    std::filesystem::create_directories(path.parent_path());
    EXPECT_FALSE(has_peer_memory(root.string()));
    std::ofstream(path) << "1.0\n";
    EXPECT_TRUE(has_peer_memory(root.string())) << file;
    std::filesystem::remove(path);
  }
  std::filesystem::remove_all(root);
}

TEST(Flush, IsDoneWhereTheGpuKeepsNoOrder) {
  const struct {
    gpu::NicWrites writes;
    bool is_forced, is_off;
    Flush flush;
  } cases[] = {
      {{.are_ordered = true, .can_be_flushed = true}, false, false, Flush::None},
      {{.are_ordered = true, .can_be_flushed = false}, false, false, Flush::None},
      {{.are_ordered = false, .can_be_flushed = true}, false, false, Flush::Call},
      {{.are_ordered = false, .can_be_flushed = false}, false, false, Flush::Impossible},
      {{.are_ordered = true, .can_be_flushed = true}, true, false, Flush::Call},
      {{.are_ordered = true, .can_be_flushed = false}, true, false, Flush::Impossible},
      {{.are_ordered = false, .can_be_flushed = false}, false, true, Flush::None},
      {{.are_ordered = false, .can_be_flushed = true}, true, true, Flush::None},
  };
  for (const auto& each : cases)
    EXPECT_EQ(choose_flush(each.writes, each.is_forced, each.is_off), each.flush)
        << each.writes.are_ordered << each.writes.can_be_flushed << each.is_forced << each.is_off;
}

// ---- memory that cores do not reach

TEST(TrialOfGpu, TouchesItsMemoryByCopiesAlone) {
  Hidden memory(Trial::bytes_for(2));
  Trial trial(2, memory.data(), &memory);
  const std::byte* const pattern = must(trial.make_pattern(1));
  EXPECT_THAT(must(trial.difference(1)).value_or("none"), HasSubstr("8192 of 8192 bytes"));
  std::byte* const echo = memory.content.data() + (trial.echo(1) - memory.data());
  std::memcpy(echo, memory.content.data() + (pattern - memory.data()), Trial::kBytes);
  EXPECT_EQ(must(trial.difference(1)), std::nullopt);
  echo[77] ^= std::byte{1};
  EXPECT_THAT(must(trial.difference(1)).value_or("none"),
              HasSubstr("1 of 8192 bytes that were written to the peer's memory came back wrong, "
                        "the first one at 77 "));
}

}  // namespace
}  // namespace niccolite::transport::net::verbs

int main(int argc, char** argv) {
  unsetenv("NCCL_DEBUG");  // warnings go to stderr
  setenv("NCCL_IBVERBS_LIB", NICCOLITE_VVERBS "/libibverbs.so.1", /*overwrite=*/0);
  setenv("NICCOLITE_NICS", "virtual:1", /*overwrite=*/0);
  setenv("NCCL_NET_FORCE_FLUSH", "1", /*overwrite=*/0);  // so that it is called
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
