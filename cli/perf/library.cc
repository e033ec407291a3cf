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
  NICCOLITE_RESOLVE(group_start, "ncclGroupStart");
  NICCOLITE_RESOLVE(group_end, "ncclGroupEnd");
#undef NICCOLITE_RESOLVE
  find(get_last_error, "ncclGetLastError");
  find(all_reduce, "ncclAllReduce");
  find(all_gather, "ncclAllGather");
  find(reduce_scatter, "ncclReduceScatter");
  find(broadcast, "ncclBroadcast");
  find(reduce, "ncclReduce");
  find(all_to_all, "ncclAlltoAll");
  find(gather, "ncclGather");
  find(scatter, "ncclScatter");
  find(send, "ncclSend");
  find(receive, "ncclRecv");
  find(create_pre_mul_sum, "ncclRedOpCreatePreMulSum");
  find(destroy_operation, "ncclRedOpDestroy");
  find(comm_split, "ncclCommSplit");
  find(mem_alloc, "ncclMemAlloc");
  find(mem_free, "ncclMemFree");
  find(comm_register, "ncclCommRegister");
  find(comm_deregister, "ncclCommDeregister");
  find(window_register, "ncclCommWindowRegister");
  find(window_deregister, "ncclCommWindowDeregister");
  find(dev_comm_create, "ncclDevCommCreate");
  find(dev_comm_destroy, "ncclDevCommDestroy");
  return check(get_version(&version_), "ncclGetVersion");
}

bool Library::has(const char* function) const { return dlsym(handle_, function) != nullptr; }

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

Result<ReductionOperation> ReductionOperation::create(const Communicator& comm,
                                                      const ElementType& type,
                                                      const Operation& operation, void* scalar) {
  if (operation.scalar == Scalar::None) return ReductionOperation(operation.id, nullptr);
  const Library& library = comm.library();
  if (library.create_pre_mul_sum == nullptr || library.destroy_operation == nullptr)
    return Status::invalid_usage(
        "{} needs ncclRedOpCreatePreMulSum, which {} (version {}) does not have", operation.name,
        library.path(), library.version_text());
  ncclRedOp_t id = operation.id;
  const auto residence =
      operation.scalar == Scalar::Host ? ncclScalarHostImmediate : ncclScalarDevice;
  TRY(library.check(library.create_pre_mul_sum(&id, scalar, type.id, residence, comm.get()),
                    "ncclRedOpCreatePreMulSum"));
  return ReductionOperation(id, &comm);
}

ReductionOperation::~ReductionOperation() {
  if (comm_ == nullptr) return;
  const Library& library = comm_->library();
  library.check(library.destroy_operation(id_, comm_->get()), "ncclRedOpDestroy")
      .ignore("an error of destruction alone changes no result");
}

}  // namespace niccolite::perf
