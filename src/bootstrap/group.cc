#include "bootstrap/group.h"

#include <algorithm>

#include "base/log.h"

namespace niccolite::bootstrap {

Group::Group(uint64_t id, std::vector<uint32_t> processes, Outside outside)
    : id_(id),
      processes_(std::move(processes)),
      outside_(std::move(outside)),
      roster_(outside_.mutex),
      gathers_(
          roster_,
          [this](uint32_t process, auto frame) {
            outside_.transmit(session_process(process), wrap(std::move(frame)));
          },
          id == kAllRanks ? 0 : 1),
      mailroom_(
          roster_,
          [this](std::function<void()> task) {
            outside_.service.post([kept = shared_from_this(), task = std::move(task)] { task(); });
          },
          [this](uint32_t process, auto frame) {
            outside_.transmit(session_process(process), wrap(std::move(frame)));
          },
          [this](uint32_t process) { outside_.probe(session_process(process)); },
          {.are_some_absent = [this] { return outside_.absences.are_there(); },
           .is_absent =
               [this](uint32_t process) {
                 return outside_.absences.is_absent(session_process(process));
               }}),
      survivors_(
          roster_,
          [this](uint32_t process, auto frame) {
            outside_.transmit(session_process(process), wrap(std::move(frame)));
          },
          [this](uint32_t process) { outside_.probe(session_process(process)); }) {}

std::optional<uint32_t> Group::process_of(uint32_t session_process) const {
  if (processes_.empty()) return session_process;
  const auto found = std::lower_bound(processes_.begin(), processes_.end(), session_process);
  if (found == processes_.end() || *found != session_process) return std::nullopt;
  return static_cast<uint32_t>(found - processes_.begin());
}

std::shared_ptr<const Bytes> Group::wrap(std::shared_ptr<const Bytes> message) const {
  if (id_ == kAllRanks) return message;
  return std::make_shared<const Bytes>(messages::InGroup{.group = id_, .frame = *message}.encode());
}

Status Group::take(uint32_t process, std::span<const std::byte> message) {
  const std::string origin = roster_.has_table() ? roster_.process(process).origin.text()
                                                 : fmt::format("process number {}", process);
  Reader reader(message, origin);
  const auto type = static_cast<MessageType>(reader.u8());
  switch (type) {
    case MessageType::Gather:
    case MessageType::GatherAbsent:
      return gathers_.take(reader, type, message);
    case MessageType::Data:
    case MessageType::Request:
    case MessageType::Response:
      return mailroom_.take(reader, type, process);
    case MessageType::Survive:
      return survivors_.take(reader, message);
    case MessageType::Left:
      return take_left(process, reader);
    default:
      return Status::remote_error("{} sent a message of type {}", origin, static_cast<int>(type));
  }
}

Status Group::take_left(uint32_t process, Reader& reader) {
  const messages::Left left = TRY(messages::Left::decode(reader));
  for (int32_t rank : left.ranks) {
    if (rank >= roster_.nranks() || roster_.process_of(rank) != process)
      return Status::remote_error("{} says that rank {} of another process has left",
                                  roster_.describe(process), rank);
    roster_.mark_left(rank);
    survivors_.rank_left(rank);
  }
  roster_.wake_all();
  return {};
}

void Group::departed(uint32_t process, Status why) {
  roster_.mark_departed(process, std::move(why));
  if (!roster_.has_table()) return;
  gathers_.process_departed(process);
  survivors_.process_gone(process);
  roster_.wake_all();
}

void Group::lost(uint32_t process, const std::string& why) {
  if (roster_.is_end_explained(process)) return;
  gathers_no_more_ = true;
  roster_.mark_lost(process, Status::remote_error("{}", why));
  const std::string who =
      roster_.has_table() ? roster_.describe(process) : "a process of the communicator";
  const int rank = roster_.has_table() ? roster_.process(process).ranks.front() : -1;
  gathers_.fail_all(Status::remote_error("{}", describe_loss(who, why)).with_peer(rank));
  if (roster_.has_table()) survivors_.process_gone(process);
  roster_.wake_all();
}

void Group::tell_lost(std::shared_ptr<Local> local, uint32_t process) {
  outside_.service.post([this, kept = shared_from_this(), local = std::move(local), process] {
    Roster::Lock lock = roster_.lock();
    const std::vector<int32_t> ranks = roster_.process(process).ranks;
    for (int32_t rank : ranks) {
      if (local->left || !local->peer_lost || !local->told_lost.insert(rank).second) continue;
      const auto callback = local->peer_lost;
      const Status why = roster_.why_gone(rank);
      ++local->in_service;
      lock.unlock();
      const Status thrown = guarded([&]() -> Status {
        callback(rank, why);
        return {};
      });
      if (!thrown.is_ok()) log::error(thrown, "bootstrap: callback about a lost peer");
      lock.lock();
      --local->in_service;
      local->changed.notify_all();
    }
  });
}

// Returns the ranks of this process that have left. It does not name ranks that have not come yet:
// the first rank of the process makes the group.
messages::Left Group::what_left() const {
  messages::Left left;
  for (int32_t rank : roster_.process(roster_.self()).ranks)
    if (roster_.has_left(rank)) left.ranks.push_back(rank);
  return left;
}

}  // namespace niccolite::bootstrap
