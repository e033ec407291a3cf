#include "cli/perf/verifier.h"

#include <algorithm>
#include <cstring>

namespace niccolite::perf {
namespace {

uint64_t digest_of(uint64_t seed, const std::byte* data, size_t bytes) {
  // Four independent lanes, so that the multiplications overlap.
  uint64_t lanes[4] = {seed, seed ^ 1, seed ^ 2, seed ^ 3};
  size_t lane = 0;
  for (size_t done = 0; done < bytes; done += 8, lane = (lane + 1) % 4) {
    uint64_t word = 0;
    std::memcpy(&word, data + done, std::min<size_t>(8, bytes - done));
    lanes[lane] = (lanes[lane] ^ word) * 0x9e3779b97f4a7c15;
    lanes[lane] ^= lanes[lane] >> 29;
  }
  uint64_t all = seed;
  for (const uint64_t each : lanes) all = (all ^ each) * 0xbf58476d1ce4e5b9 + (all >> 31);
  return all;
}

/// Bytes that the receive buffer, or in place the area of both buffers, takes.
size_t result_bytes(const Call& call, const Shape& shape) {
  return (call.is_in_place ? shape.area() : shape.receive) * call.type->bytes;
}

}  // namespace

Result<std::vector<gpu::Graph>> Verifier::capture(const Call& call) {
  if (worker_.options().graph_launches == 0) return std::vector<gpu::Graph>();
  return worker_.capture(call);
}

std::vector<size_t> Verifier::offsets(const Call& call) const {
  const size_t stride = worker_.places(call).stride;
  const size_t operations = worker_.operations(call);
  std::vector<size_t> offsets;
  for (int i = 0; i < worker_.options().communicators; ++i)
    for (size_t place = 0; place < operations; ++place)
      offsets.push_back(static_cast<size_t>(i) * slot_bytes(worker_.options()) + place * stride);
  return offsets;
}

// Writes poison before and behind the results, too.
Status Verifier::fill(const Call& call, const Pattern& pattern, size_t shift) {
  gpu::Machine& machine = worker_.machine();
  for (const Rank& rank : worker_.ranks()) {
    const Shape shape = worker_.shape(call, rank);
    void* stream = rank.stream.handle();
    for (const size_t slot : offsets(call)) {
      const size_t begin = slot + call.start_bytes();
      const BufferPair& pair = rank.buffers.current(call.library);
      auto* const receive = static_cast<std::byte*>(pair.receive.data());
      TRY(machine.set_async(receive + slot, Area::kPoison,
                            call.start_bytes() + result_bytes(call, shape) + kGuardBytes,
                            rank.device, stream));
      std::byte* input = static_cast<std::byte*>(pair.send.data()) + begin;
      if (call.is_in_place) input = receive + begin + shape.send_offset * call.type->bytes;
      const size_t bytes = shape.send * call.type->bytes;
      size_t filled = std::min(bytes, pattern.period_bytes());
      if (filled > 0)
        TRY(machine.copy_async(input, pattern.data(rank.rank, shift), filled, rank.device, stream));
      // The device repeats the period by itself, twice as much each time.
      while (filled < bytes) {
        const size_t more = std::min(filled, bytes - filled);
        TRY(machine.copy_async(input + filled, input, more, rank.device, stream));
        filled += more;
      }
    }
  }
  return worker_.synchronize();
}

Status Verifier::run_once(const Call& call, const std::vector<gpu::Graph>& graphs) {
  TRY(graphs.empty() ? worker_.launch(call) : worker_.launch_graphs(graphs));
  return worker_.synchronize();
}

template <typename Visit>
Status Verifier::read_back(const Call& call, const Rank& rank, size_t first, size_t bytes,
                           Visit visit) {
  gpu::Machine& machine = worker_.machine();
  const void* const receive = rank.buffers.current(call.library).receive.data();
  const auto* result = static_cast<const std::byte*>(receive);
  // Whole elements of every type fit a piece.
  const size_t piece = rank.staging.bytes() / 8 * 8;
  for (size_t done = 0; done < bytes; done += piece) {
    const size_t size = std::min(piece, bytes - done);
    TRY(machine.copy_async(rank.staging.data(), result + first + done, size, rank.device,
                           rank.stream.handle()));
    TRY(machine.synchronize_stream(rank.device, rank.stream.handle()));
    visit(static_cast<const std::byte*>(rank.staging.data()), first + done, size);
  }
  return {};
}

Result<uint64_t> Verifier::count_wrong(const Call& call, const Pattern& pattern, size_t shift,
                                       const Rank& rank) {
  const Shape shape = worker_.shape(call, rank);
  const Area area = call.collective->expected(shape, call.root, rank.rank, worker_.team().nranks(),
                                              call.is_in_place);
  const size_t element = call.type->bytes;
  const size_t bytes = result_bytes(call, shape);
  uint64_t wrong = 0;
  for (const size_t slot : offsets(call)) {
    const size_t begin = slot + call.start_bytes();
    TRY(read_back(call, rank, begin, bytes, [&](const std::byte* data, size_t first, size_t size) {
      wrong += area.count_wrong(pattern, shift, data, (first - begin) / element, size / element);
    }));
    const auto count_guard = [&](const std::byte* data, size_t, size_t size) {
      wrong += count_unpoisoned(data, size);
    };
    TRY(read_back(call, rank, slot, call.start_bytes(), count_guard));
    TRY(read_back(call, rank, begin + bytes, kGuardBytes, count_guard));
  }
  return wrong;
}

Status Verifier::check(const Call& call, const Pattern& pattern) {
  const std::span<Rank> ranks = worker_.ranks();
  std::vector<uint64_t> wrong(ranks.size());
  std::vector<gpu::Graph> graphs;
  for (int iteration = 0; iteration < worker_.options().check_iterations; ++iteration) {
    // One graph gives new results for new data, as long as the buffers are the same.
    TRY(worker_.next_buffers(call));
    if (iteration == 0 || worker_.options().buffer_pairs != 1) graphs = TRY(capture(call));
    // Other data each time: a stale result of the iteration before is wrong now.
    const size_t shift = static_cast<size_t>(iteration) * 1009 % Pattern::kPeriod;
    TRY(fill(call, pattern, shift));
    TRY(run_once(call, graphs));
    for (size_t i = 0; i < ranks.size(); ++i) {
      const uint64_t found = TRY(count_wrong(call, pattern, shift, ranks[i]));
      wrong[i] += found;
    }
  }
  for (size_t i = 0; i < ranks.size(); ++i)
    worker_.team().records()[static_cast<size_t>(ranks[i].rank)].wrong = wrong[i];
  return {};
}

Status Verifier::digest(const Call& call, const Pattern& pattern) {
  TRY(worker_.next_buffers(call));
  const std::vector<gpu::Graph> graphs = TRY(capture(call));
  TRY(fill(call, pattern, 0));
  TRY(run_once(call, graphs));
  for (const Rank& rank : worker_.ranks()) {
    uint64_t digest = 0;
    TRY(read_back(call, rank, call.start_bytes(), result_bytes(call, worker_.shape(call, rank)),
                  [&](const std::byte* data, size_t, size_t bytes) {
                    digest = digest_of(digest, data, bytes);
                  }));
    worker_.team().records()[static_cast<size_t>(rank.rank)].digest = digest;
  }
  return {};
}

}  // namespace niccolite::perf
