#include "transport/messages.h"

#include "base/interfaces.h"

namespace niccolite::transport {
namespace {

constexpr uint32_t kMostItems = 4096;
constexpr size_t kMostAddress = 108;  // sockaddr_un::sun_path
constexpr size_t kMostName = 256;
constexpr size_t kHandleBytes = 128;
constexpr size_t kAddressBytes = 23;  // as Address::encode() writes one

void write_token(Writer& writer, const Token& token) {
  writer.raw(std::as_bytes(std::span(token)));
}

Token read_token(Reader& reader) {
  Token token{};
  const auto bytes = reader.raw(token.size());
  for (size_t i = 0; i < bytes.size(); ++i) token[i] = static_cast<uint8_t>(bytes[i]);
  return token;
}

void write_proxy(Writer& writer, const std::vector<Address>& proxy) {
  writer.u32(static_cast<uint32_t>(proxy.size()));
  for (const Address& address : proxy) address.encode(writer);
}

std::vector<Address> read_proxy(Reader& reader) {
  std::vector<Address> proxy(reader.count(kMaxInterfaces, kAddressBytes));
  for (Address& address : proxy) address = Address::decode(reader);
  return proxy;
}

// Of a request or a reply.
template <typename Message>
void write_network(Writer& writer, const Message& message) {
  write_proxy(writer, message.proxy);
  writer.text(message.network);
  if (!message.network.empty()) writer.raw(std::span<const std::byte>(message.handle));
}

template <typename Message>
void read_network(Reader& reader, Message& message) {
  message.proxy = read_proxy(reader);
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
  writer.u32(static_cast<uint32_t>(items.size()));
  for (const Item& item : items) {
    writer.u8(item.protocol);
    writer.u16(item.tag);
    writer.u8(item.asker_sends ? 1 : 0);
  }
  write_network(writer, *this);
  return std::move(writer).take();
}

Result<ConnectRequest> ConnectRequest::decode(std::span<const std::byte> bytes) {
  Reader reader(bytes, "connection request");
  ConnectRequest request;
  request.connector = reader.u8();
  request.device = reader.u32();
  request.same_process = reader.u8() != 0;
  const uint32_t count = reader.count(kMostItems, 4);
  for (uint32_t i = 0; i < count; ++i) {
    Item item;
    item.protocol = reader.u8();
    item.tag = reader.u16();
    item.asker_sends = reader.u8() != 0;
    if (item.protocol >= executor::kProtocols) reader.reject("unknown protocol");
    request.items.push_back(item);
  }
  read_network(reader, request);
  TRY(reader.finish());
  return request;
}

std::vector<std::byte> ConnectReply::encode() const {
  Writer writer;
  writer.text(address);
  writer.u32(static_cast<uint32_t>(items.size()));
  for (const Item& item : items)
    for (const Region& place : {item.control, item.slots}) {
      write_token(writer, place.token);
      writer.u64(place.chunk_bytes);
      writer.u64(place.offset);
    }
  write_network(writer, *this);
  return std::move(writer).take();
}

Result<ConnectReply> ConnectReply::decode(std::span<const std::byte> bytes) {
  Reader reader(bytes, "connection reply");
  ConnectReply reply;
  reply.address = reader.text(kMostAddress);
  const uint32_t count = reader.count(kMostItems, 64);
  for (uint32_t i = 0; i < count; ++i) {
    Item item;
    for (Region* place : {&item.control, &item.slots}) {
      place->token = read_token(reader);
      place->chunk_bytes = reader.u64();
      place->offset = reader.u64();
    }
    reply.items.push_back(item);
  }
  read_network(reader, reply);
  TRY(reader.finish());
  return reply;
}

}  // namespace niccolite::transport
