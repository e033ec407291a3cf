// niccolite/emulation.h: kernels on the CPU, for virtual GPUs. niccolite/device.h includes it where
// the compiler is not CUDA's. Header-only; C++17.
//
// A kernel is a function; niccolite::launch runs it for a grid of blocks of threads, each thread a
// fiber. One thread of the process runs all fibers of all kernels that streams have come to, in an
// order drawn from a seed: NICCOLITE_SCHEDULE_SEED, or set_seed(). Another seed is another
// interleaving. Kernels of several ranks run at the same time and may wait for each other.
//
// What is there: threadIdx, blockIdx, blockDim, gridDim; __syncthreads and its kinds, __syncwarp;
// shuffles, ballots and votes; shared memory (NICCOLITE_SHARED, niccolite::dynamic_shared);
// atomicAdd and its kinds; __threadfence and its kinds. What is not: tensor cores, TMA, clusters,
// cooperative groups, textures, dynamic parallelism, inline PTX; and the threads of a warp do not
// run in step, which CUDA does not promise either.
//
// ThreadSanitizer takes each fiber for a thread, so that it finds data that one GPU thread writes
// and another reads with nothing that orders them; AddressSanitizer knows the fibers' stacks. A
// kernel whose threads all wait at barriers that can never open ends the process with a message
// that names kernel, block and thread.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef NICCOLITE_EMULATION_H_
#define NICCOLITE_EMULATION_H_

#include <cuda_runtime.h>
#include <ucontext.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#define NICCOLITE_EMULATION_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NICCOLITE_EMULATION_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define NICCOLITE_EMULATION_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define NICCOLITE_EMULATION_ASAN 1
#endif
#endif
#ifdef NICCOLITE_EMULATION_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void __tsan_read16(void* address);
void __tsan_write16(void* address);
}
#endif
// Jumps are no system calls, as swapcontext() is. Sanitizers do not follow them.
#if defined(__x86_64__) && !defined(NICCOLITE_EMULATION_TSAN) && !defined(NICCOLITE_EMULATION_ASAN)
#define NICCOLITE_EMULATION_JUMPS 1
#endif
#ifdef NICCOLITE_EMULATION_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace niccolite::emulation {

constexpr unsigned kWarp = 32;

struct Block;

/// Threads that come together: of a block, or of a warp. The last one lets all go on.
struct Meeting {
  explicit Meeting(unsigned threads)
      : members(threads),
        values(new std::atomic<uint64_t>[threads]),
        present(new std::atomic<bool>[threads]),
        places(threads) {
    for (unsigned i = 0; i < threads; ++i) present[i].store(false, std::memory_order_relaxed);
  }

  // The engine's.
  unsigned members;  // that have not ended
  std::vector<struct Fiber*> waiting;
  // The members'. A member puts its value down and comes; all read the values, and come again.
  std::unique_ptr<std::atomic<uint64_t>[]> values;
  std::unique_ptr<std::atomic<bool>[]> present;
  const unsigned places;
  std::atomic<unsigned> order{0};  // who goes on sees what all did before they came
};

/// One GPU thread. Its fields are the engine's where no comment says otherwise.
struct Fiber {
  ucontext_t context{};
  void* place[5] = {};  // where it left, by jumps
  std::unique_ptr<char[]> stack;
  dim3 thread;          // constant, as the next two are
  unsigned linear = 0;  // number in its block
  Block* block = nullptr;
  bool has_begun = false;

  // The request that the fiber has when it leaves, and the engine's answer. All relaxed: one of the
  // two runs at a time.
  enum class Request : unsigned char { Yield, Idle, Meet, SharedMemory, End };
  std::atomic<Request> request{Request::Yield};
  std::atomic<Meeting*> meeting{nullptr};
  std::atomic<const void*> declaration{nullptr};
  std::atomic<size_t> bytes{0};
  std::atomic<char*> answer{nullptr};
  uint64_t random = 1;  // the fiber's
#ifdef NICCOLITE_EMULATION_TSAN
  void* sanitizer = nullptr;
#endif
#ifdef NICCOLITE_EMULATION_ASAN
  void* fake_stack = nullptr;  // the fiber's
#endif
};

struct Launch;
struct Block {
  explicit Block(unsigned threads) : whole(threads), running(threads) {}
  Launch* launch = nullptr;  // constant, as the next is
  dim3 index;
  std::vector<std::unique_ptr<Fiber>> fibers;
  Meeting whole;
  std::vector<std::unique_ptr<Meeting>> warps;
  std::vector<uint64_t> dynamic_memory;
  std::map<const void*, std::vector<char>> static_memory;  // by declaration
  std::atomic<unsigned> order{0};                          // of static_memory's content
  unsigned running;
};

/// Constant while its kernel runs, but for the last three.
struct Launch {
  std::function<void()> body;
  const char* name = "a kernel";
  dim3 grid, block;
  size_t shared = 0;
  uint32_t* done = nullptr;  // a word that the stream waits for
  std::vector<std::unique_ptr<Block>> blocks;
  unsigned next = 0;  // block that has not begun
  unsigned running = 0;
};

/// Steps of a generator of pseudo-random numbers (xorshift); `state` is not 0.
inline uint64_t next_random(uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

/// Runs all launches of the process, on a thread of its own that is never joined: a program may end
/// while kernels wait. Fibers touch none of its state, so that ThreadSanitizer sees between them
/// nothing but the order that the kernel's own words make.
class Engine {
 public:
  /// Threads of all launches at a time; blocks that come later wait.
#ifdef NICCOLITE_EMULATION_TSAN
  static constexpr unsigned kMostThreads = 1024;  // it knows 8,128 threads
#else
  static constexpr unsigned kMostThreads = 8192;
#endif

  static Engine& instance() {
    static Engine* const engine = new Engine;
    return *engine;
  }
  /// The running fiber; null outside of kernels.
  static Fiber* current() { return running().load(std::memory_order_relaxed); }

  void set_seed(uint64_t seed) {
    const std::lock_guard<std::mutex> lock(mutex_);
    seed_ = state_of(seed);
    reseeds_ = true;
  }
  void add(Launch* launch) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      arrived_.push_back(launch);
      if (!is_running_) std::thread([this] { run(); }).detach();
      is_running_ = true;
    }
    news_.notify_one();
  }

  // For fibers.
  /// Others go on; this one when its turn comes. `is_idle`: it polls, and has nothing else to do.
  void yield(bool is_idle) {
    Fiber* const self = current();
    if (self == nullptr) return std::this_thread::yield();
    leave(*self, is_idle ? Fiber::Request::Idle : Fiber::Request::Yield);
  }
  /// Sometimes: so that each seed has another interleaving.
  void maybe_yield() {
    Fiber* const self = current();
    if (self != nullptr && next_random(self->random) % 8 == 0) yield(false);
  }
  void meet(Meeting& meeting) {
    Fiber& self = *current();
    meeting.order.fetch_add(1, std::memory_order_acq_rel);
    self.meeting.store(&meeting, std::memory_order_relaxed);
    leave(self, Fiber::Request::Meet);
    (void)meeting.order.load(std::memory_order_acquire);
  }
  /// All put a value down; then `read` looks at those of all.
  template <typename Read>
  auto exchange(Meeting& meeting, unsigned place, uint64_t value, Read&& read) {
    // relaxed: the meetings order them.
    meeting.values[place].store(value, std::memory_order_relaxed);
    meeting.present[place].store(true, std::memory_order_relaxed);
    meet(meeting);
    auto result = read(meeting);
    meet(meeting);  // nobody's next value comes before all have read this one
    meeting.present[place].store(false, std::memory_order_relaxed);
    return result;
  }
  void* shared_memory(const void* declaration, size_t bytes) {
    Fiber& self = *current();
    self.declaration.store(declaration, std::memory_order_relaxed);
    self.bytes.store(bytes, std::memory_order_relaxed);
    leave(self, Fiber::Request::SharedMemory);
    (void)self.block->order.load(std::memory_order_acquire);
    return self.answer.load(std::memory_order_relaxed);
  }

 private:
  static constexpr size_t kStack = 128 * 1024;

  static std::atomic<Fiber*>& running() {
    static thread_local std::atomic<Fiber*> fiber{nullptr};
    return fiber;
  }
  static uint64_t state_of(uint64_t seed) { return seed * 0x9e3779b97f4a7c15 | 1; }
  static uint64_t first_state() {
    const char* const text = std::getenv("NICCOLITE_SCHEDULE_SEED");
    return state_of(text == nullptr ? 1 : std::strtoull(text, nullptr, 10));
  }

  // Functions of their own: where one returns a second time, no register is what it was.
#ifdef NICCOLITE_EMULATION_JUMPS
  [[noreturn]] __attribute__((noinline)) static void jump(void** place) {
    __builtin_longjmp(place, 1);
  }
  [[noreturn]] __attribute__((noinline)) static void begin(const ucontext_t& context) {
    setcontext(&context);
    std::abort();
  }
  __attribute__((noinline)) void switch_to(Fiber& fiber, bool is_first) {
    if (__builtin_setjmp(main_place_) != 0) return;
    if (is_first) begin(fiber.context);
    jump(fiber.place);
  }
  __attribute__((noinline)) void switch_back(Fiber& self) {
    if (__builtin_setjmp(self.place) == 0) jump(main_place_);
  }
#else
  void switch_to(Fiber& fiber, bool) { swapcontext(&main_, &fiber.context); }
  void switch_back(Fiber& self) { swapcontext(&self.context, &main_); }
#endif

  // On a fiber's stack. The engine sees all that the fiber has done; the fiber sees nothing more.
  void leave(Fiber& self, Fiber::Request request) {
    self.request.store(request, std::memory_order_relaxed);
#ifdef NICCOLITE_EMULATION_ASAN
    __sanitizer_start_switch_fiber(request == Fiber::Request::End ? nullptr : &self.fake_stack,
                                   main_bottom_, main_size_);
#endif
#ifdef NICCOLITE_EMULATION_TSAN
    __tsan_switch_to_fiber(main_sanitizer_, 0);
#endif
    switch_back(self);
#ifdef NICCOLITE_EMULATION_ASAN
    __sanitizer_finish_switch_fiber(self.fake_stack, nullptr, nullptr);
#endif
  }

  static void enter() {
    Engine& engine = instance();
#ifdef NICCOLITE_EMULATION_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &engine.main_bottom_, &engine.main_size_);
#endif
    (void)engine.start_.load(std::memory_order_acquire);  // pairs with the addition in resume()
    Fiber& self = *current();
    self.block->launch->body();
    engine.leave(self, Fiber::Request::End);
  }

  __attribute__((noinline)) static void prepare(Fiber& fiber) {  // getcontext() returns twice
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
  }

  void resume(Fiber& fiber) {
    running().store(&fiber, std::memory_order_relaxed);
    const bool is_first = !fiber.has_begun;
    if (is_first) {
      fiber.has_begun = true;
      prepare(fiber);
      start_.fetch_add(1, std::memory_order_release);  // the fiber sees what the host has done
    }
#ifdef NICCOLITE_EMULATION_ASAN
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, fiber.stack.get(), kStack);
#endif
#ifdef NICCOLITE_EMULATION_TSAN
    __tsan_switch_to_fiber(fiber.sanitizer, __tsan_switch_to_fiber_no_sync);
#endif
    switch_to(fiber, is_first);
#ifdef NICCOLITE_EMULATION_ASAN
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
    running().store(nullptr, std::memory_order_relaxed);
  }

  void serve(Fiber& fiber) {
    const Fiber::Request request = fiber.request.load(std::memory_order_relaxed);
    idle_ = request == Fiber::Request::Idle ? idle_ + 1 : 0;
    switch (request) {
      case Fiber::Request::Yield:
      case Fiber::Request::Idle:
        ready_.push_back(&fiber);
        break;
      case Fiber::Request::Meet: {
        Meeting& meeting = *fiber.meeting.load(std::memory_order_relaxed);
        meeting.waiting.push_back(&fiber);
        open_if_complete(meeting);
        break;
      }
      case Fiber::Request::SharedMemory: {
        std::vector<char>& memory =
            fiber.block->static_memory[fiber.declaration.load(std::memory_order_relaxed)];
        if (memory.empty()) {
          memory.assign(fiber.bytes.load(std::memory_order_relaxed) + kShared,
                        static_cast<char>(0xa5));  // holds anything
          fiber.block->order.fetch_add(1, std::memory_order_release);
        }
        const size_t beyond = reinterpret_cast<uintptr_t>(memory.data()) % kShared;
        fiber.answer.store(memory.data() + (kShared - beyond) % kShared, std::memory_order_relaxed);
        ready_.push_back(&fiber);
        break;
      }
      case Fiber::Request::End:
        end_fiber(fiber);
        break;
    }
  }

  void open_if_complete(Meeting& meeting) {
    if (meeting.waiting.size() < meeting.members) return;
    ready_.insert(ready_.end(), meeting.waiting.begin(), meeting.waiting.end());
    meeting.waiting.clear();
  }

  void begin_block(Launch& launch) {
    const unsigned threads = launch.block.x * launch.block.y * launch.block.z;
    auto block = std::make_unique<Block>(threads);
    block->launch = &launch;
    const unsigned number = launch.next++;
    block->index = dim3(number % launch.grid.x, number / launch.grid.x % launch.grid.y,
                        number / launch.grid.x / launch.grid.y);
    block->dynamic_memory.assign(launch.shared / sizeof(uint64_t) + 2, 0xa5a5a5a5a5a5a5a5);
    for (unsigned first = 0; first < threads; first += kWarp)
      block->warps.push_back(
          std::make_unique<Meeting>(threads - first < kWarp ? threads - first : kWarp));
    for (unsigned i = 0; i < threads; ++i) {
      auto fiber = std::make_unique<Fiber>();
      fiber->linear = i;
      fiber->thread = dim3(i % launch.block.x, i / launch.block.x % launch.block.y,
                           i / launch.block.x / launch.block.y);
      fiber->block = block.get();
      fiber->random = next_random(state_) | 1;
      if (stacks_.empty()) {
        fiber->stack.reset(new char[kStack]);
      } else {
        fiber->stack = std::move(stacks_.back());
        stacks_.pop_back();
      }
#ifdef NICCOLITE_EMULATION_TSAN
      fiber->sanitizer = __tsan_create_fiber(0);
#endif
      ready_.push_back(fiber.get());
      block->fibers.push_back(std::move(fiber));
    }
    ++launch.running;
    running_threads_ += threads;
    launch.blocks.push_back(std::move(block));
  }

  void end_fiber(Fiber& fiber) {
    Block& block = *fiber.block;
    stacks_.push_back(std::move(fiber.stack));
#ifdef NICCOLITE_EMULATION_TSAN
    __tsan_destroy_fiber(fiber.sanitizer);
#endif
    // Nobody waits for threads that have ended.
    for (Meeting* const meeting : {block.warps[fiber.linear / kWarp].get(), &block.whole}) {
      --meeting->members;
      open_if_complete(*meeting);
    }
    if (--block.running != 0) return;
    Launch& launch = *block.launch;
    for (std::unique_ptr<Block>& each : launch.blocks)
      if (each.get() == &block) {
        std::swap(each, launch.blocks.back());
        launch.blocks.pop_back();
        break;
      }
    running_threads_ -= launch.block.x * launch.block.y * launch.block.z;
    if (--launch.running != 0 || launch.next < count(launch)) return;
    for (Launch*& each : active_)
      if (each == &launch) {
        std::swap(each, active_.back());
        active_.pop_back();
        break;
      }
    uint32_t* const done = launch.done;
    delete &launch;
    __atomic_store_n(done, 1U, __ATOMIC_RELEASE);  // the stream goes on
  }

  static unsigned count(const Launch& launch) {
    return launch.grid.x * launch.grid.y * launch.grid.z;
  }

  void take_arrived() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (reseeds_) state_ = seed_;
    reseeds_ = false;
    active_.insert(active_.end(), arrived_.begin(), arrived_.end());
    arrived_.clear();
  }

  // Launches take turns, and each has a block at least, since kernels of other ranks may wait for
  // it.
  void begin_blocks() {
    for (bool has_begun = true; has_begun;) {
      has_begun = false;
      for (Launch* const launch : active_) {
        if (launch->next == count(*launch)) continue;
        if (running_threads_ >= kMostThreads && launch->running != 0) continue;
        begin_block(*launch);
        has_begun = true;
      }
    }
  }

  void run() {
#ifdef NICCOLITE_EMULATION_TSAN
    main_sanitizer_ = __tsan_get_current_fiber();
#endif
    for (unsigned step = 0;; ++step) {
      if (step % 64 == 0 || ready_.empty()) {
        take_arrived();
        begin_blocks();
      }
      if (ready_.empty()) {
        if (!active_.empty()) report_deadlock();
        std::unique_lock<std::mutex> lock(mutex_);
        news_.wait(lock, [this] { return !arrived_.empty(); });
        continue;
      }
      // All that could run has polled in vain, and again: another process, or the host, is at work.
      if (idle_ > 4 * ready_.size() + 64) {
        idle_ = 0;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      const size_t at = next_random(state_) % ready_.size();
      Fiber& fiber = *ready_[at];
      ready_[at] = ready_.back();
      ready_.pop_back();
      resume(fiber);
      serve(fiber);
    }
  }

  [[noreturn]] void report_deadlock() {
    for (const Launch* const launch : active_)
      for (const auto& block : launch->blocks)
        for (const auto& fiber : block->fibers) {
          if (fiber->request.load(std::memory_order_relaxed) == Fiber::Request::End) continue;
          std::fprintf(stderr,
                       "niccolite::launch: deadlock: block (%u,%u,%u) of %s: %u of %u threads wait "
                       "at barriers that the others do not come to; the first is thread "
                       "(%u,%u,%u)\n",
                       block->index.x, block->index.y, block->index.z, launch->name, block->running,
                       launch->block.x * launch->block.y * launch->block.z, fiber->thread.x,
                       fiber->thread.y, fiber->thread.z);
          std::abort();
        }
    std::abort();
  }

  static constexpr size_t kShared = 16;  // alignment of shared memory

  std::mutex mutex_;  // of the next five
  std::condition_variable news_;
  std::vector<Launch*> arrived_;
  uint64_t seed_ = 1;
  bool reseeds_ = false;
  bool is_running_ = false;

  // Of the engine's thread, but what main_* say of it, which fibers read.
  std::vector<Launch*> active_;
  std::vector<Fiber*> ready_;
  std::vector<std::unique_ptr<char[]>> stacks_;  // of fibers that have ended
  unsigned running_threads_ = 0;                 // of blocks that have not ended
  size_t idle_ = 0;
  uint64_t state_ = first_state();
#ifdef NICCOLITE_EMULATION_JUMPS
  void* main_place_[5] = {};
#else
  ucontext_t main_{};
#endif
  std::atomic<unsigned> start_{0};
#ifdef NICCOLITE_EMULATION_TSAN
  void* main_sanitizer_ = nullptr;
#endif
#ifdef NICCOLITE_EMULATION_ASAN
  const void* main_bottom_ = nullptr;
  size_t main_size_ = 0;
#endif
};

/// The fiber that calls. A kernel's words mean nothing outside of a kernel.
inline Fiber& here() {
  Fiber* const fiber = Engine::current();
  if (fiber == nullptr) {
    std::fprintf(stderr, "niccolite: a device function was called outside of a kernel\n");
    std::abort();
  }
  return *fiber;
}
inline dim3 block_dim() { return here().block->launch->block; }
inline dim3 grid_dim() { return here().block->launch->grid; }
inline dim3 block_index() { return here().block->index; }
inline dim3 thread_index() { return here().thread; }

/// Another seed is another order in which threads run, from the next launch on.
inline void set_seed(uint64_t seed) { Engine::instance().set_seed(seed); }

inline void sync_block() { Engine::instance().meet(here().block->whole); }
inline Meeting& warp() { return *here().block->warps[here().linear / kWarp]; }
inline void sync_warp() { Engine::instance().meet(warp()); }

template <typename Read>
auto exchange_in_warp(uint64_t value, Read&& read) {
  return Engine::instance().exchange(warp(), here().linear % kWarp, value,
                                     std::forward<Read>(read));
}
/// Has the member put down something other than 0?
inline bool is_set(const Meeting& all, unsigned place) {
  return all.present[place].load(std::memory_order_relaxed) &&
         all.values[place].load(std::memory_order_relaxed) != 0;
}
inline int count_in_block(bool value) {
  return Engine::instance().exchange(here().block->whole, here().linear, value ? 1 : 0,
                                     [](const Meeting& all) {
                                       int count = 0;
                                       for (unsigned i = 0; i < all.places; ++i)
                                         count += is_set(all, i) ? 1 : 0;
                                       return count;
                                     });
}

/// The value of another lane of the warp; the own one where there is none.
template <typename T>
T shuffle(T value, unsigned lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves up to 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = exchange_in_warp(bits, [&](const Meeting& all) {
    return lane < all.places && all.present[lane].load(std::memory_order_relaxed)
               ? all.values[lane].load(std::memory_order_relaxed)
               : bits;
  });
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned lane() { return here().linear % kWarp; }
/// A shuffle does not leave the lane's section of `width` lanes.
inline unsigned within(unsigned target, int width) {
  const unsigned w = static_cast<unsigned>(width);
  return target / w == lane() / w ? target : lane();
}
inline unsigned ballot(bool value) {
  return exchange_in_warp(value ? 1 : 0, [](const Meeting& all) {
    unsigned bits = 0;
    for (unsigned i = 0; i < all.places; ++i)
      if (is_set(all, i)) bits |= 1U << i;
    return bits;
  });
}
inline unsigned present_lanes() { return ballot(true); }

/// Shared memory that one declaration names, the same for all threads of a block.
inline void* static_shared(const void* declaration, size_t bytes) {
  (void)here();
  return Engine::instance().shared_memory(declaration, bytes);
}

template <typename T, typename Operation>
T atomic_update(T* address, Operation&& operation) {
  Engine::instance().maybe_yield();
  T before;
  __atomic_load(address, &before, __ATOMIC_RELAXED);
  for (;;) {
    T after = operation(before);
    if (__atomic_compare_exchange(address, &before, &after, false, __ATOMIC_RELAXED,
                                  __ATOMIC_RELAXED))
      return before;
  }
}

/// A function of the driver; null: it has none of this name.
inline void* find_driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  constexpr unsigned kVersion = 12000;
  if (cudaGetDriverEntryPointByVersion(name, &function, kVersion, cudaEnableDefault, &result) !=
          cudaSuccess ||
      result != cudaDriverEntryPointSuccess)
    return nullptr;
  return function;
}

/// The memory of each GPU of a multicast team behind addresses, as an NVSwitch finds it.
class MulticastMemory {
 public:
  static constexpr int kMostMembers = 64;
  struct Range {
    uintptr_t begin = 0;
    size_t bytes = 0;
    int count = 0;
    char* members[kMostMembers] = {};
  };
  static MulticastMemory& instance() {
    static MulticastMemory* const memory = new MulticastMemory;
    return *memory;
  }
  /// Pointers of all members to the 16 bytes at `address`; ends the process where there are none,
  /// as a GPU ends a kernel.
  int find(const void* address, char** members) {
    const auto at = reinterpret_cast<uintptr_t>(address);
#ifdef NICCOLITE_EMULATION_TSAN
    // A switch orders nothing between the threads that use it.
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
    int count = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const Range& range = range_of(at);
      count = range.count;
      for (int i = 0; i < count; ++i) members[i] = range.members[i] + (at - range.begin);
    }
#ifdef NICCOLITE_EMULATION_TSAN
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
#endif
    return count;
  }
  /// Other memory may be bound by now. When a kernel begins: its windows stay while it runs.
  void forget() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_.clear();
  }

 private:
  using Members = int (*)(unsigned long long, void**, int*, size_t*);

  const Range& range_of(uintptr_t at) {
    auto found = ranges_.upper_bound(at);
    if (found != ranges_.begin() && at - std::prev(found)->first < std::prev(found)->second.bytes)
      return std::prev(found)->second;
    static const auto members_of =
        reinterpret_cast<Members>(find_driver_function("cuVirtualMulticastMembers"));
    Range range;
    range.begin = at;
    range.count = kMostMembers;
    void* members[kMostMembers];
    if (members_of == nullptr || members_of(at, members, &range.count, &range.bytes) != 0) {
      std::fprintf(stderr,
                   "niccolite: a kernel uses %p as a multicast address: no memory is bound there\n",
                   reinterpret_cast<void*>(at));
      std::abort();
    }
    for (int i = 0; i < range.count; ++i) range.members[i] = static_cast<char*>(members[i]);
    return ranges_[at] = range;
  }

  std::mutex mutex_;
  std::map<uintptr_t, Range> ranges_;  // by their begin
};

/// The driver's cuStreamWaitValue32, by which a stream waits for a kernel without a thread. Null:
/// the driver is not vcuda's.
using WaitValue = int (*)(cudaStream_t, unsigned long long, uint32_t, unsigned);
inline WaitValue find_wait_value() {
  return reinterpret_cast<WaitValue>(find_driver_function("cuStreamWaitValue32"));
}

/// Words in page-locked memory that streams wait for. They are used again, and never freed.
class DoneWords {
 public:
  static DoneWords& instance() {
    static DoneWords* const words = new DoneWords;
    return *words;
  }
  /// Null: there is no memory.
  uint32_t* take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) {
      constexpr size_t kPage = 1024;
      uint32_t* page = nullptr;
      if (cudaMallocHost(reinterpret_cast<void**>(&page), kPage * sizeof(uint32_t)) != cudaSuccess)
        return nullptr;
      for (size_t i = 0; i < kPage; ++i) free_.push_back(page + i);
    }
    uint32_t* const word = free_.back();
    free_.pop_back();
    __atomic_store_n(word, 0u, __ATOMIC_RELAXED);
    return word;
  }
  void give_back(uint32_t* word) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(word);
  }

 private:
  std::mutex mutex_;
  std::vector<uint32_t*> free_;
};

/// Queues on the stream: the start of a kernel, the stream's wait for its end. Not in a capture.
inline cudaError_t launch(std::function<void()> body, const char* name, dim3 grid, dim3 block,
                          size_t shared, cudaStream_t stream) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  if (threads == 0 || threads > 1024 || blocks == 0 || blocks > UINT32_MAX)
    return cudaErrorInvalidConfiguration;
  cudaStreamCaptureStatus capture{};
  if (cudaStreamIsCapturing(stream, &capture) == cudaSuccess &&
      capture != cudaStreamCaptureStatusNone)
    return cudaErrorStreamCaptureUnsupported;
  static const WaitValue wait = find_wait_value();
  if (wait == nullptr) return cudaErrorNotSupported;
  uint32_t* const done = DoneWords::instance().take();
  if (done == nullptr) return cudaErrorMemoryAllocation;
  auto made = std::make_unique<Launch>();
  made->body = std::move(body);
  made->name = name;
  made->grid = grid;
  made->block = block;
  made->shared = shared;
  made->done = done;
  const cudaError_t error = cudaLaunchHostFunc(
      stream,
      [](void* data) {
        MulticastMemory::instance().forget();
        Engine::instance().add(static_cast<Launch*>(data));
      },
      made.get());
  if (error != cudaSuccess) return error;
  (void)made.release();  // the engine's now
  constexpr unsigned kEqual = 1;
  if (wait(stream, reinterpret_cast<uintptr_t>(done), 1, kEqual) != 0) return cudaErrorUnknown;
  return cudaLaunchHostFunc(
      stream, [](void* data) { DoneWords::instance().give_back(static_cast<uint32_t*>(data)); },
      done);
}

}  // namespace niccolite::emulation

#endif  // NICCOLITE_EMULATION_H_
