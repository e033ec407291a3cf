#include "base/forks.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace niccolite::forks {

std::atomic<bool> orphan{false};

namespace {

constexpr size_t kBits = 64;
constexpr size_t kMost = size_t{1} << 20;  // descriptors; usual limits are below

std::atomic<bool> makes_orphans{false};
std::array<std::atomic<uint64_t>, kMost / kBits> withheld{};  // by descriptor
std::atomic<size_t> words_in_use{0};

// relaxed, here and below: the child has one thread, and its memory is a copy.
void replace_withheld() {
  const size_t end = words_in_use.load(std::memory_order_relaxed);
  int nothing = -1;  // the first descriptor, once it is /dev/null
  for (size_t word = 0; word < end; ++word) {
    uint64_t bits = withheld[word].exchange(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) {
      const int fd = static_cast<int>(word * kBits) + __builtin_ctzll(bits);
      if (nothing >= 0) {
        dup3(nothing, fd, O_CLOEXEC);
        continue;
      }
      close(fd);  // before open(), for which no descriptor may be left
      nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
      if (nothing < 0 || nothing == fd) continue;
      dup3(nothing, fd, O_CLOEXEC);
      close(nothing);
      nothing = fd;
    }
  }
}

void become_child() {
  const int error = errno;
  if (makes_orphans.load(std::memory_order_relaxed)) orphan.store(true, std::memory_order_relaxed);
  replace_withheld();
  errno = error;
}

void watch_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, become_child);
  (void)registered;  // out of memory: children are as they were before
}

}  // namespace

void make_orphans() {
  watch_forks();
  makes_orphans.store(true, std::memory_order_relaxed);
}

void withhold(int fd) {
  if (fd < 0 || static_cast<size_t>(fd) >= kMost) return;
  watch_forks();
  const size_t word = static_cast<size_t>(fd) / kBits;
  withheld[word].fetch_or(uint64_t{1} << (static_cast<size_t>(fd) % kBits),
                          std::memory_order_relaxed);
  size_t end = words_in_use.load(std::memory_order_relaxed);
  while (end <= word &&
         !words_in_use.compare_exchange_weak(end, word + 1, std::memory_order_relaxed)) {
  }
}

void forget(int fd) {
  if (fd < 0 || static_cast<size_t>(fd) >= kMost) return;
  std::atomic<uint64_t>& word = withheld[static_cast<size_t>(fd) / kBits];
  const uint64_t bit = uint64_t{1} << (static_cast<size_t>(fd) % kBits);
  if ((word.load(std::memory_order_relaxed) & bit) != 0)
    word.fetch_and(~bit, std::memory_order_relaxed);
}

}  // namespace niccolite::forks
