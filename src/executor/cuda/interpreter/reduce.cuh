// Arithmetic on *vec8s*: the 8 bytes of data that a thread handles at a time, 1 to 8 elements.
// Vec8<type> widens a vec8 to accumulators and narrows it back, rounding once; Operation adds the
// Reduction. Compiled without contraction of multiplications and additions, so that results equal
// the results of executor/numeric/element.h, bit for bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "executor/cuda/interpreter/byte_quotient.h"
#include "executor/cuda/launch/launch_args.h"
#include "executor/numeric.h"

namespace niccolite::executor::cuda {

template <typename To, typename From>
__device__ __forceinline__ To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(static_cast<void*>(&to), static_cast<const void*>(&from), sizeof(to));
  return to;
}

template <typename T, int kCount>
struct Wide {
  T value[kCount];
};

/// Types that are reduced as they are. Narrow integers are reduced in the width of a register: sums
/// and products modulo 2^32 are right modulo 2^8, and maxima are exact.
template <typename T, typename Register>
struct PlainVec8 {
  using Element = T;
  using Accumulator = Register;
  static constexpr int kElements = 8 / sizeof(T);
  using Values = Wide<Accumulator, kElements>;

  static __device__ __forceinline__ Values widen(uint64_t vec8) {
    Values values;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if constexpr (sizeof(T) == 8) {
        values.value[i] = bits_as<T>(vec8);
      } else if constexpr (sizeof(T) == 4) {
        values.value[i] = bits_as<T>(static_cast<uint32_t>(vec8 >> (32 * i)));
      } else {
        values.value[i] = static_cast<T>(static_cast<uint8_t>(vec8 >> (8 * i)));
      }
    }
    return values;
  }
  static __device__ __forceinline__ uint64_t narrow(const Values& values) {
    uint64_t vec8 = 0;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if constexpr (sizeof(T) == 8) {
        vec8 = bits_as<uint64_t>(values.value[i]);
      } else if constexpr (sizeof(T) == 4) {
        vec8 |= static_cast<uint64_t>(bits_as<uint32_t>(values.value[i])) << (32 * i);
      } else {
        vec8 |= static_cast<uint64_t>(static_cast<uint8_t>(values.value[i])) << (8 * i);
      }
    }
    return vec8;
  }
};

struct Float16Vec8 {
  using Element = uint16_t;
  using Accumulator = float;
  static constexpr int kElements = 4;
  using Values = Wide<float, 4>;

  static __device__ __forceinline__ Values widen(uint64_t vec8) {
    const float2 low = __half22float2(bits_as<__half2>(static_cast<uint32_t>(vec8)));
    const float2 high = __half22float2(bits_as<__half2>(static_cast<uint32_t>(vec8 >> 32)));
    return {{low.x, low.y, high.x, high.y}};
  }
  static __device__ __forceinline__ uint64_t narrow(const Values& values) {
    const __half2 low = __floats2half2_rn(values.value[0], values.value[1]);
    const __half2 high = __floats2half2_rn(values.value[2], values.value[3]);
    return static_cast<uint64_t>(bits_as<uint32_t>(high)) << 32 | bits_as<uint32_t>(low);
  }
};

struct Bfloat16Vec8 {
  using Element = uint16_t;
  using Accumulator = float;
  static constexpr int kElements = 4;
  using Values = Wide<float, 4>;

  static __device__ __forceinline__ Values widen(uint64_t vec8) {
    Values values;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      values.value[i] = bits_as<float>(static_cast<uint32_t>(vec8 >> (16 * i)) << 16);
    }
    return values;
  }
  static __device__ __forceinline__ uint64_t narrow(const Values& values) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(values.value[0], values.value[1]);
    const __nv_bfloat162 high = __floats2bfloat162_rn(values.value[2], values.value[3]);
    return static_cast<uint64_t>(bits_as<uint32_t>(high)) << 32 | bits_as<uint32_t>(low);
  }
};

template <__nv_fp8_interpretation_t kFormat>
struct Float8Vec8 {
  using Element = uint8_t;
  using Accumulator = float;
  static constexpr int kElements = 8;
  using Values = Wide<float, 8>;

  static __device__ __forceinline__ Values widen(uint64_t vec8) {
    Values values;
#pragma unroll
    for (int i = 0; i < kElements; i += 2) {
      const auto pair = static_cast<__nv_fp8x2_storage_t>(vec8 >> (8 * i));
      const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(pair, kFormat);
      const float2 floats = __half22float2(__half2(halves));
      values.value[i] = floats.x;
      values.value[i + 1] = floats.y;
    }
    return values;
  }
  static __device__ __forceinline__ uint64_t narrow(const Values& values) {
    uint64_t vec8 = 0;
#pragma unroll
    for (int i = 0; i < kElements; i += 2) {
      const float2 floats = make_float2(values.value[i], values.value[i + 1]);
      const __nv_fp8x2_storage_t pair = __nv_cvt_float2_to_fp8x2(floats, __NV_SATFINITE, kFormat);
      vec8 |= static_cast<uint64_t>(pair) << (8 * i);
    }
    return vec8;
  }
};

template <DataType kType>
struct Vec8;
template <>
struct Vec8<DataType::Int8> : PlainVec8<int8_t, int32_t> {};
template <>
struct Vec8<DataType::Uint8> : PlainVec8<uint8_t, uint32_t> {};
template <>
struct Vec8<DataType::Int32> : PlainVec8<int32_t, int32_t> {};
template <>
struct Vec8<DataType::Uint32> : PlainVec8<uint32_t, uint32_t> {};
template <>
struct Vec8<DataType::Int64> : PlainVec8<int64_t, int64_t> {};
template <>
struct Vec8<DataType::Uint64> : PlainVec8<uint64_t, uint64_t> {};
template <>
struct Vec8<DataType::Float16> : Float16Vec8 {};
template <>
struct Vec8<DataType::Float32> : PlainVec8<float, float> {};
template <>
struct Vec8<DataType::Float64> : PlainVec8<double, double> {};
template <>
struct Vec8<DataType::Bfloat16> : Bfloat16Vec8 {};
template <>
struct Vec8<DataType::Float8e4m3> : Float8Vec8<__NV_E4M3> {};
template <>
struct Vec8<DataType::Float8e5m2> : Float8Vec8<__NV_E5M2> {};

template <ReduceOp kOp, typename T>
__device__ __forceinline__ T reduce(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if constexpr (kOp == ReduceOp::Sum) return a + b;
    if constexpr (kOp == ReduceOp::Product) return a * b;
    if constexpr (kOp == ReduceOp::Max && sizeof(T) == 8) return fmax(a, b);
    if constexpr (kOp == ReduceOp::Max && sizeof(T) == 4) return fmaxf(a, b);
    if constexpr (kOp == ReduceOp::Min && sizeof(T) == 8) return fmin(a, b);
    if constexpr (kOp == ReduceOp::Min && sizeof(T) == 4) return fminf(a, b);
  } else {
    using Wrapping = std::make_unsigned_t<T>;
    if constexpr (kOp == ReduceOp::Sum) {
      return static_cast<T>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
    }
    if constexpr (kOp == ReduceOp::Product) {
      return static_cast<T>(static_cast<Wrapping>(a) * static_cast<Wrapping>(b));
    }
    if constexpr (kOp == ReduceOp::Max) return a > b ? a : b;
    if constexpr (kOp == ReduceOp::Min) return a < b ? a : b;
  }
}

/// The accumulators of vec8s: each element in an accumulator of its own.
template <DataType kType, ReduceOp kOp>
struct Accumulation {
  using Values = typename Vec8<kType>::Values;

  static __device__ __forceinline__ Values widen(uint64_t vec8) { return Vec8<kType>::widen(vec8); }
  static __device__ __forceinline__ uint64_t narrow(const Values& values) {
    return Vec8<kType>::narrow(values);
  }
  static __device__ __forceinline__ void accumulate(Values& into, const Values& values) {
#pragma unroll
    for (int i = 0; i < Vec8<kType>::kElements; ++i) {
      into.value[i] = cuda::reduce<kOp>(into.value[i], values.value[i]);
    }
  }
};

/// Sums of bytes, modulo 2^8, four in a register: the upper bits are added apart, so that no carry
/// leaves its byte. 8 instructions a vec8, where widening to registers takes 30.
struct ByteSums {
  using Values = Wide<uint32_t, 2>;

  static __device__ __forceinline__ Values widen(uint64_t vec8) {
    return {{static_cast<uint32_t>(vec8), static_cast<uint32_t>(vec8 >> 32)}};
  }
  static __device__ __forceinline__ uint64_t narrow(const Values& values) {
    return static_cast<uint64_t>(values.value[1]) << 32 | values.value[0];
  }
  static __device__ __forceinline__ void accumulate(Values& into, const Values& values) {
    constexpr uint32_t kUpper = 0x80808080u;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t a = into.value[i], b = values.value[i];
      into.value[i] = ((a & ~kUpper) + (b & ~kUpper)) ^ ((a ^ b) & kUpper);
    }
  }
};
template <>
struct Accumulation<DataType::Int8, ReduceOp::Sum> : ByteSums {};
template <>
struct Accumulation<DataType::Uint8, ReduceOp::Sum> : ByteSums {};

/// One reduction of one type: kType is as reduced_as() says.
template <DataType kType, ReduceOp kOp>
struct ReduceOperation : Accumulation<kType, kOp> {
  static constexpr bool kReduces = true;
  static constexpr bool kByTeam = false;
  static constexpr bool kHasPlaces = false;
  static constexpr DataType kDataType = kType;
  static constexpr ReduceOp kReduceOp = kOp;
  /// Averages and PreMulSum are sums; prepare() lets no other reduction scale.
  static constexpr bool kScales = kOp == ReduceOp::Sum;
  using Base = Vec8<kType>;
  using Accumulator = typename Base::Accumulator;
  using Element = typename Base::Element;
  using typename Accumulation<kType, kOp>::Values;
  using Accumulation<kType, kOp>::narrow;
  /// Number of vec16s that a thread of the Simple protocol reduces at once, limited by registers. A
  /// vec16 takes 4 registers for the data being reduced, 4 for the data on its way, and its
  /// accumulators. Arithmetic of 64 bits needs some more.
  static constexpr int kAccumulatorRegisters = 2 * static_cast<int>(sizeof(Values)) / 4;
  static constexpr int kUnroll = kAccumulatorRegisters > 8 || sizeof(Accumulator) == 8 ? 2
                                 : kAccumulatorRegisters > 4                           ? 3
                                                                                       : 4;

  /// Number of rows that a thread of LL128 reduces at once. The thread keeps more other values, so
  /// the number is smaller. One row more spills registers.
  static constexpr int kLineRows = kAccumulatorRegisters > 8   ? 1
                                   : kAccumulatorRegisters > 4 ? 2
                                   : kUnroll > 3               ? 3
                                                               : kUnroll;

  static constexpr __host__ __device__ uint32_t element_bytes(const LaunchHeader&) {
    return sizeof(Element);
  }
  /// The scale of the launch, or factor of an integer type.
  static __device__ __forceinline__ Accumulator input_scale(const LaunchHeader& header) {
    if constexpr (std::is_floating_point_v<Accumulator>) {
      return static_cast<Accumulator>(header.input_scale);
    } else {
      return static_cast<Accumulator>(header.input_factor);
    }
  }
  /// The scale that is the first element of a vec8.
  static __device__ __forceinline__ Accumulator input_scale(uint64_t vec8) {
    return Base::widen(vec8).value[0];
  }
  static __device__ __forceinline__ uint64_t scale_input(Accumulator scale, uint64_t vec8) {
    if constexpr (kScales) {
      typename Base::Values values = Base::widen(vec8);
#pragma unroll
      for (int i = 0; i < Base::kElements; ++i) {
        values.value[i] = cuda::reduce<ReduceOp::Product>(values.value[i], scale);
      }
      vec8 = Base::narrow(values);
    }
    return vec8;
  }
  /// The vec8 of a result. Integers are scaled once they are narrow: their quotients are those
  /// of elements, and a division wants registers.
  static __device__ __forceinline__ uint64_t finish(const LaunchHeader& header, Values& values,
                                                    bool scales_result) {
    if constexpr (!kScales) {
      return narrow(values);
    } else if constexpr (std::is_floating_point_v<Accumulator>) {
      if (scales_result) {
#pragma unroll
        for (int i = 0; i < Base::kElements; ++i) {
          values.value[i] *= static_cast<Accumulator>(header.result_scale);
        }
      }
      return narrow(values);
    } else {
      const uint64_t vec8 = narrow(values);
      if (!scales_result) return vec8;
      if constexpr (sizeof(Element) == 1) {
        return byte_quotients_of(vec8, header.result_divider,
                                 /*have_signs=*/(header.flags & kUnsigned) == 0);
      } else {
        typename Base::Values quotients = Base::widen(vec8);
#pragma unroll
        for (int i = 0; i < Base::kElements; ++i) {
          quotients.value[i] = quotient(header, static_cast<Element>(quotients.value[i]));
        }
        return Base::narrow(quotients);
      }
    }
  }

  /// Whether finish_all() is better than finish() of each.
  static constexpr bool kFinishesTogether =
      kScales && sizeof(Element) == 1 && !std::is_floating_point_v<Accumulator>;
  /// finish() of several, which decides once for all of them how they are divided: what a branch
  /// stands between is not done at the same time. Calls set(i, the vec8 of the i-th result).
  template <int kCount, typename Set>
  static __device__ __forceinline__ void finish_all(const LaunchHeader& header,
                                                    Values (&values)[kCount], bool scales_result,
                                                    Set&& set) {
    const bool have_signs = (header.flags & kUnsigned) == 0;
    const uint32_t divider = header.result_divider;
    const auto set_all = [&](auto&& result_of) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) set(i, result_of(narrow(values[i])));
    };
    if (!scales_result) {
      set_all([](uint64_t vec8) { return vec8; });
    } else if ((divider & kBytesShift) == 0) {
      set_all([&](uint64_t vec8) { return byte_quotients_of(vec8, divider, have_signs); });
    } else if (have_signs) {
      set_all([&](uint64_t vec8) { return byte_quotients_of(vec8, divider | kBytesShift, true); });
    } else {
      set_all([&](uint64_t vec8) { return byte_quotients_of(vec8, divider | kBytesShift, false); });
    }
  }

 private:
  static __device__ __forceinline__ uint64_t byte_quotients_of(uint64_t vec8, uint32_t divider,
                                                               bool have_signs) {
    const auto half = [&](uint64_t elements) {
      return byte_quotients(static_cast<uint32_t>(elements), divider, have_signs);
    };
    return uint64_t{half(vec8 >> 32)} << 32 | half(vec8);
  }
  /// Truncates toward zero. One division for both signs, which is most of the code.
  static __device__ __forceinline__ Accumulator quotient(const LaunchHeader& header,
                                                         Element element) {
    using Bits = std::make_unsigned_t<Element>;
    using Unsigned = std::make_unsigned_t<Accumulator>;
    const bool is_negative = (header.flags & kUnsigned) == 0 && element < 0;
    const auto bits = static_cast<Bits>(element);
    const Unsigned magnitude = is_negative ? static_cast<Bits>(0 - bits) : bits;
    const Unsigned result = magnitude / static_cast<Unsigned>(header.result_divisor);
    return static_cast<Accumulator>(is_negative ? 0 - result : result);
  }
};

/// Moves bytes; for programs in which every instruction has one operand.
struct CopyOperation {
  static constexpr bool kReduces = false;
  static constexpr bool kByTeam = false;
  static constexpr bool kHasPlaces = false;
  using Element = uint8_t;
  static __device__ __forceinline__ uint32_t element_bytes(const LaunchHeader& header) {
    return header.element_bytes;
  }
};

}  // namespace niccolite::executor::cuda
