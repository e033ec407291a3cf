// Messages between ranks of different processes about buffers of their users: see buffer_exports.h.
// Pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/wire.h"
#include "gpu/sharing.h"
#include "registry/shared_piece.h"

namespace niccolite::registry {

/// Describes a buffer's memory to a process that shall map it, by either `name` or `pieces`.
struct MapRequest {
  static constexpr uint32_t kMostPieces = 2048;

  uint64_t number = 0;  // of the export; its owner uses none twice
  uint64_t bytes = 0;
  std::optional<gpu::AllocationName> name;  // of an allocation of cudaMalloc, or of a memory pool
  std::optional<transport::Token> pool;     // that pool
  std::string address;            // of the owner's descriptor server, for a pool and for pieces
  std::vector<PieceName> pieces;  // one behind the other

  Bytes encode() const;
  static Result<MapRequest> decode(std::span<const std::byte> bytes, std::string_view origin);
  /// Returns the number of a request whose other fields may be wrong, so that it can be answered.
  static Result<uint64_t> number_in(std::span<const std::byte> bytes, std::string_view origin);
};

/// The answer.
struct MapAnswer {
  uint64_t number = 0;
  uint64_t base = 0;  // where the memory begins in the process that maps it; 0: it cannot

  Bytes encode() const;
  static Result<MapAnswer> decode(std::span<const std::byte> bytes, std::string_view origin);
};

/// Encodes the number of an export that has ended.
Bytes encode_unmap(uint64_t number);
Result<uint64_t> decode_unmap(std::span<const std::byte> bytes, std::string_view origin);

}  // namespace niccolite::registry
