#include "base/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace niccolite {
namespace {

TEST(Address, ParsesEachForm) {
  const struct {
    const char* text;
    const char* printed;
    int family;
  } cases[] = {{"10.0.0.4:40123", "10.0.0.4 port 40123", AF_INET},
               {"[::1]:80", "::1 port 80", AF_INET6},
               {"[fe80::1%lo]:80", "fe80::1%lo port 80", AF_INET6},
               {"[2001:db8::2]:65535", "2001:db8::2 port 65535", AF_INET6}};
  for (const auto& c : cases) {
    const auto address = Address::parse(c.text);
    ASSERT_TRUE(address.is_ok()) << c.text << ": " << address.status().message();
    EXPECT_EQ(address.value().text(), c.printed);
    EXPECT_EQ(address.value().family(), c.family);
  }
}

TEST(Address, ResolvesHostNames) {
  const auto address = Address::parse("localhost:99", AF_INET);
  ASSERT_TRUE(address.is_ok()) << address.status().message();
  EXPECT_TRUE(address.value().is_loopback());
}

TEST(Address, SurvivesItsEncodingAndItsSocketForm) {
  for (const char* text : {"10.0.0.4:40123", "[2001:db8::2]:65535", "[fe80::1%lo]:80"}) {
    const Address address = Address::parse(text).value();
    Writer writer;
    address.encode(writer);
    Reader reader(writer.bytes(), "test");
    EXPECT_EQ(Address::decode(reader), address);
    EXPECT_TRUE(reader.finish().is_ok());
    sockaddr_storage storage;
    const socklen_t length = address.to_sockaddr(&storage);
    EXPECT_EQ(Address::from_sockaddr(reinterpret_cast<sockaddr*>(&storage), length).value(),
              address);
  }
}

TEST(Address, OfAnUnknownFamilyIsRejected) {
  Writer writer;
  Address::parse("10.0.0.4:1").value().encode(writer);
  Bytes bytes = writer.bytes();
  bytes[0] = std::byte{5};
  Reader reader(bytes, "test");
  Address::decode(reader);
  EXPECT_FALSE(reader.finish().is_ok());
}

}  // namespace
}  // namespace niccolite
