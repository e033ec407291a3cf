#include "executor/cuda/device_images.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"

namespace niccolite::executor::cuda {
namespace {

using gpu::cuda::CudaMachine;

constexpr size_t kBlockBytes = 2 << 20;  // what the driver maps at least
constexpr size_t kAlignment = 128;       // a line: no two programs share one

/// One allocation, filled from its start; what it gave is not used again.
struct Block {
  gpu::Memory memory;
  size_t used = 0;
};

class Images {
 public:
  static Images& instance() {
    static Images* const images = new Images;  // callbacks may outlive main()
    return *images;
  }

  Result<DeviceImage> add(CudaMachine& machine, int device, std::span<const std::byte> image) {
    std::lock_guard lock(mutex_);
    const size_t bytes = (image.size() + kAlignment - 1) / kAlignment * kAlignment;
    std::shared_ptr<Block> block = current_[device].lock();
    if (block == nullptr || block->used + bytes > block->memory.bytes()) {
      block = std::make_shared<Block>();
      block->memory =
          TRY(machine.allocate(device, std::max(bytes, kBlockBytes), /*shareable=*/false));
      current_[device] = block;
    }
    std::byte* const place = static_cast<std::byte*>(block->memory.data()) +
                             std::exchange(block->used, block->used + bytes);
    TRY(machine.upload(device, place, image.data(), image.size()));
    return DeviceImage(std::move(block), place);
  }

  void retire(DeviceImage image) {
    std::lock_guard lock(retired_mutex_);
    retired_.push_back(std::move(image));
  }
  void release_retired() {
    std::vector<DeviceImage> images;  // ends without the lock
    std::lock_guard lock(retired_mutex_);
    images.swap(retired_);
  }

 private:
  std::mutex mutex_;
  std::map<int, std::weak_ptr<Block>> current_ GUARDED_BY(mutex_);  // by device
  std::mutex retired_mutex_;  // of its own: callbacks do not wait for the driver
  std::vector<DeviceImage> retired_ GUARDED_BY(retired_mutex_);
};

}  // namespace

Result<DeviceImage> make_device_image(CudaMachine& machine, int device,
                                      std::span<const std::byte> image) {
  Images::instance().release_retired();
  return Images::instance().add(machine, device, image);
}

void retire(DeviceImage image) { Images::instance().retire(std::move(image)); }

}  // namespace niccolite::executor::cuda
