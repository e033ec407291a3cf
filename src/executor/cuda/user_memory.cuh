// Access to the user's memory, which is aligned to the element and whatever more WorkTask::width
// says, a granule (8 bytes) at a time.
#pragma once

#include "executor/cuda/fold.cuh"
#include "executor/cuda/ptx.cuh"

namespace niccolite::executor::cuda {

inline constexpr uint32_t kGranule = 8;

/// Bytes between the start of a line, which links move as one, and the address in it.
__device__ __forceinline__ uint32_t bytes_into_line(const std::byte* address) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) % kLine);
}

template <typename Piece>
__device__ __forceinline__ uint64_t load_pieces(const std::byte* address, uint32_t bytes) {
  uint64_t granule = 0;
#pragma unroll
  for (uint32_t at = 0; at < 8; at += sizeof(Piece)) {
    if (at < bytes) {
      granule |= static_cast<uint64_t>(ptx::load<Piece>(address + at)) << (8 * at);
    }
  }
  return granule;
}
template <typename Piece>
__device__ __forceinline__ void store_pieces(std::byte* address, uint64_t granule, uint32_t bytes) {
#pragma unroll
  for (uint32_t at = 0; at < 8; at += sizeof(Piece)) {
    if (at < bytes) ptx::store<Piece>(address + at, static_cast<Piece>(granule >> (8 * at)));
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

/// Calls function(Piece()) with the widest piece that `bytes` bytes, at an address aligned to
/// `width`, consist of.
template <typename Element, typename Function>
__device__ __forceinline__ void with_piece(uint32_t width, uint32_t bytes, Function&& function) {
  constexpr uint32_t kElement = sizeof(Element);
  if (bytes >= 8 && width >= 8) return function(uint64_t());
  if constexpr (kElement < 4) {
    if (bytes % 4 == 0 && width >= 4) return function(uint32_t());
  }
  if constexpr (kElement < 2) {
    if (bytes % 2 == 0 && width >= 2) return function(uint16_t());
  }
  return function(typename PieceOf<kElement>::Type());
}

/// `bytes` (at most 8, a multiple of the element) bytes of user memory; the rest of the granule is
/// zero.
template <typename Element>
__device__ __forceinline__ uint64_t load_granule(const std::byte* address, uint32_t bytes,
                                                 uint32_t width) {
  uint64_t granule = 0;
  with_piece<Element>(width, bytes,
                      [&](auto piece) { granule = load_pieces<decltype(piece)>(address, bytes); });
  return granule;
}
template <typename Element>
__device__ __forceinline__ void store_granule(std::byte* address, uint64_t granule, uint32_t bytes,
                                              uint32_t width) {
  with_piece<Element>(width, bytes,
                      [&](auto piece) { store_pieces<decltype(piece)>(address, granule, bytes); });
}

}  // namespace niccolite::executor::cuda
