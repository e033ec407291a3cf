// Fd: owner of a file descriptor; Mapping: owner of a memory mapping. Move-only; destruction closes
// or unmaps.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/status.h"

namespace niccolite {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }

  /// Anonymous shared memory of `bytes` bytes, all zero, close-on-exec. `name` shows up in
  /// /proc/PID/maps.
  static Result<Fd> memfd(const char* name, size_t bytes);
  Result<Fd> duplicate() const;

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release();
  /// Children made by fork() do not get it (base/forks.h).
  void withhold() const;
  void reset();

 private:
  int fd_ = -1;
};

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  ~Mapping() { reset(); }

  /// Maps the first `bytes` bytes of `fd` shared, readable and writable. The descriptor may be
  /// closed afterwards.
  static Result<Mapping> shared(const Fd& fd, size_t bytes);

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void reset();

 private:
  Mapping(void* data, size_t bytes) : data_(data), bytes_(bytes) {}
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace niccolite
