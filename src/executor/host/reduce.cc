#include "executor/host/reduce.h"

#include <algorithm>
#include <array>
#include <utility>

#include "executor/host/reduce_loops.h"
#if defined(__x86_64__)
#include <cpuid.h>

#include "executor/host/half_loops.h"
#endif

namespace niccolite::executor::host {

/// The loops of reduce_loops.h for one (type, operation), compiled for one instruction set.
struct ReductionLoops {
  void (*pair)(const std::byte* a, const std::byte* b, std::byte* result, size_t count);
  void (*first)(const std::byte* a, const std::byte* b, std::byte* accumulators, size_t count);
  void (*next)(const std::byte* operand, std::byte* accumulators, size_t count);
  void (*last)(const std::byte* accumulators, const std::byte* operand, std::byte* result,
               size_t count);
  void (*widen)(const std::byte* operand, std::byte* accumulators, size_t count);
  void (*finish)(const std::byte* accumulators, const Reduction&, std::byte* result, size_t count);
  void (*scale_input)(const std::byte* operand, const Reduction&, std::byte* result, size_t count);
};

namespace {

// An instruction set is a way to compile a loop. AVX2 (and F16C, for half_loops.h) without FMA: a
// contracted multiply-add would round differently.
struct Baseline {
  static constexpr bool kConvertsHalf = false;
  template <typename Loop, typename... Arguments>
  static void run(Arguments... arguments) {
    Loop::run(arguments...);
  }
};
#if defined(__x86_64__)
struct Avx2 {
  static constexpr bool kConvertsHalf = true;
  template <ReduceOp kOp>
  static constexpr ReductionLoops half_loops_of() {
    return {half_loops::pair<kOp>,  half_loops::first<kOp>, half_loops::next<kOp>,
            half_loops::last<kOp>,  half_loops::widen,      half_loops::finish,
            half_loops::scale_input};
  }
  template <typename Loop, typename... Arguments>
  [[gnu::target("avx2")]] static void run(Arguments... arguments) {
    Loop::run(arguments...);
  }
};
#endif

template <typename Isa, DataType kType, ReduceOp kOp>
constexpr ReductionLoops loops_of() {
  if constexpr (Isa::kConvertsHalf && kType == DataType::Float16) {
    return Isa::template half_loops_of<kOp>();
  } else {
    ReductionLoops l{};
    // The assignment chooses run()'s arguments.
    l.pair = &Isa::template run<loops::ReductionPair<kType, kOp>>;
    l.first = &Isa::template run<loops::ReductionFirst<kType, kOp>>;
    l.next = &Isa::template run<loops::ReductionNext<kType, kOp>>;
    l.last = &Isa::template run<loops::ReductionLast<kType, kOp>>;
    l.widen = &Isa::template run<loops::Widen<kType>>;
    l.finish = &Isa::template run<loops::Finish<kType>>;
    l.scale_input = &Isa::template run<loops::ScaleInput<kType>>;
    return l;
  }
}

using Table = std::array<ReductionLoops, size_t{kDataTypes} * kReduceOps>;  // [type][op]

template <typename Isa>
constexpr Table table() {
  return []<size_t... kIndex>(std::index_sequence<kIndex...>) {
    return Table{loops_of<Isa, static_cast<DataType>(kIndex / kReduceOps),
                          static_cast<ReduceOp>(kIndex % kReduceOps)>()...};
  }
  (std::make_index_sequence<size_t{kDataTypes} * kReduceOps>());
}

constexpr Table kBaseline = table<Baseline>();
#if defined(__x86_64__)
constexpr Table kAvx2 = table<Avx2>();
#endif

#if defined(__x86_64__)
bool has_f16c() {  // clang 14's __builtin_cpu_supports does not know it
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

const Table& table_for(InstructionSet set) {
  if (set == InstructionSet::Baseline) return kBaseline;
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && has_f16c();
  if (has_avx2) return kAvx2;
#endif
  return kBaseline;
}

constexpr size_t kStripElements =
    1024;  // accumulators of at most 8 KiB: they stay in the first-level cache
constexpr size_t kMostAccumulatorBytes = 8;

template <DataType kType>
void read_scale_of(Reduction& reduction) {
  using E = Element<kType>;
  const auto* element = static_cast<const std::byte*>(reduction.device_scale);
  const auto scale = E::widen(loops::load<typename E::Storage>(element, 0));
  if constexpr (is_floating(kType)) {
    reduction.input_scale = scale;
  } else {
    reduction.input_factor = static_cast<int64_t>(scale);  // modulo 2^64; every type takes its low
                                                           // bits
  }
}

}  // namespace

Reduction read_scale(DataType type, const Reduction& reduction) {
  Reduction read = reduction;
  if (reduction.device_scale == nullptr) return read;
  switch (type) {
#define X(name, bytes, text)             \
  case DataType::name:                   \
    read_scale_of<DataType::name>(read); \
    break;
    NICCOLITE_DATA_TYPES(X)
#undef X
  }
  return read;
}

Reducer::Reducer(DataType type, const Reduction& reduction, InstructionSet set)
    : loops_(&table_for(
          set)[static_cast<size_t>(type) * kReduceOps + static_cast<size_t>(reduction.op)]),
      reduction_(reduction),
      element_bytes_(size_of(type)),
      scales_input_(is_floating(type) ? reduction.input_scale != 1 : reduction.input_factor != 1),
      scales_result_(is_floating(type) ? reduction.finish_scale != 1
                                       : reduction.finish_divisor != 1) {}

void Reducer::reduce(std::span<const std::byte* const> operands, bool finish, std::byte* result,
                     size_t count) const {
  finish = finish && scales_result_;
  if (operands.size() == 1 && !finish) {
    if (result != operands[0]) std::memcpy(result, operands[0], count * element_bytes_);
    return;
  }
  if (operands.size() == 2 && !finish) return loops_->pair(operands[0], operands[1], result, count);

  alignas(64) std::byte accumulators[kStripElements * kMostAccumulatorBytes];
  for (size_t done = 0; done < count; done += kStripElements) {
    const size_t n = std::min(kStripElements, count - done);
    const size_t offset = done * element_bytes_;
    // The last operand is reduced on the way to the result, unless the result is scaled.
    const size_t into_accumulators = finish ? operands.size() : operands.size() - 1;
    size_t reduced = 0;
    if (into_accumulators == 1) {
      loops_->widen(operands[0] + offset, accumulators, n);
      reduced = 1;
    } else {
      loops_->first(operands[0] + offset, operands[1] + offset, accumulators, n);
      reduced = 2;
    }
    for (; reduced < into_accumulators; ++reduced)
      loops_->next(operands[reduced] + offset, accumulators, n);
    if (finish) {
      loops_->finish(accumulators, reduction_, result + offset, n);
    } else {
      loops_->last(accumulators, operands[reduced] + offset, result + offset, n);
    }
  }
}

void Reducer::scale_input(const std::byte* operand, std::byte* result, size_t count) const {
  loops_->scale_input(operand, reduction_, result, count);
}

}  // namespace niccolite::executor::host
