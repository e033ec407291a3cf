// The thread of a context: waits for its connections, its ports' times and its program.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/epoll.h"
#include "engine.h"
#include "objects.h"

namespace vverbs {

namespace {

constexpr auto kGuestPatience = std::chrono::seconds(10);

void handle(Context& context, const epoll_event& event) {
  const auto source = static_cast<Source>(event.data.u64 >> 32);
  const auto number = static_cast<uint32_t>(event.data.u64);
  if (source == Source::Wake) {
    uint64_t count = 0;
    (void)!read(context.wake_fd, &count, sizeof count);
    return;
  }
  if (source == Source::Listener) {
    const int fd =
        accept4(static_cast<int>(number), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    context.guests[fd].socket.fd = fd;
    context.guests[fd].since = Clock::now();
    watch(context, fd, tag(Source::Guest, static_cast<uint32_t>(fd)), false, false);
    return;
  }
  if (source == Source::Guest) return welcome(context, static_cast<int>(number));
  if (source == Source::Path) return hear_path(context, static_cast<int>(number), event.events);
  if (source == Source::Feed) return hear_feed(context, static_cast<int>(number));
  const auto found = context.pairs.find(number);
  if (found == context.pairs.end()) return;
  QueuePair& pair = *found->second;
  if (source == Source::Responder) {
    if (pair.responder.fd < 0) return;
    serve(context, pair);
    flush_responder(context, pair);
    return;
  }
  if (pair.requester.fd < 0) return;
  if (pair.requester.connecting) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(pair.requester.fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return lose_requester(pair);
    if ((event.events & EPOLLOUT) == 0) return;
    pair.requester.connecting = false;
  }
  hear_replies(context, pair);
  pump(context, pair);
}

void check_ports(Context& context, Clock::time_point now, Clock::time_point& alarm) {
  for (size_t i = 0; i < context.ports.size(); ++i) {
    Port& port = context.ports[i];
    if (port.up || port.up_again == Clock::time_point{}) continue;
    if (now >= port.up_again) {
      port.up = true;
      port.up_again = {};
      raise_event(context, IBV_EVENT_PORT_ACTIVE, nullptr, nullptr, nullptr,
                  static_cast<int>(i) + 1);
    } else {
      alarm = std::min(alarm, port.up_again);
    }
  }
}

void run(Context& context) {
  auto alarm = Clock::now();
  for (;;) {
    epoll_event events[64];
    const auto left = alarm - Clock::now();
    // Short waits are spent awake by the microsecond, so that latencies are true.
    const int count =
        niccolite::epoll_wait_for(context.poll_fd, events, std::max(left, Clock::duration::zero()));
    const std::lock_guard lock(context.mutex);
    if (context.stopping) return;
    for (int i = 0; i < count; ++i) handle(context, events[i]);
    const auto now = Clock::now();
    alarm = now + std::chrono::seconds(1);
    check_ports(context, now, alarm);
    check_datagrams(context, now, alarm);
    for (auto& [number, pair] : context.pairs) {
      pump(context, *pair);
      check_times(context, *pair, now, alarm);
    }
    for (auto guest = context.guests.begin(); guest != context.guests.end();) {
      if (now - guest->second.since > kGuestPatience) {
        close_socket(guest->second.socket);
        guest = context.guests.erase(guest);
      } else {
        ++guest;
      }
    }
  }
}

}  // namespace

void catch_up(Context& context, QueuePair& pair) {
  if (context.gone) return;
  if (pair.responder.fd >= 0) serve(context, pair);
  flush_responder(context, pair);
  if (pair.requester.fd >= 0 && !pair.requester.connecting) hear_replies(context, pair);
}

void reset_pair(Context&, QueuePair& pair) {
  close_socket(pair.requester);
  close_socket(pair.responder);
  pair.sends.clear();
  pair.own_receives.waiting.clear();
  pair.has_receive = false;
  pair.next = 0;
  pair.next_seq = pair.expected = 0;
  pair.retries = pair.rnr_retries = 0;
  pair.wait_until = {};
  pair.atomic_results.clear();
  pair.last_receive_told = false;
  pair.starved = false;
}

void fail_pair(Context& context, QueuePair& pair) {
  pair.qp().state = IBV_QPS_ERR;
  close_socket(pair.requester);
  close_socket(pair.responder);
  while (!pair.sends.empty()) complete_first(context, pair, IBV_WC_WR_FLUSH_ERR);
  pair.next = 0;
  const auto flush = [&](uint64_t id) {
    ibv_wc wc{};
    wc.wr_id = id;
    wc.status = IBV_WC_WR_FLUSH_ERR;
    wc.opcode = IBV_WC_RECV;
    wc.qp_num = pair.qp().qp_num;
    complete(context, queue_of(pair.qp().recv_cq), wc, false);
  };
  if (pair.has_receive) flush(pair.receive.id);
  pair.has_receive = false;
  if (pair.qp().srq == nullptr) {
    while (!pair.own_receives.waiting.empty()) {
      flush(pair.own_receives.waiting.front().id);
      pair.own_receives.waiting.pop_front();
    }
  } else if (!pair.last_receive_told) {
    pair.last_receive_told = true;
    raise_event(context, IBV_EVENT_QP_LAST_WQE_REACHED, &pair, nullptr, nullptr, 0);
  }
}

uint32_t new_number(Context& context) {
  // A number comes again as late as it can: peers of its last queue pair may still try to reach it.
  for (Listener& listener : context.listeners)
    for (int i = 0; i < 256; ++i) {
      const uint32_t number =
          static_cast<uint32_t>(listener.port) << 8 | static_cast<uint8_t>(listener.cursor++);
      if (context.pairs.count(number) == 0) return number;
    }
  // One family of sockets takes both; without IPv6 the other is enough.
  int fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  const int off = 0;
  socklen_t size = sizeof six;
  bool bound = fd >= 0 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0 &&
               bind(fd, reinterpret_cast<sockaddr*>(&six), sizeof six) == 0;
  if (!bound) {
    if (fd >= 0) close(fd);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    sockaddr_in four{};
    four.sin_family = AF_INET;
    bound = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&four), sizeof four) == 0;
  }
  if (!bound || listen(fd, 256) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&six), &size) != 0) {
    if (fd >= 0) close(fd);
    return 0;
  }
  const int port = ntohs(six.sin6_port);  // at the same place in both families
  context.listeners.push_back({fd, port, 1});
  watch(context, fd, tag(Source::Listener, static_cast<uint32_t>(fd)), false, false);
  return static_cast<uint32_t>(port) << 8;
}

void wake(Context& context) {
  const uint64_t one = 1;
  (void)!write(context.wake_fd, &one, sizeof one);
}

bool start_engine(Context& context) {
  context.poll_fd = epoll_create1(EPOLL_CLOEXEC);
  context.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (context.poll_fd < 0 || context.wake_fd < 0) return false;
  watch(context, context.wake_fd, tag(Source::Wake, 0), false, false);
  context.engine = std::thread([&context] { run(context); });
  return true;
}

void stop_engine(Context& context) {
  if (context.engine.joinable()) {
    {
      const std::lock_guard lock(context.mutex);
      context.stopping = true;
    }
    wake(context);
    context.engine.join();
  }
  for (auto& [fd, guest] : context.guests) close_socket(guest.socket);
  for (auto& [key, path] : context.paths) close_socket(path.socket);
  for (const auto& [fd, feed] : context.feeds) close(fd);
  for (const Listener& listener : context.listeners) close(listener.fd);
  if (context.wake_fd >= 0) close(context.wake_fd);
  if (context.poll_fd >= 0) close(context.poll_fd);
}

}  // namespace vverbs
