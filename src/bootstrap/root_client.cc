#include "bootstrap/root_client.h"

#include <unistd.h>

#include <utility>

#include "base/interfaces.h"
#include "base/log.h"
#include "base/parameters.h"
#include "base/process.h"
#include "base/socket.h"

namespace niccolite::bootstrap {
namespace {

// A root listens before its id exists. So if nobody listens, the root has ended. A host that is
// just coming up might refuse for a moment.
constexpr auto kAbsence = std::chrono::milliseconds(500);
constexpr auto kFirewalled = std::chrono::seconds(12);  // three attempts of three SYNs each

}  // namespace

RootClient::RootClient(wire::EventLoop& loop, const UniqueId& id, uint64_t number, Events events)
    : loop_(loop),
      id_(id),
      options_{.self = {.key = id.key("root"), .number = number}, .identity_of = {}},
      events_(std::move(events)) {}

RootClient::~RootClient() {
  loop_.cancel(retry_);
  loop_.cancel(looker_);
}

void RootClient::start(const Address& root) {
  Result<std::vector<Interface>> present = list_interfaces();
  // A scope in NCCL_COMM_ID is of this host.
  const bool is_named = id_.origin() == UniqueId::Origin::Environment && root.scope() != 0;
  ways_ = {root};
  if (present.is_ok() && !is_named)
    ways_ = ways_to(root, present.value(), parameters::socket_ifname());
  started_ = wire::EventLoop::Clock::now();
  attempt();
}

void RootClient::attempt() {
  root_ = ways_[static_cast<size_t>(attempts_++) % ways_.size()];
  // The root of NCCL_COMM_ID has an address to itself.
  const uint64_t number = id_.origin() == UniqueId::Origin::Environment ? 0 : id_.number();
  int error = 0;
  Result<std::unique_ptr<wire::Link>> link =
      wire::Link::dial(loop_, root_, number, options_, *this, &error);
  if (!link.is_ok() && is_shortage(error) &&
      wire::EventLoop::Clock::now() - started_ > kShortagePatience) {
    if (!finished_) events_.failed(std::move(link).status());
    return;
  }
  if (!link.is_ok()) return unreachable(std::move(link).status());
  link_ = std::move(link.value());
}

void RootClient::attempt_failed(Status reason) {
  if (finished_) return;
  if (attempts_ > parameters::socket_retry_count())
    return events_.failed(cannot_be_reached(reason));
  events_.trouble(reason.message());
  retry_ = loop_.after(std::chrono::milliseconds(parameters::socket_retry_sleep()) * attempts_,
                       [this] { attempt(); });
}

Status RootClient::cannot_be_reached(const Status& reason) const {
  Result<std::vector<Interface>> present = list_interfaces();
  return Status::remote_error(
      "the root of the rendezvous at {} cannot be reached ({} attempts, last: {}) from this host, "
      "whose interfaces are {}. Are the two on one network (NCCL_SOCKET_IFNAME where the unique id "
      "is made), does a firewall let TCP through to that port, and does the process that made the "
      "id still run?",
      root_.text(), attempts_, reason.message(),
      present.is_ok() ? niccolite::describe(present.value()) : "unknown");
}

// A root listens before its id exists. So if packets vanish, or there is no route, more attempts
// change nothing. But an address of NCCL_COMM_ID may belong to a host that is still starting.
void RootClient::unreachable(Status reason) {
  if (id_.origin() == UniqueId::Origin::Environment ||
      wire::EventLoop::Clock::now() - started_ < kFirewalled || has_untried_way())
    return attempt_failed(std::move(reason));
  if (!finished_) events_.failed(cannot_be_reached(reason));
}

void RootClient::nobody_listens(Status reason) {
  if (id_.origin() == UniqueId::Origin::Environment ||
      wire::EventLoop::Clock::now() - started_ < kAbsence || has_untried_way())
    return attempt_failed(std::move(reason));
  if (finished_) return;
  if (root_.is_loopback())
    return events_.failed(Status::remote_error(
        "nobody listens at {} of this machine. The unique id holds that address since the machine "
        "that made it had no other interface with a carrier then; make the id once its network is "
        "up, or with NCCL_SOCKET_IFNAME, unless all ranks are on one machine: then the process "
        "that "
        "made it has ended, which must live until all have joined",
        root_.text()));
  events_.failed(Status::remote_error(
      "nobody listens at {}: the unique id was used for another communicator before (each needs "
      "one "
      "of its own), the process that made it has ended, which must live until all ranks have "
      "joined, or a firewall refuses connections to that port",
      root_.text()));
}

std::string RootClient::describe_host() const {
  if (host_.ranks.empty())
    return fmt::format("the process that made the unique id, at {},", root_.text());
  return fmt::format("{} ({})", describe_ranks(host_.ranks), host_.origin.text());
}

void RootClient::send(const Bytes& message) {
  if (connected()) link_->send(message);
}

void RootClient::finish(const Bytes& message) {
  if (std::exchange(finished_, true)) return;
  loop_.cancel(retry_);
  last_message_ = message;
  if (connected()) part();
}

void RootClient::part() {
  link_->send(last_message_);
  link_->finish();
}

void RootClient::link_opened(wire::Link& link) {
  if (finished_) return part();
  const Result<Address> local = link.local_address();
  if (!local.is_ok()) return events_.failed(local.status().copy());
  events_.connected(local.value());
}

void RootClient::link_frame(wire::Link&, std::span<const std::byte> payload) {
  Status status = take(payload);
  if (!status.is_ok()) events_.failed(std::move(status));
}

Status RootClient::take(std::span<const std::byte> payload) {
  const std::string origin = fmt::format("the root at {}", root_.text());
  Reader reader(payload, origin);
  const auto type = static_cast<MessageType>(reader.u8());
  if (type == MessageType::Host) {
    host_ = TRY(messages::Host::decode(reader));
    link_->end_with(host_.origin.process);
    if (looker_ == 0) looker_ = loop_.after(messages::kLongWait, [this] { look_at_host(); });
    return {};
  }
  if (type == MessageType::Awaited) {
    tell(TRY(messages::Awaited::decode(reader)));
    return {};
  }
  answered_ = true;
  switch (type) {
    case MessageType::Assignment: {
      messages::Assignment place = TRY(messages::Assignment::decode(reader));
      events_.placed(std::move(place));
      return {};
    }
    case MessageType::Refused: {
      messages::Refused refused = TRY(messages::Refused::decode(reader));
      events_.refused(std::move(refused));
      return {};
    }
    default:
      return Status::remote_error("{} sent a message that only a root hears", origin);
  }
}

void RootClient::tell(const messages::Awaited& awaited) const {
  const std::string text = fmt::format("communicator 0x{:x}: initialization stands still: {}",
                                       id_.hash(), awaited.text());
  if (awaited.why == messages::Awaited::Why::Stopped)
    LOG(Warn, Init, "{}", text);
  else
    LOG(Info, Init, "{}", text);  // a late rank may be busy, which is no fault
}

// The root names other stopped processes, but nobody else could name the root's own process.
void RootClient::look_at_host() {
  if (finished_) return;
  if (run_state(host_.origin.process) == RunState::Stopped)
    return tell(
        {.why = messages::Awaited::Why::Stopped, .ranks = host_.ranks, .origin = host_.origin});
  looker_ = loop_.after(messages::kLongWait, [this] { look_at_host(); });
}

void RootClient::link_ended(wire::Link& link, wire::Link::End end, Status reason) {
  if (&link == link_.get()) wire::Link::bury(loop_, std::move(link_));
  if (finished_) return events_.over();
  if (answered_) return;  // it has told us all we need
  switch (end) {
    case wire::Link::End::Refused:
      return events_.failed(Status::remote_error(
          "what listens at {} is not the root of this unique id: {}{}", root_.text(),
          reason.message(),
          id_.origin() == UniqueId::Origin::Environment
              ? fmt::format(" (this process is of user {}; processes of several users can meet by "
                            "NCCL_COMM_ID with NICCOLITE_COMM_ID_ANY_USER=1 on all of them)",
                            geteuid())
              : "; has the id been used before?"));
    case wire::Link::End::Ended: {
      // The rendezvous of an earlier communicator at this address (NCCL_COMM_ID) may just have
      // ended.
      if (id_.origin() == UniqueId::Origin::Environment && host_.ranks.empty())
        return attempt_failed(std::move(reason));
      Status status = Status::remote_error(
          "{} ended before all ranks had come ({}); the process that made the "
          "unique id must live until then",
          describe_host(), reason.message());
      return events_.failed(
          std::move(status).with_peer(host_.ranks.empty() ? -1 : host_.ranks.front()));
    }
    case wire::Link::End::Absent:
      return nobody_listens(std::move(reason));
    case wire::Link::End::Unreachable:
      return unreachable(std::move(reason));
    case wire::Link::End::Dropped:
    case wire::Link::End::Short:  // no root turns anybody away so
      return attempt_failed(std::move(reason));
  }
}

}  // namespace niccolite::bootstrap
