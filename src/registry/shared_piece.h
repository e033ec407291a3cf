// SharedPiece: a mapping of this process's memory, as its user has made it, that ranks of other
// processes may map, too. Thread safety: any thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/wait.h"
#include "gpu/mappings.h"
#include "transport/shareable.h"

namespace niccolite::registry {

class SharedPiece final : public transport::Shareable {
 public:
  static Result<std::shared_ptr<SharedPiece>> create(gpu::Mappings& mappings, gpu::Backing backing);
  Result<Fd> export_descriptor() const override {
    return mappings_.export_physical(backing_.memory);
  }
  const gpu::Backing& backing() const { return backing_; }

 private:
  SharedPiece(const transport::Token& token, gpu::Mappings& mappings, gpu::Backing backing)
      : Shareable(token), mappings_(mappings), backing_(std::move(backing)) {}
  gpu::Mappings& mappings_;
  const gpu::Backing backing_;
};

/// Are `bytes` at `pointer` still memory of these pieces, which are in the order of their
/// addresses? Its owner may have freed it and have other memory at the same addresses now.
bool are_mapped(gpu::Mappings& mappings, std::span<const std::shared_ptr<SharedPiece>> pieces,
                const void* pointer, size_t bytes);

/// A piece on its way to another process.
struct PieceName {
  transport::Token token{};
  uint64_t bytes = 0;
};

/// Maps pieces that the process at `address` (of its descriptor server) has named, one behind the
/// other from `offset` of `range` on.
Status map_pieces(gpu::Mappings& mappings, const gpu::AddressRange& range, uint64_t offset,
                  const std::string& address, std::span<const PieceName> pieces,
                  const std::vector<int>& devices, const Deadline& deadline);

}  // namespace niccolite::registry
