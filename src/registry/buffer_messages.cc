#include "registry/buffer_messages.h"

namespace niccolite::registry {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 44;  // more than any device has
constexpr size_t kMostAddress = 256;

enum class Kind : uint8_t { Pieces, Allocation, AllocationOfPool };

}  // namespace

Bytes MapRequest::encode() const {
  Writer writer;
  writer.u64(number);
  writer.u64(bytes);
  const Kind kind = pool ? Kind::AllocationOfPool : name ? Kind::Allocation : Kind::Pieces;
  writer.u8(static_cast<uint8_t>(kind));
  if (name) writer.raw(*name);
  if (pool) writer.raw(std::as_bytes(std::span(*pool)));
  if (kind != Kind::Allocation) writer.text(address);
  if (kind != Kind::Pieces) return std::move(writer).take();
  writer.u32(static_cast<uint32_t>(pieces.size()));
  for (const PieceName& piece : pieces) {
    writer.raw(std::as_bytes(std::span(piece.token)));
    writer.u64(piece.bytes);
  }
  return std::move(writer).take();
}

Result<MapRequest> MapRequest::decode(std::span<const std::byte> bytes, std::string_view origin) {
  Reader reader(bytes, origin);
  MapRequest request;
  request.number = reader.u64();
  request.bytes = reader.u64();
  if (request.bytes == 0 || request.bytes > kMostBytes) reader.reject("memory of no device");
  const uint8_t kind = reader.u8();
  if (kind > static_cast<uint8_t>(Kind::AllocationOfPool)) reader.reject("memory of no kind");
  if (kind != static_cast<uint8_t>(Kind::Pieces)) {
    const std::span<const std::byte> name = reader.raw(sizeof(gpu::AllocationName));
    request.name.emplace();
    std::ranges::copy(name, request.name->begin());
  }
  if (kind == static_cast<uint8_t>(Kind::AllocationOfPool))
    request.pool = transport::read_token(reader);
  if (kind != static_cast<uint8_t>(Kind::Allocation)) request.address = reader.text(kMostAddress);
  if (kind != static_cast<uint8_t>(Kind::Pieces)) {
    TRY(reader.finish());
    return request;
  }
  const uint32_t pieces = reader.count(kMostPieces, sizeof(transport::Token) + sizeof(uint64_t));
  uint64_t whole = 0;
  for (uint32_t i = 0; i < pieces; ++i) {
    PieceName piece{.token = transport::read_token(reader)};
    piece.bytes = reader.u64();
    if (piece.bytes == 0 || piece.bytes > kMostBytes) reader.reject("a piece of no device");
    request.pieces.push_back(piece);
    whole += piece.bytes;
  }
  if (whole != request.bytes) reader.reject("pieces that are not the whole");
  TRY(reader.finish());
  return request;
}

Result<uint64_t> MapRequest::number_in(std::span<const std::byte> bytes, std::string_view origin) {
  Reader reader(bytes, origin);
  const uint64_t number = reader.u64();
  reader.rest();
  TRY(reader.finish());
  return number;
}

Bytes MapAnswer::encode() const {
  Writer writer;
  writer.u64(number);
  writer.u64(base);
  return std::move(writer).take();
}

Result<MapAnswer> MapAnswer::decode(std::span<const std::byte> bytes, std::string_view origin) {
  Reader reader(bytes, origin);
  MapAnswer answer{.number = reader.u64(), .base = reader.u64()};
  TRY(reader.finish());
  return answer;
}

Bytes encode_unmap(uint64_t number) {
  Writer writer;
  writer.u64(number);
  return std::move(writer).take();
}

Result<uint64_t> decode_unmap(std::span<const std::byte> bytes, std::string_view origin) {
  Reader reader(bytes, origin);
  const uint64_t number = reader.u64();
  TRY(reader.finish());
  return number;
}

}  // namespace niccolite::registry
