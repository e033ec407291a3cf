#include "tests/device/all_reduce.h"

#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "algorithms/registry.h"
#include "executor/numeric/element.h"

namespace niccolite::device_test {

using executor::DataType;
using executor::Element;
using executor::Fold;

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
auto with_fold(Fold fold, Function&& function) {
  switch (fold) {
    case Fold::Sum:
      return function(std::integral_constant<Fold, Fold::Sum>());
    case Fold::Product:
      return function(std::integral_constant<Fold, Fold::Product>());
    case Fold::Max:
      return function(std::integral_constant<Fold, Fold::Max>());
    case Fold::Min:
      return function(std::integral_constant<Fold, Fold::Min>());
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

std::string describe(const AllReduce& o) {
  constexpr const char* kFolds[] = {"sum", "product", "max", "min"};
  return fmt::format(
      "{} {} {} {} nranks {} count {} channels {} slot {} depth {} threads {} misaligned {}{}{}",
      o.algorithm, name_of(o.protocol), name_of(o.type), kFolds[static_cast<int>(o.reduction.fold)],
      o.nranks, o.count, o.channels, o.slot_bytes, o.depth, o.threads, o.misalignment,
      o.in_place ? " in place" : "",
      o.reduction.finish_scale != 1 || o.reduction.finish_divisor != 1 ? " average" : "");
}

Result<std::vector<std::shared_ptr<const executor::Program>>> compile_all(
    const std::string& algorithm, int nranks) {
  const algorithms::Algorithm* found = algorithms::find(schedule::Collective::AllReduce, algorithm);
  if (found == nullptr) return Status::invalid_argument("no algorithm {}", algorithm);
  const schedule::Schedule schedule = TRY(found->build(nranks, {}));
  std::vector<std::shared_ptr<const executor::Program>> programs;
  for (int rank = 0; rank < nranks; ++rank) {
    programs.push_back(
        std::make_shared<const executor::Program>(TRY(executor::compile(schedule, rank))));
  }
  return programs;
}

executor::FifoShape shape_of(const AllReduce& operation) {
  return {operation.channels, operation.depth, operation.slot_bytes};
}

executor::Partition partition_of(const AllReduce& operation, const executor::Program& program) {
  return executor::make_partition(
      operation.count, static_cast<uint32_t>(size_of(operation.type)),
      static_cast<uint32_t>(program.works[0].nblocks),
      {.max_channels = operation.channels,
       .slot_data_bytes = executor::data_bytes(operation.protocol, operation.slot_bytes),
       .min_channel_bytes = operation.min_channel_bytes});
}

executor::Launch launch_of(const AllReduce& operation,
                           std::shared_ptr<const executor::Program> program) {
  executor::Launch launch;
  launch.works.resize(1);
  launch.works[0].partition = partition_of(operation, *program);
  launch.works[0].tag = operation.tag;
  launch.program = std::move(program);
  launch.protocol = operation.protocol;
  launch.shape = shape_of(operation);
  launch.type = operation.type;
  launch.reduction = operation.reduction;
  launch.threads = operation.threads;
  return launch;
}

std::vector<std::byte> input_of(const AllReduce& operation, int rank) {
  const auto r = static_cast<uint64_t>(rank);
  return with_type(operation.type, [&](auto type) {
    return fill<type()>(operation.count, [&](uint64_t i) -> double {
      if (operation.reduction.fold == Fold::Product) return (mix(i * 64 + r) & 1) != 0 ? 2 : 1;
      // Sums of up to four are exact in every type; Float8e5m2 has whole numbers up to 8 only.
      const uint64_t values = operation.type == DataType::Float8e5m2 ? 3 : 4;
      return static_cast<double>(mix(i * 64 + r) % values);
    });
  });
}

std::vector<std::byte> rough_input_of(const AllReduce& operation, int rank) {
  const auto r = static_cast<uint64_t>(rank);
  return with_type(operation.type, [&](auto type) {
    return fill<type()>(operation.count, [&](uint64_t i) -> double {
      const uint64_t bits = mix(i * 64 + r);
      if (!is_floating(operation.type)) return static_cast<double>(bits % 100);
      const double sign = (bits & 1) != 0 ? -1 : 1;
      return sign * (0.5 + static_cast<double>(bits >> 12) * 0x1p-52);  // in (0.5, 1.5)
    });
  });
}

std::vector<std::byte> expected_output(const AllReduce& operation,
                                       const std::vector<std::vector<std::byte>>& inputs) {
  const executor::Reduction& reduction = operation.reduction;
  return with_type(operation.type, [&](auto type) {
    return with_fold(reduction.fold, [&](auto fold) {
      using E = Element<type()>;
      using Storage = typename E::Storage;
      using Accumulator = typename E::Accumulator;
      std::vector<std::byte> expected(operation.count * sizeof(Storage));
      for (uint64_t i = 0; i < operation.count; ++i) {
        Accumulator sum{};
        for (size_t rank = 0; rank < inputs.size(); ++rank) {
          Storage element;
          std::memcpy(&element, inputs[rank].data() + i * sizeof element, sizeof element);
          Accumulator value = E::widen(element);
          if constexpr (std::is_floating_point_v<Accumulator>) {
            if (reduction.input_scale != 1) {
              value = E::widen(E::narrow(value * static_cast<Accumulator>(reduction.input_scale)));
            }
          }
          sum = rank == 0 ? value : executor::fold<fold()>(sum, value);
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

std::string difference(const AllReduce& operation, const std::byte* got,
                       const std::vector<std::byte>& expected) {
  if (std::memcmp(got, expected.data(), expected.size()) == 0) return "";
  const size_t element = size_of(operation.type);
  size_t wrong = 0;
  size_t first = operation.count;
  for (size_t i = 0; i < operation.count; ++i) {
    if (std::memcmp(got + i * element, expected.data() + i * element, element) == 0) continue;
    if (wrong++ == 0) first = i;
  }
  const auto hex = [&](const std::byte* data) {
    std::string text;
    for (size_t b = element; b-- > 0;) text += fmt::format("{:02x}", static_cast<int>(data[b]));
    return text;
  };
  return fmt::format("{} of {} elements differ, the first at {}: expected 0x{}, got 0x{}", wrong,
                     operation.count, first, hex(expected.data() + first * element),
                     hex(got + first * element));
}

}  // namespace niccolite::device_test
