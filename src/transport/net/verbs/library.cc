#include "transport/net/verbs/library.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstring>

#include "base/parameters.h"

namespace niccolite::transport::net::verbs {
namespace {

constexpr char kUsual[] = "libibverbs.so.1";

const std::string& name_of_library() {
  static const std::string name =
      parameters::ibverbs_lib().empty() ? std::string(kUsual) : parameters::ibverbs_lib();
  return name;
}

// Never closed: contexts of the process, and threads of the library, live on in it.
struct OpenedLibrary {
  void* handle;
  std::string why;  // there is none
};
const OpenedLibrary& opened_library() {
  static const OpenedLibrary opened = [] {
    void* const handle = dlopen(name_of_library().c_str(), RTLD_NOW | RTLD_LOCAL);
    const char* const why = handle == nullptr ? dlerror() : nullptr;
    return OpenedLibrary{handle, why != nullptr ? why : ""};
  }();
  return opened;
}

}  // namespace

bool Library::is_missing() {
  return parameters::ibverbs_lib().empty() && opened_library().handle == nullptr;
}

Result<const Library*> Library::open() {
  static Library library;
  static const Status status = library.load();
  if (!status.is_ok()) return status.copy();
  return &library;
}

Status Library::load() {
  file_ = name_of_library();
  void* const handle = opened_library().handle;
  if (handle == nullptr)
    return Status::invalid_usage(
        "InfiniBand and RoCE need {}, which does not open: {}. Install libibverbs (rdma-core), or "
        "give its path in NCCL_IBVERBS_LIB",
        file_, opened_library().why);
  const auto lacks = [&](const char* function) {
    return Status::invalid_usage(
        "InfiniBand and RoCE: {} has no function {}: install a newer libibverbs (rdma-core 17 or "
        "later), or name another one in NCCL_IBVERBS_LIB",
        file_, function);
  };
#define NICCOLITE_FIND(function)                                                    \
  function = reinterpret_cast<decltype(function)>(dlsym(handle, "ibv_" #function)); \
  if (function == nullptr) return lacks("ibv_" #function);
  NICCOLITE_VERBS_FUNCTIONS(NICCOLITE_FIND)
#undef NICCOLITE_FIND
  old_query_port_ = reinterpret_cast<decltype(old_query_port_)>(dlsym(handle, "ibv_query_port"));
  if (old_query_port_ == nullptr) return lacks("ibv_query_port");
  reg_mr_iova2 = reinterpret_cast<decltype(reg_mr_iova2)>(dlsym(handle, "ibv_reg_mr_iova2"));
  query_gid_ex = reinterpret_cast<decltype(query_gid_ex)>(dlsym(handle, "_ibv_query_gid_ex"));
  reg_dmabuf_mr = reinterpret_cast<decltype(reg_dmabuf_mr)>(dlsym(handle, "ibv_reg_dmabuf_mr"));
  return {};
}

// Does the work of the header's inline function, which would need libibverbs at link time.
int Library::query_port(ibv_context* context, uint8_t number, ibv_port_attr& port) const {
  std::memset(&port, 0, sizeof port);
  const verbs_context* const extended = verbs_get_ctx(context);
  if (extended != nullptr &&
      extended->sz >= sizeof(verbs_context) - offsetof(verbs_context, query_port) &&
      extended->query_port != nullptr)
    return extended->query_port(context, number, &port, sizeof port);
  return old_query_port_(context, number, &port);
}

}  // namespace niccolite::transport::net::verbs
