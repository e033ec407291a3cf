#include "executor/cuda/launch/device_params.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"

namespace niccolite::executor::cuda {
namespace {

using gpu::cuda::CudaMachine;

constexpr size_t kBlockBytes = 2 << 20;  // the least that the driver maps
constexpr size_t kAlignment = 128;       // a line: no two programs share one

/// One allocation, filled from its start; a part that was given out is not used again.
struct Block {
  gpu::Memory memory;
  size_t used = 0;
};

class ParamsPool {
 public:
  static ParamsPool& instance() {
    static ParamsPool* const params = new ParamsPool;  // callbacks may outlive main()
    return *params;
  }

  Result<DeviceParams> add(CudaMachine& machine, int device, std::span<const std::byte> params) {
    std::lock_guard lock(mutex_);
    const size_t bytes = (params.size() + kAlignment - 1) / kAlignment * kAlignment;
    std::shared_ptr<Block> block = current_[device].lock();
    if (block == nullptr || block->used + bytes > block->memory.bytes()) {
      block = std::make_shared<Block>();
      block->memory =
          TRY(machine.allocate(device, std::max(bytes, kBlockBytes), /*shareable=*/false));
      current_[device] = block;
    }
    std::byte* const place = static_cast<std::byte*>(block->memory.data()) +
                             std::exchange(block->used, block->used + bytes);
    TRY(machine.upload(device, place, params.data(), params.size()));
    return DeviceParams(std::move(block), place);
  }

  void retire(DeviceParams params) {
    std::lock_guard lock(retired_mutex_);
    retired_.push_back(std::move(params));
  }
  void release_retired() {
    std::vector<DeviceParams> params;  // ends without the lock
    std::lock_guard lock(retired_mutex_);
    params.swap(retired_);
  }

 private:
  std::mutex mutex_;
  std::map<int, std::weak_ptr<Block>> current_ GUARDED_BY(mutex_);  // by device
  std::mutex retired_mutex_;  // of its own: callbacks do not wait for the driver
  std::vector<DeviceParams> retired_ GUARDED_BY(retired_mutex_);
};

}  // namespace

Result<DeviceParams> make_device_params(CudaMachine& machine, int device,
                                        std::span<const std::byte> params) {
  ParamsPool::instance().release_retired();
  return ParamsPool::instance().add(machine, device, params);
}

void retire(DeviceParams params) { ParamsPool::instance().retire(std::move(params)); }

}  // namespace niccolite::executor::cuda
