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
    if (of_thread == nullptr) make();
    return *of_thread;
  }

 private:
  struct Owner {
    ~Owner() { delete std::exchange(of_thread, nullptr); }
  };
  // A value that is made after the owner's destruction is never destroyed: the process is ending.
  static void make() {
    of_thread = new Value;
    static thread_local const Owner owner;
    static_cast<void>(&owner);  // its first mention makes it
  }
  static inline thread_local Value* of_thread = nullptr;
};

}  // namespace niccolite
