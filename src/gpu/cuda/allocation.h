// The object behind Memory::handle() of the CUDA machine. Used by memory.cc and host_memory.cc.
#pragma once

#include <utility>
#include <vector>

#include "base/fd.h"
#include "gpu/cuda/machine.h"

namespace niccolite::gpu::cuda {

struct CudaMachine::Allocation {
  enum class Kind : unsigned char {
    Device,
    User,
    Opened,
    OpenedFromPool,
    Host,
    SharedHost
  } kind = Kind::Device;
  bool shareable = false;
  void* address = nullptr;
  size_t bytes = 0;
  CuAllocation allocation = 0;  // of Kind::Device; 0 while it is suspended
  std::vector<int> devices;     // that can access it since it was made
  Fd file{};                    // of Kind::SharedHost, unless it is an import
  Mapping mapping{};            // of Kind::SharedHost
};

// Undoes a step of an allocation when a later one fails.
template <typename Undo>
class Rollback {
 public:
  explicit Rollback(Undo undo) : undo_(std::move(undo)) {}
  Rollback(const Rollback&) = delete;
  ~Rollback() {
    if (armed_) undo_();
  }
  void disarm() { armed_ = false; }

 private:
  Undo undo_;
  bool armed_ = true;
};

}  // namespace niccolite::gpu::cuda
