// The collectives that the command measures, as one table: the buffers that each reads and writes,
// how its bandwidth is counted, how it is called, and the contents of the buffers afterwards.
// Sizes, in-place forms and factors are the same as in nccl-tests.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cli/perf/area.h"
#include "cli/perf/calls.h"
#include "cli/perf/element.h"
#include "cli/perf/kernels/kernels.h"
#include "cli/perf/library.h"

namespace niccolite::perf {

/// The content of a rank's buffer: the data of one rank, or nranks blocks side by side, or one such
/// block. It determines the meaning of the call's count.
enum class Part : unsigned char { Whole, Block, Blocks };

/// The elements of one call. In place both buffers lie in one area of area() elements, from the
/// offsets on.
struct Shape {
  size_t count = 0;  // the argument
  size_t send = 0, receive = 0;
  size_t send_offset = 0, receive_offset = 0;

  size_t area() const { return send > receive ? send : receive; }
};

/// The part of an area that the receive buffer is, for the table's formulas.
struct Output {
  Area& area;
  size_t offset;
  size_t count;  // the call's
  int root, rank, nranks;

  /// Expects `elements` elements of `source` (a rank or Pattern::kReduced), from source_first on,
  /// at `first`.
  void put(size_t first, size_t elements, int source, size_t source_first) const {
    area.put({offset + first, elements, source, source_first});
  }
};

constexpr double one(int) { return 1; }
constexpr int single(int) { return 1; }

struct Collective {
  const char* name;
  const char* summary;
  Part send, receive;
  double (*bus_factor)(int nranks);  // bus bandwidth over bytes / time
  double (*algorithm_factor)(int nranks) = one;
  bool is_rooted = false;
  bool reduces = false;
  bool has_in_place = true;
  const char* function = nullptr;   // that carries it out; null: sends and receives only
  bool has_send_recv_form = false;  // can do without the function
  bool needs_power_of_two = false;
  bool copies_own_block = false;      // to its place, before the first step, unless in place
  int (*steps)(int nranks) = single;  // calls that depend on each other: each has its own group
  Status (*call)(const Library& library, const Invocation& invocation, int step);
  std::optional<KernelCall::Work> kernel = std::nullopt;  // of --device
  void (*expect)(const Output& output);

  /// Every rank gets the same data, reduced: bits can be compared.
  bool has_equal_results() const { return reduces && !is_rooted && receive == Part::Whole; }
  /// Returns the shape for a size in elements of the larger buffer.
  Shape shape(size_t elements, int nranks, int rank) const;
  /// Elements of a size, when the call's count is `extra` more.
  size_t with_extra(size_t elements, size_t extra, int nranks) const {
    return elements + (send == Part::Whole ? extra : extra * static_cast<size_t>(nranks));
  }
  /// Returns the right content of the receive buffer or, in place, of the area with both buffers.
  Area expected(const Shape& shape, int root, int rank, int nranks, bool is_in_place) const;
  /// Can `library` do it, among `nranks`? Else says why not.
  Status check_available(const Library& library, int nranks, bool by_send_recv) const;
};

std::span<const Collective> collectives();
/// Takes every spelling (grammar/names.h). Null if there is no such collective.
const Collective* find_collective(std::string_view name);
/// A line for each.
std::string describe_collectives();

}  // namespace niccolite::perf
