// niccolite/emulation_words.h: CUDA's words in kernels, as niccolite/emulation.h means them. Only
// niccolite/device.h includes it. The words without a namespace are macros and functions of the
// program: include device.h in files with kernels alone.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef NICCOLITE_EMULATION_WORDS_H_
#define NICCOLITE_EMULATION_WORDS_H_

#include <atomic>
#include <cmath>

#ifndef __global__
#define __global__
#endif
#define threadIdx (::niccolite::emulation::thread_index())
#define blockIdx (::niccolite::emulation::block_index())
#define blockDim (::niccolite::emulation::block_dim())
#define gridDim (::niccolite::emulation::grid_dim())
constexpr int warpSize = 32;

inline void __syncthreads() { niccolite::emulation::sync_block(); }
inline int __syncthreads_count(int value) {
  return niccolite::emulation::count_in_block(value != 0);
}
inline int __syncthreads_or(int value) { return __syncthreads_count(value) != 0 ? 1 : 0; }
inline int __syncthreads_and(int value) { return __syncthreads_count(value == 0) == 0 ? 1 : 0; }
inline void __syncwarp(unsigned = 0xffffffffu) { niccolite::emulation::sync_warp(); }

// All threads of the warp that have not ended take part, whatever the mask says.
template <typename T>
T __shfl_sync(unsigned, T value, int lane, int width = 32) {
  namespace e = niccolite::emulation;
  const auto w = static_cast<unsigned>(width);
  return e::shuffle(value, e::lane() / w * w + static_cast<unsigned>(lane) % w);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
  namespace e = niccolite::emulation;
  return e::shuffle(value, e::within(e::lane() ^ static_cast<unsigned>(mask), width));
}
template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned delta, int width = 32) {
  namespace e = niccolite::emulation;
  return e::shuffle(value, delta > e::lane() ? e::lane() : e::within(e::lane() - delta, width));
}
template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned delta, int width = 32) {
  namespace e = niccolite::emulation;
  return e::shuffle(value, e::within(e::lane() + delta, width));
}
inline unsigned __ballot_sync(unsigned, int value) {
  return niccolite::emulation::ballot(value != 0);
}
inline int __any_sync(unsigned mask, int value) { return __ballot_sync(mask, value) != 0 ? 1 : 0; }
inline int __all_sync(unsigned mask, int value) {
  return __ballot_sync(mask, value == 0) == 0 ? 1 : 0;
}
inline unsigned __activemask() { return niccolite::emulation::present_lanes(); }

inline float rsqrtf(float value) { return 1 / std::sqrt(value); }

inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }

template <typename T>
T atomicAdd(T* address, T value) {
  return niccolite::emulation::atomic_update(address,
                                             [&](T old) { return static_cast<T>(old + value); });
}
template <typename T>
T atomicMax(T* address, T value) {
  return niccolite::emulation::atomic_update(address,
                                             [&](T old) { return old < value ? value : old; });
}
template <typename T>
T atomicMin(T* address, T value) {
  return niccolite::emulation::atomic_update(address,
                                             [&](T old) { return value < old ? value : old; });
}
template <typename T>
T atomicExch(T* address, T value) {
  return niccolite::emulation::atomic_update(address, [&](T) { return value; });
}
template <typename T>
T atomicCAS(T* address, T expected, T value) {
  return niccolite::emulation::atomic_update(address,
                                             [&](T old) { return old == expected ? value : old; });
}

#endif  // NICCOLITE_EMULATION_WORDS_H_
