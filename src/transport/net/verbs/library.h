// Library: the functions of libibverbs that this library uses, opened at run time: nothing is
// linked. Source: rdma-core's public header infiniband/verbs.h. Functions that the header itself
// has (ibv_post_send, ibv_post_recv, ibv_poll_cq) are called by their names. Thread safety: any
// thread.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <string>

#include "base/status.h"

// The header's macros have the names of functions that are looked up.
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace niccolite::transport::net::verbs {

// X(function): needed.
#define NICCOLITE_VERBS_FUNCTIONS(X) \
  X(get_device_list)                 \
  X(free_device_list)                \
  X(open_device)                     \
  X(close_device)                    \
  X(query_device)                    \
  X(query_gid)                       \
  X(get_async_event)                 \
  X(ack_async_event)                 \
  X(alloc_pd)                        \
  X(dealloc_pd)                      \
  X(reg_mr)                          \
  X(dereg_mr)                        \
  X(create_cq)                       \
  X(destroy_cq)                      \
  X(create_qp)                       \
  X(modify_qp)                       \
  X(destroy_qp)                      \
  X(wc_status_str)

class Library {
 public:
  /// Opens NCCL_IBVERBS_LIB, else libibverbs.so.1; once in a process, which keeps it. Errors name
  /// the library, or the function that it lacks.
  static Result<const Library*> open();
  /// Is there a library? False also says that nobody has named one.
  static bool is_missing();

#define NICCOLITE_DECLARE(function) decltype(&ibv_##function) function = nullptr;
  NICCOLITE_VERBS_FUNCTIONS(NICCOLITE_DECLARE)
#undef NICCOLITE_DECLARE
  // Newer functions; null where the library is older.
  decltype(&ibv_reg_mr_iova2) reg_mr_iova2 = nullptr;
  decltype(&_ibv_query_gid_ex) query_gid_ex = nullptr;
  decltype(&ibv_reg_dmabuf_mr) reg_dmabuf_mr = nullptr;

  int query_port(ibv_context* context, uint8_t number, ibv_port_attr& port) const;
  const std::string& file() const { return file_; }

 private:
  Status load();

  std::string file_;
  int (*old_query_port_)(ibv_context*, uint8_t, ibv_port_attr*) = nullptr;
};

}  // namespace niccolite::transport::net::verbs
