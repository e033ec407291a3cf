#include "wire/link.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/interfaces.h"
#include "base/parameters.h"

namespace niccolite::wire {
namespace {
constexpr size_t kReadBytes =
    64u << 10;  // per turn, so that one busy link does not starve the others

// Between the end of a process and the arrival of its last frames.
constexpr auto kLastWords = std::chrono::milliseconds(50);

std::chrono::milliseconds look_interval() {
  return std::chrono::seconds(parameters::net_timeout()) / 10;
}
}  // namespace

Result<std::unique_ptr<Link>> Link::accepted(EventLoop& loop, Socket socket, const Options& options,
                                             Owner& owner) {
  std::unique_ptr<Link> link(
      new Link(loop, std::move(socket), options, owner, false, State::Handshaking));
  link->peer_ = TRY(link->socket_.peer_address());
  TRY(link->begin());
  return link;
}

Result<std::unique_ptr<Link>> Link::dial(EventLoop& loop, const Address& address, uint64_t number,
                                         const Options& options, Owner& owner, int* error_number) {
  Socket socket = TRY(Socket::connect(address, options.from, error_number));
  std::unique_ptr<Link> link(
      new Link(loop, std::move(socket), options, owner, true, State::Connecting));
  link->peer_ = address;
  link->outgoing_ = link->handshake_.make_hello(number);
  TRY(link->begin());
  return link;
}

void Link::bury(EventLoop& loop, std::unique_ptr<Link> link) {
  if (link == nullptr) return;
  link->close();
  loop.post([link = std::shared_ptr<Link>(std::move(link))] {});
}

Link::Link(EventLoop& loop, Socket socket, const Options& options, Owner& owner, bool initiator,
           State state)
    : loop_(loop),
      socket_(std::move(socket)),
      options_(options),
      owner_(&owner),
      initiator_(initiator),
      state_(state),
      handshake_(options.self) {
  socket_.end_when_unacknowledged(false);  // look_at_delivery() does
}

Status Link::begin() {
  watched_ = state_ == State::Connecting ? EPOLLOUT : EPOLLIN;
  watch_ = TRY(loop_.watch(socket_.fd(), watched_, [this](uint32_t events) { ready(events); }));
  arm_patience();
  return {};
}

void Link::arm_patience() {
  loop_.cancel(timer_);
  timer_ = loop_.after(options_.patience, [this] {
    const auto time = std::chrono::duration_cast<std::chrono::seconds>(options_.patience).count();
    end(Status::remote_error("no {} within {} s",
                             state_ == State::Connecting ? "connection" : "handshake", time));
  });
}

void Link::ready(uint32_t events) {
  if (state_ == State::Closed) return;
  Status status = step(events);
  if (!status.is_ok()) return end(std::move(status));
  if (state_ != State::Closed) update_watch();
}

Status Link::step(uint32_t events) {
  if (state_ == State::Connecting) {
    TRY(finish_connect());
  }
  if ((events & EPOLLOUT) != 0) {
    Status sent = flush();
    if (!sent.is_ok()) return hear_last_words(std::move(sent));
  }
  if (state_ == State::Handshaking) {
    TRY(read_handshake());
  } else if (paused_) {
    if ((events & (EPOLLHUP | EPOLLERR)) != 0) return Status::remote_error("connection reset");
  } else if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
    TRY(read_frames());
  }
  return {};
}

// A peer that closes before it has read all bytes sends a reset. Its last frames, mostly a
// farewell, are still in this end's buffer.
Status Link::hear_last_words(Status broken) {
  constexpr int kMostReads = 64;
  for (int reads = 0; reads < kMostReads && state_ == State::Open && !paused_ && !finishing_;
       ++reads) {
    if (!read_frames().is_ok()) break;
  }
  return state_ == State::Closed ? Status() : std::move(broken);
}

// Both ends have one address: they are sockets of one network stack.
bool Link::stays_here() const {
  const Result<Address> local = socket_.local_address();
  return local.is_ok() && std::ranges::equal(local.value().bytes(), peer_.bytes());
}

void Link::end_with(const ProcessId& process) {
  if (state_ == State::Closed || process_end_.valid() || last_words_ != 0 || !stays_here()) return;
  ProcessEnd end = end_of(process);
  if (end.has_come) return await_last_words();
  if (!end.to_come.valid()) return;
  Result<EventLoop::Id> watch = loop_.watch(end.to_come.get(), EPOLLIN, [this](uint32_t) {
    loop_.forget(end_watch_);  // a hang-up would be told again and again, whatever is watched
    await_last_words();
  });
  if (!watch.is_ok()) return;
  end_watch_ = watch.value();
  process_end_ = std::move(end.to_come);
}

// The owner of the link may have it called while the last words are read: there is one timer.
void Link::await_last_words() {
  loop_.cancel(last_words_);
  heard_ = false;
  last_words_ = loop_.after(kLastWords, [this] {
    last_words_ = 0;
    Status closed = hear_last_words(Status::remote_error("connection closed"));
    if (state_ == State::Closed) return;
    if (heard_ || paused_) return await_last_words();
    end(std::move(closed));
  });
}

Status Link::finish_connect() {
  const int error = socket_.connect_result();
  absent_ = error == ECONNREFUSED;
  if (error != 0)
    return Status::from_errno(error, fmt::format("cannot connect to {}", peer_.text()));
  become(State::Handshaking);
  arm_patience();
  return flush();
}

// Reads no more than the present message: later bytes are only read once the peer is known.
Status Link::read_handshake() {
  while (state_ == State::Handshaking) {
    const size_t expected = initiator_                      ? authentication::kReplyBytes
                            : handshake_.peer_number() == 0 ? authentication::kHelloBytes
                                                            : authentication::kProofBytes;
    std::array<std::byte, authentication::kReplyBytes> bytes;
    const Transfer got = TRY(socket_.receive(std::span(bytes).first(expected - incoming_.size())));
    if (!got.open) return Status::remote_error("closed during the handshake");
    if (got.bytes == 0) return {};
    incoming_.insert(incoming_.end(), bytes.begin(),
                     bytes.begin() + static_cast<std::ptrdiff_t>(got.bytes));
    if (incoming_.size() < expected) continue;
    Status status = answer_handshake();
    if (!status.is_ok()) {
      refused_ = true;
      return status;
    }
    incoming_.clear();
    TRY(flush());
  }
  return {};
}

Status Link::answer_handshake() {
  const std::span<const std::byte> message(incoming_);
  if (initiator_) {
    outgoing_ = TRY(handshake_.check_reply(message.first<authentication::kReplyBytes>()));
    start_frames();
    become(State::Confirming);
  } else if (handshake_.peer_number() == 0) {
    const auto hello = message.first<authentication::kHelloBytes>();
    if (options_.identity_of)
      handshake_ = options_.identity_of(TRY(authentication::Handshake::addressee(hello)));
    outgoing_ = TRY(handshake_.answer_hello(hello));
    if (handshake_.peer_number() == 0) return Status::remote_error("it has no number");
  } else {
    TRY(handshake_.check_proof(message.first<authentication::kProofBytes>()));
    start_frames();
    become(State::Open);
    const std::string lack = options_.lacks ? options_.lacks() : "";
    send(std::as_bytes(std::span(lack)));  // empty: the confirmation
    if (!lack.empty()) {
      finish();  // within the patience of the handshake
      return {};
    }
    loop_.cancel(timer_);
    owner_->link_opened(*this);
  }
  return {};
}

void Link::start_frames() {
  sealer_.emplace(handshake_.sending_key());
  opener_.emplace(handshake_.receiving_key(), options_.max_frame);
}

void Link::become(State state) {
  if (state_ != State::Closed) state_ = state;
}

Status Link::read_frames() {
  std::vector<std::byte> bytes(kReadBytes);
  const Transfer got = TRY(socket_.receive(bytes));
  if (!got.open) return Status::remote_error("connection closed");
  heard_ |= got.bytes > 0;
  if (finishing_) return {};
  opener_->feed(std::span(bytes).first(got.bytes));
  return deliver_frames();
}

Status Link::deliver_frames() {
  if (delivering_) return {};
  delivering_ = true;
  while (!paused_ && !finishing_ && (state_ == State::Open || state_ == State::Confirming)) {
    auto frame = opener_->next();
    if (!frame.is_ok()) {
      delivering_ = false;
      return std::move(frame).status();
    }
    if (!frame->has_value()) break;
    if (state_ == State::Confirming && !(*frame)->empty()) {
      delivering_ = false;
      short_ = true;
      return Status::system_error(
          "{}", std::string(reinterpret_cast<const char*>((*frame)->data()), (*frame)->size()));
    }
    if (state_ == State::Confirming) {
      become(State::Open);
      loop_.cancel(timer_);
      owner_->link_opened(*this);
    } else if (!(*frame)->empty()) {
      owner_->link_frame(*this, **frame);
    }
  }
  delivering_ = false;
  return {};
}

void Link::send(std::span<const std::byte> payload) {
  if (state_ != State::Open || finishing_) return;
  sealer_->seal(payload, outgoing_);
  update_watch();  // sent when the loop comes round: frames of one turn share a system call
}

Status Link::flush() {
  if (sent_ < outgoing_.size()) watch_delivery();
  while (sent_ < outgoing_.size()) {
    const Transfer done = TRY(socket_.send(std::span<const std::byte>(outgoing_).subspan(sent_)));
    if (done.bytes == 0) break;
    sent_ += done.bytes;
  }
  if (sent_ == outgoing_.size()) {
    outgoing_.clear();
    sent_ = 0;
    if (finishing_ && !sending_ended_) {
      sending_ended_ = true;
      socket_.end_sending();
    }
  }
  return {};
}

void Link::watch_delivery() {
  if (look_ != 0 || state_ != State::Open) return;
  acknowledged_ = EventLoop::Clock::now();
  tries_ = 0;
  is_silent_ = false;
  look_ = loop_.after(look_interval(), [this] { look_at_delivery(); });
}

// A machine that has vanished acknowledges nothing, however often it is asked. That of a process
// that is stopped answers each time, though it may be asked seldom.
void Link::look_at_delivery() {
  constexpr auto kClockStep = std::chrono::milliseconds(20);  // of the system's, and more
  constexpr uint32_t kInVain = 2;                             // one may get lost
  look_ = 0;
  Result<Socket::Delivery> delivery = socket_.delivery();
  if (!delivery.is_ok() || delivery->is_complete) return;
  const auto acknowledged = EventLoop::Clock::now() - delivery->silence;
  if (acknowledged > acknowledged_ + kClockStep) {
    acknowledged_ = acknowledged;
    tries_ = delivery->tries;
  }
  const bool is_silent = delivery->silence >= std::chrono::seconds(parameters::net_timeout()) &&
                         delivery->tries >= tries_ + kInVain;
  // An answer to the last may have been on its way.
  if (std::exchange(is_silent_, is_silent) && is_silent)
    return end(describe_silence(Status::from_errno(ETIMEDOUT, "cannot send")));
  look_ = loop_.after(look_interval(), [this] { look_at_delivery(); });
}

void Link::pause() {
  paused_ = true;
  update_watch();
}

void Link::resume() {
  if (!paused_) return;
  paused_ = false;
  update_watch();
  // Delivered from a timer, because the caller may be inside a callback of another link.
  timer_ = loop_.after(EventLoop::Clock::duration::zero(), [this] {
    Status status = deliver_frames();
    if (!status.is_ok()) end(std::move(status));
  });
}

void Link::finish() {
  if (state_ != State::Open) return close();
  finishing_ = true;
  paused_ = false;
  flush().ignore(
      "the loop sees the broken socket and ends the link, outside the caller's callback");
  update_watch();
}

void Link::update_watch() {
  if (state_ == State::Closed) return;
  uint32_t events = 0;
  if (!paused_ && state_ != State::Connecting) events |= EPOLLIN;
  if (sent_ < outgoing_.size() || state_ == State::Connecting) events |= EPOLLOUT;
  if (events == watched_) return;
  watched_ = events;
  loop_.change(watch_, events);
}

void Link::close() {
  if (state_ == State::Closed) return;
  state_ = State::Closed;
  loop_.cancel(timer_);
  loop_.cancel(look_);
  loop_.cancel(last_words_);
  loop_.forget(watch_);
  loop_.forget(end_watch_);
  process_end_.reset();
  socket_.close();
}

Link::Stream Link::release() {
  loop_.forget(watch_);  // before its descriptor changes hands
  socket_.end_when_unacknowledged(true);
  Stream stream{.socket = std::move(socket_), .unsent = {}};
  stream.unsent.assign(outgoing_.begin() + static_cast<std::ptrdiff_t>(sent_), outgoing_.end());
  close();
  return stream;
}

// Describes the end of an open link that the system has given up.
Status Link::describe_silence(const Status& reason) const {
  Result<Address> local = socket_.local_address();
  const std::string trouble = local.is_ok() ? trouble_of(local.value()) : "";
  return Status::remote_error(
      "{} for {} s by the connection from {} to {} ({}){}{}. Is its machine up, and the network "
      "between them?",
      kSilence, parameters::net_timeout(), local.is_ok() ? local->host() : "this host",
      peer_.text(), reason.message(), trouble.empty() ? "" : ": ", trouble);
}

void Link::end(Status reason) {
  if (state_ == State::Closed) return;
  const End end = refused_                      ? End::Refused
                  : absent_                     ? End::Absent
                  : short_                      ? End::Short
                  : state_ == State::Connecting ? End::Unreachable
                  : state_ == State::Open       ? End::Ended
                                                : End::Dropped;
  const int error = socket_.error();
  if (end == End::Ended && (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH))
    reason = describe_silence(reason);
  close();
  owner_->link_ended(*this, end, std::move(reason));
}

}  // namespace niccolite::wire
