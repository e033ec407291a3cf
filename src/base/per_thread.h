// PerThread: a value of each thread, made at its first use, that may be used until the process is
// gone. A plain thread_local of the main thread is destroyed before the program's static objects
// are, whose destructors may call the library.
#pragma once

#include <utility>

namespace niccolite {

/// One for each `Value`, a type made for it.
template <typename Value>
class PerThread {
 public:
  static Value& get() {
    if (value_ == nullptr) make();
    return *value_;
  }

 private:
  struct Owner {
    ~Owner() { delete std::exchange(value_, nullptr); }
  };
  // Once the owner is destroyed, a value stays: what ends then is the process, or nearly always.
  static void make() {
    value_ = new Value;
    static thread_local const Owner owner;
    static_cast<void>(&owner);  // its first mention makes it
  }
  static inline thread_local Value* value_ = nullptr;
};

}  // namespace niccolite
