#include "transport/descriptor_server.h"

#include <gmock/gmock.h>

#include <cstring>

#include "gpu/virtual/driver.h"
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

TEST(DescriptorServer, ThatIsGoneIsNamedWithARemedy) {
  const auto refused = fetch_descriptor("@niccolite-nobody", Token{}, Deadline::after(seconds(20)));
  ASSERT_FALSE(refused.is_ok());
  EXPECT_THAT(refused.status().message(), testing::HasSubstr("NCCL_IPC_USE_ABSTRACT_SOCKET"));
}

}  // namespace
}  // namespace niccolite::transport
