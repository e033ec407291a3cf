// Speed of the CPU's part of a virtual GPU: reduces, conversions and LL words, beside memcpy. Bytes
// per second count the bytes of one operand, as a collective's algorithm bandwidth does. Arguments:
// bytes of an operand (1 MiB fits the second or third level of caches, 64 MiB none).
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "executor/host/ll_words.h"
#include "executor/host/reduce.h"

namespace niccolite::executor::host {
namespace {

using Bytes = std::vector<std::byte>;

void set_bytes(benchmark::State& state) {
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void copy(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const Bytes source(bytes, std::byte{1});
  Bytes target(bytes);
  for ([[maybe_unused]] auto _ : state) {
    std::memcpy(target.data(), source.data(), bytes);
    benchmark::ClobberMemory();
  }
  set_bytes(state);
}
BENCHMARK(copy)->Arg(64 << 10)->Arg(1 << 20)->Arg(64 << 20);

template <DataType kType, ReduceOp kOp, size_t kOperands>
void reduce(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const std::vector<Bytes> data(kOperands, Bytes(bytes, std::byte{0x3c}));
  std::vector<const std::byte*> operands;
  for (const Bytes& operand : data) operands.push_back(operand.data());
  Bytes result(bytes);
  const Reducer reducer(kType, {.op = kOp});
  for ([[maybe_unused]] auto _ : state) {
    reducer.reduce(operands, false, result.data(), bytes / size_of(kType));
    benchmark::ClobberMemory();
  }
  set_bytes(state);
}
#define NICCOLITE_REDUCE(...) \
  BENCHMARK_TEMPLATE(reduce, __VA_ARGS__)->Arg(64 << 10)->Arg(1 << 20)->Arg(64 << 20)
NICCOLITE_REDUCE(DataType::Float32, ReduceOp::Sum, 2);
NICCOLITE_REDUCE(DataType::Float16, ReduceOp::Sum, 2);
NICCOLITE_REDUCE(DataType::Bfloat16, ReduceOp::Sum, 2);
NICCOLITE_REDUCE(DataType::Float8e4m3, ReduceOp::Sum, 2);
NICCOLITE_REDUCE(DataType::Float64, ReduceOp::Sum, 2);
NICCOLITE_REDUCE(DataType::Int8, ReduceOp::Sum, 2);
NICCOLITE_REDUCE(DataType::Int64, ReduceOp::Product, 2);
NICCOLITE_REDUCE(DataType::Float32, ReduceOp::Max, 2);
NICCOLITE_REDUCE(DataType::Float32, ReduceOp::Sum, 8);
NICCOLITE_REDUCE(DataType::Bfloat16, ReduceOp::Sum, 8);
#undef NICCOLITE_REDUCE

// In place, as a ring reductions: the result over an operand.
void reduce_in_place(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  Bytes a(bytes), b(bytes);
  const std::byte* operands[] = {a.data(), b.data()};
  const Reducer reducer(DataType::Float32, {});
  for ([[maybe_unused]] auto _ : state) {
    reducer.reduce(operands, false, a.data(), bytes / 4);
    benchmark::ClobberMemory();
  }
  set_bytes(state);
}
BENCHMARK(reduce_in_place)->Arg(64 << 10)->Arg(1 << 20);

void ll_pack_words(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const Bytes data(bytes);
  std::vector<uint64_t> slot(bytes / 4);
  uint32_t flag = 0;
  for ([[maybe_unused]] auto _ : state) {
    ll_pack(reinterpret_cast<std::byte*>(slot.data()), 0, bytes, ++flag, data.data());
    benchmark::ClobberMemory();
  }
  set_bytes(state);
}
BENCHMARK(ll_pack_words)->Arg(4 << 10)->Arg(64 << 10);

void ll_unpack_words(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  Bytes data(bytes);
  std::vector<uint64_t> slot(bytes / 4);
  ll_pack(reinterpret_cast<std::byte*>(slot.data()), 0, bytes, 7, data.data());
  for ([[maybe_unused]] auto _ : state) {
    benchmark::DoNotOptimize(
        ll_unpack(reinterpret_cast<std::byte*>(slot.data()), 0, bytes, 7, data.data()));
  }
  set_bytes(state);
}
BENCHMARK(ll_unpack_words)->Arg(4 << 10)->Arg(64 << 10);

}  // namespace
}  // namespace niccolite::executor::host

BENCHMARK_MAIN();
