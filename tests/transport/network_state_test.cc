// What several proxies of a rank tell, as one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport/network_state.h"

namespace niccolite::transport {
namespace {

using std::chrono::milliseconds;

TEST(NetworkStates, JoinByPeer) {
  NetworkState all{.threads = {{.name = "nccl-proxy", .number = 1}},
                   .peers = {{.peer = 3,
                              .from = "a",
                              .unacknowledged = milliseconds(5),
                              .parts = 1,
                              .bytes = 10,
                              .heard = milliseconds(7)}}};
  all.join({.threads = {{.name = "nccl-proxy", .number = 2}},
            .peers = {{.peer = 3,
                       .from = "b",
                       .unacknowledged = milliseconds(9),
                       .parts = 2,
                       .bytes = 20,
                       .is_under_way = true,
                       .acknowledged = milliseconds(4),
                       .heard = milliseconds(2)},
                      {.peer = 5, .unacknowledged = milliseconds(30)}}});
  ASSERT_EQ(all.threads.size(), 2u);
  ASSERT_EQ(all.peers.size(), 2u);
  EXPECT_EQ(all.peers[0].peer, 5);  // on which something has waited longest
  const Traffic& both = *all.find(3);
  EXPECT_EQ(both.from, "b");
  EXPECT_EQ(both.unacknowledged, milliseconds(9));
  EXPECT_EQ(both.parts, 3u);
  EXPECT_EQ(both.bytes, 30u);
  EXPECT_TRUE(both.is_under_way);
  EXPECT_EQ(both.acknowledged, milliseconds(4));
  EXPECT_EQ(both.heard, milliseconds(2));
}

TEST(NetworkStates, OfAllProxiesTravel) {
  NetworkState state;
  for (int proxy = 0; proxy < 4; ++proxy)
    state.join({.threads = {{.name = "nccl-proxy", .number = 2 * proxy},
                            {.name = "nccl-proxy-in", .number = 2 * proxy + 1}},
                .peers = {}});
  Writer writer;
  write(writer, state);
  const auto bytes = std::move(writer).take();
  Reader reader(bytes, "state");
  EXPECT_EQ(read_network_state(reader).threads.size(), 8u);
  EXPECT_TRUE(reader.finish().is_ok());
}

}  // namespace
}  // namespace niccolite::transport
