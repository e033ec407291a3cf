#include "wire/acceptor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>

#include "base/log.h"

namespace niccolite::wire {
namespace {

constexpr size_t kMaxStrangers = 512;
constexpr int kMaxAcceptsPerTurn = 64;  // then open links have their turn
constexpr int kMaxLoggedRefusals = 20;  // a scan in a loop must not fill the log
constexpr auto kRest = std::chrono::milliseconds(50);
// Programs open and close files all the time, so only a lasting shortage is worth a word. A peer
// that was dropped dials again within the gap.
constexpr auto kLastingShortage = std::chrono::seconds(2);
constexpr auto kBetweenShortages = std::chrono::seconds(3);

}  // namespace

Result<std::unique_ptr<Acceptor>> Acceptor::create(
    EventLoop& loop, Socket listener, const Link::Options& options,
    std::function<void(std::unique_ptr<Link>)> welcome,
    std::function<void(const Status&)> exhausted) {
  std::unique_ptr<Acceptor> acceptor(
      new Acceptor(loop, std::move(listener), options, std::move(welcome), std::move(exhausted)));
  acceptor->address_ = TRY(acceptor->listener_.local_address());
  acceptor->watch_ = TRY(loop.watch(acceptor->listener_.fd(), EPOLLIN,
                                    [self = acceptor.get()](uint32_t) { self->accept_waiting(); }));
  return acceptor;
}

Acceptor::Acceptor(EventLoop& loop, Socket listener, const Link::Options& options,
                   std::function<void(std::unique_ptr<Link>)> welcome,
                   std::function<void(const Status&)> exhausted)
    : loop_(loop),
      listener_(std::move(listener)),
      options_(options),
      welcome_(std::move(welcome)),
      exhausted_(std::move(exhausted)) {}

Acceptor::~Acceptor() {
  loop_.cancel(rest_);
  loop_.forget(watch_);
  for (auto& link : strangers_) Link::bury(loop_, std::move(link));
}

void Acceptor::turn_away_when_short() {
  options_.lacks = [this]() -> std::string {
    if (has_reserve()) return "";
    note_shortage(Status::system_error("a connection was turned away (limit: ulimit -n)"));
    return "its process has no file descriptor left for the connection (limit: ulimit -n)";
  };
  has_reserve();
}

bool Acceptor::has_reserve() {
  if (!reserve_.valid()) reserve_ = Fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return reserve_.valid();
}

void Acceptor::accept_waiting() {
  for (int i = 0; i < kMaxAcceptsPerTurn; ++i) {
    int error = 0;
    Result<std::optional<Socket>> socket = listener_.accept(&error);
    if (!socket.is_ok()) {
      // Linux gives this error before it looks whether anybody waits.
      pollfd waiting{.fd = listener_.fd(), .events = POLLIN, .revents = 0};
      if (poll(&waiting, 1, 0) == 0) return;
      // Out of descriptors. A stranger's is the first to go; without strangers wait for others of
      // the process to close some.
      log_refusal(address_, socket.status());
      note_shortage(socket.status());
      if (options_.lacks && reserve_.valid()) {
        reserve_.reset();
        continue;
      }
      if (!strangers_.empty()) {
        Link::bury(loop_, take(*strangers_.front()));
        continue;
      }
      loop_.change(watch_, 0);
      rest_ = loop_.after(kRest, [this] { loop_.change(watch_, EPOLLIN); });
      return;
    }
    if (!socket->has_value()) return;
    Result<std::unique_ptr<Link>> link =
        Link::accepted(loop_, std::move(**socket), options_, *this);
    if (!link.is_ok()) continue;  // it has gone already
    if (strangers_.size() >= kMaxStrangers) Link::bury(loop_, take(*strangers_.front()));
    strangers_.push_back(std::move(link.value()));
  }
}

void Acceptor::note_shortage(const Status& why) {
  const EventLoop::Clock::time_point now = EventLoop::Clock::now();
  if (now - short_until_ > kBetweenShortages) short_since_ = now;
  short_until_ = now;
  if (now - short_since_ < kLastingShortage || !exhausted_) return;
  short_since_ = now;
  reserve_.reset();
  exhausted_(why);
}

void Acceptor::link_opened(Link& link) { welcome_(take(link)); }

void Acceptor::link_ended(Link& link, Link::End end, Status reason) {
  if (end == Link::End::Refused) log_refusal(link.peer_address(), reason);
  Link::bury(loop_, take(link));
}

std::unique_ptr<Link> Acceptor::take(Link& link) {
  for (auto it = strangers_.begin(); it != strangers_.end(); ++it) {
    if (it->get() != &link) continue;
    std::unique_ptr<Link> taken = std::move(*it);
    strangers_.erase(it);
    return taken;
  }
  return nullptr;
}

void Acceptor::log_refusal(const Address& peer, const Status& reason) {
  if (++refusals_ > kMaxLoggedRefusals) return;
  LOG(Info, Bootstrap, "Bootstrap: refused a connection from {} to {}: {}{}", peer.text(),
      address_.text(), reason.message(),
      refusals_ == kMaxLoggedRefusals ? " (further refusals are not logged)" : "");
}

}  // namespace niccolite::wire
