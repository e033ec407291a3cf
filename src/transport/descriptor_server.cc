#include "transport/descriptor_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <mutex>

#include "base/log.h"
#include "base/parameters.h"

namespace niccolite::transport {
namespace {

constexpr char kFound = 1;
constexpr char kUnknown = 0;
constexpr timeval kPatience{.tv_sec = 1,
                            .tv_usec = 0};  // for a client of the same user that does not speak

struct SocketName {
  sockaddr_un address{};
  socklen_t length = 0;
};

Result<SocketName> socket_name(const std::string& text) {
  SocketName name;
  name.address.sun_family = AF_UNIX;
  if (text.size() < 2 || text.size() >= sizeof name.address.sun_path)
    return Status::internal("bad Unix socket name '{}'", text);
  std::memcpy(name.address.sun_path, text.data(), text.size());
  if (text[0] == '@')
    name.address.sun_path[0] = '\0';  // abstract: no file, vanishes with the socket
  name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + text.size());
  return name;
}

Status send_descriptor(const Fd& socket, const Fd& descriptor) {
  char answer = kFound;
  iovec data{&answer, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = descriptor.get();
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  if (sendmsg(socket.get(), &message, MSG_NOSIGNAL) < 0)
    return Status::from_errno(errno, "sendmsg of a descriptor");
  return {};
}

// The descriptor that came with the answer; invalid when the server did not know the token.
Result<Fd> receive_descriptor(const Fd& socket) {
  char answer = kUnknown;
  iovec data{&answer, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return Status::from_errno(errno, "recvmsg of a descriptor");
  Fd fd;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header))
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
      int raw = -1;
      std::memcpy(&raw, CMSG_DATA(header), sizeof raw);
      fd = Fd(raw);
    }
  if (got == 0) return Status::remote_error("the process closed the connection before it answered");
  return fd;
}

}  // namespace

Result<std::shared_ptr<DescriptorServer>> DescriptorServer::instance() {
  static std::mutex mutex;
  static std::weak_ptr<DescriptorServer> current;
  std::lock_guard lock(mutex);
  if (auto server = current.lock()) return server;

  uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) != sizeof random)
    return Status::from_errno(errno, "getrandom");
  const bool abstract = parameters::ipc_use_abstract_socket() != 0;
  const std::string address =
      fmt::format("{}niccolite-{}-{:016x}", abstract ? "@" : "/tmp/", getpid(), random);
  const SocketName name = TRY(socket_name(address));
  Fd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return Status::from_errno(errno, "cannot create a Unix socket");
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) != 0 ||
      listen(listener.get(), 64) != 0)
    return Status::from_errno(errno, fmt::format("cannot listen on Unix socket {}", address));
  Fd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return Status::from_errno(errno, "eventfd");
  std::shared_ptr<DescriptorServer> server(
      new DescriptorServer(std::move(listener), std::move(stop), address));
  server->thread_ = TRY(Thread::start("nccl-fd-server", [self = server.get()] { self->run(); }));
  current = server;
  return server;
}

DescriptorServer::~DescriptorServer() {
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one,
               sizeof one);  // an eventfd just created takes one write without fail
  thread_.join();
  if (address_[0] != '@') unlink(address_.c_str());
}

void DescriptorServer::run() {
  for (;;) {
    pollfd events[2] = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    if (poll(events, 2, -1) < 0) continue;  // EINTR: signals are blocked, so this is rare
    if ((events[0].revents & POLLIN) != 0) return;
    Fd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client.valid()) serve(client);
  }
}

void DescriptorServer::serve(const Fd& client) {
  ucred who{};
  socklen_t length = sizeof who;
  if (getsockopt(client.get(), SOL_SOCKET, SO_PEERCRED, &who, &length) != 0 ||
      who.uid != geteuid()) {
    LOG(Info, Shm, "refused a connection of process {} of user {} to the descriptor socket",
        who.pid, who.uid);
    return;
  }
  setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
  setsockopt(client.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
  Token token;
  if (recv(client.get(), token.data(), token.size(), MSG_WAITALL) !=
      static_cast<ssize_t>(token.size()))
    return;
  const std::shared_ptr<Shareable> memory = Shareable::find(token);
  if (memory != nullptr) {
    Result<Fd> descriptor = memory->export_descriptor();
    if (descriptor.is_ok()) {
      send_descriptor(client, *descriptor).ignore("the client sees a closed connection");
      return;
    }
    log::error(descriptor.status(), "DescriptorServer");
  }
  (void)!send(client.get(), &kUnknown, 1, MSG_NOSIGNAL);  // a client that is gone needs no answer
}

Result<Fd> fetch_descriptor(const std::string& address, const Token& token,
                            const Deadline& deadline) {
  const SocketName name = TRY(socket_name(address));
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return Status::from_errno(errno, "cannot create a Unix socket");
  const int milliseconds = std::max(1, deadline.poll_milliseconds(30'000));
  const timeval patience{.tv_sec = milliseconds / 1000, .tv_usec = milliseconds % 1000 * 1000};
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) != 0) {
    const int error = errno;
    return Status::from_errno(error, fmt::format("cannot reach Unix socket {} of the peer process "
                                                 "(is it in another network namespace? Then set "
                                                 "NCCL_IPC_USE_ABSTRACT_SOCKET=0)",
                                                 address));
  }
  if (send(socket.get(), token.data(), token.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(token.size()))
    return Status::from_errno(errno, "send to the peer's Unix socket");
  Fd fd = TRY(receive_descriptor(socket));
  if (!fd.valid())
    return Status::remote_error("the peer process no longer has the memory that it offered");
  return fd;
}

}  // namespace niccolite::transport
