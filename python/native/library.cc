#include "library.h"

#include <dlfcn.h>
#include <nanobind/nanobind.h>

#include <cstdlib>
#include <filesystem>

#include "errors.h"

namespace nb = nanobind;

namespace niccolite::python {
namespace {

constexpr const char* kChoice = "NICCOLITE_LIBRARY";

std::string file_of(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

void* open_or_throw(const std::string& path, const std::string& remedy) {
  if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
  const std::string message = std::string("cannot load ") + path + ": " + dlerror() + ". " + remedy;
  PyErr_SetString(PyExc_ImportError, message.c_str());
  throw nb::python_error();
}

}  // namespace

std::string package_folder() {
  return std::filesystem::path(file_of(reinterpret_cast<const void*>(&package_folder)))
      .parent_path()
      .string();
}

Library::Library() {
  if (const char* chosen = std::getenv(kChoice); chosen != nullptr && *chosen != '\0') {
    handle_ = open_or_throw(chosen, std::string("The environment variable ") + kChoice +
                                        " names it; unset, Niccolite's own is used.");
    return;
  }
  if (dlsym(RTLD_DEFAULT, "ncclGetVersion") != nullptr) return;
  handle_ = open_or_throw(package_folder() + "/lib/libnccl.so.2",
                          std::string("Is the package whole? Another one can be named in the "
                                      "environment variable ") +
                              kChoice + ".");
}

void* Library::find(const char* name) const {
  void* address = dlsym(handle_, name);
  if (address == nullptr) throw_function_not_found(name);
  return address;
}

std::string Library::path() const {
  const void* address = dlsym(handle_, "ncclGetVersion");
  return address == nullptr ? "" : file_of(address);
}

bool Library::is_ours() const {
  // Only Niccolite has its virtual GPUs installed beside it, because it needs them there.
  std::error_code error;
  const auto folder = std::filesystem::path(path()).parent_path();
  return std::filesystem::exists(folder / "vcuda" / "libcudart.so.13", error);
}

const Library& library() {
  static const Library loaded;
  return loaded;
}

}  // namespace niccolite::python
