#include "executor/cuda/launch/prepared_launch.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>

#include "base/parameters.h"
#include "executor/cuda/launch/kernels.h"

namespace niccolite::executor::cuda {
namespace {

using gpu::cuda::CudaMachine;
using gpu::cuda::CuLaunchAttribute;
using gpu::cuda::CuLaunchConfig;
using gpu::cuda::Driver;
using gpu::cuda::ScopedContext;

void let_go(void* data) {
  const std::unique_ptr<DeviceParams> params(static_cast<DeviceParams*>(data));
  retire(std::move(*params));
}

/// Memory that peers see where it is, as far as one launch has asked: a list's buffers lie in few
/// allocations.
class OpenMemory {
 public:
  OpenMemory(CudaMachine& machine, int device) : machine_(machine), device_(device) {}

  bool holds(const void* buffer, uint64_t bytes) {
    return gpu::cuda::lies_in_pieces(buffer, bytes,
                                     [&](const std::byte* at) { return around(at); });
  }

 private:
  /// Empty: it is not open.
  std::span<const std::byte> around(const std::byte* at) {
    for (const std::span<const std::byte>& memory : known_)
      if (at >= memory.data() && at < memory.data() + memory.size()) return memory;
    const auto found = machine_.open_around(device_, at);
    if (!found) return {};
    return known_[next_++ % known_.size()] = *found;
  }

  CudaMachine& machine_;
  const int device_;
  std::array<std::span<const std::byte>, 8> known_{};
  size_t next_ = 0;
};

/// Returns the bells of the proxies that the launch keeps busy: the others may sleep on.
std::vector<relay::Bell*> bells_of(const Launch& launch) {
  std::vector<relay::Bell*> bells;
  for (size_t p = 0; p < launch.ports.size(); ++p) {
    if (!launch.ports[p].is_relayed()) continue;
    const Work& work = launch.works[static_cast<size_t>(launch.program->ports[p].work)];
    const uint32_t channels = std::min(work.partition.channels, kMostProxies);
    for (uint32_t c = 0; c < channels; ++c) {
      relay::Bell* const bell = launch.ports[p].bells[(work.first_channel + c) % kMostProxies];
      if (std::ranges::count(bells, bell) == 0) bells.push_back(bell);
    }
  }
  return bells;
}

}  // namespace

Result<PreparedLaunch> PreparedLaunch::create(gpu::Machine& machine, int device,
                                              const Launch& launch) {
  if (machine.kind() != gpu::Kind::Cuda) {
    return Status::internal("the CUDA executor is asked to launch on a virtual GPU");
  }
  PreparedLaunch prepared;
  prepared.machine_ = static_cast<CudaMachine*>(&machine);
  prepared.device_ = device;
  prepared.needs_ = BufferNeeds(launch);
  prepared.marks_ = launch.marks;
  prepared.context_ = TRY(prepared.machine_->context(device));
  prepared.bells_ = bells_of(launch);
  const Driver& driver = prepared.machine_->driver();
  const ScopedContext scoped = TRY(ScopedContext::enter(driver, prepared.context_));
  gpu::cuda::CuDevice handle = 0;
  TRY(driver.check(driver.cuCtxGetDevice(&handle), "cuCtxGetDevice"));
  int major = 0;
  TRY(driver.check(
      driver.cuDeviceGetAttribute(&major, gpu::cuda::kCuComputeCapabilityMajor, handle),
      "cuDeviceGetAttribute(compute capability, device {})", device));
  int shared_bytes = 0;
  TRY(driver.check(driver.cuDeviceGetAttribute(&shared_bytes,
                                               gpu::cuda::kCuMaxSharedMemoryPerBlockOptin, handle),
                   "cuDeviceGetAttribute(shared memory, device {})", device));
  prepared.has_sync_domains_ = major >= 9;
  constexpr int kFirstDriverThatCaptures = 12030;  // launches side by side
  prepared.may_run_beside_ = major >= 9 && machine.driver_version() >= kFirstDriverThatCaptures;
  // Ranks that share a GPU need its multiprocessors for each other.
  prepared.may_begin_early_ = prepared.may_run_beside_ && parameters::early_begin() != 0 &&
                              parameters::multi_rank_gpu() == 0;
  // Some GPUs have the instructions, but less shared memory.
  const bool has_stages =
      major >= 8 && static_cast<uint32_t>(shared_bytes) >= kLeastSharedBytesWithStages;
  prepared.most_shared_ =
      has_stages ? std::min(static_cast<uint32_t>(shared_bytes), kMaxSharedBytesWithStages)
                 : kMaxSharedBytes;
  prepared.version_ =
      TRY(prepared.create_version(launch, has_stages ? Staging::All : Staging::None));
  if (prepared.version_.kernel->has_staged_copies && !prepared.version_.kernel->kernel.reduces)
    prepared.threads_version_ = TRY(prepared.create_version(launch, Staging::Reductions));
  if (prepared.version_.kernel->has_advertisements && prepared.version_.kernel->kernel.reduces)
    prepared.slots_version_ = TRY(prepared.create_version(
        launch, has_stages ? Staging::All : Staging::None, Expected::Slots));
  if (may_have_places(launch)) prepared.launch_ = launch;
  return prepared;
}

Result<PreparedLaunch::Version> PreparedLaunch::create_version(const Launch& launch,
                                                               Staging staging, Expected expected) {
  return create_version(
      TRY(prepare(launch, Specialisation::Allowed, staging, most_shared_, expected)));
}

Result<PreparedLaunch::Version> PreparedLaunch::create_version(KernelLaunch prepared) {
  Version version;
  version.kernel = std::make_unique<KernelLaunch>(std::move(prepared));
  KernelLaunch& kernel = *version.kernel;
  version.function = TRY(find_kernel(device_, kernel.kernel));
  constexpr uint32_t kSharedWithoutAsking = 48 * 1024;
  const uint32_t shared_bytes = kernel.header().shared_bytes;
  if (shared_bytes > kSharedWithoutAsking) {
    // The largest any launch may need: launches of one function must not undo each other's wish.
    const Driver& driver = machine_->driver();
    TRY(driver.check(
        driver.cuFuncSetAttribute(version.function, gpu::cuda::kCuFunctionMaxDynamicShared,
                                  static_cast<int>(most_shared_)),
        "cuFuncSetAttribute({} bytes of shared memory, device {})", most_shared_, device_));
  }
  if (!kernel.device_params.empty()) {
    version.params = TRY(make_device_params(*machine_, device_, kernel.device_params));
    kernel.header().params = version.params.get();
    kernel.device_params = {};
  }
  return version;
}

Status PreparedLaunch::set_buffers(std::span<const Buffers> buffers) {
  TRY(needs_.check(buffers));
  buffers_.assign(buffers.begin(), buffers.end());  // allocates the first time alone
  cuda::set_buffers(*version_.kernel, buffers);
  if (threads_version_.kernel != nullptr) cuda::set_buffers(*threads_version_.kernel, buffers);
  if (slots_version_.kernel != nullptr) cuda::set_buffers(*slots_version_.kernel, buffers);
  return {};
}

void PreparedLaunch::find_advertisements(KernelLaunch& kernel) {
  if (!kernel.advertises_output && !kernel.advertises_input) return;
  OpenMemory open(*machine_, device_);
  set_advertisements(kernel, buffers_,
                     [&](const void* buffer, uint64_t bytes) { return open.holds(buffer, bytes); });
}

Result<PreparedLaunch::Version*> PreparedLaunch::find_version_with_places() {
  constexpr size_t kMostVersions = 4;
  if (!launch_) return nullptr;
  for (size_t work = 0; work < buffers_.size(); ++work)
    launch_->works[work].buffers = buffers_[work];
  std::optional<Places> places = find_places(*launch_);
  if (!places) return nullptr;
  auto found = std::ranges::find_if(with_places_,
                                    [&](const auto& known) { return known->places == *places; });
  if (found == with_places_.end()) {
    if (with_places_.size() == kMostVersions) return nullptr;
    auto made = std::make_unique<VersionWithPlaces>();
    made->version = TRY(create_version(TRY(prepare_with_places(*launch_, *places))));
    made->places = std::move(*places);
    with_places_.push_back(std::move(made));
    found = std::prev(with_places_.end());
  }
  Version& version = (*found)->version;
  cuda::set_buffers(*version.kernel, buffers_);
  return &version;
}

Result<PreparedLaunch::Version*> PreparedLaunch::choose_version() {
  if (Version* const in_places = TRY(find_version_with_places()); in_places != nullptr) {
    find_advertisements(*in_places->kernel);
    return in_places;
  }
  const bool by_threads =
      threads_version_.kernel != nullptr && !suits_staged_copies(*version_.kernel);
  Version& version = by_threads ? threads_version_ : version_;
  find_advertisements(*version.kernel);
  if (slots_version_.kernel == nullptr || offers_all(*version.kernel, buffers_)) return &version;
  find_advertisements(*slots_version_.kernel);
  return &slots_version_;
}

Status PreparedLaunch::launch(gpu::StreamHandle stream, void* begun, uint64_t number,
                              AfterLast after_last) {
  const Driver& driver = machine_->driver();
  const ScopedContext scoped = TRY(ScopedContext::enter(driver, context_));
  Version& version = *TRY(choose_version());
  KernelLaunch& kernel = *version.kernel;
  if (marks_) set_number(kernel, marks_, number);

  // A release to system scope waits for all stores of its domain. In a domain of our own it does
  // not wait for stores of the caller's kernels on the same GPU.
  std::array<CuLaunchAttribute, 3> attributes{};
  unsigned attribute_count = 0;
  if (has_sync_domains_) {
    CuLaunchAttribute& attribute = attributes[attribute_count++];
    attribute.id = gpu::cuda::kCuLaunchMemSyncDomain;
    attribute.value.mem_sync_domain = gpu::cuda::kCuMemSyncDomainRemote;
  }
  if (begun != nullptr) {
    CuLaunchAttribute& attribute = attributes[attribute_count++];
    attribute.id = gpu::cuda::kCuLaunchCompletionEvent;
    attribute.value.completion = {.event = begun, .flags = 0};
  }
  const bool is_beside =
      after_last == AfterLast::Beside && may_run_beside_ && awaits_last(kernel.kernel);
  const bool is_early =
      after_last == AfterLast::Early && may_begin_early_ && begins_early(kernel.kernel);
  kernel.header().flags &= ~uint32_t{kBeginsEarly};
  if (is_early) kernel.header().flags |= kBeginsEarly;
  if (is_beside || is_early) {
    CuLaunchAttribute& attribute = attributes[attribute_count++];
    attribute.id = gpu::cuda::kCuLaunchProgrammaticStreamSerialization;
    attribute.value.programmatic_stream_serialization = 1;
  }
  CuLaunchConfig config{};
  config.grid_x = kernel.grid_x;
  config.grid_y = kernel.grid_y;
  config.grid_z = 1;
  config.block_x = kernel.threads;
  config.block_y = 1;
  config.block_z = 1;
  config.shared_bytes = kernel.header().shared_bytes;
  config.stream = gpu::cuda::as_stream(stream);
  config.attributes = attributes.data();
  config.attribute_count = attribute_count;
  // Only the part of the parameters that the kernel reads: they are copied with every launch.
  size_t bytes = kernel.parameters.size();
  void* extra[] = {gpu::cuda::kCuLaunchParameterPointer, kernel.parameters.data(),
                   gpu::cuda::kCuLaunchParameterSize, &bytes, gpu::cuda::kCuLaunchParameterEnd};
  TRY(driver.check(driver.cuLaunchKernelEx(&config, version.function, nullptr, extra),
                   "cuLaunchKernelEx({}x{} CTAs of {} threads on device {})", config.grid_x,
                   config.grid_y, config.block_x, device_));
  for (relay::Bell* bell : bells_) bell->announce();
  return version.params == nullptr ? Status() : keep_in_graph(version.params, stream);
}

// A graph that is captured may outlive this launch, and all that it has.
Status PreparedLaunch::keep_in_graph(const DeviceParams& params, gpu::StreamHandle stream) {
  const gpu::Capture capture = TRY(machine_->capture_of(device_, stream));
  if (capture.state != gpu::CaptureState::Active) return {};
  auto kept = std::make_unique<DeviceParams>(params);
  TRY(machine_->keep_in_graph(device_, stream, kept.get(), let_go));
  static_cast<void>(kept.release());  // let_go() owns it now
  return {};
}

}  // namespace niccolite::executor::cuda
