#include "base/interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace niccolite {
namespace {

using testing::AllOf;
using testing::ElementsAreArray;
using testing::HasSubstr;

Address at(const std::string& host) {
  return Address::parse(host.find(':') == std::string::npos ? host + ":1" : "[" + host + "]:1")
      .value()
      .with_port(0);
}

std::vector<Interface> machine() {
  const Address mask = at("255.255.255.0");
  return {{.name = "lo", .address = at("127.0.0.1"), .netmask = at("255.0.0.0")},
          {.name = "lo", .address = at("::1"), .netmask = {}},
          {.name = "virbr0", .address = at("192.168.122.1"), .netmask = mask},
          {.name = "docker0", .address = at("172.17.0.1"), .netmask = mask},
          {.name = "eth0", .address = at("10.0.0.4"), .netmask = mask},
          {.name = "eth0", .address = at("fe80::1"), .netmask = {}},
          {.name = "eth1", .address = at("10.0.1.4"), .netmask = mask},
          {.name = "eth10", .address = at("10.0.2.4"), .netmask = mask},
          {.name = "eth2", .address = at("10.0.3.4"), .netmask = mask, .running = false},
          {.name = "ib0", .address = at("10.9.0.4"), .netmask = mask},
          {.name = "v6only", .address = at("2001:db8::4"), .netmask = {}}};
}

// The id of a root at fe80::9 has the number that its link has there.
TEST(Interfaces, LeadToALinkLocalAddressByEachLinkOfThisHost) {
  std::vector<Interface> present = machine();
  for (Interface& interface : present)
    if (interface.name == "eth0" && interface.address.is_link_local())
      interface.address = interface.address.with_scope(5);
  present.push_back({.name = "eth1", .address = at("fe80::2").with_scope(6), .netmask = {}});
  present.push_back({.name = "eth1", .address = at("fe80::3").with_scope(6), .netmask = {}});
  present.push_back(
      {.name = "eth2", .address = at("fe80::4").with_scope(7), .netmask = {}, .running = false});
  const auto root = [](uint32_t scope) { return at("fe80::9").with_port(40123).with_scope(scope); };
  const auto ways = [&](const Address& address, std::string_view filter = "") {
    return ways_to(address, present, filter);
  };
  EXPECT_THAT(ways(root(2)), ElementsAreArray({root(5), root(6)}));
  EXPECT_THAT(ways(root(6)), ElementsAreArray({root(6), root(5)}));
  EXPECT_THAT(ways(root(2), "=eth1"), ElementsAreArray({root(6)}));
  EXPECT_THAT(ways(root(2), "eth2"), ElementsAreArray({root(2)})) << "none is left";
  const Address own = at("fe80::2").with_port(40123).with_scope(6);
  EXPECT_THAT(ways(own), ElementsAreArray({own}));
  const Address global = at("2001:db8::9").with_port(40123);
  EXPECT_THAT(ways(global), ElementsAreArray({global}));
}

struct Case {
  const char* filter;
  const char* family;
  const char* reaches;
  std::vector<std::string> names;
};

TEST(Interfaces, AreSelectedByFilterFamilyAndOrder) {
  const Case cases[] = {
      {"", "", "", {"ib0", "eth0", "eth1", "eth10", "v6only", "docker0", "lo", "virbr0"}},
      {"", "", "10.0.1.77", {"ib0", "eth1", "eth0", "eth10", "v6only", "docker0", "lo", "virbr0"}},
      {"", "", "127.0.0.1", {"ib0", "lo", "eth0", "eth1", "eth10", "v6only", "docker0", "virbr0"}},
      {"", "AF_INET6", "", {"v6only", "eth0"}},
      {"", "nonsense", "", {"ib0", "eth0", "eth1", "eth10", "v6only", "docker0", "lo", "virbr0"}},
      {"eth1", "", "", {"eth1", "eth10"}},
      {"=eth1", "", "", {"eth1"}},
      {"=eth1,docker0", "", "", {"docker0", "eth1"}},
      {"^docker0", "", "", {"ib0", "eth0", "eth1", "eth10", "v6only", "lo", "virbr0"}},
      {"^eth,ib", "", "", {"v6only", "docker0", "lo", "virbr0"}},
      {"^=eth1,lo", "", "10.0.2.7", {"ib0", "eth10", "eth0", "v6only", "docker0", "virbr0"}},
      {"eth0", "AF_INET", "", {"eth0"}},
      {"eth2", "", "", {}},
      {"wlan", "", "", {}},
  };
  for (const Case& c : cases) {
    const InterfaceRequest request{.filter = c.filter,
                                   .family = c.family,
                                   .reaches = *c.reaches == 0 ? Address() : at(c.reaches)};
    std::vector<std::string> names;
    for (const Interface& interface : select_interfaces(machine(), request))
      names.push_back(interface.name);
    EXPECT_THAT(names, ElementsAreArray(c.names))
        << "filter '" << c.filter << "' family '" << c.family << "'";
  }
}

TEST(Interfaces, PreferAddressesThatNeedNoScope) {
  const auto chosen = choose_interface(machine(), {.filter = "eth0", .family = "", .reaches = {}});
  ASSERT_TRUE(chosen.is_ok());
  EXPECT_EQ(chosen.value().address, at("10.0.0.4"));
}

TEST(Interfaces, AreNamedWhenNoneIsLeft) {
  const auto chosen =
      choose_interface(machine(), {.filter = "wlan", .family = "AF_INET", .reaches = {}});
  ASSERT_FALSE(chosen.is_ok());
  EXPECT_EQ(chosen.status().code(), Code::InvalidUsage);
  EXPECT_THAT(chosen.status().message(), AllOf(HasSubstr("wlan"), HasSubstr("eth0 (10.0.0.4)"),
                                               HasSubstr("eth2 (10.0.3.4, down)")));
}

TEST(Interfaces, OfThisHostIncludeTheLoopback) {
  const auto interfaces = list_interfaces();
  ASSERT_TRUE(interfaces.is_ok());
  EXPECT_THAT(interfaces.value(), testing::Contains(testing::Field(&Interface::name, "lo")));
}

TEST(Interfaces, ThatCarryDataAreAllOfTheFilterOrOfTheBestKind) {
  const auto rails = [](const std::vector<Interface>& present, const std::string& filter,
                        const std::string& family) {
    std::vector<std::string> names;
    for (const Interface& rail :
         select_rails(present, {.filter = filter, .family = family, .reaches = {}}))
      names.push_back(rail.name);
    return names;
  };
  EXPECT_THAT(rails(machine(), "", ""), testing::ElementsAre("ib0"));
  EXPECT_THAT(rails(machine(), "=docker0,eth1", ""), testing::ElementsAre("docker0", "eth1"));
  EXPECT_THAT(rails(machine(), "^ib,v6", "AF_INET"), testing::ElementsAre("eth0", "eth1", "eth10"));
  EXPECT_THAT(rails(machine(), "^ib,v6,eth", ""), testing::ElementsAre("docker0"));
  std::vector<Interface> without_ib = machine();
  std::erase_if(without_ib, [](const Interface& one) { return one.name == "ib0"; });
  EXPECT_THAT(rails(without_ib, "", "AF_INET"), testing::ElementsAre("eth0", "eth1", "eth10"));
  EXPECT_THAT(rails(without_ib, "wlan", ""), testing::IsEmpty());
}

TEST(Interfaces, HoldTheAddressesOfTheirSubnet) {
  const Interface eth1{.name = "eth1", .address = at("10.0.1.4"), .netmask = at("255.255.255.0")};
  EXPECT_TRUE(is_in_subnet(eth1, at("10.0.1.77")));
  EXPECT_FALSE(is_in_subnet(eth1, at("10.0.2.77")));
  EXPECT_FALSE(is_in_subnet(eth1, at("2001:db8::4")));
  EXPECT_FALSE(
      is_in_subnet({.name = "tun0", .address = at("10.0.1.4"), .netmask = {}}, at("10.0.1.77")));
}

}  // namespace
}  // namespace niccolite
