#include "cli/perf/device.h"

#include <dlfcn.h>

#include <cerrno>
#include <filesystem>

namespace niccolite::perf {

Result<const KernelLibrary*> open_kernels(gpu::Kind kind) {
  const bool is_virtual = kind == gpu::Kind::Virtual;
  const char* const name =
      is_virtual ? "libniccolite_perf_virtual.so" : "libniccolite_perf_cuda.so";
  std::error_code error;
  const std::filesystem::path command = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Status::system_error("cannot read /proc/self/exe: {}", error.message());
  const std::filesystem::path path = command.parent_path() / "../lib" / name;
  if (!std::filesystem::exists(path, error))
    return Status::invalid_usage(
        "--device: there is no ../lib/{} beside {}, with kernels for {}{}", name,
        command.parent_path().string(), is_virtual ? "virtual GPUs" : "GPUs",
        is_virtual ? ""
                   : ": the command was built without nvcc (cmake -DNICCOLITE_CUDA=ON builds it). "
                     "NICCOLITE_DEVICES=virtual runs kernels on virtual GPUs");
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: kernels run
  if (handle == nullptr) return Status::system_error("cannot load {}", dlerror());
  const auto* const kernels = static_cast<const KernelLibrary*>(dlsym(handle, kKernelsSymbol));
  if (kernels == nullptr || kernels->version != kKernelsVersion)
    return Status::invalid_usage("{} is of another version than this command", path.string());
  return kernels;
}

Status DeviceComm::create(const Communicator& comm, const KernelLibrary& kernels, DeviceWay way) {
  const Library& library = comm.library();
  if (library.dev_comm_create == nullptr || library.dev_comm_destroy == nullptr)
    return Status::invalid_usage(
        "--device needs ncclDevCommCreate, which {} (version {}) does not have", library.path(),
        library.version_text());
  comm_ = &comm;
  if (way == DeviceWay::Network) {
    state_.bufferSize = kernels.state_bytes;
    state_.bufferAlign = alignof(uint64_t);
    state_.outBufferHandle = &epochs_;
    needs_.resourceRequirementsList = &state_;
    needs_.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
    needs_.ginContextCount = kernels.contexts;
    needs_.ginSignalCount = kernels.signals;
  } else {
    needs_.lsaBarrierCount = kernels.barriers;
    needs_.lsaMultimem = way == DeviceWay::Multicast;
  }
  return library.check(library.dev_comm_create(comm.get(), &needs_, &made_), "ncclDevCommCreate");
}

Status DeviceComm::check(DeviceWay way) const {
  if (way == DeviceWay::Network || made_.lsaSize == made_.nRanks) return {};
  return Status::invalid_usage(
      "--device {}: kernels load and store in the memory of {} of the {} ranks (the load-store "
      "team: NCCL_LSA_TEAM_SIZE, or the ranks of a machine); --device gin reaches all",
      name_of(way), made_.lsaSize, made_.nRanks);
}

Status DeviceComm::destroy() {
  if (comm_ == nullptr) return {};
  const Library& library = comm_->library();
  return library.check(library.dev_comm_destroy(std::exchange(comm_, nullptr)->get(), &made_),
                       "ncclDevCommDestroy");
}

}  // namespace niccolite::perf
