// Speed of the CPU's part of a virtual GPU: folds, conversions and LL words, beside memcpy. Bytes
// per second count the bytes of one operand, as a collective's algorithm bandwidth does. Arguments:
// bytes of an operand (1 MiB fits the second or third level of caches, 64 MiB none).
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "executor/host/fold.h"
#include "executor/host/ll_words.h"

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

template <DataType kType, Fold kFold, size_t kOperands>
void fold(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const std::vector<Bytes> data(kOperands, Bytes(bytes, std::byte{0x3c}));
  std::vector<const std::byte*> operands;
  for (const Bytes& operand : data) operands.push_back(operand.data());
  Bytes result(bytes);
  const Folder folder(kType, {.fold = kFold});
  for ([[maybe_unused]] auto _ : state) {
    folder.fold(operands, false, result.data(), bytes / size_of(kType));
    benchmark::ClobberMemory();
  }
  set_bytes(state);
}
#define NICCOLITE_FOLD(...) \
  BENCHMARK_TEMPLATE(fold, __VA_ARGS__)->Arg(64 << 10)->Arg(1 << 20)->Arg(64 << 20)
NICCOLITE_FOLD(DataType::Float32, Fold::Sum, 2);
NICCOLITE_FOLD(DataType::Float16, Fold::Sum, 2);
NICCOLITE_FOLD(DataType::Bfloat16, Fold::Sum, 2);
NICCOLITE_FOLD(DataType::Float8e4m3, Fold::Sum, 2);
NICCOLITE_FOLD(DataType::Float64, Fold::Sum, 2);
NICCOLITE_FOLD(DataType::Int8, Fold::Sum, 2);
NICCOLITE_FOLD(DataType::Int64, Fold::Product, 2);
NICCOLITE_FOLD(DataType::Float32, Fold::Max, 2);
NICCOLITE_FOLD(DataType::Float32, Fold::Sum, 8);
NICCOLITE_FOLD(DataType::Bfloat16, Fold::Sum, 8);
#undef NICCOLITE_FOLD

// In place, as a ring folds: the result over an operand.
void fold_in_place(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  Bytes a(bytes), b(bytes);
  const std::byte* operands[] = {a.data(), b.data()};
  const Folder folder(DataType::Float32, {});
  for ([[maybe_unused]] auto _ : state) {
    folder.fold(operands, false, a.data(), bytes / 4);
    benchmark::ClobberMemory();
  }
  set_bytes(state);
}
BENCHMARK(fold_in_place)->Arg(64 << 10)->Arg(1 << 20);

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
