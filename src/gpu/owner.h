// Owner: base of the classes whose objects hold an object of a machine: Stream, Event, Graph ...
// Move-only; destruction gives the object back to the interface that it came from, and logs errors.
// A class `Name` that derives from Owner<Interface, Name> has the static function
// give_back(Interface&, void* handle). Thread safety: as for any value.
#pragma once

#include <utility>

#include "base/status.h"

namespace niccolite::gpu {

/// A destructor has no caller to return an error to.
void log_failure(const Status& status);
/// The driver ends with the process, before the last threads do, and gives back what objects still
/// hold: nothing is logged of them any more.
void note_end_of_driver();

template <typename Interface, typename Derived>
class Owner {
 public:
  Owner() = default;
  Owner(Interface* from, void* handle) : from_(from), handle_(handle) {}
  Owner(Owner&& other) noexcept
      : from_(other.from_), handle_(std::exchange(other.handle_, nullptr)) {}
  Owner& operator=(Owner&& other) noexcept {
    if (this != &other) {
      reset();
      from_ = other.from_;
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Owner() { reset(); }

  void* handle() const { return handle_; }
  /// Somebody else owns it from now on.
  void* release() { return std::exchange(handle_, nullptr); }
  bool valid() const { return handle_ != nullptr; }
  void reset() {
    if (void* handle = std::exchange(handle_, nullptr))
      log_failure(Derived::give_back(*from_, handle));
  }

 private:
  Interface* from_ = nullptr;
  void* handle_ = nullptr;
};

}  // namespace niccolite::gpu
