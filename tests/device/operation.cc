#include "tests/device/operation.h"

#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "executor/numeric/element.h"
#include "planner/form.h"

namespace niccolite::device_test {

using executor::DataType;
using executor::Element;
using executor::ReduceOp;
using schedule::Collective;

namespace {

// Calls function(std::integral_constant<DataType, type>()).
template <typename Function>
auto with_type(DataType type, Function&& function) {
  switch (type) {
#define X(name, bytes, text) \
  case DataType::name:       \
    return function(std::integral_constant<DataType, DataType::name>());
    NICCOLITE_DATA_TYPES(X)
#undef X
  }
  std::abort();
}
template <typename Function>
auto with_reduction(ReduceOp op, Function&& function) {
  switch (op) {
    case ReduceOp::Sum:
      return function(std::integral_constant<ReduceOp, ReduceOp::Sum>());
    case ReduceOp::Product:
      return function(std::integral_constant<ReduceOp, ReduceOp::Product>());
    case ReduceOp::Max:
      return function(std::integral_constant<ReduceOp, ReduceOp::Max>());
    case ReduceOp::Min:
      return function(std::integral_constant<ReduceOp, ReduceOp::Min>());
  }
  std::abort();
}

template <DataType kType, typename Value>
std::vector<std::byte> fill(uint64_t count, Value&& value) {
  using Storage = typename Element<kType>::Storage;
  std::vector<std::byte> bytes(count * sizeof(Storage));
  for (uint64_t i = 0; i < count; ++i) {
    const Storage element =
        Element<kType>::narrow(static_cast<typename Element<kType>::Accumulator>(value(i)));
    std::memcpy(bytes.data() + i * sizeof element, &element, sizeof element);
  }
  return bytes;
}

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

std::string describe(const Operation& o) {
  constexpr const char* kReduceOps[] = {"sum", "product", "max", "min"};
  return fmt::format(
      "{} {} {} {} {} nranks {} root {} count {} channels {} slot {} depth {} threads {} "
      "misaligned {} list {}{}{}{}{}",
      schedule::name_of(o.collective), o.algorithm, name_of(o.protocol), name_of(o.type),
      kReduceOps[static_cast<int>(o.reduction.op)], o.nranks, o.root, o.count, o.channels,
      o.slot_bytes, o.depth, o.threads, o.misalignment, o.list, o.in_place ? " in place" : "",
      o.is_reached ? " reached" : "", o.pull_bytes != 0 ? " pulled" : "",
      o.reduction.finish_scale != 1 || o.reduction.finish_divisor != 1 ? " average" : "");
}

Result<Programs> compile_all(const Operation& operation) {
  schedule::Schedule schedule;
  if (operation.collective == Collective::PointToPoint) {
    schedule = TRY(algorithms::point_to_point(operation.nranks, operation.messages));
  } else {
    const auto* found = planner::find_form(operation.collective, operation.algorithm);
    if (found == nullptr) {
      return Status::invalid_argument("no {} {}", schedule::name_of(operation.collective),
                                      operation.algorithm);
    }
    algorithms::Options options;
    if (schedule::has_root(operation.collective)) options.root = operation.root;
    schedule = TRY(found->build(operation.nranks, options));
  }
  Programs programs;
  for (int rank = 0; rank < operation.nranks; ++rank) {
    programs.push_back(
        std::make_shared<const executor::Program>(TRY(executor::compile(schedule, rank))));
  }
  return programs;
}

executor::FifoShape shape_of(const Operation& operation) {
  return {operation.channels, operation.depth, operation.slot_bytes};
}

namespace {

executor::Cut cut_of(const Operation& operation) {
  return {.max_channels = operation.channels,
          .slot_data_bytes = executor::data_bytes(operation.protocol, operation.slot_bytes),
          .min_channel_bytes = operation.min_channel_bytes};
}

executor::Partition partition_of(const Operation& operation, const executor::Program& program) {
  const auto element = static_cast<uint32_t>(size_of(operation.type));
  const auto nblocks = static_cast<uint32_t>(program.works[0].nblocks);
  return schedule::cuts_one_buffer(operation.collective)
             ? executor::make_partition(operation.count, element, nblocks, cut_of(operation))
             : executor::make_block_partition(operation.count, element, nblocks, cut_of(operation));
}

/// Blocks of `count` elements that the input of `rank` is.
uint64_t input_blocks(const Operation& operation, int rank) {
  const auto n = static_cast<uint64_t>(operation.nranks);
  const bool is_root = rank == operation.root;
  switch (operation.collective) {
    case Collective::AllReduce:
    case Collective::Reduce:
    case Collective::AllGather:
    case Collective::Gather:
      return 1;
    case Collective::Broadcast:
      return is_root ? 1 : 0;
    case Collective::ReduceScatter:
    case Collective::AllToAll:
      return n;
    case Collective::Scatter:
      return is_root ? n : 0;
    case Collective::PointToPoint:
      return 0;
  }
  return 0;
}
uint64_t output_blocks(const Operation& operation, int rank) {
  const auto n = static_cast<uint64_t>(operation.nranks);
  const bool is_root = rank == operation.root;
  switch (operation.collective) {
    case Collective::AllReduce:
    case Collective::Broadcast:
    case Collective::ReduceScatter:
    case Collective::Scatter:
      return 1;
    case Collective::Reduce:
      return is_root ? 1 : 0;
    case Collective::AllGather:
    case Collective::AllToAll:
      return n;
    case Collective::Gather:
      return is_root ? n : 0;
    case Collective::PointToPoint:
      return 0;
  }
  return 0;
}

uint64_t message_count(const Operation& operation, size_t message) {
  return operation.message_counts.empty() ? operation.count : operation.message_counts[message];
}

/// Elements in front of a message in its sender's input, or its receiver's output. At the end of
/// the list: of all messages of `rank`.
uint64_t message_offset(const Operation& operation, int rank, bool is_send, size_t end) {
  uint64_t offset = 0;
  for (size_t m = 0; m < end; ++m) {
    const auto [sender, receiver] = operation.messages[m];
    if ((is_send ? sender : receiver) == rank) offset += message_count(operation, m);
  }
  return offset;
}

/// The works of a batch: sends first, then receives from others; each in the order of the list.
std::vector<executor::Work> message_works(const Operation& operation, int rank,
                                          const executor::Buffers& buffers) {
  const auto element = static_cast<uint32_t>(size_of(operation.type));
  std::vector<executor::Work> works;
  for (const bool is_send : {true, false}) {
    for (size_t m = 0; m < operation.messages.size(); ++m) {
      const auto [sender, receiver] = operation.messages[m];
      if (is_send ? sender != rank : receiver != rank || sender == rank) continue;
      executor::Work& work = works.emplace_back();
      work.partition = executor::make_block_partition(message_count(operation, m), element, 1,
                                                      cut_of(operation));
      work.tag = operation.tag;
      if (is_send) {
        work.buffers.input = static_cast<const std::byte*>(buffers.input) +
                             message_offset(operation, rank, true, m) * element;
      }
      if (receiver == rank) {
        work.buffers.output = static_cast<std::byte*>(buffers.output) +
                              message_offset(operation, rank, false, m) * element;
      }
    }
  }
  return works;
}

}  // namespace

uint64_t input_count(const Operation& operation, int rank) {
  return operation.collective == Collective::PointToPoint
             ? message_offset(operation, rank, /*is_send=*/true, operation.messages.size())
             : operation.count * input_blocks(operation, rank);
}

uint64_t output_count(const Operation& operation, int rank) {
  return operation.collective == Collective::PointToPoint
             ? message_offset(operation, rank, /*is_send=*/false, operation.messages.size())
             : operation.count * output_blocks(operation, rank);
}

Offsets in_place_offsets(const Operation& operation, int rank) {
  const uint64_t own = static_cast<uint64_t>(rank) * operation.count;
  const uint64_t inputs = input_blocks(operation, rank);
  const uint64_t outputs = output_blocks(operation, rank);
  if (inputs == 0 || outputs == 0) return {};
  return {inputs < outputs ? own : 0, outputs < inputs ? own : 0};
}

size_t scratch_bytes(const Operation& operation, const executor::Program& program) {
  if (operation.collective == Collective::PointToPoint) return 0;
  return static_cast<size_t>(program.works[0].scratch_blocks) *
         partition_of(operation, program).block_stride * size_of(operation.type);
}

namespace {

/// The list's parts of the buffers, each a work of its own.
std::vector<executor::Work> list_works(const Operation& operation,
                                       const executor::Buffers& buffers) {
  std::vector<executor::Work> works;
  const auto element = static_cast<uint32_t>(size_of(operation.type));
  const uint64_t count = executor::divide_up(operation.count, operation.list);
  for (uint64_t start = 0; start < operation.count; start += count) {
    const uint64_t here = std::min(count, operation.count - start);
    works.push_back({.partition = executor::make_partition(
                         here, element, /*nblocks=*/1,
                         {.slot_data_bytes = data_bytes(operation.protocol, operation.slot_bytes)}),
                     .tag = static_cast<uint16_t>(operation.tag + works.size()),
                     .buffers = {static_cast<const std::byte*>(buffers.input) + start * element,
                                 static_cast<std::byte*>(buffers.output) + start * element}});
  }
  return works;
}

}  // namespace

executor::Launch launch_of(const Operation& operation,
                           std::shared_ptr<const executor::Program> program,
                           const executor::Buffers& buffers) {
  executor::Launch launch;
  if (operation.collective == Collective::PointToPoint) {
    launch.works = message_works(operation, program->rank, buffers);
  } else if (operation.list > 0) {
    launch.works = list_works(operation, buffers);
    launch.list_channels = std::min(operation.channels, static_cast<uint32_t>(launch.works.size()));
    if (operation.is_reached) {
      launch.list_operation = {.collective = operation.collective, .nranks = operation.nranks};
      launch.list_access = executor::list_access_of(launch.list_operation);
    }
  } else {
    executor::Work& work = launch.works.emplace_back();
    work.partition = partition_of(operation, *program);
    work.tag = operation.tag;
    work.buffers = buffers;
  }
  launch.program = std::move(program);
  launch.protocol = operation.protocol;
  launch.shape = shape_of(operation);
  launch.type = operation.type;
  launch.reduction = operation.reduction;
  launch.threads = operation.threads;
  launch.pull_bytes = operation.pull_bytes;
  return launch;
}

std::vector<std::byte> input_of(const Operation& operation, int rank) {
  const auto r = static_cast<uint64_t>(rank);
  return with_type(operation.type, [&](auto type) {
    return fill<type()>(input_count(operation, rank), [&](uint64_t i) -> double {
      if (operation.reduction.op == ReduceOp::Product) return (mix(i * 64 + r) & 1) != 0 ? 2 : 1;
      // Sums of up to four are exact in every type; Float8e5m2 has whole numbers up to 8 only.
      const uint64_t values = operation.type == DataType::Float8e5m2 ? 3 : 4;
      return static_cast<double>(mix(i * 64 + r) % values);
    });
  });
}

std::vector<std::byte> rough_input_of(const Operation& operation, int rank) {
  const auto r = static_cast<uint64_t>(rank);
  return with_type(operation.type, [&](auto type) {
    return fill<type()>(input_count(operation, rank), [&](uint64_t i) -> double {
      const uint64_t bits = mix(i * 64 + r);
      if (!is_floating(operation.type)) return static_cast<double>(bits % 100);
      const double sign = (bits & 1) != 0 ? -1 : 1;
      return sign * (0.5 + static_cast<double>(bits >> 12) * 0x1p-52);  // in (0.5, 1.5)
    });
  });
}

namespace {

/// Block `block` of all inputs, reduced.
std::vector<std::byte> reduced(const Operation& operation,
                               const std::vector<std::vector<std::byte>>& inputs, uint64_t block) {
  const executor::Reduction& reduction = operation.reduction;
  return with_type(operation.type, [&](auto type) {
    return with_reduction(reduction.op, [&](auto op) {
      using E = Element<type()>;
      using Storage = typename E::Storage;
      using Accumulator = typename E::Accumulator;
      std::vector<std::byte> expected(operation.count * sizeof(Storage));
      for (uint64_t i = 0; i < operation.count; ++i) {
        Accumulator sum{};
        for (size_t rank = 0; rank < inputs.size(); ++rank) {
          Storage element;
          std::memcpy(&element,
                      inputs[rank].data() + (block * operation.count + i) * sizeof element,
                      sizeof element);
          Accumulator value = E::widen(element);
          if constexpr (std::is_floating_point_v<Accumulator>) {
            if (reduction.input_scale != 1) {
              value = E::widen(E::narrow(value * static_cast<Accumulator>(reduction.input_scale)));
            }
          }
          sum = rank == 0 ? value : executor::reduce<op()>(sum, value);
        }
        if constexpr (std::is_floating_point_v<Accumulator>) {
          if (reduction.finish_scale != 1) sum *= static_cast<Accumulator>(reduction.finish_scale);
        } else {
          if (reduction.finish_divisor != 1) {
            sum =
                static_cast<Accumulator>(sum / static_cast<Accumulator>(reduction.finish_divisor));
          }
        }
        const Storage result = E::narrow(sum);
        std::memcpy(expected.data() + i * sizeof result, &result, sizeof result);
      }
      return expected;
    });
  });
}

}  // namespace

std::vector<std::byte> expected_output(const Operation& operation,
                                       const std::vector<std::vector<std::byte>>& inputs,
                                       int rank) {
  const size_t element = size_of(operation.type);
  std::vector<std::byte> expected;
  if (output_count(operation, rank) == 0) return expected;
  const auto append = [&](int from, uint64_t offset, uint64_t count) {
    const std::byte* data = inputs[static_cast<size_t>(from)].data() + offset * element;
    expected.insert(expected.end(), data, data + count * element);
  };
  const uint64_t own = static_cast<uint64_t>(rank) * operation.count;
  switch (operation.collective) {
    case Collective::AllReduce:
    case Collective::Reduce:
      return reduced(operation, inputs, 0);
    case Collective::ReduceScatter:
      return reduced(operation, inputs, static_cast<uint64_t>(rank));
    case Collective::Broadcast:
      append(operation.root, 0, operation.count);
      break;
    case Collective::Scatter:
      append(operation.root, own, operation.count);
      break;
    case Collective::AllGather:
    case Collective::Gather:
      for (int from = 0; from < operation.nranks; ++from) append(from, 0, operation.count);
      break;
    case Collective::AllToAll:
      for (int from = 0; from < operation.nranks; ++from) append(from, own, operation.count);
      break;
    case Collective::PointToPoint:
      for (size_t m = 0; m < operation.messages.size(); ++m) {
        const auto [sender, receiver] = operation.messages[m];
        if (receiver != rank) continue;
        append(sender, message_offset(operation, sender, /*is_send=*/true, m),
               message_count(operation, m));
      }
      break;
  }
  return expected;
}

std::string difference(const Operation& operation, const std::byte* got,
                       const std::vector<std::byte>& expected) {
  if (expected.empty() || std::memcmp(got, expected.data(), expected.size()) == 0) return "";
  const size_t element = size_of(operation.type);
  size_t wrong = 0;
  size_t first = 0;
  for (size_t i = 0; i < expected.size() / element; ++i) {
    if (std::memcmp(got + i * element, expected.data() + i * element, element) == 0) continue;
    if (wrong++ == 0) first = i;
  }
  const auto hex = [&](const std::byte* data) {
    std::string text;
    for (size_t b = element; b-- > 0;) text += fmt::format("{:02x}", static_cast<int>(data[b]));
    return text;
  };
  return fmt::format("{} of {} elements differ, the first at {}: expected 0x{}, got 0x{}", wrong,
                     expected.size() / element, first, hex(expected.data() + first * element),
                     hex(got + first * element));
}

}  // namespace niccolite::device_test
