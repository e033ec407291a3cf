// A libnccl.so.2 opened at run time: the functions that the command calls, and communicators of it.
// The command links no NCCL, so that it can measure any, and two in one run. Thread safety: Library
// is immutable after open(). A Communicator is used by one thread at a time.
#pragma once

#include <nccl.h>
#include <nccl_device.h>

#include <string>

#include "base/status.h"
#include "cli/perf/element.h"

namespace niccolite::perf {

class Library {
 public:
  /// `path` to a shared library. Its symbols stay private to it (RTLD_LOCAL), so two libraries do
  /// not meet.
  static Result<Library> open(const std::string& path);

  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRank) comm_init_rank = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;  // null in libraries before 2.13.4
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  // Null where the library does not have them.
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclAlltoAll) all_to_all = nullptr;  // since 2.28, as the next two
  decltype(&ncclGather) gather = nullptr;
  decltype(&ncclScatter) scatter = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  decltype(&ncclRedOpCreatePreMulSum) create_pre_mul_sum = nullptr;
  decltype(&ncclRedOpDestroy) destroy_operation = nullptr;
  decltype(&ncclCommSplit) comm_split = nullptr;
  decltype(&ncclMemAlloc) mem_alloc = nullptr;
  decltype(&ncclMemFree) mem_free = nullptr;
  decltype(&ncclCommRegister) comm_register = nullptr;
  decltype(&ncclCommDeregister) comm_deregister = nullptr;
  decltype(&ncclCommWindowRegister) window_register = nullptr;
  decltype(&ncclCommWindowDeregister) window_deregister = nullptr;
  decltype(&ncclDevCommCreate) dev_comm_create = nullptr;
  decltype(&ncclDevCommDestroy) dev_comm_destroy = nullptr;

  /// Does the library have the function of this name?
  bool has(const char* function) const;
  const std::string& path() const { return path_; }
  int version() const { return version_; }
  std::string version_text() const;  // "2.30.7"

  /// A failure of `call`, with the library's own last error.
  Status check(ncclResult_t result, const char* call) const;

 private:
  Library(std::string path, void* handle) : path_(std::move(path)), handle_(handle) {}
  Status resolve();
  std::string path_;
  // Never closed: a library with threads of its own must not be unmapped under them, and the
  // process ends soon.
  void* handle_ = nullptr;
  int version_ = 0;
};

/// The library to measure when --lib says nothing: beside this command as installed, or in its
/// build tree.
Result<std::string> default_library_path();

class Communicator {
 public:
  Communicator() = default;
  Communicator(Communicator&& other) noexcept
      : library_(other.library_), comm_(std::exchange(other.comm_, nullptr)) {}
  Communicator& operator=(Communicator&&) = delete;
  ~Communicator() { destroy().ignore("an error of destruction alone changes no result"); }

  /// Starts initialisation, for the calling thread's current device. Inside a group it is done when
  /// the group ends.
  Status init(const Library& library, int nranks, const ncclUniqueId& id, int rank);
  Status destroy();
  Status async_error() const;
  const Library& library() const { return *library_; }
  ncclComm_t get() const { return comm_; }
  bool valid() const { return comm_ != nullptr; }

 private:
  const Library* library_ = nullptr;  // outlives the communicator; the caller keeps it
  ncclComm_t comm_ = nullptr;
};

/// An operation of a communicator: one of the API's own, or one made with a scalar.
class ReductionOperation {
 public:
  /// `scalar`: one element of `type` where operation.scalar says, else unused. `comm` must outlive
  /// the operation, and so must a scalar on the device.
  static Result<ReductionOperation> create(const Communicator& comm, const ElementType& type,
                                           const Operation& operation, void* scalar);
  ReductionOperation(ReductionOperation&& other) noexcept
      : id_(other.id_), comm_(std::exchange(other.comm_, nullptr)) {}
  ReductionOperation& operator=(ReductionOperation&&) = delete;
  ~ReductionOperation();

  ncclRedOp_t id() const { return id_; }

 private:
  ReductionOperation(ncclRedOp_t id, const Communicator* comm) : id_(id), comm_(comm) {}
  ncclRedOp_t id_;
  const Communicator* comm_;  // null: there is nothing to destroy
};

}  // namespace niccolite::perf
