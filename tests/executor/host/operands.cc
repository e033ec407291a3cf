#include "tests/executor/host/operands.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "schedule/index.h"
#include "tests/executor/host/reference.h"

namespace niccolite::executor::host {
namespace {

using schedule::Collective;

constexpr std::byte kPoison{0xee};

// Numbers whose sums and products over 8 ranks are exact in every type.
double number(DataType type, ReduceOp op, int rank, uint64_t i) {
  const uint64_t mixed =
      (i + 1) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(rank) * 0xc2b2ae3d27d4eb4fu;
  const auto draw = static_cast<int>((mixed >> 40) % 3);  // 0, 1, 2
  if (op == ReduceOp::Product) return is_floating(type) && draw == 2 ? 0.5 : draw == 1 ? 2 : 1;
  if (op != ReduceOp::Sum) return static_cast<int>((mixed >> 40) % 16);
  return type == DataType::Uint8 || type == DataType::Uint32 || type == DataType::Uint64 ? draw
                                                                                         : draw - 1;
}

bool is_message_batch(const schedule::Schedule& schedule) {
  return schedule.collective == Collective::PointToPoint;
}

}  // namespace

Operands::Operands(const schedule::Schedule& schedule, DataType type, std::vector<uint64_t> counts,
                   const OperandOptions& options)
    : schedule_(schedule), type_(type), counts_(std::move(counts)), options_(options) {
  memories_.reserve(2 * (schedule.messages.size() + static_cast<size_t>(schedule.nranks)));
  if (is_message_batch(schedule)) {
    make_messages();
  } else {
    make_collective();
  }
}

Operands::View Operands::allocate(uint64_t elements, uint64_t misalignment, bool is_off) {
  const size_t size = size_of(type_);
  const size_t bytes = elements * size;
  const std::vector<uint64_t>& starts = options_.starts;
  const uint64_t start =
      starts.empty() ? (is_off ? misalignment : 0) : starts[memories_.size() % starts.size()];
  const size_t off = start * size;
  memories_.push_back({GuardedMemory(bytes, off), Bytes(bytes, kPoison)});
  std::memset(memories_.back().memory.data(), static_cast<int>(kPoison), bytes);
  return {memories_.back().memory.data(), memories_.back().expected.data()};
}

Operands::View Operands::offset(const View& view, uint64_t elements) const {
  const size_t bytes = elements * size_of(type_);
  return {view.data + bytes, view.expected + bytes};
}

Operands::Bytes Operands::numbers(int rank, uint64_t count, uint64_t first) const {
  const size_t size = size_of(type_);
  Bytes bytes(count * size);
  for (uint64_t i = 0; i < count; ++i) {
    // Bytes that are only moved may be any.
    if (type_ == DataType::Uint8 && !schedule::reduces(schedule_.collective)) {
      bytes[i] = static_cast<std::byte>(((first + i + 1) * 0x9e3779b97f4a7c15u >> 37) +
                                        static_cast<uint64_t>(rank) * 101);
    } else {
      store_number(type_, number(type_, options_.reduction.op, rank, first + i),
                   bytes.data() + i * size);
    }
  }
  return bytes;
}

// What each output block of `rank` is the reduction of: one contribution, where nothing is reduced.
std::vector<Operands::Bytes> Operands::contributions(int rank) const {
  const uint64_t count = counts_[0];
  const int n = schedule_.nranks;
  // Block b of the input of rank r.
  const auto block = [&](int r, int b) {
    return numbers(r, count, static_cast<uint64_t>(b) * count);
  };
  const auto joined = [&](auto&& part) {
    Bytes all;
    for (int r = 0; r < n; ++r) {
      const Bytes bytes = part(r);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  };
  std::vector<Bytes> result;
  switch (schedule_.collective) {
    case Collective::AllReduce:
    case Collective::Reduce:
      for (int r = 0; r < n; ++r) result.push_back(block(r, 0));
      break;
    case Collective::ReduceScatter:
      for (int r = 0; r < n; ++r) result.push_back(block(r, rank));
      break;
    case Collective::Broadcast:
      result = {block(schedule_.root, 0)};
      break;
    case Collective::AllGather:
    case Collective::Gather:
      result = {joined([&](int r) { return block(r, 0); })};
      break;
    case Collective::AllToAll:
      result = {joined([&](int r) { return block(r, rank); })};
      break;
    case Collective::Scatter:
      result = {block(schedule_.root, rank)};
      break;
    case Collective::PointToPoint:
      break;
  }
  return result;
}

void Operands::make_collective() {
  const Collective collective = schedule_.collective;
  const uint64_t count = counts_[0];
  const size_t size = size_of(type_);
  const bool is_cut = schedule::cuts_one_buffer(collective);
  const auto elements_of = [&](int blocks) {
    return is_cut ? count * (blocks > 0 ? 1 : 0) : count * static_cast<uint64_t>(blocks);
  };
  for (int rank = 0; rank < schedule_.nranks; ++rank) {
    const int input_blocks = schedule::input_blocks(schedule_, rank);
    const int output_blocks = schedule::output_blocks(schedule_, rank);
    const uint64_t inputs = elements_of(input_blocks), outputs = elements_of(output_blocks);
    const bool shares = options_.is_in_place && collective != Collective::AllToAll &&
                        input_blocks > 0 && output_blocks > 0;
    const bool is_off = options_.is_misaligned || options_.misaligned_input_of == rank;
    View input, output;
    if (shares) {
      const View memory = allocate(std::max(inputs, outputs), 1, is_off);
      const uint64_t own = is_cut ? 0 : static_cast<uint64_t>(rank) * count;
      input = inputs < outputs ? offset(memory, own) : memory;
      output = outputs < inputs ? offset(memory, own) : memory;
    } else {
      if (input_blocks > 0) input = allocate(inputs, 1, is_off);
      if (output_blocks > 0) output = allocate(outputs, 3, options_.is_misaligned);
    }
    if (input_blocks > 0 && inputs > 0) {
      const Bytes bytes = numbers(rank, inputs, 0);
      std::memcpy(input.data, bytes.data(), bytes.size());
      std::memcpy(input.expected, bytes.data(), bytes.size());
    }
    if (output_blocks > 0) {
      std::vector<Bytes> operands = contributions(rank);
      if (schedule::reduces(collective)) {
        const Reduction& reduction = options_.reduction;
        for (uint64_t i = 0; i < outputs; ++i) {
          std::vector<const std::byte*> elements;
          for (Bytes& operand : operands) {
            std::byte* element = operand.data() + i * size;
            if (reduction.input_scale != 1 || reduction.input_factor != 1)
              reference_scale_input(type_, reduction, element, element);
            elements.push_back(element);
          }
          reference_reduction(type_, reduction, elements, true, output.expected + i * size);
        }
      } else if (outputs > 0) {
        std::memcpy(output.expected, operands[0].data(), outputs * size);
      }
    }
    buffers_.inputs.push_back(input.data);
    buffers_.outputs.push_back(output.data);
  }
}

void Operands::make_messages() {
  for (size_t m = 0; m < schedule_.messages.size(); ++m) {
    const Bytes bytes = numbers(static_cast<int>(m), counts_[m], 0);
    const View input = allocate(counts_[m], 1, options_.is_misaligned);
    const View output = allocate(counts_[m], 3, options_.is_misaligned);
    for (std::byte* copy : {input.data, input.expected, output.expected})
      if (!bytes.empty()) std::memcpy(copy, bytes.data(), bytes.size());
    buffers_.inputs.push_back(input.data);
    buffers_.outputs.push_back(output.data);
  }
}

void Operands::check() const {
  for (size_t m = 0; m < memories_.size(); ++m) {
    const auto& [memory, expected] = memories_[m];
    ASSERT_TRUE(memory.guards_intact()) << "buffer " << m;
    if (expected.empty()) continue;
    if (std::memcmp(memory.data(), expected.data(), expected.size()) == 0) continue;
    size_t i = 0;
    while (memory.data()[i] == expected[i]) ++i;
    FAIL() << "buffer " << m << " of " << memories_.size() << " (by rank, input then output), byte "
           << i << " of " << expected.size() << ": expected " << static_cast<int>(expected[i])
           << ", got " << static_cast<int>(memory.data()[i]);
  }
}

}  // namespace niccolite::executor::host
