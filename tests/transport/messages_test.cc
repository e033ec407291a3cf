#include "transport/messages.h"

#include <gtest/gtest.h>

namespace niccolite::transport {
namespace {

ConnectReply reply_of(size_t items) {
  ConnectReply reply;
  reply.address = "@niccolite-1-2";
  for (size_t i = 0; i < items; ++i) {
    ConnectReply::Item item;
    item.control.token.fill(static_cast<uint8_t>(i + 1));
    item.control.chunk_bytes = 1000 + i;
    item.control.offset = 256 * i;
    item.slots.token.fill(static_cast<uint8_t>(i + 101));
    item.slots.offset = 7;
    reply.items.push_back(item);
  }
  return reply;
}

TEST(ConnectMessages, SurviveTheWire) {
  ConnectRequest request;
  request.connector = 2;
  request.device = 3;
  request.same_process = true;
  request.items = {{.protocol = 1, .tag = 7, .asker_sends = true}, {.protocol = 0, .tag = 65535}};
  const ConnectRequest got = ConnectRequest::decode(request.encode()).value();
  EXPECT_EQ(got.connector, 2);
  EXPECT_EQ(got.device, 3u);
  EXPECT_TRUE(got.same_process);
  ASSERT_EQ(got.items.size(), 2u);
  EXPECT_EQ(got.items[0].tag, 7);
  EXPECT_TRUE(got.items[0].asker_sends);
  EXPECT_EQ(got.items[1].tag, 65535);
  EXPECT_FALSE(got.items[1].asker_sends);

  const ConnectReply reply = ConnectReply::decode(reply_of(3).encode()).value();
  EXPECT_EQ(reply.address, "@niccolite-1-2");
  ASSERT_EQ(reply.items.size(), 3u);
  EXPECT_EQ(reply.items[2].control.chunk_bytes, 1002u);
  EXPECT_EQ(reply.items[1].slots.token[15], 102);
}

TEST(ConnectMessages, TellWhereProxiesListen) {
  ConnectRequest request;
  EXPECT_TRUE(ConnectRequest::decode(request.encode()).value().proxies.empty());
  request.proxies = {
      {Address::parse("10.0.0.4:40123").value(), Address::parse("10.1.0.4:1").value()},
      {Address::parse("10.0.0.4:40124").value(), Address::parse("10.1.0.4:2").value()}};
  EXPECT_EQ(ConnectRequest::decode(request.encode()).value().proxies, request.proxies);
  ConnectReply reply;
  reply.proxies = {{Address::parse("[fe80::1]:7").value()}};
  EXPECT_EQ(ConnectReply::decode(reply.encode()).value().proxies, reply.proxies);
}

TEST(ConnectMessages, CutShortOrProlongedAreRefused) {
  ConnectRequest request;
  request.items.resize(2);
  const Bytes pull_bytes = request.encode();
  for (size_t length = 0; length < pull_bytes.size(); ++length)
    EXPECT_FALSE(ConnectRequest::decode(std::span(pull_bytes).first(length)).is_ok()) << length;
  const Bytes reply_bytes = reply_of(2).encode();
  for (size_t length = 0; length < reply_bytes.size(); ++length)
    EXPECT_FALSE(ConnectReply::decode(std::span(reply_bytes).first(length)).is_ok()) << length;
  Bytes longer = request.encode();
  longer.push_back(std::byte{0});
  EXPECT_FALSE(ConnectRequest::decode(longer).is_ok());
}

TEST(ConnectMessages, OfAnUnknownProtocolOrWithHugeCountsAreRefused) {
  ConnectRequest request;
  request.items = {{.protocol = executor::kProtocols, .tag = 0, .asker_sends = false}};
  EXPECT_FALSE(ConnectRequest::decode(request.encode()).is_ok());
  Writer writer;
  writer.u8(0);
  writer.u32(0);
  writer.u8(0);
  writer.u32(0xffffffffu);
  EXPECT_FALSE(ConnectRequest::decode(writer.bytes()).is_ok());
}

}  // namespace
}  // namespace niccolite::transport
