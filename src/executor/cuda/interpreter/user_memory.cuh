// Access to the user's memory, which is aligned to the element and whatever more WorkTask::width
// says, a vec8 (8 bytes) at a time.
#pragma once

#include <type_traits>

#include "executor/cuda/interpreter/reduce.cuh"
#include "executor/cuda/ptx/ptx.cuh"

namespace niccolite::executor::cuda {

inline constexpr uint32_t kVec8 = 8;

/// Bytes between the start of a line, which links move as one, and the address in it.
__device__ __forceinline__ uint32_t bytes_into_line(const std::byte* address) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) % kLine);
}

template <typename Piece>
__device__ __forceinline__ void store_pieces(std::byte* address, uint64_t vec8, uint32_t bytes) {
#pragma unroll
  for (uint32_t at = 0; at < 8; at += sizeof(Piece)) {
    if (at < bytes) ptx::store<Piece>(address + at, static_cast<Piece>(vec8 >> (8 * at)));
  }
}

template <uint32_t kBytes>
struct PieceOf;
template <>
struct PieceOf<1> {
  using Type = uint8_t;
};
template <>
struct PieceOf<2> {
  using Type = uint16_t;
};
template <>
struct PieceOf<4> {
  using Type = uint32_t;
};
template <>
struct PieceOf<8> {
  using Type = uint64_t;
};

/// One element, in the low bits.
template <typename Element>
__device__ __forceinline__ uint64_t load_element(const std::byte* address) {
  return ptx::load<typename PieceOf<sizeof(Element)>::Type>(address);
}

/// `low` and, behind it, `high`, from byte `offset` (0 to 7) on.
__device__ __forceinline__ uint64_t vec8_in(uint64_t low, uint64_t high, uint32_t offset) {
  const uint64_t middle = ptx::pair(static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high));
  const bool is_late = offset >= 4;
  const uint64_t first = is_late ? middle : low;
  const uint64_t second = is_late ? high : middle;
  const uint32_t bits = offset % 4 * 8;
  return ptx::pair(static_cast<uint32_t>(first >> bits), static_cast<uint32_t>(second >> bits));
}

/// The `bytes` (1 to 8) bytes that lie anywhere, of the aligned words around them, and zeros behind
/// them. (A word that holds a byte of a buffer can be read.)
__device__ __forceinline__ uint64_t load_around(const std::byte* address, uint32_t bytes) {
  const auto offset = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) % kVec8);
  const std::byte* word = address - offset;
  const auto low = ptx::load<uint64_t>(word);
  uint64_t high = 0;
  if (offset + bytes > kVec8) high = ptx::load<uint64_t>(word + kVec8);
  return vec8_in(low, high, offset) & ~uint64_t{0} >> 8 * (kVec8 - bytes);
}

/// The words that a thread loads for two neighbouring vec8s at any address: the three aligned words
/// around them. Elements of 4 bytes need no shifts, so their four halves are loaded instead.
/// Loading and putting together are apart, so that a thread issues all its loads before it puts the
/// first result together.
template <typename Element>
struct PairAround {
  static constexpr bool kByHalves = sizeof(Element) == kVec8 / 2;
  uint64_t words[kByHalves ? 2 : 3];

  /// `bytes` (0 to 16) are there.
  __device__ __forceinline__ static PairAround load(const std::byte* address, uint32_t bytes) {
    PairAround around{};
    if constexpr (kByHalves) {
      uint32_t halves[4] = {};
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        if (bytes > i * 4) halves[i] = ptx::load<uint32_t>(address + i * 4);
      }
      around.words[0] = ptx::pair(halves[0], halves[1]);
      around.words[1] = ptx::pair(halves[2], halves[3]);
    } else {
      const uint32_t into = into_word(address);
      const uint32_t end = bytes == 0 ? 0 : into + bytes;
#pragma unroll
      for (uint32_t i = 0; i < 3; ++i) {
        if (end > i * kVec8) {
          around.words[i] = ptx::load<uint64_t>(address - into + i * kVec8);
        }
      }
    }
    return around;
  }
  /// One vec8 is there, or both.
  __device__ __forceinline__ static PairAround load_whole(const std::byte* address, bool has_both) {
    if constexpr (kByHalves) {
      return load(address, has_both ? 2 * kVec8 : kVec8);
    } else {
      const std::byte* word = address - into_word(address);
      PairAround around{{ptx::load<uint64_t>(word), ptx::load<uint64_t>(word + kVec8)}};
      if (has_both) around.words[2] = ptx::load<uint64_t>(word + 2 * kVec8);
      return around;
    }
  }
  /// Returns the two vec8s at that address, or at one with the same place in its word. Bytes behind
  /// the loaded ones are undefined.
  __device__ __forceinline__ Words pair(const std::byte* address) const {
    if constexpr (kByHalves) {
      return {words[0], words[1]};
    } else {
      const uint32_t into = into_word(address);
      return {vec8_in(words[0], words[1], into), vec8_in(words[1], words[2], into)};
    }
  }

 private:
  __device__ __forceinline__ static uint32_t into_word(const std::byte* address) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) % kVec8);
  }
};

/// The `bytes` (1 to 8) bytes that lie anywhere in shared memory, with anything behind them.
__device__ __forceinline__ uint64_t load_around_shared(const std::byte* address, uint32_t bytes) {
  const auto offset = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) % kVec8);
  const std::byte* word = address - offset;
  const auto low = ptx::load_shared<uint64_t>(word);
  const auto high = ptx::load_shared<uint64_t>(word + (offset + bytes > kVec8 ? kVec8 : 0));
  return vec8_in(low, high, offset);
}

/// Stores the first `bytes` bytes, fewer than a vec8, in pieces of growing or shrinking length,
/// as it takes for them to be aligned: up to a multiple of 8, or from one on.
template <typename Element, bool kShrinks>
__device__ __forceinline__ void store_part(std::byte* address, uint64_t vec8, uint32_t bytes) {
  const auto put = [&]<typename Piece>(Piece) {
    if constexpr (sizeof(Piece) >= sizeof(Element)) {
      if ((bytes & sizeof(Piece)) == 0) return;
      ptx::store<Piece>(address, static_cast<Piece>(vec8));
      address += sizeof(Piece);
      vec8 >>= 8 * sizeof(Piece);
    }
  };
  if constexpr (kShrinks) {
    put(uint32_t());
    put(uint16_t());
    put(uint8_t());
  } else {
    put(uint8_t());
    put(uint16_t());
    put(uint32_t());
  }
}

/// Stores a whole vec8 wherever it belongs, in pieces that are aligned: four at most.
template <typename Element>
__device__ __forceinline__ void store_around(std::byte* address, uint64_t vec8) {
  const auto offset = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) % kVec8);
  if (sizeof(Element) == kVec8 || offset == 0) return ptx::store<uint64_t>(address, vec8);
  const uint32_t ahead = kVec8 - offset;
  store_part<Element, /*kShrinks=*/false>(address, vec8, ahead);
  store_part<Element, /*kShrinks=*/true>(address + ahead, vec8 >> 8 * ahead, offset);
}

/// By all threads of a warp, which have vec8s that follow each other in memory, wherever they
/// belong: `count` (0 to 2) each, from `address` on; threads without any are the last ones.
/// `is_followed`: the next thread has some. Neighbours put together what belongs into the same
/// word: stores of pieces lie apart, and take several times as long.
template <typename Element>
__device__ __forceinline__ void store_row(std::byte* address, const Words& vec8s, uint32_t count,
                                          bool is_followed) {
  const auto offset = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) % kVec8);
  const uint64_t last = count == 2 ? vec8s.second : vec8s.first;
  const uint64_t before = ptx::previous_of_warp(last);
  if (count == 0) return;
  if (offset == 0) {
    ptx::store<uint64_t>(address, vec8s.first);
    if (count == 2) ptx::store<uint64_t>(address + kVec8, vec8s.second);
    return;
  }
  const uint32_t ahead = kVec8 - offset;
  std::byte* word = address - offset;
  // Joins the bytes of two vec8s that follow each other into the word that both lie in.
  const auto join = [&](uint64_t low, uint64_t high) {
    return low >> 8 * ahead | high << 8 * offset;
  };
  if (ptx::thread() % kWarp == 0) {
    store_part<Element, /*kShrinks=*/false>(address, vec8s.first, ahead);
  } else {
    ptx::store<uint64_t>(word, join(before, vec8s.first));
  }
  if (count == 2) ptx::store<uint64_t>(word + kVec8, join(vec8s.first, vec8s.second));
  if (!is_followed) {
    store_part<Element, /*kShrinks=*/true>(word + count * kVec8, last >> 8 * ahead, offset);
  }
}

/// Stores a complete row, `bytes` bytes from `row` on. The thread's vec8s lie `in_row` bytes into
/// it: one, or two if `has_second`. The row's two ends share words with other memory. Together they
/// fill one word, and each of its elements is stored by one thread. (Without a branch: work of a
/// few threads takes as long as work of all.)
template <typename Element>
__device__ __forceinline__ void store_whole_row(std::byte* row, uint32_t bytes, uint32_t in_row,
                                                const Words& vec8s, bool has_second) {
  using Piece = typename PieceOf<sizeof(Element)>::Type;
  const auto offset = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(row + in_row) % kVec8);
  if (offset == 0) {
    ptx::store<uint64_t>(row + in_row, vec8s.first);
    if (has_second) ptx::store<uint64_t>(row + in_row + kVec8, vec8s.second);
    return;
  }
  const uint32_t lane = ptx::thread() % kWarp;
  const uint64_t last = has_second ? vec8s.second : vec8s.first;
  // The bytes before the row's first vec8 are the row's last: both ends share their word.
  const uint64_t before = ptx::value_of_lane(last, (lane + kWarp - 1) % kWarp);
  const auto join = [&](uint64_t low, uint64_t high) { return vec8_in(low, high, kVec8 - offset); };
  std::byte* word = row + in_row - offset;
  const uint64_t first = join(before, vec8s.first);
  if (lane != 0) ptx::store<uint64_t>(word, first);
  if (has_second) ptx::store<uint64_t>(word + kVec8, join(vec8s.first, vec8s.second));
  const uint64_t ends = ptx::value_of_lane(first, 0);
  const uint32_t at = lane * sizeof(Element);
  if (at >= kVec8) return;
  std::byte* end = at < offset ? row + bytes : row;
  ptx::store<Piece>(end - offset + at, static_cast<Piece>(ends >> 8 * at));
}

/// Stores a row that ends `left` bytes behind the begin of the thread's vec8s. The thread has
/// `most` (1 or 2) vec8s, and the next thread has the vec8s behind them. A partial vec8 is the last
/// one.
template <typename Element>
__device__ __forceinline__ void store_row_part(std::byte* row, uint32_t bytes, uint32_t in_row,
                                               const Words& vec8s, uint32_t most, uint32_t left) {
  if (in_row + left >= bytes) return store_whole_row<Element>(row, bytes, in_row, vec8s, most == 2);
  std::byte* address = row + in_row;
  const uint32_t whole = left / kVec8 < most ? left / kVec8 : most;
  const bool is_followed = ptx::thread() % kWarp != kWarp - 1 && left >= (most + 1) * kVec8;
  store_row<Element>(address, vec8s, whole, is_followed);
  if (whole == most || left % kVec8 == 0) return;
  store_pieces<typename PieceOf<sizeof(Element)>::Type>(
      address + whole * kVec8, whole == 0 ? vec8s.first : vec8s.second, left % kVec8);
}

/// 4 or 8 bytes at an address aligned to 4.
__device__ __forceinline__ uint64_t load_halves(const std::byte* address, uint32_t bytes) {
  const uint32_t low = ptx::load<uint32_t>(address);
  uint32_t high = 0;
  if (bytes > 4) high = ptx::load<uint32_t>(address + 4);
  return ptx::pair(low, high);
}

/// Calls function(load), where load(address) gives the `bytes` (at most 8, a multiple of the
/// element) bytes of user memory at an address aligned to `width`, and zeros behind them.
template <typename Element, typename Function>
__device__ __forceinline__ void with_load(uint32_t width, uint32_t bytes, Function&& function) {
  constexpr uint32_t kElement = sizeof(Element);
  const auto load = [&]<typename Piece>(Piece) {
    function([](const std::byte* address) -> uint64_t { return ptx::load<Piece>(address); });
  };
  if (kElement == 8 || (bytes >= 8 && width >= 8)) return load(uint64_t());
  if constexpr (kElement == 4) {
    function([=](const std::byte* address) { return load_halves(address, bytes); });
  } else {
    function([=](const std::byte* address) { return load_around(address, bytes); });
  }
}

/// Loads the vec8 at one address.
template <typename Element>
__device__ __forceinline__ uint64_t load_vec8(const std::byte* address, uint32_t bytes,
                                              uint32_t width) {
  uint64_t vec8 = 0;
  with_load<Element>(width, bytes, [&](auto load) { vec8 = load(address); });
  return vec8;
}

/// Calls function(store), where store(address, vec8) stores the first `bytes` (at most 8, a
/// multiple of the element) bytes of a vec8 to user memory at an address aligned to `width`.
template <typename Element, typename Function>
__device__ __forceinline__ void with_store(uint32_t width, uint32_t bytes, Function&& function) {
  constexpr uint32_t kElement = sizeof(Element);
  const auto store_by = [&]<typename Piece>(Piece) {
    function([=](std::byte* address, uint64_t vec8) { store_pieces<Piece>(address, vec8, bytes); });
  };
  if (kElement == 8 || (bytes >= 8 && width >= 8)) return store_by(uint64_t());
  if constexpr (kElement <= 4) {
    if (kElement == 4 || (bytes % 4 == 0 && width >= 4)) return store_by(uint32_t());
  }
  // Pieces of one length take less code, which a small operation waits for, than fewer and longer
  // ones; single bytes do not.
  if (kElement == 2 || (bytes % 2 == 0 && width >= 2)) return store_by(uint16_t());
  if constexpr (kElement == 1) {
    if (bytes == kVec8) {
      return function(
          [](std::byte* address, uint64_t vec8) { store_around<Element>(address, vec8); });
    }
    return store_by(uint8_t());
  }
}

/// Stores the vec8 to one address.
template <typename Element>
__device__ __forceinline__ void store_vec8(std::byte* address, uint64_t vec8, uint32_t bytes,
                                           uint32_t width) {
  with_store<Element>(width, bytes, [&](auto store) { store(address, vec8); });
}

}  // namespace niccolite::executor::cuda
