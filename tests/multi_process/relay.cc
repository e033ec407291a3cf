#include "tests/multi_process/relay.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace niccolite::test::relay {
namespace {

using Clock = std::chrono::steady_clock;

int system_connect(int fd, const sockaddr* address, socklen_t length) {
  return static_cast<int>(syscall(SYS_connect, fd, address, length));
}

struct Way {  // of the two of a connection
  std::array<char, 16 << 10> bytes;
  size_t begin = 0, end = 0;
  bool is_closed = false;  // by who sends
};
struct Connection {
  int listener = -1;
  sockaddr_storage target{};
  socklen_t target_length = 0;
  int ends[2] = {-1, -1};  // who has connected, and whom it wanted
  Way ways[2];             // from ends[i] to ends[1 - i]
  int64_t until_harm = 0;  // bytes
  bool is_halved = false;
  Clock::time_point stalled_until{};
  std::chrono::milliseconds delay{};
};

std::atomic<bool> is_active{false};
std::atomic<bool> is_harmful{true};
std::atomic<bool> is_holding{false};
std::atomic<bool> has_ended{false};
std::atomic<int> broken{0};
std::mutex mutex;
// Never ends: the thread runs until the process does.
std::vector<Connection*>& fresh = *new std::vector<Connection*>;  // under the mutex
int wake[2];

std::mt19937_64 random;  // of the relay's thread
unsigned harms = 0;
uint64_t mean_bytes = 0;

int64_t next_harm() {
  return static_cast<int64_t>(std::uniform_int_distribution<uint64_t>(1, 2 * mean_bytes)(random));
}

void shut(int& fd, bool is_reset) {
  if (fd < 0) return;
  if (is_reset) {
    const linger now{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  close(fd);
  fd = -1;
}

bool is_over(const Connection& c) { return c.listener < 0 && c.ends[0] < 0 && c.ends[1] < 0; }

void end(Connection& c, bool resets_first, bool resets_second) {
  shut(c.listener, false);
  shut(c.ends[0], resets_first);
  shut(c.ends[1], resets_second);
}

void accept_one(Connection& c) {
  c.ends[0] = accept4(c.listener, nullptr, nullptr, SOCK_CLOEXEC);
  shut(c.listener, false);
  if (c.ends[0] < 0) return;
  c.ends[1] = socket(c.target.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (system_connect(c.ends[1], reinterpret_cast<sockaddr*>(&c.target), c.target_length) != 0)
    return end(c, true, false);
  const int one = 1;
  for (const int fd : c.ends) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

void harm(Connection& c) {
  c.until_harm = next_harm();
  std::vector<Harm> chosen;
  for (const Harm one : {Harm::Reset, Harm::ResetOne, Harm::HalfClose, Harm::Stall, Harm::Delay})
    if ((harms & static_cast<unsigned>(one)) != 0) chosen.push_back(one);
  const size_t side = random() % 2;
  const Harm what = chosen[random() % chosen.size()];
  if (what != Harm::Stall && what != Harm::Delay) ++broken;
  switch (what) {
    case Harm::Reset:
      return end(c, true, true);
    case Harm::ResetOne:
      return end(c, side == 0, side == 1);
    case Harm::HalfClose:
      c.is_halved = true;
      shutdown(c.ends[side], SHUT_WR);
      c.ways[1 - side].is_closed = true;
      return;
    case Harm::Stall:
      c.stalled_until = Clock::now() + std::chrono::milliseconds(1 + random() % 20);
      return;
    case Harm::Delay:
      c.delay = std::chrono::milliseconds(1 + random() % 3);
      return;
  }
}

// Moves bytes from ends[from] to the other.
void pass(Connection& c, size_t from, bool can_read) {
  Way& way = c.ways[from];
  if (can_read && way.begin == way.end) {
    const ssize_t got = recv(c.ends[from], way.bytes.data(), way.bytes.size(), MSG_DONTWAIT);
    if (got < 0 && errno != EAGAIN) return end(c, true, true);
    if (got == 0) {
      if (c.is_halved) return end(c, false, false);
      way.is_closed = true;
      shutdown(c.ends[1 - from], SHUT_WR);
    }
    way.begin = 0;
    way.end = got > 0 ? static_cast<size_t>(got) : 0;
  }
  if (way.begin == way.end) return;
  size_t most = way.end - way.begin;
  // Harm is done behind the very byte at which it is due.
  if (is_harmful && !c.is_halved) most = std::min(most, static_cast<size_t>(c.until_harm));
  const ssize_t sent =
      send(c.ends[1 - from], way.bytes.data() + way.begin, most, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && errno != EAGAIN) return end(c, true, true);
  if (sent <= 0) return;
  way.begin += static_cast<size_t>(sent);
  if (c.delay.count() > 0) c.stalled_until = Clock::now() + c.delay;
  c.until_harm -= sent;
  if (c.until_harm > 0) return;
  if (is_harmful && !c.is_halved)
    harm(c);
  else
    c.until_harm = next_harm();
}

void serve() {
  pthread_setname_np(pthread_self(), "relay");
  std::vector<Connection*> all;
  while (!is_holding) {
    std::vector<pollfd> polled{{wake[0], POLLIN, 0}};
    const auto now = Clock::now();
    int timeout = -1;
    for (const Connection* c : all) {
      if (c->listener >= 0) {
        polled.push_back({c->listener, POLLIN, 0});
        polled.push_back({-1, 0, 0});
        continue;
      }
      const bool is_stalled = c->stalled_until > now;
      if (is_stalled) timeout = 1;
      for (const size_t i : {0u, 1u}) {
        short events = 0;
        if (!c->ways[i].is_closed && c->ways[i].begin == c->ways[i].end) events |= POLLIN;
        if (c->ways[1 - i].begin < c->ways[1 - i].end) events |= POLLOUT;
        polled.push_back({is_stalled || events == 0 ? -1 : c->ends[i], events, 0});
      }
    }
    if (poll(polled.data(), polled.size(), timeout) < 0 && errno != EINTR) return;
    if (is_holding) break;
    if (polled[0].revents != 0) {
      char bytes[64];
      if (read(wake[0], bytes, sizeof bytes) < 0) return;
    }
    for (size_t k = 0; k < all.size(); ++k) {
      Connection& c = *all[k];
      const pollfd* const of = &polled[1 + 2 * k];
      if (c.listener >= 0) {
        if (of[0].revents != 0) accept_one(c);
        continue;
      }
      for (const size_t from : {0u, 1u}) {
        if (c.ends[0] < 0 || c.stalled_until > Clock::now()) break;
        if (c.ways[from].is_closed && c.ways[from].begin == c.ways[from].end) continue;
        if (of[from].revents != 0 || of[1 - from].revents != 0)
          pass(c, from, (of[from].revents & (POLLIN | POLLHUP | POLLERR)) != 0);
      }
      if (c.ends[0] >= 0 && c.ways[0].is_closed && c.ways[1].is_closed) end(c, false, false);
    }
    std::erase_if(all, [](Connection* c) {
      const bool over = is_over(*c);
      if (over) delete c;
      return over;
    });
    std::lock_guard lock(mutex);
    for (Connection* c : fresh) {
      c->until_harm = next_harm();
      all.push_back(c);
    }
    fresh.clear();
  }
  has_ended = true;
}

// A proxy's sockets are served by its own thread, and by a virtual GPU's worker that waits for
// data.
bool is_proxy() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  return std::strcmp(name, "nccl-proxy") == 0 || std::strcmp(name, "virtual-gpu") == 0;
}

int connect_through(int fd, const sockaddr* address, socklen_t length) {
  auto* const c = new Connection;
  std::memcpy(&c->target, address, length);
  c->target_length = length;
  sockaddr_storage own{};
  own.ss_family = address->sa_family;
  if (address->sa_family == AF_INET)
    reinterpret_cast<sockaddr_in&>(own).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  else
    reinterpret_cast<sockaddr_in6&>(own).sin6_addr = in6addr_loopback;
  socklen_t own_length = length;
  c->listener = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(c->listener, reinterpret_cast<sockaddr*>(&own), length) != 0 ||
      listen(c->listener, 1) != 0 ||
      getsockname(c->listener, reinterpret_cast<sockaddr*>(&own), &own_length) != 0)
    return -1;
  {
    std::lock_guard lock(mutex);
    fresh.push_back(c);
  }
  if (write(wake[1], "", 1) < 0) return -1;
  return system_connect(fd, reinterpret_cast<sockaddr*>(&own), own_length);
}

}  // namespace

void start(uint64_t seed, unsigned which, uint64_t bytes) {
  random.seed(seed);
  harms = which;
  mean_bytes = bytes;
  if (pipe(wake) != 0) std::abort();
  std::thread(serve).detach();
  is_active = true;
}

void hold() {
  is_holding = true;
  if (write(wake[1], "", 1) < 0) std::abort();
  while (!has_ended) std::this_thread::yield();
}

void behave() { is_harmful = false; }
int breaks() { return broken; }

}  // namespace niccolite::test::relay

// The program's own comes before the C library's.
extern "C" __attribute__((visibility("default"))) int connect(int fd, const sockaddr* address,
                                                              socklen_t length) {
  using namespace niccolite::test::relay;
  const bool is_inet = address->sa_family == AF_INET || address->sa_family == AF_INET6;
  if (is_active && is_inet && is_proxy()) return connect_through(fd, address, length);
  return system_connect(fd, address, length);
}
