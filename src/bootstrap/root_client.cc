#include "bootstrap/root_client.h"

#include <utility>

#include "base/parameters.h"

namespace niccolite::bootstrap {

RootClient::RootClient(EventLoop& loop, const UniqueId& id, uint64_t number, Events events)
    : loop_(loop),
      id_(id),
      options_{.self = {.key = id.key("root"), .number = number}},
      events_(std::move(events)) {}

RootClient::~RootClient() { loop_.cancel(retry_); }

void RootClient::start(const Address& root) {
  root_ = root;
  attempt();
}

void RootClient::attempt() {
  ++attempts_;
  Result<std::unique_ptr<Link>> link = Link::dial(loop_, root_, 0, options_, *this);
  if (!link.is_ok()) return attempt_failed(std::move(link).status());
  link_ = std::move(link.value());
}

void RootClient::attempt_failed(Status reason) {
  if (finished_) return;
  if (attempts_ > parameters::socket_retry_count())
    return events_.failed(Status::remote_error(
        "the root of the rendezvous at {} cannot be reached ({} attempts, last: {}); has the "
        "process that made the unique id "
        "ended, has the id been used before, or is the interface wrong (NCCL_SOCKET_IFNAME)?",
        root_.text(), attempts_, reason.message()));
  events_.trouble(reason.message());
  retry_ = loop_.after(std::chrono::milliseconds(parameters::socket_retry_sleep()) * attempts_,
                       [this] { attempt(); });
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

void RootClient::link_opened(Link& link) {
  if (finished_) return part();
  const Result<Address> local = link.local_address();
  if (!local.is_ok()) return events_.failed(local.status().copy());
  events_.connected(local.value());
}

void RootClient::link_frame(Link&, std::span<const std::byte> payload) {
  Status status = take(payload);
  if (!status.is_ok()) events_.failed(std::move(status));
}

Status RootClient::take(std::span<const std::byte> payload) {
  answered_ = true;
  const std::string origin = fmt::format("the root at {}", root_.text());
  Reader reader(payload, origin);
  switch (static_cast<MessageType>(reader.u8())) {
    case MessageType::Place: {
      messages::Place place = TRY(messages::Place::decode(reader));
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

void RootClient::link_ended(Link& link, Link::End end, Status reason) {
  if (&link == link_.get()) Link::bury(loop_, std::move(link_));
  if (finished_) return events_.over();
  if (answered_) return;  // it has told us all we need
  switch (end) {
    case Link::End::Refused:
      return events_.failed(
          Status::remote_error("what listens at {} is not the root of this unique id: {}",
                               root_.text(), reason.message()));
    case Link::End::Ended:
      // With NCCL_COMM_ID the rendezvous of an earlier communicator may just have ended at this
      // address.
      if (id_.origin() != UniqueId::Origin::Environment)
        return events_.failed(
            Status::remote_error("the root of the rendezvous at {} ended before all ranks had come "
                                 "({}); the process that made the unique id must "
                                 "live until then",
                                 root_.text(), reason.message()));
      [[fallthrough]];
    case Link::End::Unreachable:
    case Link::End::Dropped:
      return attempt_failed(std::move(reason));
  }
}

}  // namespace niccolite::bootstrap
