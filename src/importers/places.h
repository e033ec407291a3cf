// Places: where the chunks of a foreign program are, with names that stand for one memory made one;
// and which values are in them. Thread safety: values.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "importers/program.h"

namespace niccolite::importers {

/// One chunk of data: which chunk of which block, and whose contributions.
struct Value {
  int block;
  int index;  // among the chunks of a block: the pattern channel
  std::vector<bool> ranks;
  bool is_complete;
};
using SharedValue = std::shared_ptr<const Value>;

/// The sum of two values. InvalidUsage, without a line: they are of two chunks, or both have some
/// rank's contribution.
Result<SharedValue> sum(const Value& a, const Value& b);

/// The chunks of a foreign program's buffers.
struct Layout {
  schedule::Collective collective;
  int nranks;
  int root;
  int chunks;  // of the larger buffer
  bool is_in_place;
  std::vector<int> input_chunks;   // by rank
  std::vector<int> output_chunks;  // by rank
};
Layout layout_of(const Program& program);

class Places {
 public:
  explicit Places(Layout layout);

  const Layout& layout() const { return layout_; }
  /// The pattern channels.
  int channels() const;
  /// In place, both names are that of the larger buffer; the smaller one is the rank's part of it.
  Place plain(int rank, Place place) const;
  /// The value that a plain place has at first, and the block of the schedule's input that it is;
  /// none: no value.
  std::optional<std::pair<Value, schedule::BlockReference>> initial(int rank,
                                                                    const Place& place) const;
  /// The output block that a plain place is for values of this block and index; none: the output
  /// cannot hold them there.
  std::optional<schedule::BlockReference> output(int rank, const Place& place,
                                                 const Value& value) const;

 private:
  Layout layout_;
  int per_block_;  // chunks of a block of one rank
};

/// The plain places of a step's operand or target.
template <typename Function>
void for_each_chunk(const Places& places, int rank, const Place& first, int count,
                    Function&& function) {
  for (int i = 0; i < count; ++i) function(places.plain(rank, {first.buffer, first.chunk + i}));
}

}  // namespace niccolite::importers
