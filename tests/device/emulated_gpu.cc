#include "tests/device/emulated_gpu.h"

#include <setjmp.h>
#include <ucontext.h>
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/device/emulated_ptx.h"

namespace niccolite::emulation {
namespace {

constexpr uint32_t kWarp = 32;
constexpr uint32_t kLineThreads = 8;
constexpr size_t kPartBytes = 16;

// Barriers: those of the kernels, then one for each warp and each group of threads at a line.
constexpr uint32_t kFirstWarp = 16;
constexpr uint32_t kFirstLine = kFirstWarp + 32;

struct Fiber;

struct Cta {
  struct Meeting {
    uint32_t arrived = 0;
    std::vector<Fiber*> waiting;  // who has arrived, but the last
  };
  struct Line {  // an access of eight threads that comes together
    std::byte* address[kLineThreads];
    void* part[kLineThreads];
  };
  struct Vote {
    bool any = false;
    bool result = false;
  };
  struct Load {  // to a stage, that has not happened yet
    const Fiber* starter;
    std::byte* shared;
    const std::byte* source;
    uint32_t bytes;
    uint64_t* barrier;  // null: not announced
  };
  explicit Cta(uint32_t threads, size_t shared_bytes)
      // Shared memory of a new CTA holds anything.
      : shared(shared_bytes, std::byte{0xa5}),
        meetings(kFirstLine + threads / kLineThreads + 1),
        lines(threads / kLineThreads + 1),
        votes(threads / kWarp + 1),
        firsts(threads / kWarp + 1),
        values(threads) {}

  std::vector<std::byte> shared;
  std::vector<Load> loads;
  std::vector<Meeting> meetings;
  std::vector<Line> lines;       // by thread / kLineThreads
  std::vector<Vote> votes;       // by warp
  Vote vote;                     // of all
  std::vector<uint32_t> firsts;  // by warp: first_of_warp()
  std::vector<uint64_t> values;  // by thread: value_of_lane()
};

/// Bulk stores of one thread that have not happened yet.
struct BulkStores {
  struct Store {
    std::byte* target;
    const std::byte* shared;
    uint32_t bytes;
    std::vector<std::byte> read;  // empty until shared memory is read
  };
  std::vector<Store> open;  // not committed
  std::deque<std::vector<Store>> groups;
};

constexpr size_t kStackBytes = 64 * 1024;
using Stack = std::unique_ptr<std::byte[]>;

struct Fiber {
  ucontext_t begin{};  // where it has not begun
  jmp_buf place{};     // where it has
  bool has_begun = false;
  Stack stack;
  Thread thread;
  Cta* cta = nullptr;
  const executor::cuda::KernelLaunch* launch = nullptr;
  size_t* left = nullptr;  // fibers of its launch
  BulkStores stores;
};

jmp_buf scheduler;
Fiber* current = nullptr;
std::vector<Fiber*> ready;         // all that have neither ended nor wait for others of their CTA
std::vector<Stack> unused_stacks;  // of fibers that were
std::mt19937_64 random_bits;
bool current_is_ready = false;
size_t running = 0;  // fibers that have not ended
bool is_torn = false;
bool is_misused = false;  // copies to and from stages
bool has_bulk = true;
struct Setting {
  uint64_t after;
  uint32_t* word;
  uint32_t value;
};
std::deque<Setting> settings_of_next_run;
constexpr uint64_t kSwitchesPerBystander = 16;
std::function<void()> bystander_of_next_run;
std::function<void(size_t)> end_hook_of_next_run;
uint64_t additions = 0;  // atomic ones
// By counter: a bit for each warp of the CTA that has loaded it.
std::unordered_map<const void*, uint32_t> looks;

void enter();

// A function of its own, for getcontext() returns twice.
void prepare(Fiber& fiber) {
  if (unused_stacks.empty()) {
    fiber.stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  } else {
    fiber.stack = std::move(unused_stacks.back());
    unused_stacks.pop_back();
  }
  getcontext(&fiber.begin);
  fiber.begin.uc_stack.ss_sp = fiber.stack.get();
  fiber.begin.uc_stack.ss_size = kStackBytes;
  fiber.begin.uc_link = nullptr;
  makecontext(&fiber.begin, enter, 0);
}

// Fibers change stacks by jumps, which are no system calls as swapcontext() is.
[[noreturn]] void leave() { _longjmp(scheduler, 1); }

// Functions of their own, for _setjmp() returns twice: what they do must be in no register.
[[gnu::noinline]] void resume(Fiber& fiber) {
  current = &fiber;
  current_is_ready = true;
  if (_setjmp(scheduler) != 0) return;
  if (current->has_begun) _longjmp(current->place, 1);
  current->has_begun = true;
  setcontext(&current->begin);
}
[[gnu::noinline]] void suspend() {
  if (_setjmp(current->place) == 0) leave();
}

void enter() {
  run_thread(current->launch->kernel, *reinterpret_cast<const executor::cuda::LaunchArgs*>(
                                          current->launch->parameters.data()));
  is_misused |= !current->stores.open.empty() || !current->stores.groups.empty();
  for (const Cta::Load& load : current->cta->loads) is_misused |= load.starter == current;
  current_is_ready = false;
  --running;
  leave();
}

/// What a stage's barrier is here: all loads of a phase have been started, or not yet.
struct BarrierState {
  uint16_t expected;  // arrivals of a phase
  uint16_t arrivals;  // of this phase: loads that were started, or announced
  uint32_t phase;
};
BarrierState state_of(const uint64_t* barrier) {
  BarrierState state;
  std::memcpy(&state, barrier, sizeof state);
  return state;
}
void store_state(uint64_t* barrier, const BarrierState& state) {
  static_assert(sizeof state == sizeof *barrier);
  std::memcpy(barrier, &state, sizeof state);
}

}  // namespace

const Thread& this_thread() { return current->thread; }

void yield() { suspend(); }

void maybe_yield() {
  if (random_bits() % 4 == 0) yield();
}

namespace {

// Calls `complete` when the last has come, before any goes on.
template <typename Function>
void meet(uint32_t id, uint32_t threads, Function&& complete) {
  Cta::Meeting& meeting = current->cta->meetings[id];
  if (++meeting.arrived == threads) {
    complete();
    meeting.arrived = 0;
    ready.insert(ready.end(), meeting.waiting.begin(), meeting.waiting.end());
    meeting.waiting.clear();
    return;
  }
  meeting.waiting.push_back(current);
  current_is_ready = false;
  suspend();
}

// All eight at once: `move` of every part, when they are those of one line.
template <typename Function>
void access_line(std::byte* address, void* part, Function&& move) {
  maybe_yield();
  const uint32_t group = current->thread.index / kLineThreads;
  const uint32_t place = current->thread.index % kLineThreads;
  Cta::Line& line = current->cta->lines[group];
  line.address[place] = address;
  line.part[place] = part;
  meet(kFirstLine + group, kLineThreads, [&] {
    is_torn |= reinterpret_cast<uintptr_t>(line.address[0]) % (kLineThreads * kPartBytes) != 0;
    for (uint32_t i = 0; i < kLineThreads; ++i) {
      is_torn |= line.address[i] != line.address[0] + i * kPartBytes;
      move(line.address[i], line.part[i]);
    }
  });
}

}  // namespace

void barrier(uint32_t id, uint32_t threads) {
  meet(id, threads, [] {});
}

void barrier_warp() { barrier(kFirstWarp + current->thread.index / kWarp, kWarp); }

uint64_t fetch_add(uint64_t* address, uint64_t value) {
  yield();
  ++additions;
  return std::exchange(*address, *address + value);
}
uint64_t fetch_adds() { return additions; }

namespace {
struct EmulatedTeam {
  std::vector<std::byte*> addresses, members;
  size_t bytes = 0;
  std::vector<int> machines;
} team;
}  // namespace

void set_team(std::vector<std::byte*> addresses, std::vector<std::byte*> members, size_t bytes,
              std::vector<int> machines) {
  team = {std::move(addresses), std::move(members), bytes, std::move(machines)};
}

std::vector<std::byte*> members_at(const std::byte* address) {
  for (size_t rank = 0; rank < team.addresses.size(); ++rank) {
    const std::byte* const begin = team.addresses[rank];
    if (address < begin || address >= begin + team.bytes) continue;
    std::vector<std::byte*> members;
    for (size_t peer = 0; peer < team.members.size(); ++peer)
      if (team.machines[peer] == team.machines[rank])
        members.push_back(team.members[peer] + (address - begin));
    return members;
  }
  std::fprintf(stderr, "a multicast access to %p, which is no team's\n",
               static_cast<const void*>(address));
  std::abort();
}
uint32_t most_warps_at_a_counter() {
  int most = 0;
  for (const auto& [counter, warps] : std::exchange(looks, {}))
    most = std::max(most, std::popcount(warps));
  return static_cast<uint32_t>(most);
}
void note_look(const void* counter) { looks[counter] |= 1u << this_thread().index / 32; }
uint64_t global_time() {
  static uint64_t time = 0;
  return ++time;
}

namespace {

bool any_of(Cta::Vote& vote, uint32_t id, uint32_t threads, bool value) {
  vote.any |= value;
  meet(id, threads, [&] {
    vote.result = vote.any;
    vote.any = false;
  });
  return vote.result;
}

}  // namespace

bool any_of_warp(bool value) {
  const uint32_t warp = current->thread.index / kWarp;
  return any_of(current->cta->votes[warp], kFirstWarp + warp, kWarp, value);
}

bool any_of_cta(bool value) {
  return any_of(current->cta->vote, static_cast<uint32_t>(executor::cuda::Barrier::Cta),
                current->thread.count, value);
}

uint32_t first_of_warp(uint32_t value) {
  const uint32_t warp = current->thread.index / kWarp;
  uint32_t& first = current->cta->firsts[warp];
  if (current->thread.index % kWarp == 0) first = value;
  meet(kFirstWarp + warp, kWarp, [] {});
  const uint32_t result = first;
  // Nobody's next value comes before all have read this one.
  meet(kFirstWarp + warp, kWarp, [] {});
  return result;
}

namespace {
/// What `read` makes of the values that the threads of the warp have, which all come here.
template <typename Read>
uint64_t read_values(uint64_t value, Read&& read) {
  const uint32_t index = current->thread.index;
  const uint32_t warp = index / kWarp;
  std::vector<uint64_t>& values = current->cta->values;
  values[index] = value;
  meet(kFirstWarp + warp, kWarp, [] {});
  uint64_t result = read([&](uint32_t lane) { return values[warp * kWarp + lane]; });
  // As above.
  meet(kFirstWarp + warp, kWarp, [] {});
  return result;
}
}  // namespace

uint64_t value_of_lane(uint64_t value, uint32_t lane) {
  return read_values(value, [&](auto&& value_of) { return value_of(lane); });
}

uint64_t previous_of_warp(uint64_t value) {
  const uint32_t lane = current->thread.index % kWarp;
  return value_of_lane(value, lane == 0 ? 0 : lane - 1);
}

void load_line_part(const std::byte* address, void* part) {
  access_line(const_cast<std::byte*>(address), part,
              [](std::byte* from, void* to) { std::memcpy(to, from, kPartBytes); });
}

void store_line_part(std::byte* address, const void* part) {
  access_line(address, const_cast<void*>(part),
              [](std::byte* to, void* from) { std::memcpy(to, from, kPartBytes); });
}

void set_bulk_copies(bool has_them) { has_bulk = has_them; }
bool has_bulk_copies() { return has_bulk; }

void init_stage_barrier(uint64_t* barrier, uint32_t arrivals) {
  store_state(barrier, {static_cast<uint16_t>(arrivals), 0, 0});
}

/// Whole lines may be read around the ends of a buffer.
#if defined(__GNUC__)
__attribute__((no_sanitize("address")))
#endif
void copy_lines(std::byte* to, const std::byte* from, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; i += kPartBytes) {
    uint64_t parts[kPartBytes / 8];
    for (uint32_t p = 0; p < kPartBytes / 8; ++p)
      parts[p] = reinterpret_cast<const volatile uint64_t*>(from + i)[p];
    std::memcpy(to + i, parts, kPartBytes);
  }
}

void arrive(uint64_t* barrier) {
  BarrierState state = state_of(barrier);
  is_misused |= state.arrivals == state.expected;
  ++state.arrivals;
  store_state(barrier, state);
}

void async_load(std::byte* shared, const std::byte* source) {
  maybe_yield();
  is_misused |= reinterpret_cast<uintptr_t>(source) % kPartBytes != 0;
  std::memset(shared, 0x5a, kPartBytes);
  current->cta->loads.push_back({current, shared, source, kPartBytes, nullptr});
}

void arrive_after_async_loads(uint64_t* barrier) {
  for (Cta::Load& load : current->cta->loads)
    if (load.starter == current && load.barrier == nullptr) load.barrier = barrier;
  arrive(barrier);
}

void bulk_load(std::byte* shared, const std::byte* source, uint32_t bytes, uint64_t* barrier) {
  is_misused |= !has_bulk || (reinterpret_cast<uintptr_t>(source) | bytes) % kPartBytes != 0;
  for (const auto& group : current->stores.groups)
    for (const BulkStores::Store& store : group)
      is_misused |= store.read.empty() && store.bytes != 0 && store.shared == shared;
  std::memset(shared, 0x5a, bytes);
  arrive(barrier);
  current->cta->loads.push_back({current, shared, source, bytes, barrier});
}

void await_stage(uint64_t* barrier, uint32_t parity) {
  for (;;) {
    maybe_yield();
    BarrierState state = state_of(barrier);
    if (state.phase % 2 != parity) return;
    if (state.arrivals == state.expected) {
      std::erase_if(current->cta->loads, [&](const Cta::Load& load) {
        if (load.barrier != barrier) return false;
        copy_lines(load.shared, load.source, load.bytes);
        return true;
      });
      state.arrivals = 0;
      ++state.phase;
      store_state(barrier, state);
      return;
    }
    yield();
  }
}

void bulk_store(std::byte* target, const std::byte* shared, uint32_t bytes) {
  is_misused |= !has_bulk || (reinterpret_cast<uintptr_t>(target) | bytes) % kPartBytes != 0;
  current->stores.open.push_back({target, shared, bytes, {}});
}

void commit_bulk_stores() {
  current->stores.groups.push_back(std::move(current->stores.open));
  current->stores.open.clear();
}

namespace {

void read_group(std::vector<BulkStores::Store>& group) {
  for (BulkStores::Store& store : group)
    if (store.read.empty()) store.read.assign(store.shared, store.shared + store.bytes);
}

}  // namespace

void await_bulk_reads(uint32_t groups) {
  maybe_yield();
  std::deque<std::vector<BulkStores::Store>>& all = current->stores.groups;
  for (size_t i = 0; i + groups < all.size(); ++i) read_group(all[i]);
}

void await_bulk_stores(uint32_t groups) {
  maybe_yield();
  std::deque<std::vector<BulkStores::Store>>& all = current->stores.groups;
  for (; all.size() > groups; all.pop_front()) {
    read_group(all.front());
    for (const BulkStores::Store& store : all.front())
      std::memcpy(store.target, store.read.data(), store.read.size());
  }
}

void set_after(uint64_t switches, uint32_t* word, uint32_t value) {
  settings_of_next_run.push_back({switches, word, value});
}

void set_end_hook(std::function<void(size_t)> hook) { end_hook_of_next_run = std::move(hook); }

void set_bystander(std::function<void()> bystander) {
  bystander_of_next_run = std::move(bystander);
}

bool run(std::span<executor::cuda::KernelLaunch* const> launches, uint64_t seed, uint64_t limit) {
  std::deque<Setting> settings = std::exchange(settings_of_next_run, {});
  const std::function<void()> bystander = std::exchange(bystander_of_next_run, {});
  const std::function<void(size_t)> end_hook = std::exchange(end_hook_of_next_run, {});
  random_bits.seed(seed);
  is_torn = false;
  is_misused = false;
  std::deque<Cta> ctas;
  std::deque<Fiber> fibers;
  ready.clear();
  std::deque<size_t> left;  // by launch: fibers that have not ended
  for (executor::cuda::KernelLaunch* launch : launches) {
    left.push_back(size_t{launch->grid_x} * launch->grid_y * launch->threads);
    if (!launch->device_params.empty()) launch->header().params = launch->device_params.data();
    for (uint32_t cta = 0; cta < launch->grid_x * launch->grid_y; ++cta) {
      ctas.emplace_back(launch->threads, launch->header().shared_bytes + 128);
      for (uint32_t t = 0; t < launch->threads; ++t) {
        Fiber& fiber = fibers.emplace_back();
        fiber.cta = &ctas.back();
        auto* shared = fiber.cta->shared.data();
        shared += (128 - reinterpret_cast<uintptr_t>(shared) % 128) % 128;
        fiber.thread = {
            t, launch->threads, cta % launch->grid_x, cta / launch->grid_x, launch->grid_x, shared};
        fiber.launch = launch;
        fiber.left = &left.back();
        prepare(fiber);
        ready.push_back(&fiber);
      }
    }
  }
  running = fibers.size();
  // Who waits at a barrier is not drawn, but counts as if he had been, so that time does not depend
  // on how many wait.
  uint64_t next_look = 0;
  for (uint64_t switches = 0; !ready.empty() && switches < limit;
       switches += ready.empty() ? 1 : running / ready.size()) {
    for (; !settings.empty() && switches >= settings.front().after; settings.pop_front())
      *settings.front().word = settings.front().value;
    if (bystander && switches >= next_look) {
      bystander();
      next_look = switches + kSwitchesPerBystander;
    }
    const size_t chosen = random_bits() % ready.size();
    size_t* const of_launch = ready[chosen]->left;
    const size_t before = running;
    resume(*ready[chosen]);
    if (current_is_ready) continue;
    if (running < before && --*of_launch == 0 && end_hook)
      end_hook(static_cast<size_t>(
          std::ranges::find_if(left, [&](const size_t& each) { return &each == of_launch; }) -
          left.begin()));
    ready[chosen] = ready.back();
    ready.pop_back();
  }
  for (Fiber& fiber : fibers) unused_stacks.push_back(std::move(fiber.stack));
  return running == 0 && !is_torn && !is_misused;
}

}  // namespace niccolite::emulation
