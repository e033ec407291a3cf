#include "importers/places.h"

#include <algorithm>

#include "schedule/builder.h"
#include "schedule/index.h"

namespace niccolite::importers {

using schedule::at;
using schedule::BlockReference;
using schedule::Buffer;
using schedule::Collective;

Result<SharedValue> sum(const Value& a, const Value& b) {
  if (a.block != b.block || a.index != b.index)
    return Status::invalid_usage("adds chunk {} of block {} and chunk {} of block {}", a.index,
                                 a.block, b.index, b.block);
  Value value = a;
  for (size_t rank = 0; rank < value.ranks.size(); ++rank) {
    if (value.ranks[rank] && b.ranks[rank])
      return Status::invalid_usage("adds the contribution of gpu {} to block {} twice", rank,
                                   value.block);
    value.ranks[rank] = value.ranks[rank] || b.ranks[rank];
  }
  value.is_complete = std::ranges::all_of(value.ranks, [](bool has) { return has; });
  return std::make_shared<const Value>(std::move(value));
}

Layout layout_of(const Program& program) {
  Layout layout{.collective = program.collective,
                .nranks = program.nranks,
                .root = program.root,
                .chunks = program.chunks,
                .is_in_place = program.is_in_place,
                .input_chunks = {},
                .output_chunks = {}};
  for (const RankProgram& rank : program.ranks) {
    layout.input_chunks.push_back(rank.input_chunks);
    layout.output_chunks.push_back(rank.output_chunks);
  }
  return layout;
}

Places::Places(Layout layout)
    : layout_(std::move(layout)),
      per_block_(schedule::has_blocks_of_ranks(layout_.collective) ? layout_.chunks / layout_.nranks
                                                                   : layout_.chunks) {}

int Places::channels() const {
  return schedule::has_blocks_of_ranks(layout_.collective) ? per_block_ : 1;
}

Place Places::plain(int rank, Place place) const {
  if (!layout_.is_in_place || place.buffer == Buffer::Scratch) return place;
  const bool is_part_of_output = layout_.collective == Collective::AllGather;
  const bool is_part_of_input = layout_.collective == Collective::ReduceScatter;
  const bool is_small = (is_part_of_output && place.buffer == Buffer::Input &&
                         at(layout_.input_chunks, rank) == per_block_) ||
                        (is_part_of_input && place.buffer == Buffer::Output &&
                         at(layout_.output_chunks, rank) == per_block_);
  if (is_small) place.chunk += rank * per_block_;
  place.buffer = Buffer::Output;  // the one name
  return place;
}

std::optional<std::pair<Value, BlockReference>> Places::initial(int rank,
                                                                const Place& place) const {
  int chunk = place.chunk;
  const Collective collective = layout_.collective;
  if (place.buffer != (layout_.is_in_place ? Buffer::Output : Buffer::Input)) return {};
  if (collective == Collective::Broadcast && rank != layout_.root) return {};
  std::vector<bool> ranks(static_cast<size_t>(layout_.nranks));
  ranks[static_cast<size_t>(rank)] = true;
  Value value{.block = 0, .index = 0, .ranks = std::move(ranks), .is_complete = false};
  if (schedule::cuts_one_buffer(collective)) {
    if (chunk >= layout_.chunks) return {};
    value.block = chunk;
    return std::pair(value, schedule::input(chunk));
  }
  if (collective == Collective::AllGather) {
    if (layout_.is_in_place) chunk -= rank * per_block_;
    if (chunk < 0 || chunk >= per_block_) return {};
    value.block = rank;
    value.index = chunk;
    return std::pair(value, schedule::input(0));
  }
  if (chunk >= layout_.chunks) return {};
  value.block = chunk / per_block_;
  value.index = chunk % per_block_;
  return std::pair(value, schedule::input(value.block));
}

std::optional<BlockReference> Places::output(int rank, const Place& place,
                                             const Value& value) const {
  if (place.buffer != Buffer::Output) return {};
  int chunk = place.chunk;
  const Collective collective = layout_.collective;
  if (collective == Collective::Reduce && rank != layout_.root) return {};
  if (schedule::cuts_one_buffer(collective)) {
    if (chunk != value.block) return {};
    return schedule::output(chunk);
  }
  if (collective == Collective::ReduceScatter) {
    if (layout_.is_in_place) chunk -= rank * per_block_;
    if (chunk < 0 || chunk >= per_block_ || chunk != value.index) return {};
    return schedule::output(0);
  }
  if (chunk >= layout_.chunks || chunk % per_block_ != value.index) return {};
  return schedule::output(chunk / per_block_);
}

}  // namespace niccolite::importers
