// DescriptorServer: hands the file descriptors of this process's shareable memory to other
// processes of the same user, over a Unix socket. A client sends a token and gets one byte and, if
// the token is known, the descriptor. Who connects is checked by the kernel's credentials before
// anything it sends is read. Thread safety: any thread. One per process while any endpoint needs
// it; its thread ends with the last user.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "base/fd.h"
#include "base/thread.h"
#include "base/wait.h"
#include "transport/shareable.h"

namespace niccolite::transport {

class DescriptorServer {
 public:
  ~DescriptorServer();
  /// The process's server, started if need be.
  static Result<std::shared_ptr<DescriptorServer>> instance();

  /// Name of the socket: "@name" in the abstract namespace, or a path
  /// (NCCL_IPC_USE_ABSTRACT_SOCKET=0).
  const std::string& address() const { return address_; }

 private:
  DescriptorServer(Fd listener, Fd stop, std::string address)
      : listener_(std::move(listener)), stop_(std::move(stop)), address_(std::move(address)) {}
  void run();
  Fd accept();
  void serve(const Fd& client);

  const pid_t process_ = getpid();  // not a child made by fork(): that has no thread of it
  Fd listener_;
  Fd stop_;  // eventfd: written to end the thread
  std::string address_;
  Fd reserve_;     // for a client that comes when the process has no other descriptor left
  Thread thread_;  // last member: uses all of the above
};

/// Equal for processes of one kernel that find each other's sockets: the network namespace of
/// abstract ones, else the folder of paths. Empty: not known.
std::string reach_of_sockets();

/// The descriptor of the memory `token` of the process that serves `address`.
Result<Fd> fetch_descriptor(const std::string& address, const Token& token,
                            const Deadline& deadline);

}  // namespace niccolite::transport
