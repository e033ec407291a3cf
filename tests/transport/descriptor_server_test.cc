#include "transport/descriptor_server.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "gpu/virtual/driver.h"
#include "tests/base/full_descriptors.h"
#include "transport/imports.h"

namespace niccolite::transport {
namespace {

using std::chrono::seconds;

gpu::Machine& machine() { return *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion); }

TEST(Import, IsOneMappingForAllWhoUseTheChunk) {
  const auto chunk = Chunk::create(machine(), 0, 4096).take();
  const auto server = DescriptorServer::instance().take();
  const Origin origin{
      .address = server->address(), .token = chunk->token(), .bytes = chunk->bytes()};
  const Deadline deadline = Deadline::after(seconds(20));
  const auto first = Import::open(machine(), 2, origin, deadline).take();
  const auto second = Import::open(machine(), 2, origin, deadline).take();
  EXPECT_EQ(first, second);
  EXPECT_NE(first->data(), chunk->data());
  EXPECT_NE(Import::open(machine(), 3, origin, deadline).take(), first);
  std::memset(chunk->data(), 0x5a, 4096);
  EXPECT_EQ(first->data()[4095], std::byte{0x5a});
}

TEST(DescriptorServer, HandsOutMemoryByTokenOnly) {
  const auto chunk = Chunk::create(machine(), 0, 4096).take();
  const auto server = DescriptorServer::instance().take();
  EXPECT_EQ(DescriptorServer::instance().value(), server);
  std::memset(chunk->data(), 0x5a, 4096);

  Fd descriptor =
      fetch_descriptor(server->address(), chunk->token(), Deadline::after(seconds(20))).take();
  const gpu::Memory mapped =
      machine().import_memory(2, std::move(descriptor), chunk->bytes()).take();
  EXPECT_NE(mapped.data(), chunk->data());
  EXPECT_EQ(static_cast<std::byte*>(mapped.data())[4095], std::byte{0x5a});

  Token wrong = chunk->token();
  wrong[0] ^= 1;
  const auto refused = fetch_descriptor(server->address(), wrong, Deadline::after(seconds(20)));
  ASSERT_FALSE(refused.is_ok());
  EXPECT_THAT(refused.status().message(), testing::HasSubstr("no longer has the memory"));
}

// Run by the next test in processes of their own, with sockets that are files.
TEST(DescriptorServer, DISABLED_IsThereUnderItsName) {
  for (int round = 0; round < 1500; ++round) {
    const auto server = DescriptorServer::instance().take();
    const Token unknown{};
    const auto answer = fetch_descriptor(server->address(), unknown, Deadline::after(seconds(20)));
    ASSERT_THAT(answer.status().message(), testing::HasSubstr("no longer has the memory"));
  }
}

// Run by the test after the next, in the same way.
TEST(DescriptorServer, DISABLED_Starts) { ASSERT_TRUE(DescriptorServer::instance().is_ok()); }

std::string command_of_test(const std::string& name) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  return "NCCL_IPC_USE_ABSTRACT_SOCKET=0 '" + self +
         "' --gtest_also_run_disabled_tests --gtest_brief=1 --gtest_filter=DescriptorServer." +
         name;
}

// Who starts removes the files of dead processes: never of those that start beside it.
TEST(DescriptorServer, OutlivesTheStartOfOthers) {
  const std::string one = command_of_test("DISABLED_IsThereUnderItsName");
  const std::string all =
      one + " & a=$!; " + one + " & b=$!; " + one + " & c=$!; wait $a && wait $b && wait $c";
  EXPECT_EQ(std::system(all.c_str()), 0);
}

// As where a child of the program's ends what it has inherited.
TEST(DescriptorServer, GoesOnWhereAChildLetsGoOfIt) {
  auto server = DescriptorServer::instance().take();
  const pid_t child = fork();
  if (child == 0) {
    server.reset();
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const auto chunk = Chunk::create(machine(), 0, 4096).take();
  const auto got =
      fetch_descriptor(server->address(), chunk->token(), Deadline::after(seconds(20)));
  EXPECT_TRUE(got.is_ok()) << got.status().message();
}

TEST(DescriptorServer, SaysThatItsProcessHasNoDescriptorLeft) {
  const auto server = DescriptorServer::instance().take();
  const auto chunk = Chunk::create(machine(), 0, 4096).take();
  int start[2];
  ASSERT_EQ(pipe2(start, O_CLOEXEC), 0);
  const pid_t client = fork();
  if (client == 0) {
    char go = 0;
    if (read(start[0], &go, 1) != 1) _exit(2);
    const auto got =
        fetch_descriptor(server->address(), chunk->token(), Deadline::after(seconds(20)));
    const bool is_told = !got.is_ok() && got.status().message().find(
                                             "cannot hand its memory over") != std::string::npos;
    _exit(is_told ? 0 : 1);
  }
  std::optional<test::FullDescriptors> none(std::in_place);
  EXPECT_EQ(write(start[1], "g", 1), 1);
  int status = 0;
  EXPECT_EQ(waitpid(client, &status, 0), client);
  none.reset();
  EXPECT_EQ(WEXITSTATUS(status), 0);
  close(start[0]);
  close(start[1]);
  EXPECT_TRUE(
      fetch_descriptor(server->address(), chunk->token(), Deadline::after(seconds(20))).is_ok());
}

// What users keep in the same folder is theirs, whatever its name.
TEST(DescriptorServer, RemovesDeadSocketsAlone) {
  const std::string before = fmt::format("/tmp/niccolite-{}", getpid());
  const std::string dead = before + "-0123456789abcdef", named_alike = before + "-00000000000000aa";
  const std::string log = before + ".log", link = before + "-00000000000000bb";
  const std::string other = before + "-socket";
  std::ofstream(log) << "a line";
  std::ofstream(named_alike) << "a line";
  std::filesystem::create_symlink(log, link);
  for (const std::string& path : {dead, other}) {
    const Fd bound(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(bind(bound.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  EXPECT_EQ(std::system(command_of_test("DISABLED_Starts").c_str()), 0);
  EXPECT_FALSE(std::filesystem::exists(dead));
  for (const std::string& path : {log, named_alike, link, other}) {
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::symlink_status(path))) << path;
    std::filesystem::remove(path);
  }
}

// Profilers and checkpoints interrupt the program's own thread. What has a time limit does not go
// on by itself after that (signal(7)).
TEST(DescriptorServer, IsHeardThroughSignals) {
  const auto server = DescriptorServer::instance().take();
  const auto chunk = Chunk::create(machine(), 0, 4096).take();
  struct sigaction before {};
  struct sigaction counts {};
  static std::atomic<int> signals;
  counts.sa_handler = [](int) { ++signals; };
  counts.sa_flags = SA_RESTART;
  ASSERT_EQ(sigaction(SIGALRM, &counts, &before), 0);
  const itimerval often{.it_interval = {.tv_sec = 0, .tv_usec = 200},
                        .it_value = {.tv_sec = 0, .tv_usec = 200}};
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  std::string failure;
  const Deadline deadline = Deadline::after(seconds(20));
  for (int i = 0; i < 500 && failure.empty(); ++i) {
    const auto got = fetch_descriptor(server->address(), chunk->token(), deadline);
    if (!got.is_ok()) failure = got.status().message();
  }
  const itimerval never{};
  EXPECT_EQ(setitimer(ITIMER_REAL, &never, nullptr), 0);
  EXPECT_EQ(sigaction(SIGALRM, &before, nullptr), 0);
  EXPECT_EQ(failure, "");
  EXPECT_GT(signals.load(), 0);
}

TEST(DescriptorServer, ThatIsGoneIsNamedWithARemedy) {
  const auto refused = fetch_descriptor("@niccolite-nobody", Token{}, Deadline::after(seconds(20)));
  ASSERT_FALSE(refused.is_ok());
  EXPECT_THAT(refused.status().message(), testing::HasSubstr("NCCL_IPC_USE_ABSTRACT_SOCKET"));
}

}  // namespace
}  // namespace niccolite::transport
