// InfiniBand and RoCE: the choice of ports and GIDs. Pairs are tested over virtual NICs, by
// tests/namespaces/verbs_test.cc.
#include <arpa/inet.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "transport/net/verbs/ports.h"
#include "transport/net/verbs/trial.h"

namespace niccolite::transport::net::verbs {
namespace {

using ::testing::HasSubstr;

TEST(PortFilter, FollowsNcclsSyntax) {
  struct {
    const char* text;
    const char* device;
    int port;
    bool is_accepted;
  } const cases[] = {
      {"", "mlx5_0", 1, true},
      {"mlx5", "mlx5_0", 1, true},
      {"mlx5", "bnxt_re0", 1, false},
      {"mlx5_1", "mlx5_10", 1, true},  // a prefix
      {"=mlx5_1", "mlx5_10", 1, false},
      {"=mlx5_1,mlx5_10", "mlx5_10", 2, true},
      {"mlx5_0:1", "mlx5_0", 1, true},
      {"mlx5_0:1", "mlx5_0", 2, false},
      {"mlx5_0:2:3:4", "mlx5_0", 2, true},
      {"mlx5_0::3", "mlx5_0", 2, true},
      {"^mlx5_0", "mlx5_0", 1, false},
      {"^mlx5_0", "mlx5_1", 1, true},
      {"^mlx5_0:1", "mlx5_0", 2, true},
      {"^=mlx5_1", "mlx5_10", 1, true},
      {"^=mlx5_1", "mlx5_1", 1, false},
  };
  for (const auto& each : cases)
    EXPECT_EQ(PortFilter(each.text).accepts(each.device, each.port), each.is_accepted)
        << each.text << " " << each.device << ":" << each.port;
}

Gid gid(int index, const std::string& address, int version) {
  Gid made{.bytes = {}, .index = index, .roce_version = version};
  const bool is_v4 = address.find(':') == std::string::npos;
  EXPECT_EQ(inet_pton(AF_INET6, ((is_v4 ? "::ffff:" : "") + address).c_str(), made.bytes.raw), 1);
  return made;
}

// As RoCE ports list them: each address as RoCE v1 and v2.
const std::vector<Gid> kGids{gid(0, "fe80::1", 1),  gid(1, "fe80::1", 2),  gid(2, "fd00::1", 1),
                             gid(3, "fd00::1", 2),  gid(4, "10.1.0.1", 1), gid(5, "10.1.0.1", 2),
                             gid(6, "10.2.0.1", 1), gid(7, "10.2.0.1", 2)};

TEST(Gids, AreChosenByVersionFamilyAndRange) {
  struct {
    GidRequest request;
    int index;
  } const cases[] = {
      {{}, 5},
      {{.version = 1}, 4},
      {{.family = "AF_INET6"}, 3},
      {{.family = "AF_INET"}, 5},
      {{.range = "10.2.0.0/16"}, 7},
      {{.version = 1, .range = "10.2.0.0/16"}, 6},
      {{.range = "fe80::/10"}, 1},
      {{.index = 6}, 6},
  };
  for (const auto& each : cases) {
    Result<Gid> chosen = choose_gid("mlx5_0:1", /*is_roce=*/true, kGids, each.request);
    ASSERT_TRUE(chosen.is_ok()) << chosen.status().message();
    EXPECT_EQ(chosen->index, each.index);
  }
}

TEST(Gids, OfInfiniBandAreTheFirst) {
  Result<Gid> chosen = choose_gid("mlx5_0:1", /*is_roce=*/false, kGids, {.version = 2});
  ASSERT_TRUE(chosen.is_ok());
  EXPECT_EQ(chosen->index, 0);
}

TEST(Gids, ThatAreNotThereAreNamedWithThoseThatAre) {
  for (const GidRequest& request : {GidRequest{.index = 9}, GidRequest{.range = "10.3.0.0/16"},
                                    GidRequest{.family = "AF_INET6", .range = "10.1.0.0/16"}}) {
    const Status status = choose_gid("mlx5_0:1", /*is_roce=*/true, kGids, request).status().copy();
    EXPECT_EQ(status.code(), Code::InvalidUsage);
    EXPECT_THAT(status.message(), HasSubstr("mlx5_0:1 on host "));
    EXPECT_THAT(status.message(), HasSubstr("5 (10.1.0.1, RoCE v2)"));
  }
  for (const char* const range : {"ten", "10.0.0.0/33", "10.0.0.0/", "fd00::/x"}) {
    const Status status = choose_gid("mlx5_0:1", true, kGids, {.range = range}).status().copy();
    EXPECT_THAT(status.message(), HasSubstr(std::string("'") + range + "' is no subnet"));
  }
}

TEST(Trial, FindsEveryWrongByte) {
  std::vector<std::byte> memory(Trial::bytes_for(2));
  Trial trial(2, memory.data());
  for (size_t number = 0; number < 2; ++number) {
    std::byte* const pattern = trial.make_pattern(number).take();
    // Nothing has come back.
    EXPECT_THAT(trial.difference(number).take().value_or("none"),
                HasSubstr("8192 of 8192 bytes that were written to the peer's memory came back"));
    std::memcpy(trial.echo(number), pattern, Trial::kBytes);
    EXPECT_EQ(trial.difference(number).take(), std::nullopt);
    for (const size_t at : {size_t{0}, size_t{4097}, size_t{Trial::kBytes - 1}}) {
      trial.echo(number)[at] ^= std::byte{1};
      EXPECT_THAT(trial.difference(number).take().value_or("none"),
                  HasSubstr("1 of 8192 bytes that were written to the peer's memory came back "
                            "wrong, the first one at " +
                            std::to_string(at) + " (0x"));
      trial.echo(number)[at] ^= std::byte{1};
    }
  }
  // No pattern passes for another one.
  EXPECT_NE(std::memcmp(trial.echo(0), trial.echo(1), Trial::kBytes), 0);
  // The peer's places are apart from all of it.
  EXPECT_EQ(Trial::place_at_peer(1000, 1), 1000 + Trial::kBytes);
  EXPECT_EQ(memory.size(), size_t{6} * Trial::kBytes);
}

}  // namespace
}  // namespace niccolite::transport::net::verbs
