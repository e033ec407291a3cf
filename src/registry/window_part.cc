#include "registry/window_part.h"

#include <algorithm>

namespace niccolite::registry {
namespace {

// In front of every part, so that a call of another kind is not taken for one.
constexpr uint32_t kMagic = 0x77696e64;
constexpr uint64_t kStrideUnit = uint64_t{1} << 32;
constexpr uint64_t kMostPartBytes = uint64_t{1} << 44;  // a rank's: more than any device has

}  // namespace

uint64_t WindowPart::mapped_bytes() const {
  uint64_t sum = 0;
  for (const PieceName& piece : pieces) sum += piece.bytes;
  return sum;
}

Bytes WindowPart::encode() const {
  Writer writer;
  writer.u32(kMagic);
  writer.u64(number);
  writer.raw(std::as_bytes(std::span(name)));
  writer.text(address);
  writer.u8(is_enabled ? 1 : 0);
  writer.u8(static_cast<uint8_t>(problem.code()));
  writer.text(std::string_view(problem.message()).substr(0, kMostText));
  writer.i32(flags);
  writer.i32(device);
  writer.u64(bytes);
  writer.u64(offset);
  writer.u64(granularity);
  writer.u32(static_cast<uint32_t>(pieces.size()));
  for (const PieceName& piece : pieces) {
    writer.raw(std::as_bytes(std::span(piece.token)));
    writer.u64(piece.bytes);
  }
  return std::move(writer).take();
}

Result<WindowPart> WindowPart::decode(std::span<const std::byte> bytes, std::string_view origin) {
  Reader reader(bytes, origin);
  if (reader.u32() != kMagic) reader.reject("no window: is the rank in another call?");
  WindowPart part;
  part.number = reader.u64();
  part.name = transport::read_token(reader);
  part.address = reader.text(256);
  part.is_enabled = reader.u8() != 0;
  const uint8_t code = reader.u8();
  const std::string problem = reader.text(kMostText);
  if (code > static_cast<uint8_t>(Code::RemoteError)) reader.reject("an unknown failure");
  part.flags = reader.i32();
  part.device = reader.i32();
  part.bytes = reader.u64();
  part.offset = reader.u64();
  part.granularity = reader.u64();
  const uint32_t pieces = reader.count(kMostPieces, sizeof(transport::Token) + sizeof(uint64_t));
  for (uint32_t i = 0; i < pieces; ++i) {
    PieceName piece;
    piece.token = transport::read_token(reader);
    piece.bytes = reader.u64();
    part.pieces.push_back(piece);
    if (piece.bytes > kMostPartBytes || part.mapped_bytes() > kMostPartBytes)
      reader.reject("a window larger than a device");
  }
  const bool is_whole = part.bytes > 0 && part.bytes <= kMostPartBytes &&
                        part.offset <= kMostPartBytes &&
                        part.offset + part.bytes <= part.mapped_bytes() && part.granularity > 0 &&
                        part.granularity <= kStrideUnit;
  if (code == 0 && part.is_enabled && !is_whole) reader.reject("a window outside of its memory");
  TRY(reader.finish());
  if (code != 0) part.problem = Status::error(static_cast<Code>(code), "{}", problem);
  return part;
}

FlatLayout lay_out(std::span<const WindowPart> parts) {
  FlatLayout layout;
  uint64_t latest = 0;  // beginning of a window in its piece
  for (const WindowPart& part : parts) {
    latest = std::max(latest, part.offset);
    layout.granularity = std::max(layout.granularity, part.granularity);
  }
  layout.is_uniform = std::all_of(parts.begin(), parts.end(), [&](const WindowPart& part) {
    return (latest - part.offset) % layout.granularity == 0;
  });
  std::vector<uint64_t> before;  // of each rank's first piece in its place
  uint64_t most = 0;
  for (const WindowPart& part : parts) {
    before.push_back(layout.is_uniform ? latest - part.offset : 0);
    most = std::max(most, before.back() + part.mapped_bytes());
  }
  layout.stride = (most + kStrideUnit - 1) / kStrideUnit * kStrideUnit;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    layout.pieces.push_back(rank * layout.stride + before[rank]);
    layout.starts.push_back(layout.pieces.back() + parts[rank].offset);
  }
  return layout;
}

}  // namespace niccolite::registry
