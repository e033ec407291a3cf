#include "registry/shared_piece.h"

#include "transport/descriptor_server.h"

namespace niccolite::registry {

Result<std::shared_ptr<SharedPiece>> SharedPiece::create(gpu::Mappings& mappings,
                                                         gpu::Backing backing) {
  const transport::Token token = TRY(transport::draw_token());
  std::shared_ptr<SharedPiece> piece(new SharedPiece(token, mappings, std::move(backing)));
  publish(piece);
  return piece;
}

// Piece by piece: most memory has one.
bool are_mapped(gpu::Mappings& mappings, std::span<const std::shared_ptr<SharedPiece>> pieces,
                const void* pointer, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(pointer);
  const std::byte* const end = at + bytes;
  for (const auto& piece : pieces) {
    const gpu::Backing& backing = piece->backing();
    if (at >= end) break;
    if (at < backing.base || at >= backing.base + backing.bytes) continue;
    if (!mappings.is_mapped(backing, at)) return false;
    at = backing.base + backing.bytes;
  }
  return at >= end;
}

Status map_pieces(gpu::Mappings& mappings, const gpu::AddressRange& range, uint64_t offset,
                  const std::string& address, std::span<const PieceName> pieces,
                  const std::vector<int>& devices, const Deadline& deadline) {
  std::vector<gpu::Backing> imports;
  for (const PieceName& piece : pieces) {
    Fd descriptor = TRY(transport::fetch_descriptor(address, piece.token, deadline));
    imports.push_back(
        TRY(mappings.import_physical(devices.front(), std::move(descriptor), piece.bytes)));
  }
  return mappings.map_physical(range, offset, imports, devices);
}

}  // namespace niccolite::registry
