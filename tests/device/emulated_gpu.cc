// Fibers for emulated_ptx.h.
#include <ucontext.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "tests/device/emulated_ptx.h"

namespace niccolite::emulation {
namespace {

struct Cta {
  struct Meeting {
    uint32_t arrived = 0;
    uint64_t generation = 0;
  };
  std::vector<std::byte> shared;
  std::map<uint32_t, Meeting> meetings;
};

struct Fiber {
  ucontext_t context{};
  std::unique_ptr<std::byte[]> stack;
  Thread thread;
  Cta* cta = nullptr;
  const std::function<void()>* kernel = nullptr;
  // Not to run before its barrier has this generation.
  const Cta::Meeting* waits_for = nullptr;
  uint64_t generation = 0;
};

constexpr size_t kStackBytes = 64 * 1024;

ucontext_t scheduler;
Fiber* current = nullptr;
std::mt19937_64 random_bits;
bool current_is_done = false;
uint64_t time_of_day = 0;

void enter();

// A function of its own, for getcontext() returns twice.
void prepare(Fiber& fiber) {
  fiber.stack = std::make_unique<std::byte[]>(kStackBytes);
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, enter, 0);
}

void enter() {
  (*current->kernel)();
  current_is_done = true;
  swapcontext(&current->context, &scheduler);
}

}  // namespace

const Thread& this_thread() { return current->thread; }

void yield() { swapcontext(&current->context, &scheduler); }

uint64_t now() { return time_of_day += 250'000'000; }

void maybe_yield() {
  if (random_bits() % 4 == 0) yield();
}

void barrier(uint32_t id, uint32_t threads) {
  Cta::Meeting& meeting = current->cta->meetings[id];
  if (++meeting.arrived == threads) {
    meeting.arrived = 0;
    ++meeting.generation;
    return;
  }
  current->waits_for = &meeting;
  current->generation = meeting.generation + 1;
  yield();
  current->waits_for = nullptr;
}

bool run(const std::vector<Grid>& grids, uint64_t seed, uint64_t limit) {
  random_bits.seed(seed);
  std::deque<Cta> ctas;
  std::deque<Fiber> fibers;
  std::vector<Fiber*> ready;
  for (const Grid& grid : grids) {
    for (uint32_t cta = 0; cta < grid.x * grid.y; ++cta) {
      // Shared memory of a new CTA holds anything.
      ctas.push_back({std::vector<std::byte>(grid.shared_bytes + 16, std::byte{0xa5}), {}});
      for (uint32_t t = 0; t < grid.threads; ++t) {
        Fiber& fiber = fibers.emplace_back();
        fiber.cta = &ctas.back();
        auto* shared = fiber.cta->shared.data();
        shared += (16 - reinterpret_cast<uintptr_t>(shared) % 16) % 16;
        fiber.thread = {t, grid.threads, cta % grid.x, cta / grid.x, shared};
        fiber.kernel = &grid.kernel;
        prepare(fiber);
        ready.push_back(&fiber);
      }
    }
  }
  for (uint64_t switches = 0; !ready.empty(); ++switches) {
    if (switches > limit) return false;
    const size_t chosen = random_bits() % ready.size();
    Fiber& fiber = *ready[chosen];
    if (fiber.waits_for != nullptr && fiber.waits_for->generation < fiber.generation) continue;
    current = &fiber;
    current_is_done = false;
    swapcontext(&scheduler, &fiber.context);
    if (current_is_done) {
      ready[chosen] = ready.back();
      ready.pop_back();
    }
  }
  return true;
}

}  // namespace niccolite::emulation
