// WindowPart: one rank's memory in a window, as all ranks tell each other when they register it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/wire.h"
#include "registry/shared_piece.h"

namespace niccolite::registry {

struct WindowPart {
  static constexpr uint32_t kMostPieces = 2048;  // the exchange has room for 64 KiB of each rank
  static constexpr size_t kMostText = 1024;

  uint64_t number = 0;            // windows that this communicator has registered before
  transport::Token name{};        // of this rank's part
  std::string address;            // of the descriptor server; empty when all ranks share a process
  bool is_enabled = true;         // NCCL_WIN_ENABLE
  Status problem;                 // that makes this rank's registration impossible; fine else
  int32_t flags = 0;              // NCCL_WIN_...
  int32_t device = 0;             // of this rank, in its process
  uint64_t bytes = 0;             // of the window
  uint64_t offset = 0;            // of the window in its first piece
  uint64_t granularity = 4096;    // of mappings on this rank's device
  std::vector<PieceName> pieces;  // that the window lies in

  uint64_t mapped_bytes() const;

  Bytes encode() const;
  /// `origin` names the rank in errors.
  static Result<WindowPart> decode(std::span<const std::byte> bytes, std::string_view origin);
};

/// The places of each rank's pieces in one range of addresses that has all of them.
struct FlatLayout {
  uint64_t stride = 0;           // from one rank's place to the next's; a multiple of 4 GiB
  std::vector<uint64_t> pieces;  // by rank: where its first piece is mapped, in the range
  std::vector<uint64_t> starts;  // by rank: where its window begins, in the range
  bool is_uniform = false;       // windows begin `stride` bytes from each other
  uint64_t granularity = 1;

  uint64_t bytes() const { return stride * starts.size(); }
};
/// Uniform wherever that can be: a window begins anywhere in its first piece, and pieces are mapped
/// at multiples of the granularity only.
FlatLayout lay_out(std::span<const WindowPart> parts);

}  // namespace niccolite::registry
