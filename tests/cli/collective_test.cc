// The table of collectives against another formulation of them: for every element of a receive
// buffer, where its value comes from, as the C API's documentation says it.
#include "cli/perf/collective.h"

#include <gmock/gmock.h>

#include <optional>
#include <vector>

#include "cli/perf/pattern.h"

namespace niccolite::perf {
namespace {

/// Where one element comes from: the ranks that contribute, and the index in their send buffers.
struct Origin {
  bool is_sum = false;
  int rank = 0;
  size_t index = 0;
};

/// One call with a size of `total` elements, seen from `rank`.
struct Case {
  std::string name;
  int nranks, root, rank;
  size_t total;

  size_t block() const { return total / static_cast<size_t>(nranks); }
  bool is_ring() const {
    return name == "sendrecv" || name == "messages_8" || name == "messages_32";
  }
  bool is_whole() const {
    return name == "all_reduce" || name == "reduce" || name == "broadcast" || is_ring();
  }
};

std::optional<Origin> sum_of(size_t index) { return Origin{true, 0, index}; }
std::optional<Origin> from(int rank, size_t index) { return Origin{false, rank, index}; }

/// Nothing where the collective leaves the receive buffer alone, or has no such element.
std::optional<Origin> origin(const Case& c, size_t i) {
  const size_t block = c.block();
  const bool is_one_block = c.name == "reduce_scatter" || c.name == "scatter";
  if (i >= (c.is_whole() ? c.total : is_one_block ? block : block * static_cast<size_t>(c.nranks)))
    return std::nullopt;
  if ((c.name == "reduce" || c.name == "gather") && c.rank != c.root) return std::nullopt;
  if (c.name == "all_reduce" || c.name == "reduce") return sum_of(i);
  if (c.name == "broadcast") return from(c.root, i);
  if (c.is_ring()) return from(c.rank == 0 ? c.nranks - 1 : c.rank - 1, i);
  if (c.name == "reduce_scatter") return sum_of(static_cast<size_t>(c.rank) * block + i);
  if (c.name == "scatter") return from(c.root, static_cast<size_t>(c.rank) * block + i);
  const int peer = static_cast<int>(i / block);
  const size_t inside = i % block;
  // A part of the block alone, of thirds, rounded down.
  if (c.name == "alltoallv" &&
      inside >= block * ((2 * static_cast<size_t>(peer) + static_cast<size_t>(c.rank)) % 4) / 3)
    return std::nullopt;
  if (c.name == "alltoall" || c.name == "alltoallv")
    return from(peer, static_cast<size_t>(c.rank) * block + inside);
  return from(peer, inside);  // all_gather, gather, hypercube
}

/// First element, in place, of what the rank sends and of what it receives.
std::pair<size_t, size_t> in_place_offsets(const Case& c) {
  const size_t own = static_cast<size_t>(c.rank) * c.block();
  if (c.name == "all_gather" || c.name == "gather" || c.name == "hypercube") return {own, 0};
  if (c.name == "reduce_scatter" || c.name == "scatter") return {0, own};
  return {0, 0};
}

size_t sent(const Case& c) {
  const bool is_block = c.name == "all_gather" || c.name == "gather" || c.name == "hypercube";
  return c.is_whole() ? c.total : is_block ? c.block() : c.block() * static_cast<size_t>(c.nranks);
}

class Checker {
 public:
  Checker(const Case& c, const Collective& collective, const Pattern& pattern, bool is_in_place)
      : case_(c), collective_(collective), pattern_(pattern), is_in_place_(is_in_place) {}

  void check() {
    const size_t shift = 1009;
    const Shape shape = collective_.shape(case_.total, case_.nranks, case_.rank);
    EXPECT_EQ(shape.send, sent(case_));
    std::vector<std::byte> right = buffer(shape, shift);
    const Area area =
        collective_.expected(shape, case_.root, case_.rank, case_.nranks, is_in_place_);
    const size_t count = right.size() / pattern_.type().bytes;
    EXPECT_EQ(area.count_wrong(pattern_, shift, right.data(), 0, count), 0u);
    // In two pieces, as it is read back.
    const size_t half = count / 2;
    EXPECT_EQ(area.count_wrong(pattern_, shift, right.data(), 0, half), 0u);
    EXPECT_EQ(area.count_wrong(pattern_, shift, right.data() + half * pattern_.type().bytes, half,
                               count - half),
              0u);
    for (size_t i = 0; i < count; ++i) {
      right[i * pattern_.type().bytes] ^= std::byte{1};
      EXPECT_EQ(area.count_wrong(pattern_, shift, right.data(), 0, count), 1u) << "element " << i;
      right[i * pattern_.type().bytes] ^= std::byte{1};
    }
  }

 private:
  void put(std::vector<std::byte>& buffer, size_t at, const Origin& origin, size_t shift) const {
    const std::byte* value =
        pattern_.data(origin.is_sum ? Pattern::kReduced : origin.rank, origin.index + shift);
    std::copy_n(value, pattern_.type().bytes, buffer.data() + at * pattern_.type().bytes);
  }

  std::vector<std::byte> buffer(const Shape& shape, size_t shift) const {
    const size_t elements = is_in_place_ ? std::max(shape.send, shape.receive) : shape.receive;
    std::vector<std::byte> bytes(elements * pattern_.type().bytes, std::byte{0xa5});
    const auto [send_at, receive_at] =
        is_in_place_ ? in_place_offsets(case_) : std::pair<size_t, size_t>{0, 0};
    if (is_in_place_)
      for (size_t i = 0; i < sent(case_); ++i)
        put(bytes, send_at + i, Origin{false, case_.rank, i}, shift);
    for (size_t i = 0; i < elements; ++i)
      if (const std::optional<Origin> found = origin(case_, i))
        put(bytes, receive_at + i, *found, shift);
    return bytes;
  }

  const Case& case_;
  const Collective& collective_;
  const Pattern& pattern_;
  bool is_in_place_;
};

TEST(Collectives, AreThoseOfTheCommand) {
  std::vector<std::string> names;
  for (const Collective& each : collectives()) names.emplace_back(each.name);
  EXPECT_THAT(names,
              ::testing::ElementsAre("all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                     "reduce", "alltoall", "gather", "scatter", "sendrecv",
                                     "hypercube", "alltoallv", "messages_8", "messages_32"));
  EXPECT_EQ(find_collective("all_shuffle"), nullptr);
  EXPECT_EQ(find_collective("all-to-all"), find_collective("alltoall"));
}

TEST(Collectives, LeaveWhatTheApiSaysElementByElement) {
  const ElementType& type = *find_type("int32");
  for (const int nranks : {1, 2, 3, 4, 8}) {
    const Pattern sums = Pattern::exact(type, *find_operation("sum"), nranks, {0, nranks});
    const Pattern moves = Pattern::moving(type, {0, nranks});
    for (const Collective& collective : collectives())
      for (const int root : {0, nranks - 1})
        for (int rank = 0; rank < nranks; ++rank)
          for (const size_t total : {size_t{0}, size_t{1}, size_t{41}})
            for (const bool is_in_place : {false, true}) {
              if (is_in_place && !collective.has_in_place) continue;
              const Case c = {collective.name, nranks, root, rank, total};
              SCOPED_TRACE(::testing::Message()
                           << c.name << " rank " << rank << " of " << nranks << " root " << root
                           << " total " << total << (is_in_place ? " in place" : ""));
              Checker(c, collective, collective.reduces ? sums : moves, is_in_place).check();
            }
  }
}

TEST(Area, KeepsWhatLaterSegmentsLeave) {
  const ElementType& type = *find_type("uint8");
  const Pattern pattern = Pattern::moving(type, {0, 4});
  Area area(20);
  area.put({.first = 2, .count = 10, .source = 0, .source_first = 0});
  area.put({.first = 5, .count = 3, .source = 1, .source_first = 7});   // inside
  area.put({.first = 0, .count = 3, .source = 2, .source_first = 0});   // over the beginning
  area.put({.first = 11, .count = 9, .source = 3, .source_first = 1});  // over the end
  area.put({.first = 4, .count = 0, .source = 3, .source_first = 0});   // nothing
  std::vector<std::byte> bytes(20, std::byte{Area::kPoison});
  const auto put = [&](size_t first, size_t count, int source, size_t index) {
    std::copy_n(pattern.data(source, index), count, bytes.data() + first);
  };
  put(0, 3, 2, 0);
  put(3, 2, 0, 1);
  put(5, 3, 1, 7);
  put(8, 3, 0, 6);
  put(11, 9, 3, 1);
  EXPECT_EQ(area.count_wrong(pattern, 0, bytes.data(), 0, bytes.size()), 0u);
}

TEST(Area, CountsTouchedPoisonInElements) {
  const Pattern pattern = Pattern::moving(*find_type("int64"), {0, 1});
  const Area area(3);
  std::vector<std::byte> bytes(24, std::byte{Area::kPoison});
  EXPECT_EQ(area.count_wrong(pattern, 0, bytes.data(), 0, 3), 0u);
  bytes[8] = bytes[9] = std::byte{0};
  EXPECT_EQ(area.count_wrong(pattern, 0, bytes.data(), 0, 3), 1u);
  EXPECT_EQ(count_unpoisoned(bytes.data(), bytes.size()), 2u);
  EXPECT_EQ(count_unpoisoned(bytes.data(), 0), 0u);
}

}  // namespace
}  // namespace niccolite::perf
