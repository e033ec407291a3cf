#include "transport/descriptor_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <thread>

#include "base/log.h"
#include "base/parameters.h"

namespace niccolite::transport {
namespace {

// Answers of a server. kFound alone comes with a descriptor, kFailed with the reason in words.
constexpr char kUnknown = 0;
constexpr char kFound = 1;
constexpr char kOtherUser = 2;
constexpr char kFailed = 3;
constexpr size_t kMostWords = 512;
constexpr const char* kFolder = "/tmp/";
constexpr std::string_view kPrefix = "niccolite-";
// A socket has this prefix until it listens. If such a socket refuses connections, nobody owns it.
constexpr std::string_view kUnfinished = ".niccolite-";
constexpr std::chrono::hours kAbandoned{1};
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

void set_patience(const Fd& socket, const timeval& patience) {
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

// Makes a call on a socket, and waits until `end` at most. A call with a time limit fails when a
// signal handler has run, also with SA_RESTART (signal(7)). A connect() to a Unix socket fails too,
// and then has not begun. -1 with errno: EAGAIN when the time is over.
template <typename Call>
ssize_t call_until(const Deadline& end, const Fd& socket, Call call) {
  for (;;) {
    const int milliseconds = std::max(1, end.poll_milliseconds(INT_MAX));
    set_patience(socket, {.tv_sec = milliseconds / 1000, .tv_usec = milliseconds % 1000 * 1000});
    const ssize_t result = call();
    if (result >= 0 || errno != EINTR) return result;
    if (!end.passed()) continue;
    errno = EAGAIN;
    return result;
  }
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

Status out_of_descriptors() {
  return Status::system_error(
      "this process has no file descriptor left (limit: ulimit -n): raise the limit, or look for "
      "what leaks them");
}

// Explains why a call on the connection to a peer's process failed, with the user's remedy.
Status peer_failure(int error, const std::string& address) {
  switch (error) {
    case ECONNREFUSED:
    case ENOENT:
      return Status::remote_error(
          "nobody answers at Unix socket {}: the peer's process has ended, or is in a container "
          "with another network, though NCCL_HOSTID is the same (give each container its own "
          "NCCL_HOSTID, or have them share /tmp and set NCCL_IPC_USE_ABSTRACT_SOCKET=0)",
          address);
    case ECONNRESET:
    case EPIPE:
      return Status::remote_error("the peer's process ended while it handed its memory over");
    case EAGAIN:
      return Status::remote_error(
          "the peer's process does not answer at Unix socket {}: is it stopped?", address);
    case EACCES:
    case EPERM:
      return Status::remote_error(
          "Unix socket {} of the peer's process may not be used: does it belong to another user?",
          address);
    case EMFILE:
    case ENFILE:
      return out_of_descriptors();
    default:
      return Status::from_errno(error,
                                fmt::format("Unix socket {} of the peer's process", address));
  }
}

// The descriptor that came with the answer.
Result<Fd> receive_descriptor(const Fd& socket, const std::string& address, const Deadline& end) {
  std::array<char, 1 + kMostWords> answer{kUnknown};
  iovec data{answer.data(), answer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got =
      call_until(end, socket, [&] { return recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC); });
  if (got < 0) return peer_failure(errno, address);
  if (got == 0) return peer_failure(ECONNRESET, address);
  Fd fd;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header))
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
      int raw = -1;
      std::memcpy(&raw, CMSG_DATA(header), sizeof raw);
      fd = Fd(raw);
    }
  switch (answer[0]) {
    case kFound:
      if (fd.valid()) return fd;
      // The kernel drops descriptors for which the receiver has no room.
      return out_of_descriptors();
    case kOtherUser:
      return Status::remote_error(
          "the peer's process belongs to another user than this one (user {}): all ranks of a "
          "machine must run as one user",
          geteuid());
    case kFailed:
      return Status::remote_error("the peer's process cannot hand its memory over: {}",
                                  std::string(answer.data() + 1, static_cast<size_t>(got) - 1));
    default:
      return Status::remote_error("the peer process no longer has the memory that it offered");
  }
}

/// "4711-0123456789abcdef", of a process and a random number.
bool is_own_form(std::string_view rest) {
  const size_t dash = rest.find('-');
  if (dash == 0 || dash == std::string_view::npos) return false;
  const std::string_view random = rest.substr(dash + 1);
  return std::ranges::all_of(rest.substr(0, dash), [](char c) { return c >= '0' && c <= '9'; }) &&
         random.size() == 16 &&
         random.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Users have other files in the folder whose names may begin alike: logs, dumps. connect() refuses
// a file that is no socket just as it refuses a dead socket.
bool may_be_leftover(const std::filesystem::directory_entry& entry) {
  std::error_code error;
  if (entry.symlink_status(error).type() != std::filesystem::file_type::socket) return false;
  const std::string file = entry.path().filename();
  if (file.starts_with(kPrefix)) return is_own_form(std::string_view(file).substr(kPrefix.size()));
  if (!file.starts_with(kUnfinished) ||
      !is_own_form(std::string_view(file).substr(kUnfinished.size())))
    return false;
  const auto written = std::filesystem::last_write_time(entry.path(), error);
  return !error && std::filesystem::file_time_type::clock::now() - written > kAbandoned;
}

// Sockets of the file form that processes which were killed have left.
void remove_leftovers() {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder, ignored)) {
    const std::string path = entry.path();
    if (!may_be_leftover(entry)) continue;
    const Result<SocketName> name = socket_name(path);
    Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!name.is_ok() || !probe.valid()) continue;
    const auto* address = reinterpret_cast<const sockaddr*>(&name.value().address);
    if (connect(probe.get(), address, name.value().length) != 0 && errno == ECONNREFUSED)
      unlink(path.c_str());  // of another user: that is not ours to remove, and the call fails
  }
}

Status listen_at(const Fd& listener, const std::string& path) {
  const SocketName name = TRY(socket_name(path));
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) != 0 ||
      listen(listener.get(), 64) != 0)
    return Status::from_errno(errno, fmt::format("cannot listen on Unix socket {}", path));
  return {};
}

// Between bind() and listen() a socket refuses as a dead one does, and other processes remove dead
// ones: `file` appears under its name when it listens.
Status listen_at_file(const Fd& listener, const std::string& file) {
  const std::string path = kFolder + file;
  const std::string unfinished = std::string(kFolder) + "." + file;
  TRY(listen_at(listener, unfinished));
  if (rename(unfinished.c_str(), path.c_str()) == 0) return {};
  const int error = errno;
  unlink(unfinished.c_str());
  return Status::from_errno(error, fmt::format("cannot make Unix socket {}", path));
}

}  // namespace

Result<std::shared_ptr<DescriptorServer>> DescriptorServer::instance() {
  static std::mutex mutex;
  // Never destroyed: used in destructors, too.
  static auto& current = *new std::weak_ptr<DescriptorServer>;
  std::lock_guard lock(mutex);
  if (auto server = current.lock(); server != nullptr && server->process_ == getpid())
    return server;

  uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) != sizeof random)
    return Status::from_errno(errno, "getrandom");
  const bool abstract = parameters::ipc_use_abstract_socket() != 0;
  if (!abstract) remove_leftovers();
  const std::string file = fmt::format("{}{}-{:016x}", kPrefix, getpid(), random);
  const std::string address = (abstract ? "@" : kFolder) + file;
  Fd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return Status::from_errno(errno, "cannot create a Unix socket");
  listener.withhold();
  TRY(abstract ? listen_at(listener, address) : listen_at_file(listener, file));
  Fd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return Status::from_errno(errno, "eventfd");
  stop.withhold();
  std::shared_ptr<DescriptorServer> server(
      new DescriptorServer(std::move(listener), std::move(stop), address));
  server->reserve_ = Fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  server->thread_ = TRY(Thread::start("nccl-fd-server", [self = server.get()] { self->run(); }));
  current = server;
  return server;
}

DescriptorServer::~DescriptorServer() {
  if (process_ != getpid()) return;  // it goes on in the parent
  const uint64_t one = 1;
  (void)!::write(stop_.get(), &one,
                 sizeof one);  // an eventfd just created takes one write without fail
  thread_.join();
  if (address_[0] != '@') unlink(address_.c_str());
}

void DescriptorServer::run() {
  for (;;) {
    pollfd events[2] = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    if (poll(events, 2, -1) < 0) continue;  // EINTR: signals are blocked, so this is rare
    if ((events[0].revents & POLLIN) != 0) return;
    if (const Fd client = accept(); client.valid()) serve(client);
  }
}

// Where the process has no descriptor left a client would stay in the queue, and end each poll() at
// once. It gets the one in reserve, and hears why the memory cannot be handed over.
Fd DescriptorServer::accept() {
  if (!reserve_.valid()) reserve_ = Fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  Fd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (client.valid() || (errno != EMFILE && errno != ENFILE)) return client;
  reserve_.reset();
  client = Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  // Another thread may have taken it.
  if (!client.valid()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return client;
}

void DescriptorServer::serve(const Fd& client) {
  ucred who{};
  socklen_t length = sizeof who;
  if (getsockopt(client.get(), SOL_SOCKET, SO_PEERCRED, &who, &length) != 0 ||
      who.uid != geteuid()) {
    LOG(Info, Shm, "refused a connection of process {} of user {} to the descriptor socket",
        who.pid, who.uid);
    (void)!send(client.get(), &kOtherUser, 1, MSG_NOSIGNAL);  // it may have gone
    return;
  }
  set_patience(client, kPatience);  // and no signals
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
    const std::string words = kFailed + descriptor.status().message().substr(0, kMostWords);
    (void)!send(client.get(), words.data(), words.size(), MSG_NOSIGNAL);  // it may have gone
    return;
  }
  (void)!send(client.get(), &kUnknown, 1, MSG_NOSIGNAL);  // a client that is gone needs no answer
}

std::string reach_of_sockets() {
  const bool are_abstract = parameters::ipc_use_abstract_socket() != 0;
  struct stat place {};
  if (stat(are_abstract ? "/proc/self/ns/net" : kFolder, &place) != 0) return "";
  return are_abstract ? fmt::format("net {}", place.st_ino)
                      : fmt::format("folder {:x} {:x}", place.st_dev, place.st_ino);
}

Result<Fd> fetch_descriptor(const std::string& address, const Token& token,
                            const Deadline& deadline) {
  const SocketName name = TRY(socket_name(address));
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return peer_failure(errno, address);
  const Deadline end =
      Deadline::after(std::chrono::milliseconds(std::max(1, deadline.poll_milliseconds(30'000))));
  if (call_until(end, socket,
                 [&] {
                   return connect(socket.get(), reinterpret_cast<const sockaddr*>(&name.address),
                                  name.length);
                 }) != 0 ||
      call_until(end, socket,
                 [&] { return send(socket.get(), token.data(), token.size(), MSG_NOSIGNAL); }) < 0)
    return peer_failure(errno, address);
  return receive_descriptor(socket, address, end);
}

}  // namespace niccolite::transport
