// A GPU on the CPU for tests of the kernels: emulated_ptx.h says what it models.
#pragma once

#include <functional>
#include <span>

#include "executor/cuda/launch/kernel_launch.h"

namespace niccolite::emulation {

/// Runs all launches at once, a fiber for each GPU thread, in an order drawn from `seed`. Their
/// device parameters stay in host memory. False: they have not ended after `limit` switches of
/// fibers, or none is ready (a deadlock), an access to an LL128 line was torn, or bulk copies were
/// misused.
bool run(std::span<executor::cuda::KernelLaunch* const> launches, uint64_t seed,
         uint64_t limit = 20'000'000);

/// The next run() sets *word to `value` after so many switches of fibers. May be called several
/// times, in the order of the switches.
void set_after(uint64_t switches, uint32_t* word, uint32_t value);
/// The same, to end kernels.
inline void abort_after(uint64_t switches, uint32_t* word) { set_after(switches, word, 1); }

/// The next run() calls it every few switches of fibers: what goes on beside the GPUs.
void set_bystander(std::function<void()> bystander);

/// The next run() calls it with the number of each launch whose kernel has ended.
void set_end_hook(std::function<void(size_t)> hook);

/// Kernels run as those of an architecture that has bulk copies (the default), or has none.
void set_bulk_copies(bool has_them);

/// Until the next call, kernels store by `addresses`[i], and load from there: to the memory of
/// all members on the machine of i, and reduced over it. Each has `bytes` bytes.
void set_team(std::vector<std::byte*> addresses, std::vector<std::byte*> members, size_t bytes,
              std::vector<int> machines);

/// Atomic additions since the program began.
uint64_t fetch_adds();

/// Warps of a CTA that loaded the same counter of a connection since the last call, of the counter
/// that most of them did.
uint32_t most_warps_at_a_counter();

/// What one thread does; called by its fiber.
void run_thread(const executor::cuda::KernelId& id, const executor::cuda::LaunchArgs& args);

}  // namespace niccolite::emulation
