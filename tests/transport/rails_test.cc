// Which way connections to a peer take over several network interfaces.
#include "transport/net/rails.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace niccolite::transport::net {
namespace {

Address address(const std::string& text) { return Address::parse(text).take(); }

Interface interface(const std::string& name, const std::string& host) {
  return {
      .name = name,
      .address = address(host + ":1").with_port(0),
      .netmask = address(host.starts_with('[') ? "[ffff:ffff:ffff:ffff::]:1" : "255.255.255.0:1")};
}

const Rails kTwo{.interfaces = {interface("eth0", "10.1.0.1"), interface("eth1", "10.2.0.1")},
                 .preferred = 0};

std::vector<std::string> hosts(const std::vector<Path>& paths) {
  std::vector<std::string> all;
  for (const Path& path : paths) all.push_back(path.interface + " " + path.to.host());
  return all;
}
using Texts = std::vector<std::string>;

TEST(SocketsOfRail, AreWhatTheUserAsksForAndElseWhatTheAdapterWants) {
  constexpr uint32_t kAmazon = 0x1d0f, kGoogle = 0x1ae0, kOther = 0x15b3;
  using gpu::Kind;
  EXPECT_EQ(sockets_of_rail(0, 0, kAmazon, Kind::Cuda), 16);
  EXPECT_EQ(sockets_of_rail(0, 0, kGoogle, Kind::Virtual), 4);
  EXPECT_EQ(sockets_of_rail(0, 0, kOther, Kind::Cuda), 1);
  EXPECT_EQ(sockets_of_rail(0, 0, 0, Kind::Virtual), 2);
  EXPECT_EQ(sockets_of_rail(3, 0, kAmazon, Kind::Cuda), 24);
  EXPECT_EQ(sockets_of_rail(0, 3, kGoogle, Kind::Cuda), 12);
  EXPECT_EQ(sockets_of_rail(0, 1, 0, Kind::Virtual), 1);
  EXPECT_EQ(sockets_of_rail(4, 0, 0, Kind::Virtual), 4);
  EXPECT_EQ(sockets_of_rail(16, 64, kOther, Kind::Cuda), 64);
}

TEST(Paths, LeadToTheAddressOfTheOwnSubnet) {
  const std::vector<Address> peer{address("10.2.0.7:5"), address("10.1.0.7:6")};
  const Paths paths = paths_between(kTwo, peer);
  EXPECT_EQ(hosts(paths.rails), (Texts{"eth0 10.1.0.7", "eth1 10.2.0.7"}));
  EXPECT_EQ(hosts(paths.detours), (Texts{"eth0 10.2.0.7", "eth1 10.1.0.7"}));
  EXPECT_EQ(paths.rails[0].to.port(), 6);
  EXPECT_EQ(describe(paths.rails[1]), "from 10.2.0.1 (eth1) to 10.2.0.7 port 5");
}

TEST(Paths, BeginWithTheRanksOwnRail) {
  Rails rails = kTwo;
  rails.preferred = 1;
  const std::vector<Address> peer{address("10.1.0.7:6"), address("10.2.0.7:5")};
  EXPECT_EQ(hosts(paths_between(rails, peer).rails), (Texts{"eth1 10.2.0.7", "eth0 10.1.0.7"}));
}

TEST(Paths, LeadByNumberWhereRoutersAreBetween) {
  const std::vector<Address> peer{address("10.8.0.7:6"), address("10.9.0.7:5")};
  EXPECT_EQ(hosts(paths_between(kTwo, peer).rails), (Texts{"eth0 10.8.0.7", "eth1 10.9.0.7"}));
  const std::vector<Address> one{address("10.8.0.7:6")};
  EXPECT_EQ(hosts(paths_between(kTwo, one).rails), (Texts{"eth0 10.8.0.7", "eth1 10.8.0.7"}));
}

// Clouds give a machine several interfaces in one subnet; link-local addresses are all in one.
TEST(Paths, LeadToDifferentAddressesOfOneSubnet) {
  const Rails one_subnet{
      .interfaces = {interface("eth0", "10.1.0.1"), interface("eth1", "10.1.0.2")}};
  const std::vector<Address> peer{address("10.1.0.7:6"), address("10.1.0.8:5")};
  EXPECT_EQ(hosts(paths_between(one_subnet, peer).rails),
            (Texts{"eth0 10.1.0.7", "eth1 10.1.0.8"}));
  // Beside others.
  const Rails three{.interfaces = {interface("eth0", "10.1.0.1"), interface("eth1", "10.2.0.1"),
                                   interface("eth2", "10.1.0.2")},
                    .preferred = 2};
  const std::vector<Address> all{address("10.1.0.7:6"), address("10.2.0.7:7"),
                                 address("10.1.0.8:5")};
  EXPECT_EQ(hosts(paths_between(three, all).rails),
            (Texts{"eth2 10.1.0.8", "eth0 10.1.0.7", "eth1 10.2.0.7"}));
}

TEST(Paths, StayInTheirFamily) {
  const Rails rails{.interfaces = {interface("eth0", "10.1.0.1"), interface("eth1", "[fd00::1]")}};
  const std::vector<Address> peer{address("[fd00::2]:5")};
  EXPECT_EQ(hosts(paths_between(rails, peer).rails), (Texts{"eth1 fd00::2"}));
  const std::vector<Address> other{address("10.1.0.2:5")};
  EXPECT_TRUE(paths_between({.interfaces = {interface("eth1", "[fd00::1]")}}, other).rails.empty());
}

TEST(Paths, GiveALinkLocalAddressTheScopeOfThisHost) {
  Interface own = interface("eth0", "[fe80::1]");
  own.address = own.address.with_scope(3);
  const std::vector<Address> peer{address("[fe80::2]:5").with_scope(9)};
  EXPECT_EQ(paths_between({.interfaces = {own}}, peer).rails.at(0).to.scope(), 3u);
}

struct FastRails {
  std::vector<int> speeds;
  size_t used;
  Texts expected;
};

TEST(Rails, AreAsFastAsTheOneOfTheBootstrapWhichIsAlwaysThere) {
  const std::vector<Interface> all{interface("eth0", "10.1.0.1"), interface("br-1", "172.18.0.1"),
                                   interface("eth1", "10.2.0.1")};
  const FastRails cases[] = {
      {.speeds = {0, 10'000, 0}, .used = 0, .expected = {"eth0", "br-1", "eth1"}},
      {.speeds = {1'000, 10'000, 499}, .used = 0, .expected = {"eth0", "br-1"}},
      {.speeds = {25'000, 10'000, 12'500}, .used = 0, .expected = {"eth0", "eth1"}},
      {.speeds = {25'000, 0, 25'000}, .used = 2, .expected = {"eth0", "eth1"}},
      {.speeds = {100'000, 0, 10'000}, .used = 1, .expected = {"eth0", "br-1"}},
      {.speeds = {0, 0, 0}, .used = 1, .expected = {"eth0", "br-1", "eth1"}},
  };
  for (const FastRails& c : cases) {
    Texts names;
    for (const Interface& rail : fast_rails(all, c.speeds, all[c.used].address))
      names.push_back(rail.name);
    EXPECT_EQ(names, c.expected) << testing::PrintToString(c.speeds) << ", used " << c.used;
  }
}

TEST(Rails, HoldTheInterfaceOfTheBootstrap) {
  const Address loopback = address("127.0.0.1:7");
  const std::vector<Interface> rails = find_rails(loopback).take();
  ASSERT_FALSE(rails.empty());
  EXPECT_TRUE(std::ranges::any_of(
      rails, [&](const Interface& rail) { return rail.address == loopback.with_port(0); }));
}

}  // namespace
}  // namespace niccolite::transport::net
