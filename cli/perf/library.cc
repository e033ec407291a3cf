#include "cli/perf/library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <filesystem>

namespace niccolite::perf {

Result<Library> Library::open(const std::string& path) {
  // A resolved path: with a bare name the loader would hand out a library of the same soname that
  // is already there.
  char resolved[PATH_MAX];
  if (realpath(path.c_str(), resolved) == nullptr) return Status::from_errno(errno, path);
  void* handle = dlopen(resolved, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Status::system_error("cannot load {}", dlerror());
  Library library(resolved, handle);
  TRY(library.resolve());
  return library;
}

Library::Library(Library&& other) noexcept
    : get_version(other.get_version),
      get_unique_id(other.get_unique_id),
      comm_init_rank(other.comm_init_rank),
      comm_destroy(other.comm_destroy),
      comm_get_async_error(other.comm_get_async_error),
      get_error_string(other.get_error_string),
      get_last_error(other.get_last_error),
      all_reduce(other.all_reduce),
      group_start(other.group_start),
      group_end(other.group_end),
      path_(std::move(other.path_)),
      handle_(std::exchange(other.handle_, nullptr)),
      version_(other.version_) {}

Library::~Library() {
  // Stays loaded: a library with threads of its own must not be unmapped under them, and the
  // process ends soon.
}

Status Library::resolve() {
  const auto find = [this](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle_, name));
    return function != nullptr;
  };
#define NICCOLITE_RESOLVE(member, name) \
  if (!find(member, name))              \
  return Status::invalid_argument("{} has no {}; is it an NCCL library?", path_, name)
  NICCOLITE_RESOLVE(get_version, "ncclGetVersion");
  NICCOLITE_RESOLVE(get_unique_id, "ncclGetUniqueId");
  NICCOLITE_RESOLVE(comm_init_rank, "ncclCommInitRank");
  NICCOLITE_RESOLVE(comm_destroy, "ncclCommDestroy");
  NICCOLITE_RESOLVE(comm_get_async_error, "ncclCommGetAsyncError");
  NICCOLITE_RESOLVE(get_error_string, "ncclGetErrorString");
  NICCOLITE_RESOLVE(all_reduce, "ncclAllReduce");
  NICCOLITE_RESOLVE(group_start, "ncclGroupStart");
  NICCOLITE_RESOLVE(group_end, "ncclGroupEnd");
#undef NICCOLITE_RESOLVE
  find(get_last_error, "ncclGetLastError");
  return check(get_version(&version_), "ncclGetVersion");
}

std::string Library::version_text() const {
  // The scale changed with 2.9: 2804 is 2.8.4, 20906 is 2.9.6.
  const int scale = version_ < 10000 ? 1000 : 10000;
  return fmt::format("{}.{}.{}", version_ / scale, version_ % scale / 100, version_ % 100);
}

Status Library::check(ncclResult_t result, const char* call) const {
  if (result == ncclSuccess) return {};
  const char* detail = get_last_error ? get_last_error(nullptr) : "";
  const bool has_detail = detail != nullptr && *detail != '\0';
  return Status::remote_error("{} of {} (version {}): {}{}{}", call, path_, version_text(),
                              get_error_string(result), has_detail ? ": " : "",
                              has_detail ? detail : "");
}

Result<std::string> default_library_path() {
  std::error_code error;
  const std::filesystem::path command = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Status::system_error("cannot read /proc/self/exe: {}", error.message());
  const std::filesystem::path folder = command.parent_path();
  for (const char* candidate : {"../lib/libnccl.so.2", "../src/api/libnccl.so.2", "libnccl.so.2"}) {
    const std::filesystem::path path = folder / candidate;
    if (std::filesystem::exists(path, error)) return path.string();
  }
  return Status::system_error("no ../lib/libnccl.so.2 beside {}; name the library with --lib",
                              folder.string());
}

Status Communicator::init(const Library& library, int nranks, const ncclUniqueId& id, int rank) {
  library_ = &library;
  return library.check(library.comm_init_rank(&comm_, nranks, id, rank), "ncclCommInitRank");
}

Status Communicator::destroy() {
  if (comm_ == nullptr) return {};
  return library_->check(library_->comm_destroy(std::exchange(comm_, nullptr)), "ncclCommDestroy");
}

Status Communicator::async_error() const {
  if (comm_ == nullptr) return {};
  ncclResult_t state = ncclSuccess;
  TRY(library_->check(library_->comm_get_async_error(comm_, &state), "ncclCommGetAsyncError"));
  if (state == ncclInProgress) return {};
  return library_->check(state, "asynchronous error");
}

}  // namespace niccolite::perf
