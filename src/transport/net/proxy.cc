#include "transport/net/proxy.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>

#include "base/log.h"
#include "base/parameters.h"

namespace niccolite::transport::net {

using bootstrap::EventLoop;
using bootstrap::Link;
using std::chrono::seconds;

namespace {

// A peer's process that ends is told better by bootstrap/, which hears of it at about the same
// time.
constexpr auto kBetterNews = seconds(1);
// Measured by bench/sockets on two cores: 0 costs some 15 us a message, and so do 20.
constexpr int kLooks = 5;
constexpr int kLooksAtPlugins = 200;  // some 0.1 ms
constexpr int kLongerRests = 50;      // of 20 us, 40 us, ...

EventLoop::Clock::duration rest_between_looks(int looks) {
  return std::chrono::microseconds(20) * std::clamp(looks - kLooksAtPlugins, 1, kLongerRests);
}

// Of GPUs. A look costs the thread's core some 0.2 us, a rest the first chunk behind it as much as
// it has left. After a second without any work the program has other things to do.
constexpr auto kAwake = std::chrono::microseconds(300);
constexpr auto kShortRest = std::chrono::microseconds(20);
constexpr auto kShortRests = std::chrono::milliseconds(2);
constexpr auto kRest = std::chrono::microseconds(100);
constexpr auto kRests = seconds(1);
constexpr auto kLongRest = std::chrono::milliseconds(1);
constexpr int kLooksPerYield = 16;

// What its sender may spend on replacing a connection (Outbound::retry), and a bit.
std::chrono::milliseconds replacement_time() {
  constexpr std::chrono::milliseconds kMost = std::chrono::hours(1);
  constexpr std::chrono::milliseconds kBit = seconds(10);
  const int64_t attempts = std::min<int64_t>(parameters::socket_retry_count(), 10'000);
  const std::chrono::milliseconds waits(parameters::socket_retry_sleep() * attempts *
                                        (attempts + 1) / 2);
  return std::min(waits + kBit, kMost);
}

constexpr auto kLinger = seconds(2);  // for peers to have read what was sent to them

uint64_t number_of(int rank) { return static_cast<uint64_t>(rank) + 1; }

void ring(void* rung) {
  const uint64_t one = 1;
  // Cannot fail but by a full counter, which wakes as well.
  if (write(static_cast<const Fd*>(rung)->get(), &one, sizeof one) < 0) return;
}

}  // namespace

Result<std::unique_ptr<Proxy>> Proxy::start(Options options) {
  std::unique_ptr<Proxy> proxy(new Proxy(std::move(options)));
  proxy->loop_ = TRY(EventLoop::create());
  TRY(proxy->listen());
  TRY(proxy->watch_bell());
  Proxy* const self = proxy.get();
  self->loop_->set_poller([self] { return self->poll(); });
  self->thread_ = TRY(Thread::start("nccl-proxy", [self] { self->loop_->run(); }));
  return proxy;
}

Proxy::Proxy(Options options)
    : options_(std::move(options)),
      process_(getpid()),
      link_{.self = {.key = options_.member.secret("proxy"),
                     .number = number_of(options_.member.rank())},
            .identity_of = {}},
      bell_(ring, &rung_) {}

Status Proxy::watch_bell() {
  rung_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!rung_.valid())
    return Status::from_errno(errno, "cannot create an eventfd (limit: ulimit -n)");
  return loop_
      ->watch(rung_.get(), EPOLLIN,
              [this](uint32_t) {
                uint64_t count;
                // poll() follows in any case.
                if (read(rung_.get(), &count, sizeof count) < 0) return;
                active_at_ = EventLoop::Clock::now();
              })
      .status();
}

Status Proxy::listen() {
  Socket listener = TRY(Socket::listen(options_.member.interface()));
  acceptor_ = TRY(bootstrap::Acceptor::create(
      *loop_, std::move(listener), link_,
      [this](std::unique_ptr<Link> link) { welcome(std::move(link)); }));
  address_ = acceptor_->address();
  return {};
}

Proxy::~Proxy() {
  if (process_ != getpid()) {
    // In a child made by fork() the thread does not exist, and sockets and epoll are the parent's,
    // too: touches nothing.
    static_cast<void>(new (std::nothrow) auto(std::move(outbound_)));
    static_cast<void>(new (std::nothrow) auto(std::move(inbound_)));
    static_cast<void>(acceptor_.release());
    static_cast<void>(loop_.release());
    return;
  }
  if (thread_.running()) {
    loop_->post([this, is_orderly = is_flushed()] { finish(is_orderly); });
    thread_.join();
  }
  outbound_.clear();  // before the loop
  inbound_.clear();
  acceptor_.reset();
}

void Proxy::welcome(std::unique_ptr<Link> link) {
  const uint64_t number = link->peer_number();
  const auto nranks = static_cast<uint64_t>(options_.member.nranks());
  if (number >= 1 && number <= nranks && number != link->number())
    inbound(static_cast<int>(number - 1)).welcome(link->release());
  Link::bury(*loop_, std::move(link));
}

void Proxy::report(int peer, Status why) {
  if (is_finishing_) return;
  auto kept = std::make_shared<Status>(std::move(why).with_peer(peer));
  loop_->after(kBetterNews, [this, peer, kept] {
    // Who leaves without reading what nobody will ask for resets the connection.
    if (!options_.member.has_left(peer)) options_.fail(kept->copy());
  });
}

Outbound& Proxy::outbound(int peer) {
  std::unique_ptr<Outbound>& found = outbound_[peer];
  if (found == nullptr)
    found = std::make_unique<Outbound>(
        *loop_,
        Outbound::Options{.link = link_,
                          .number = number_of(peer),
                          .peer = fmt::format("rank {} ({})", peer, options_.member.describe(peer)),
                          .streams = options_.streams,
                          .has_left = [this, peer] { return options_.member.has_left(peer); },
                          .fail = [this, peer](Status why) { report(peer, std::move(why)); }});
  return *found;
}

Inbound& Proxy::inbound(int peer) {
  std::unique_ptr<Inbound>& found = inbound_[peer];
  if (found == nullptr)
    found = std::make_unique<Inbound>(
        *loop_,
        Inbound::Options{
            .peer = fmt::format("rank {} ({})", peer, options_.member.describe(peer)),
            .fail = [this, peer](Status why) { report(peer, std::move(why)); },
            .patience = options_.patience.count() > 0 ? options_.patience : replacement_time()});
  return *found;
}

Result<Messenger*> Proxy::messenger(int peer) {
  std::unique_ptr<Messenger>& found = made_messengers_[peer];
  if (found == nullptr) {
    found = TRY(Messenger::create(
        {.network = options_.network,
         .peer = fmt::format("rank {} ({})", peer, options_.member.describe(peer)),
         .own_rank = options_.member.rank(),
         .peer_rank = peer,
         .has_left = [this, peer] { return options_.member.has_left(peer); },
         .fail = [this, peer](Status why) { report(peer, std::move(why)); }}));
    loop_->post([this, peer, made = found.get()] { messengers_.emplace(peer, made); });
  }
  return found.get();
}

// The loop's thread serves the end from now on.
template <typename End>
Status Proxy::attach(const Name& name, End* end) {
  if (options_.network != nullptr) {
    Messenger* const with = TRY(messenger(name.peer));
    loop_->post([with, key = name.key, end] { with->add(key, *end); });
    return {};
  }
  loop_->post([this, name, end] {
    if constexpr (std::is_same_v<End, Outgoing>)
      outbound(name.peer).add(name.key, *end);
    else
      inbound(name.peer).add(name.key, *end);
  });
  return {};
}

Result<Network::Handle> Proxy::listen_for(int peer) {
  std::lock_guard lock(mutex_);
  const Messenger* const with = TRY(messenger(peer));
  return with->handle();
}

void Proxy::reach(int peer, const Network::Handle& handle) {
  loop_->post([this, peer, handle] { messengers_.at(peer)->reach(handle); });
}

Result<executor::PortAddress> Proxy::open(const Name& name, const executor::FifoShape& shape) {
  std::lock_guard lock(mutex_);
  if (name.is_send) {
    if (const auto found = outgoing_.find(name); found != outgoing_.end())
      return found->second->port();
    std::unique_ptr<Outgoing> made =
        TRY(Outgoing::create(options_.machine, name.key, shape, bell_));
    TRY(attach(name, made.get()));
    return outgoing_.emplace(name, std::move(made)).first->second->port();
  }
  if (const auto found = incoming_.find(name); found != incoming_.end())
    return found->second->port();
  std::unique_ptr<Incoming> made = TRY(Incoming::create(options_.machine, name.key, shape, bell_));
  TRY(attach(name, made.get()));
  return incoming_.emplace(name, std::move(made)).first->second->port();
}

void Proxy::reach(int peer, const Address& address) {
  loop_->post([this, peer, address] { outbound(peer).reach(address); });
}

bool Proxy::is_flushed() const {
  std::lock_guard lock(mutex_);
  return std::ranges::all_of(outgoing_, [](const auto& end) { return end.second->is_flushed(); });
}

// Before the thread waits. A wait that a bell or a socket ends costs more than a look round, so it
// looks round some times first: others of the machine have the processor meanwhile.
EventLoop::Clock::duration Proxy::poll() {
  constexpr auto kNow = EventLoop::Clock::duration::zero();
  if (is_finishing_ && has_finished()) loop_->stop();
  if (options_.machine.kind() == gpu::Kind::Cuda) return poll_for_gpus();
  if (progress()) {
    looks_ = 0;
    return kNow;
  }
  looks_ = std::min(looks_ + 1, kLooksAtPlugins + kLongerRests);
  if (looks_ < kLooks) {
    sched_yield();
    return kNow;
  }
  // Plug-ins have nothing that wakes: looks on, ever less often.
  if (!messengers_.empty() && looks_ < kLooksAtPlugins) {
    sched_yield();
    return kNow;
  }
  bell_.go_to_sleep();
  if (!progress())
    return messengers_.empty() ? EventLoop::Clock::duration::max() : rest_between_looks(looks_);
  bell_.wake_up();
  looks_ = 0;
  return kNow;
}

EventLoop::Clock::duration Proxy::poll_for_gpus() {
  constexpr auto kNow = EventLoop::Clock::duration::zero();
  const EventLoop::Clock::time_point now = EventLoop::Clock::now();
  if (progress()) active_at_ = now;
  const EventLoop::Clock::duration idle = now - active_at_;
  if (idle < kAwake) {
    if (++looks_ % kLooksPerYield == 0) sched_yield();
    return kNow;
  }
  bell_.go_to_sleep();
  if (progress()) {
    bell_.wake_up();
    active_at_ = now;
    return kNow;
  }
  return idle < kShortRests ? kShortRest : idle < kRests ? kRest : kLongRest;
}

bool Proxy::has_finished() const {
  return std::ranges::none_of(outbound_, [](const auto& to) { return to.second->has_streams(); }) &&
         std::ranges::all_of(messengers_,
                             [](const auto& with) { return with.second->has_finished(); });
}

bool Proxy::progress() {
  bool moved = false;
  for (const auto& [peer, with] : messengers_) moved |= with->progress();
  for (const auto& [peer, to] : outbound_) moved |= to->progress();
  for (const auto& [peer, from] : inbound_) moved |= from->progress();
  return moved;
}

void Proxy::finish(bool is_orderly) {
  is_finishing_ = true;
  if (!is_orderly) return loop_->stop();
  for (const auto& [peer, to] : outbound_) to->finish();
  for (const auto& [peer, from] : inbound_) from->finish();
  for (const auto& [peer, with] : messengers_) with->finish();
  loop_->after(kLinger, [this] { loop_->stop(); });
}

}  // namespace niccolite::transport::net
