#include "gpu/virtual/runtime.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "base/host_memory.h"
#include "base/log.h"
#include "gpu/choice.h"
#include "gpu/virtual/host.h"
#include "gpu/virtual/scheduler.h"

namespace niccolite::gpu::virtual_ {
namespace {

thread_local int thread_device = 0;
thread_local bool thread_has_context = false;
std::atomic<bool> is_runtime_used{false};

// Among very many GPUs a share would be too small to be of use: each may then take more, as long as
// the host has it (MemoryMap).
constexpr size_t kLeastBytesPerDevice = size_t{256} << 20;

size_t bytes_per_device(int devices) {
  return std::max(measure_host_memory().limit / static_cast<size_t>(devices), kLeastBytesPerDevice);
}

std::vector<std::shared_ptr<Stream>> make_legacy_streams(int devices) {
  std::vector<std::shared_ptr<Stream>> streams;
  for (int device = 0; device < devices; ++device) {
    streams.push_back(std::make_shared<Stream>());
    streams.back()->device = device;
    streams.back()->is_legacy = true;
    streams.back()->id = static_cast<uint64_t>(device) + 1;
  }
  return streams;
}

}  // namespace

Runtime* Runtime::instance() {
  // Never destroyed: host threads and workers may use it until the process is gone.
  static Runtime* const instance = []() -> Runtime* {
    const Result<Choice> choice = chosen_devices();
    if (!choice.is_ok()) {
      LOG(Warn, Env, "{}", choice.status().message());
      return nullptr;
    }
    const char* const shown = std::getenv("CUDA_VISIBLE_DEVICES");
    VisibleDevices visible(shown == nullptr ? std::nullopt : std::optional<std::string>(shown),
                           choice.value().virtual_devices);
    // Empty, it hides them on purpose.
    if (visible.count() == 0 && shown != nullptr && *shown != '\0')
      LOG(Warn, Env,
          "this process sees no virtual GPU: {}. Unset it, or name GPUs from 0 to {} in it",
          visible.describe(), visible.total() - 1);
    return new Runtime(std::move(visible));
  }();
  return instance;
}

Runtime::Runtime(VisibleDevices visible)
    : visible_(std::move(visible)),
      legacy_(make_legacy_streams(visible_.count())),
      memory_(visible_.count(), bytes_per_device(visible_.total()),
              [] { return measure_host_memory(); }),
      address_space_(memory_, visible_,
                     [this](int device) { (void)drain(device, Deadline::never()); }),
      devices_(static_cast<size_t>(visible_.count())),
      next_stream_id_(static_cast<uint64_t>(visible_.count()) + 1) {}

int Runtime::current_device() { return thread_device; }
void Runtime::set_current_device(int device) { thread_device = device; }
bool Runtime::is_used() { return is_runtime_used.load(std::memory_order_relaxed); }
bool& Runtime::has_context() { return thread_has_context; }
void Runtime::note_use() {
  // Read first: the line stays shared among all threads.
  if (!is_used()) is_runtime_used.store(true, std::memory_order_relaxed);
}

Result<DeviceInfo> Runtime::describe(int device) const {
  if (!is_device(device))
    return Status::cuda_error("there is no virtual GPU {}; this process has {} (NICCOLITE_DEVICES)",
                              device, visible_.describe());
  DeviceInfo info;
  info.name = "Virtual GPU";
  info.uuid = device_uuid(visible_.on_machine(device));
  info.bus_id = device_bus_id(visible_.on_machine(device));
  info.multiprocessors = scheduler().max_workers();
  info.compute_capability = 90;
  size_t free = 0;
  memory_.usage(device, &free, &info.total_bytes);
  return info;
}

}  // namespace niccolite::gpu::virtual_
