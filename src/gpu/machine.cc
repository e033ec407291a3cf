// Which machine this process uses, and where its virtual driver is.
#include "gpu/machine.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <optional>
#include <string>

#include "base/log.h"
#include "gpu/choice.h"
#include "gpu/virtual/tasks.h"
#ifdef NICCOLITE_HAVE_CUDA_MACHINE
#include "gpu/cuda/open.h"
#endif

namespace niccolite::gpu {
namespace {

constexpr const char* kDriverLibrary = "libcudart.so.13";

// The entry point of a virtual driver, null for none.
struct EntryPoint {
  virtual_::VirtualMachine* (*open)(int) = nullptr;
};

EntryPoint entry_point_in(void* library) {
  void* symbol = dlsym(library, virtual_::kEntryPoint);
  return {reinterpret_cast<virtual_::VirtualMachine* (*)(int)>(symbol)};
}

// A virtual driver that the process has loaded: its streams and pointers are those the caller has.
EntryPoint loaded_virtual_driver() {
  if (EntryPoint entry = entry_point_in(RTLD_DEFAULT); entry.open) return entry;
  // Loaded, but not for everybody to see, as by Python's import. The reference stays: the driver is
  // never unloaded.
  void* library = dlopen(kDriverLibrary, RTLD_LAZY | RTLD_NOLOAD);
  return library ? entry_point_in(library) : EntryPoint();
}

// Returns the folder from which our own code was loaded.
std::string own_folder() {
  Dl_info info{};
  link_map* object = nullptr;
  if (dladdr1(reinterpret_cast<void*>(&own_folder), &info, reinterpret_cast<void**>(&object),
              RTLD_DL_LINKMAP) == 0)
    return ".";
  std::filesystem::path file = object->l_name;
  // The link map has no name for the program itself, and argv[0] is no path when the program was
  // found over PATH.
  std::error_code unreadable;
  if (file.empty()) file = std::filesystem::read_symlink("/proc/self/exe", unreadable);
  return file.has_parent_path() ? file.parent_path().string() : ".";
}

Result<EntryPoint> load_virtual_driver() {
  if (EntryPoint entry = loaded_virtual_driver(); entry.open) return entry;
  const std::string folder = own_folder();
  std::string tried;
  // Beside the library; or, for a program that has the library linked in, where a build tree or a
  // prefix has it.
  for (const char* place : {"vcuda", "../vcuda", "../lib/vcuda", "../../lib/vcuda"}) {
    const std::string path = fmt::format("{}/{}/{}", folder, place, kDriverLibrary);
    if (void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
      if (EntryPoint entry = entry_point_in(library); entry.open) return entry;
      tried += fmt::format("\n  {}: has no symbol {}", path, virtual_::kEntryPoint);
    } else {
      tried += fmt::format("\n  {}", dlerror());
    }
  }
  return Status::cuda_error(
      "no virtual driver: {} of this library's vcuda folder was not found. Install it beside the "
      "library as "
      "vcuda/{}, or load it before the library is used. Tried:{}",
      kDriverLibrary, kDriverLibrary, tried);
}

Result<Machine*> open_virtual() {
  const EntryPoint entry = TRY(load_virtual_driver());
  if (virtual_::VirtualMachine* machine = entry.open(virtual_::kInterfaceVersion)) return machine;
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(entry.open), &info);
  return Status::cuda_error(
      "the virtual driver {} does not offer version {} of its interface: it is of another build "
      "than this "
      "library. Use the vcuda folder that came with the library",
      info.dli_fname ? info.dli_fname : kDriverLibrary, virtual_::kInterfaceVersion);
}

Result<Machine*> open_cuda() {
#ifdef NICCOLITE_HAVE_CUDA_MACHINE
  return cuda::open();
#else
  return Status::cuda_error("this build has no CUDA back end");
#endif
}

Result<Machine*> choose() {
  const Choice choice = TRY(chosen_devices());
  switch (choice.kind) {
    case Choice::Kind::Cuda:
      return open_cuda();
    case Choice::Kind::Virtual:
      return open_virtual();
    case Choice::Kind::Automatic:
      break;
  }
  // A program that runs on the virtual driver has its streams and buffers there, whatever else the
  // machine has.
  if (loaded_virtual_driver().open) return open_virtual();
  Result<Machine*> real = open_cuda();
  // The loader may have found the virtual GPUs' libcuda.so.1, which loads the virtual driver, too.
  // The CUDA back end runs on it only where NICCOLITE_DEVICES=cuda asks for that.
  if (real.is_ok() && loaded_virtual_driver().open == nullptr) return real;
  Result<Machine*> fallback = open_virtual();
  if (fallback.is_ok()) return fallback;
  return Status::cuda_error("no GPU can be used. CUDA: {}. Virtual GPUs: {}",
                            real.status().message(), fallback.status().message());
}

}  // namespace

namespace {

// The "[dev]" of log lines: the calling thread's device.
int device_for_log_lines() {
  const Result<Machine*> chosen = machine();
  if (!chosen.is_ok()) return 0;
  const Result<int> device = chosen.value()->current_device();
  return device.is_ok() ? device.value() : 0;
}

}  // namespace

Result<Machine*> machine() {
  // Kept as it is, failure included: all callers of a process see the same.
  static const Result<Machine*>* const chosen = [] {
    auto* const result = new Result<Machine*>(choose());
    if (result->is_ok()) log::set_device_source(device_for_log_lines);
    return result;
  }();
  if (chosen->is_ok()) return chosen->value();
  return chosen->status().copy();
}

}  // namespace niccolite::gpu
