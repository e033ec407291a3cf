#include "transport/messages.h"

#include "base/interfaces.h"
#include "transport/net/network.h"

namespace niccolite::transport {
namespace {

constexpr uint32_t kMostItems = 4096;
constexpr size_t kMostAddress = 108;  // sockaddr_un::sun_path
constexpr size_t kMostName = 256;
constexpr size_t kHandleBytes = std::tuple_size_v<net::Network::Handle>;
constexpr size_t kAddressBytes = 23;  // as Address::encode() writes one

void write_token(Writer& writer, const Token& token) {
  writer.raw(std::as_bytes(std::span(token)));
}

void write_proxies(Writer& writer, const std::vector<std::vector<Address>>& proxies) {
  writer.u32(static_cast<uint32_t>(proxies.size()));
  for (const std::vector<Address>& proxy : proxies) {
    writer.u32(static_cast<uint32_t>(proxy.size()));
    for (const Address& address : proxy) address.encode(writer);
  }
}

std::vector<std::vector<Address>> read_proxies(Reader& reader) {
  constexpr size_t kCountBytes = 4;
  std::vector<std::vector<Address>> proxies(reader.count(executor::kMostProxies, kCountBytes));
  for (std::vector<Address>& proxy : proxies) {
    proxy.resize(reader.count(kMaxInterfaces, kAddressBytes));
    for (Address& address : proxy) address = Address::decode(reader);
  }
  return proxies;
}

void write_items(Writer& writer, const std::vector<ConnectRequest::Item>& items) {
  writer.u32(static_cast<uint32_t>(items.size()));
  for (const ConnectRequest::Item& item : items) {
    writer.u8(item.protocol);
    writer.u16(item.tag);
    writer.u8(item.asker_sends ? 1 : 0);
  }
}

std::vector<ConnectRequest::Item> read_items(Reader& reader) {
  std::vector<ConnectRequest::Item> items(reader.count(kMostItems, 4));
  for (ConnectRequest::Item& item : items) {
    item.protocol = reader.u8();
    item.tag = reader.u16();
    item.asker_sends = reader.u8() != 0;
    if (item.protocol >= executor::kProtocols) reader.reject("unknown protocol");
  }
  return items;
}

// Writes the network's part of a request or a reply.
template <typename Message>
void write_network(Writer& writer, const Message& message) {
  write_proxies(writer, message.proxies);
  writer.text(message.network);
  if (!message.network.empty()) writer.raw(std::span<const std::byte>(message.handle));
}

template <typename Message>
void read_network(Reader& reader, Message& message) {
  message.proxies = read_proxies(reader);
  message.network = reader.text(kMostName);
  if (message.network.empty()) return;
  const auto handle = reader.raw(kHandleBytes);
  message.handle.assign(handle.begin(), handle.end());
}

}  // namespace

std::vector<std::byte> ConnectRequest::encode() const {
  Writer writer;
  writer.u8(connector);
  writer.u32(device);
  writer.u8(same_process ? 1 : 0);
  write_items(writer, items);
  write_network(writer, *this);
  return std::move(writer).take();
}

Result<ConnectRequest> ConnectRequest::decode(std::span<const std::byte> bytes) {
  Reader reader(bytes, "connection request");
  ConnectRequest request;
  request.connector = reader.u8();
  request.device = reader.u32();
  request.same_process = reader.u8() != 0;
  request.items = read_items(reader);
  read_network(reader, request);
  TRY(reader.finish());
  return request;
}

namespace {

void write_reply(Writer& writer, const ConnectReply& reply) {
  writer.text(reply.address);
  writer.u32(static_cast<uint32_t>(reply.items.size()));
  for (const ConnectReply::Item& item : reply.items)
    for (const ConnectReply::Region& place : {item.control, item.slots}) {
      write_token(writer, place.token);
      writer.u64(place.chunk_bytes);
      writer.u64(place.offset);
    }
  writer.u32(static_cast<uint32_t>(reply.is_joined.size()));
  for (const uint8_t is_joined : reply.is_joined) writer.u8(is_joined);
  write_network(writer, reply);
}

ConnectReply read_reply(Reader& reader) {
  ConnectReply reply;
  reply.address = reader.text(kMostAddress);
  reply.items.resize(reader.count(kMostItems, 64));
  for (ConnectReply::Item& item : reply.items)
    for (ConnectReply::Region* place : {&item.control, &item.slots}) {
      place->token = read_token(reader);
      place->chunk_bytes = reader.u64();
      place->offset = reader.u64();
    }
  reply.is_joined.resize(reader.count(kMostItems, 1));
  for (uint8_t& is_joined : reply.is_joined) is_joined = reader.u8();
  read_network(reader, reply);
  return reply;
}

}  // namespace

std::vector<std::byte> ConnectReply::encode() const {
  Writer writer;
  write_reply(writer, *this);
  return std::move(writer).take();
}

Result<ConnectReply> ConnectReply::decode(std::span<const std::byte> bytes) {
  Reader reader(bytes, "connection reply");
  ConnectReply reply = read_reply(reader);
  TRY(reader.finish());
  return reply;
}

std::vector<std::byte> HandOver::encode() const {
  Writer writer;
  writer.u8(connector);
  write_items(writer, items);
  write_reply(writer, reply);
  return std::move(writer).take();
}

Result<HandOver> HandOver::decode(std::span<const std::byte> bytes) {
  Reader reader(bytes, "what a rank hands over");
  HandOver told;
  told.connector = reader.u8();
  told.items = read_items(reader);
  told.reply = read_reply(reader);
  const bool is_whole = told.reply.items.empty() || told.reply.items.size() == told.items.size();
  if (!is_whole) reader.reject("not a half for each connection");
  TRY(reader.finish());
  return told;
}

}  // namespace niccolite::transport
