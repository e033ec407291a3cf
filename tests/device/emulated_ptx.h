// A GPU for the kernels' source on a CPU, one fiber per GPU thread: included before
// executor/cuda/interpreter/kernel.cuh, it stands in for ptx.cuh. Finds errors of logic (a wrong
// address, flag, step, barrier, reduction order, a deadlock), not of memory order: fibers run one
// at a time.
//
// The threads of a warp do not run in step here. What kernels may count on is only that accesses of
// up to 16 bytes are whole, and that eight neighbours who access the parts of one LL128 line do so
// at once: they meet, and the last to come moves all 128 bytes. Eight that come with parts of
// different lines, or in the wrong order, are torn; some that do not come at all, a deadlock.
#pragma once
#define NICCOLITE_EXECUTOR_CUDA_PTX_CUH

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "executor/cuda/interpreter/device_types.h"
#include "executor/numeric/element.h"

// What kernels have inlined for the sake of registers, they share here: a quarter of the time to
// compile it.
#undef __forceinline__
#define __forceinline__ inline

namespace niccolite::emulation {

/// Where the running fiber is.
struct Thread {
  uint32_t index = 0;
  uint32_t count = 0;
  uint32_t x = 0;
  uint32_t y = 0;
  uint32_t replicas = 0;  // that the grid is wide
  std::byte* shared = nullptr;
};
const Thread& this_thread();
/// Lets another fiber run, sometimes, so that every run has its own interleaving.
void maybe_yield();
void yield();
/// Waits until `threads` fibers of the CTA have come to barrier `id`.
void barrier(uint32_t id, uint32_t threads);
void barrier_warp();
bool any_of_warp(bool value);
bool any_of_cta(bool value);
uint32_t first_of_warp(uint32_t value);
uint64_t value_of_lane(uint64_t value, uint32_t lane);
uint64_t previous_of_warp(uint64_t value);
uint64_t fetch_add(uint64_t* address, uint64_t value);
/// Grows by one each time.
uint64_t global_time();
/// The fiber's 16 bytes of a line of 128, together with those of its seven neighbours.
void load_line_part(const std::byte* address, void* part);
void store_line_part(std::byte* address, const void* part);
bool has_bulk_copies();
void init_stage_barrier(uint64_t* barrier, uint32_t arrivals);
void await_stage(uint64_t* barrier, uint32_t parity);
// Copies happen as late as they may: a load when its barrier is waited for, and until then its
// stage holds garbage; a store when its group is waited for, with what its stage then holds.
void async_load(std::byte* shared, const std::byte* source);
void arrive_after_async_loads(uint64_t* barrier);
void arrive(uint64_t* barrier);
void bulk_load(std::byte* shared, const std::byte* source, uint32_t bytes, uint64_t* barrier);
void bulk_store(std::byte* target, const std::byte* shared, uint32_t bytes);
void commit_bulk_stores();
void await_bulk_reads(uint32_t groups);
void await_bulk_stores(uint32_t groups);
/// The memory of each member behind an address of a team.
std::vector<std::byte*> members_at(const std::byte* address);
/// The calling thread loads a counter of a connection. See most_warps_at_a_counter().
void note_look(const void* counter);
/// GPUs take no other addresses.
inline void expect_aligned(const void* address, size_t to) {
  if (reinterpret_cast<uintptr_t>(address) % to == 0) return;
  std::fprintf(stderr, "an access of %zu bytes to %p\n", to, address);
  std::abort();
}

}  // namespace niccolite::emulation

namespace niccolite::executor::cuda::ptx {

inline uint32_t thread() { return emulation::this_thread().index; }
inline uint32_t threads() { return emulation::this_thread().count; }
inline uint32_t replica() { return emulation::this_thread().x; }
inline uint32_t pattern_channel() { return emulation::this_thread().y; }
inline uint32_t cta_anew() {
  return pattern_channel() * emulation::this_thread().replicas + replica();
}
inline bool is_last_thread_anew() { return thread() == threads() - 1; }
inline uint64_t global_time() { return emulation::global_time(); }
inline std::byte* shared_memory() { return emulation::this_thread().shared; }

inline uint32_t opaque(uint32_t value) { return value; }
inline uint64_t opaque(uint64_t value) { return value; }
inline uint64_t pair(uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; }

// Many looks long, as on a GPU, but no second: a wait need not be long to be late.
inline constexpr uint32_t kSpinsPerReport = 1u << 15;
inline constexpr uint32_t kSharedLooksPerSpin = 1;
inline void sleep(uint32_t) { emulation::yield(); }

inline uint64_t load_acquire_system(const uint64_t* address) {
  emulation::note_look(address);
  emulation::yield();
  return *address;
}
inline uint32_t load_relaxed_system(const uint32_t* address) { return *address; }
inline uint64_t load_relaxed_system(const uint64_t* address) {
  emulation::note_look(address);
  emulation::yield();
  return *address;
}
inline uint32_t load_acquire_system(const uint32_t* address) {
  emulation::yield();
  return *address;
}
inline void store_relaxed_system(uint32_t* address, uint32_t value) { *address = value; }
inline void store_relaxed_system(uint64_t* address, uint64_t value) { *address = value; }
inline uint64_t exchange_acquire_system(uint64_t* address, uint64_t value) {
  emulation::yield();
  return std::exchange(*address, value);
}
inline uint64_t fetch_add_relaxed(uint64_t* address, uint64_t value) {
  return emulation::fetch_add(address, value);
}
inline uint64_t load_relaxed_shared(const uint64_t* address) { return *address; }
inline void store_relaxed_shared(uint64_t* address, uint64_t value) { *address = value; }

inline void store_release_shared(uint64_t* address, uint64_t value) { *address = value; }
inline uint64_t load_acquire_shared(const uint64_t* address) {
  emulation::yield();
  return *address;
}
inline void store_release_shared(uint32_t* address, uint32_t value) { *address = value; }
inline uint32_t load_acquire_shared(const uint32_t* address) {
  emulation::yield();
  return *address;
}
inline uint32_t load_relaxed_shared(const uint32_t* address) { return *address; }
inline void store_relaxed_shared(uint32_t* address, uint32_t value) { *address = value; }
inline void fence_system() {}

inline Words load_words(const std::byte* address) {
  emulation::expect_aligned(address, sizeof(Words));
  emulation::maybe_yield();
  Words words;
  std::memcpy(&words, address, sizeof words);
  return words;
}
inline void store_words(std::byte* address, Words words) {
  emulation::expect_aligned(address, sizeof words);
  emulation::maybe_yield();
  std::memcpy(address, &words, sizeof words);
}
inline Words load_line_part(const std::byte* address) {
  Words words;
  emulation::load_line_part(address, &words);
  return words;
}
inline void store_line_part(std::byte* address, Words words) {
  emulation::store_line_part(address, &words);
}
inline bool any_of_warp(bool value) { return emulation::any_of_warp(value); }
inline bool any_of_cta(bool value) { return emulation::any_of_cta(value); }
inline uint32_t first_of_warp(uint32_t value) { return emulation::first_of_warp(value); }
inline uint64_t previous_of_warp(uint64_t value) { return emulation::previous_of_warp(value); }
inline uint64_t value_of_lane(uint64_t value, uint32_t lane) {
  return emulation::value_of_lane(value, lane);
}
inline Vec16 load_vec16(const std::byte* address) {
  emulation::expect_aligned(address, sizeof(Vec16));
  Vec16 vec16;
  std::memcpy(&vec16, address, sizeof vec16);
  return vec16;
}
inline Vec16 load_vec16_shared(const std::byte* address) { return load_vec16(address); }
inline void store_vec16(std::byte* address, Vec16 vec16) {
  emulation::expect_aligned(address, sizeof vec16);
  std::memcpy(address, &vec16, sizeof vec16);
}
template <typename T>
T load(const std::byte* address) {
  emulation::expect_aligned(address, sizeof(T));
  T value;
  std::memcpy(&value, address, sizeof value);
  return value;
}
template <typename T>
void store(std::byte* address, T value) {
  emulation::expect_aligned(address, sizeof value);
  std::memcpy(address, &value, sizeof value);
}
template <typename T>
T load_shared(const std::byte* address) {
  return load<T>(address);
}

inline void store_shared(std::byte* address, uint64_t value) { store(address, value); }

inline void fence_aliases() {}
inline void store_to_team(std::byte* address, const Vec16& vec16) {
  for (std::byte* const member : emulation::members_at(address)) store_vec16(member, vec16);
}
inline void store_words_to_team(std::byte* address, const Words& words) {
  // One word after the other: some members have one of them.
  for (const uint64_t Words::*const word : {&Words::first, &Words::second}) {
    emulation::maybe_yield();
    const size_t offset = word == &Words::first ? 0 : sizeof(uint64_t);
    for (std::byte* const member : emulation::members_at(address + offset)) {
      store(member, words.*word);
      emulation::maybe_yield();
    }
  }
}
template <DataType kType, ReduceOp kOp>
Vec16 load_from_team(const std::byte* address) {
  using E = Element<kType>;
  constexpr size_t kElements = sizeof(Vec16) / sizeof(typename E::Storage);
  std::array<typename E::Accumulator, kElements> sums{};
  bool is_first = true;
  for (const std::byte* const member : emulation::members_at(address)) {
    const Vec16 loaded = load_vec16(member);
    typename E::Storage elements[kElements];
    std::memcpy(elements, &loaded, sizeof loaded);
    for (size_t i = 0; i < kElements; ++i) {
      const auto value = E::widen(elements[i]);
      sums[i] = is_first ? value : executor::reduce<kOp>(sums[i], value);
    }
    is_first = false;
  }
  Vec16 result{};
  for (size_t i = 0; i < kElements; ++i) {
    const typename E::Storage element = E::narrow(sums[i]);
    std::memcpy(reinterpret_cast<std::byte*>(&result) + i * sizeof element, &element,
                sizeof element);
  }
  return result;
}

inline bool has_bulk_copies() { return emulation::has_bulk_copies(); }
inline void init_stage_barrier(uint64_t* barrier, uint32_t arrivals) {
  emulation::init_stage_barrier(barrier, arrivals);
}
inline void invalidate_stage_barrier(uint64_t*) {}
inline void fence_bulk_of_shared() {}
inline void await_stage(uint64_t* barrier, uint32_t parity) {
  emulation::await_stage(barrier, parity);
}
inline void async_load(std::byte* shared, const std::byte* source) {
  emulation::async_load(shared, source);
}
inline void arrive_after_async_loads(uint64_t* barrier) {
  emulation::arrive_after_async_loads(barrier);
}
inline void arrive(uint64_t* barrier) { emulation::arrive(barrier); }
inline void fence_bulk() {}
inline void bulk_load(std::byte* shared, const std::byte* source, uint32_t bytes,
                      uint64_t* barrier) {
  emulation::bulk_load(shared, source, bytes, barrier);
}
inline void bulk_store(std::byte* target, const std::byte* shared, uint32_t bytes) {
  emulation::bulk_store(target, shared, bytes);
}
inline void commit_bulk_stores() { emulation::commit_bulk_stores(); }
template <uint32_t kGroups>
void await_bulk_reads() {
  emulation::await_bulk_reads(kGroups);
}
template <uint32_t kGroups>
void await_bulk_stores() {
  emulation::await_bulk_stores(kGroups);
}

inline void barrier_cta() {
  emulation::barrier(static_cast<uint32_t>(Barrier::Cta), emulation::this_thread().count);
}
inline void barrier(uint32_t id, uint32_t threads) { emulation::barrier(id, threads); }
inline void barrier_warp() { emulation::barrier_warp(); }

}  // namespace niccolite::executor::cuda::ptx
