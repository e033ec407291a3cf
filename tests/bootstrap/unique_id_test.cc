#include "bootstrap/unique_id.h"

#include <sys/socket.h>
#include <unistd.h>

#include "ranks.h"

namespace niccolite::bootstrap {
namespace {

using testing::HasSubstr;

UniqueId sample() { return UniqueId::random(Address::parse("10.1.2.3:40123").value()); }

TEST(UniqueId, SurvivesItsBytes) {
  const UniqueId id = sample();
  auto parsed = UniqueId::parse(id.bytes());
  ASSERT_TRUE(parsed.is_ok());
  EXPECT_EQ(parsed.value(), id);
  EXPECT_EQ(parsed->root().text(), "10.1.2.3 port 40123");
}

TEST(UniqueId, IsRefusedWithAnyByteChanged) {
  const auto bytes = sample().bytes();
  for (size_t i = 0; i < bytes.size(); ++i) {
    auto damaged = bytes;
    damaged[i] ^= std::byte{0x40};
    const auto parsed = UniqueId::parse(damaged);
    ASSERT_FALSE(parsed.is_ok()) << "byte " << i;
    EXPECT_EQ(parsed.status().code(), Code::InvalidArgument) << "byte " << i;
  }
}

TEST(UniqueId, IsRefusedWhenNotOurs) {
  std::array<std::byte, UniqueId::kBytes> bytes{};
  EXPECT_THAT(UniqueId::parse(bytes).status().message(), HasSubstr("not made by ncclGetUniqueId"));
  bytes.fill(std::byte{0xff});
  EXPECT_EQ(UniqueId::parse(bytes).status().code(), Code::InvalidArgument);
}

TEST(UniqueId, IsDifferentEachTimeAndNamesAreToo) {
  const UniqueId a = sample(), b = sample();
  EXPECT_NE(a, b);
  EXPECT_NE(a.hash(), b.hash());
  EXPECT_NE(a.key("root"), a.key("session"));
  EXPECT_NE(a.key("root"), b.key("root"));
}

TEST(EnvironmentId, IsTheSameInEveryProcess) {
  const auto a = UniqueId::from_environment("127.0.0.1:5000", AF_UNSPEC);
  const auto b = UniqueId::from_environment("127.0.0.1:5000", AF_UNSPEC);
  const auto other = UniqueId::from_environment("127.0.0.1:5001", AF_UNSPEC);
  ASSERT_TRUE(a.is_ok() && b.is_ok() && other.is_ok());
  EXPECT_EQ(a.value(), b.value());
  EXPECT_NE(a.value().key("root"), other.value().key("root"));
  EXPECT_TRUE(UniqueId::parse(a.value().bytes()).is_ok());
}

TEST(EnvironmentId, IsAnErrorWhenMalformed) {
  for (const char* text :
       {"", "127.0.0.1", ":5000", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:0", "127.0.0.1:65536",
        "[::1:5000", "[::1]", "[::1]5000", "[127.0.0.1]:5000", "127.0.0.1:5000 "}) {
    const auto id = UniqueId::from_environment(text, AF_UNSPEC);
    ASSERT_FALSE(id.is_ok()) << text;
    EXPECT_EQ(id.status().code(), Code::InvalidArgument) << text;
    EXPECT_THAT(id.status().message(), HasSubstr("NCCL_COMM_ID")) << text;
  }
}

TEST(CreateUniqueId, StartsARootThatRanksReach) {
  const auto id = create_unique_id();
  ASSERT_TRUE(id.is_ok()) << id.status().message();
  EXPECT_EQ(join_all(id.value(), 2).size(), 2u);
}

TEST(UniqueId, OfTheEnvironmentIsEachUsersOwn) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const UniqueId mine = UniqueId::from_environment("127.0.0.1:4711", AF_UNSPEC).take();
  ASSERT_EQ(seteuid(65534), 0);
  const UniqueId others = UniqueId::from_environment("127.0.0.1:4711", AF_UNSPEC).take();
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_EQ(mine.root(), others.root());
  EXPECT_NE(mine.hash(), others.hash());
}

}  // namespace
}  // namespace niccolite::bootstrap
