#include "registry/user_memory.h"

#include <mutex>
#include <unordered_map>

#include "base/thread_annotations.h"
#include "gpu/machine.h"

namespace niccolite::registry {
namespace {

class UserMemory {
 public:
  static UserMemory& instance() {
    static auto* const memory = new UserMemory;  // never destroyed: users free at exit, too
    return *memory;
  }

  void* add(gpu::Memory memory) {
    void* const pointer = memory.data();
    std::lock_guard lock(mutex_);
    memories_.emplace(pointer, std::move(memory));
    return pointer;
  }
  /// Invalid when `pointer` is not the start of any.
  gpu::Memory take(void* pointer) {
    std::lock_guard lock(mutex_);
    const auto found = memories_.find(pointer);
    if (found == memories_.end()) return {};
    gpu::Memory memory = std::move(found->second);
    memories_.erase(found);
    return memory;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, gpu::Memory> memories_ GUARDED_BY(mutex_);
};

}  // namespace

Result<void*> allocate_user_memory(gpu::Machine& machine, int device, size_t bytes) {
  gpu::Memory memory = TRY(machine.allocate(device, bytes, /*shareable=*/true));
  return UserMemory::instance().add(std::move(memory));
}

Status free_user_memory(gpu::Machine& machine, void* pointer) {
  gpu::Memory memory = UserMemory::instance().take(pointer);
  if (!memory.valid())
    return Status::cuda_error(
        "pointer {} is not the start of memory of ncclMemAlloc: it was freed before, or comes from "
        "another allocator, whose function has to free it",
        pointer);
  Result<bool> drained = machine.drain(memory.device(), Deadline::never());
  if (drained.is_ok()) return {};
  // It may be in use: it stays allocated, and may be freed again.
  UserMemory::instance().add(std::move(memory));
  return std::move(drained).status();
}

}  // namespace niccolite::registry
