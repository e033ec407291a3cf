// The thread that makes connections and watches them.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/epoll.h"
#include "objects.h"

namespace vverbs::rdmacm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kAskAgain = milliseconds(100);
constexpr auto kAskRefused = milliseconds(10);
// Programs that listen a moment after they have told others reckon with a NIC's slow look-ups.
constexpr auto kListensWithin = milliseconds(300);
constexpr auto kAskFor = seconds(5);         // a machine that does not answer
constexpr auto kAnswerWithin = seconds(60);  // a program that does not accept
constexpr auto kGuestPatience = seconds(10);

// Messages of a connection manager take longer than data. Programs reckon with it: they destroy a
// queue pair when they hear of its end, and its completions that nobody polled go with it.
constexpr auto kSlowerThanData = milliseconds(100);

void end(Id& id, rdma_cm_event_type type, int status) {
  agent().drop(id.link_fd);
  id.state = State::Closed;
  push(id, type, status);
}

// Reads a message; false where the connection has ended or nobody of ours is at its other end.
bool read_message(int fd, std::vector<uint8_t>& in, std::optional<Message>& message) {
  while (in.size() < sizeof(Message)) {
    uint8_t bytes[sizeof(Message)];
    const ssize_t got = recv(fd, bytes, sizeof bytes - in.size(), MSG_DONTWAIT);
    if (got == 0) return false;
    if (got < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN;
    }
    in.insert(in.end(), bytes, bytes + got);
  }
  message.emplace();
  std::memcpy(&*message, in.data(), sizeof *message);
  in.clear();
  return message->magic == kMagic;
}

void ask(Id& id) {
  const Question question{kMagic, 0};
  (void)!::send(id.link_fd, &question, sizeof question, MSG_DONTWAIT | MSG_NOSIGNAL);
  id.ask_again = Clock::now() + kAskAgain;
}

// The listener has said where it listens.
void connect_to(Id& id, uint16_t port) {
  Agent& all = agent();
  all.drop(id.link_fd);
  sockaddr_storage to = id.base.route.addr.dst_storage;
  auto& address = reinterpret_cast<sockaddr&>(to);
  set_port(address, port);
  sockaddr_storage from = id.base.route.addr.src_storage;
  set_port(reinterpret_cast<sockaddr&>(from), 0);
  const int fd = socket(address.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  id.link_fd = fd;
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&from), size_of(address)) != 0 ||
      (connect(fd, &address, size_of(address)) != 0 && errno != EINPROGRESS))
    return end(id, RDMA_CM_EVENT_UNREACHABLE, -errno);
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  id.state = State::Connecting;
  all.watch(fd, Role::Link, id, true);
}

void hear_answer(Id& id) {
  Question answer{};
  const ssize_t got = recv(id.link_fd, &answer, sizeof answer, MSG_DONTWAIT);
  if (got < 0 && errno == ECONNREFUSED) {
    if (Clock::now() >= id.refused_from) return end(id, RDMA_CM_EVENT_REJECTED, kNobodyListens);
    id.ask_again = std::min(id.ask_again, Clock::now() + kAskRefused);
    return;
  }
  if (got != sizeof answer || answer.magic != kMagic || answer.port == 0) return;
  connect_to(id, htons(static_cast<uint16_t>(answer.port)));
}

void end_soon(Id& id) {
  agent().drop(id.link_fd);
  id.state = State::Ending;
  id.deadline = Clock::now() + kSlowerThanData;
  agent().ending.push_back(&id);
}

// The peer is gone, or has said nonsense.
void lose(Id& id) {
  switch (id.state) {
    case State::Connecting:
    case State::Requesting:
    case State::Responded:
    case State::Accepted:
      return end(id, RDMA_CM_EVENT_REJECTED, kByTheProgram);
    case State::Requested:
      return end(id, RDMA_CM_EVENT_REJECTED, kTimedOut);
    case State::Connected:
      return end_soon(id);
    case State::Disconnecting:
      return end(id, RDMA_CM_EVENT_DISCONNECTED, 0);
    default:
      agent().drop(id.link_fd);
  }
}

void hear(Id& id, const Message& message) {
  switch (message.kind) {
    case Kind::Reply:
      if (id.state != State::Requesting) return lose(id);
      id.other = message;
      if (id.is_datagram()) return end(id, RDMA_CM_EVENT_ESTABLISHED, 0);
      id.state = State::Responded;
      return push(id, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
    case Kind::Ready:
      if (id.state != State::Accepted) return lose(id);
      id.state = State::Connected;
      return push(id, RDMA_CM_EVENT_ESTABLISHED, 0);
    case Kind::Reject:
      id.other = message;
      return end(id, RDMA_CM_EVENT_REJECTED, kByTheProgram);
    case Kind::Disconnect:
      if (id.state == State::Accepted || id.state == State::Connected ||
          id.state == State::Disconnecting) {
        Message answer = id.own;
        answer.kind = Kind::Disconnected;
        send(id, answer);
        return end_soon(id);
      }
      return lose(id);
    case Kind::Disconnected:
    default:
      return lose(id);
  }
}

void hear_link(Id& id, uint32_t events) {
  if (id.state == State::Asking) return hear_answer(id);
  if (id.state == State::Connecting) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(id.link_fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return end(id, RDMA_CM_EVENT_UNREACHABLE, -error);
    if ((events & EPOLLOUT) == 0) return;
    id.state = State::Requesting;
    id.deadline = Clock::now() + kAnswerWithin;
    agent().watch(id.link_fd, Role::Link, id, false);
    return send(id, id.own);
  }
  while (id.link_fd >= 0) {
    std::optional<Message> message;
    if (!read_message(id.link_fd, id.in, message)) return lose(id);
    if (!message) return;
    hear(id, *message);
  }
}

void answer_question(Id& id) {
  sockaddr_storage from{};
  socklen_t size = sizeof from;
  Question question{};
  const ssize_t got = recvfrom(id.port_fd, &question, sizeof question, MSG_DONTWAIT,
                               reinterpret_cast<sockaddr*>(&from), &size);
  if (got != sizeof question || question.magic != kMagic || question.port != 0) return;
  sockaddr_storage own{};
  socklen_t own_size = sizeof own;
  getsockname(id.link_fd, reinterpret_cast<sockaddr*>(&own), &own_size);
  question.port = ntohs(port_of(reinterpret_cast<sockaddr&>(own)));
  (void)!sendto(id.port_fd, &question, sizeof question, MSG_DONTWAIT,
                reinterpret_cast<sockaddr*>(&from), size);
}

void hear_guest(int fd) {
  Agent& all = agent();
  Watched& guest = all.watched[fd];
  std::optional<Message> message;
  const bool alive = read_message(fd, guest.in, message);
  if (alive && !message) return;
  Id& listener = *guest.id;
  if (!alive || message->kind != Kind::Request ||
      message->port_space != static_cast<uint32_t>(listener.base.ps)) {
    int gone = fd;
    return all.drop(gone);
  }
  // The program takes it from here; until then its end is not heard.
  all.watched.erase(fd);
  epoll_ctl(all.poll_fd, EPOLL_CTL_DEL, fd, nullptr);
  auto* event = new Event;
  event->base.event = RDMA_CM_EVENT_CONNECT_REQUEST;
  event->base.listen_id = &listener.base;
  event->owner = &listener;
  event->fd = fd;
  event->request = *message;
  push_event(channel_of(listener.base.channel).events, event);
}

void handle(int fd, uint32_t events) {
  Agent& all = agent();
  const auto found = all.watched.find(fd);
  if (found == all.watched.end()) return;
  Id& id = *found->second.id;
  switch (found->second.role) {
    case Role::Port:
      return answer_question(id);
    case Role::Listener: {
      const int guest = accept4(fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (guest < 0) return;
      const int one = 1;
      setsockopt(guest, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      all.watch(guest, Role::Guest, id, false);
      all.watched[guest].since = Clock::now();
      return;
    }
    case Role::Guest:
      return hear_guest(fd);
    case Role::Link:
      return hear_link(id, events);
  }
}

void check_times(Clock::time_point now, Clock::time_point& alarm) {
  Agent& all = agent();
  std::erase_if(all.ending, [&](Id* id) {
    if (now < id->deadline) {
      alarm = std::min(alarm, id->deadline);
      return false;
    }
    end(*id, RDMA_CM_EVENT_DISCONNECTED, 0);
    return true;
  });
  std::vector<int> fds;
  for (const auto& [fd, watched] : all.watched) fds.push_back(fd);
  for (const int fd : fds) {
    const auto found = all.watched.find(fd);
    if (found == all.watched.end()) continue;
    Id& id = *found->second.id;
    if (found->second.role == Role::Guest && now - found->second.since > kGuestPatience) {
      int gone = fd;
      all.drop(gone);
    }
    if (found->second.role != Role::Link) continue;
    if (id.state != State::Asking && id.state != State::Connecting && id.state != State::Requesting)
      continue;
    if (now >= id.deadline) {
      end(id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
      continue;
    }
    alarm = std::min(alarm, id.deadline);
    if (id.state != State::Asking) continue;
    if (now >= id.ask_again) ask(id);
    alarm = std::min(alarm, id.ask_again);
  }
}

void run() {
  Agent& all = agent();
  auto alarm = Clock::now();
  for (;;) {
    epoll_event events[64];
    const int count = niccolite::epoll_wait_for(
        all.poll_fd, events, std::max(alarm - Clock::now(), Clock::duration::zero()));
    const std::lock_guard lock(all.mutex);
    for (int i = 0; i < count; ++i) {
      const int fd = static_cast<int>(events[i].data.u64);
      if (fd == all.wake_fd) {
        uint64_t ignored = 0;
        (void)!read(fd, &ignored, sizeof ignored);
      } else {
        handle(fd, events[i].events);
      }
    }
    const auto now = Clock::now();
    alarm = now + seconds(1);
    check_times(now, alarm);
  }
}

}  // namespace

void Agent::watch(int fd, Role role, Id& id, bool write) {
  const bool added = watched.count(fd) == 0;
  watched[fd].role = role;
  watched[fd].id = &id;
  epoll_event event{};
  event.events = EPOLLIN | (write ? EPOLLOUT : 0u);
  event.data.u64 = static_cast<uint64_t>(fd);
  epoll_ctl(poll_fd, added ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event);
}

void Agent::drop(int& fd) {
  if (fd < 0) return;
  watched.erase(fd);
  close(fd);
  fd = -1;
}

void Agent::wake() const {
  const uint64_t one = 1;
  (void)!write(wake_fd, &one, sizeof one);
}

// It lives until the process ends, as its thread does.
Agent& agent() {
  static Agent& all = *[] {
    auto* made = new Agent;
    made->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    made->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = static_cast<uint64_t>(made->wake_fd);
    epoll_ctl(made->poll_fd, EPOLL_CTL_ADD, made->wake_fd, &event);
    return made;
  }();
  static const bool started = [] {
    std::thread(run).detach();
    return true;
  }();
  (void)started;
  return all;
}

void push(Id& id, rdma_cm_event_type type, int status) {
  auto* event = new Event;
  event->owner = &id;
  event->base.id = &id.base;
  event->base.event = type;
  event->base.status = status;
  const Message& other = id.other;
  const bool datagram = id.is_datagram();
  size_t bytes = 0;
  if (type == RDMA_CM_EVENT_CONNECT_RESPONSE)
    bytes = kReplyBytes;
  else if (type == RDMA_CM_EVENT_REJECTED && other.kind == Kind::Reject)
    bytes = kRejectBytes;
  else if (type == RDMA_CM_EVENT_ESTABLISHED && datagram)
    bytes = kDatagramReplyBytes;
  std::memcpy(event->private_data, other.private_data, bytes);
  if (type == RDMA_CM_EVENT_ESTABLISHED && datagram) {
    rdma_ud_param& ud = event->base.param.ud;
    ud.private_data = event->private_data;
    ud.private_data_len = static_cast<uint8_t>(bytes);
    ud.qp_num = other.qp_num;
    ud.qkey = other.qkey;
    ud.ah_attr.is_global = 1;
    ud.ah_attr.port_num = id.place.port;
    ud.ah_attr.grh.dgid = other.gid;
    ud.ah_attr.grh.sgid_index = id.place.gid_index;
    ud.ah_attr.grh.hop_limit = 64;
  } else {
    rdma_conn_param& conn = event->base.param.conn;
    if (bytes > 0) conn.private_data = event->private_data;
    conn.private_data_len = static_cast<uint8_t>(bytes);
    if (type == RDMA_CM_EVENT_CONNECT_RESPONSE) {
      conn.responder_resources = other.initiator_depth;
      conn.initiator_depth = other.responder_resources;
      conn.flow_control = other.flow_control;
      conn.rnr_retry_count = other.rnr_retry_count;
      conn.srq = other.srq;
      conn.qp_num = other.qp_num;
    }
  }
  push_event(channel_of(id.base.channel).events, event);
}

// The messages of a connection always fit into the buffers of its socket.
void send(Id& id, const Message& message) {
  if (id.link_fd >= 0)
    (void)!::send(id.link_fd, &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void start_connecting(Id& id) {
  Agent& all = agent();
  sockaddr& to = id.base.route.addr.dst_addr;
  const int fd = socket(to.sa_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  id.link_fd = fd;
  sockaddr_storage from = id.base.route.addr.src_storage;
  set_port(reinterpret_cast<sockaddr&>(from), 0);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&from), size_of(to)) != 0 ||
      connect(fd, &to, size_of(to)) != 0)
    return end(id, RDMA_CM_EVENT_UNREACHABLE, -errno);
  id.state = State::Asking;
  id.deadline = Clock::now() + kAskFor;
  id.refused_from = Clock::now() + kListensWithin;
  all.watch(fd, Role::Link, id, false);
  ask(id);
  all.wake();  // for the times
}

}  // namespace vverbs::rdmacm
