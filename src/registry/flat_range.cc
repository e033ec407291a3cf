#include "registry/flat_range.h"

#include <map>
#include <set>

#include "registry/shared_piece.h"

namespace niccolite::registry {
namespace {

using transport::Token;

// The ranges of this process, by the name of its first rank's part.
struct Table {
  std::mutex mutex;
  std::map<Token, std::weak_ptr<FlatRange>> ranges GUARDED_BY(mutex);
};
Table& table() {
  static Table* const instance = new Table;  // never destroyed: communicators may outlive main()
  return *instance;
}

}  // namespace

Result<std::shared_ptr<FlatRange>> FlatRange::obtain(gpu::Mappings& mappings, const Source& source,
                                                     const Deadline& deadline) {
  size_t first = 0;
  while (!source.is_here(source.ranks[first])) ++first;
  std::shared_ptr<FlatRange> range;
  {
    std::lock_guard lock(table().mutex);
    std::erase_if(table().ranges, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<FlatRange>& known = table().ranges[source.parts[first].name];
    range = known.lock();
    if (range == nullptr) known = range = std::shared_ptr<FlatRange>(new FlatRange);
  }
  std::lock_guard lock(range->mutex_);
  if (!range->is_mapped_) {
    range->is_mapped_ = true;
    range->failure_ = range->map(mappings, source, deadline);
  }
  if (!range->failure_.is_ok()) return range->failure_.copy();
  return range;
}

Status FlatRange::map(gpu::Mappings& mappings, const Source& source, const Deadline& deadline) {
  std::set<int> devices;
  for (size_t place = 0; place < source.parts.size(); ++place)
    if (source.is_here(source.ranks[place])) devices.insert(source.parts[place].device);
  range_ = TRY(
      mappings.reserve_addresses(source.device, source.layout.bytes(), source.layout.granularity));
  const std::vector<int> all(devices.begin(), devices.end());
  for (size_t place = 0; place < source.parts.size(); ++place)
    TRY(map_part(mappings, source, place, all, deadline)
            .with_context("memory of rank {}", source.ranks[place]));
  return {};
}

Status FlatRange::map_part(gpu::Mappings& mappings, const Source& source, size_t place,
                           const std::vector<int>& devices, const Deadline& deadline) {
  const WindowPart& part = source.parts[place];
  uint64_t offset = source.layout.pieces[place];
  if (!source.is_here(source.ranks[place]))
    return map_pieces(mappings, range_, offset, part.address, part.pieces, devices, deadline);
  for (const PieceName& piece : part.pieces) {
    const auto mine =
        std::dynamic_pointer_cast<SharedPiece>(transport::Shareable::find(piece.token));
    if (mine == nullptr) return Status::remote_error("it was taken back meanwhile");
    TRY(mappings.map_physical(range_, offset, {&mine->backing(), 1}, devices));
    offset += piece.bytes;
  }
  return {};
}

}  // namespace niccolite::registry
