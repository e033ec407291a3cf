#include "bootstrap/roster.h"

#include <algorithm>

#include "wire/link.h"

namespace niccolite::bootstrap {

void Roster::set_place(uint32_t self, uint32_t nprocesses, int32_t nranks) {
  self_ = self;
  nprocesses_ = nprocesses;
  nranks_ = nranks;
  states_.resize(nprocesses);
}

Status Roster::set_table(std::vector<messages::ProcessEntry> table) {
  constexpr uint32_t kNobody = ~uint32_t{0};
  std::vector<uint32_t> process_of(static_cast<size_t>(nranks_), kNobody);
  for (uint32_t process = 0; process < table.size(); ++process) {
    for (int32_t rank : table[process].ranks) {
      if (rank >= nranks_)
        return Status::internal("{} announces rank {} of {}", table[process].origin.text(), rank,
                                nranks_);
      uint32_t& seat = process_of[static_cast<size_t>(rank)];
      if (seat != kNobody)
        return Status::invalid_usage(
                   "two callers claim rank {} of {}: {} and {}; give each rank once, and each "
                   "communicator a unique id of its own",
                   rank, nranks_, table[seat].origin.text(), table[process].origin.text())
            .with_peer(rank);
      seat = process;
    }
  }
  const auto missing = std::find(process_of.begin(), process_of.end(), kNobody);
  if (missing != process_of.end())
    return Status::internal("no process announces rank {}", missing - process_of.begin());
  table_ = std::move(table);
  process_of_ = std::move(process_of);
  left_.resize(static_cast<size_t>(nranks_));
  return {};
}

void Roster::remove(const Local& local) {
  std::erase_if(locals_, [&](const auto& other) { return other.get() == &local; });
}

std::shared_ptr<Local> Roster::find(int32_t rank) const {
  for (const auto& local : locals_)
    if (local->rank == rank && !local->left) return local;
  return nullptr;
}

void Roster::wake_all() {
  for (const auto& local : locals_) local->changed.notify_all();
}

std::string describe_loss(std::string_view who, std::string_view why) {
  if (why.starts_with(wire::kSilence))
    return fmt::format("{} cannot be reached any more: {}", who, why);
  return fmt::format(
      "{} ended unexpectedly: {} (its output, or the log of the kernel, may tell why)", who, why);
}

std::string Roster::describe(uint32_t process) const {
  return fmt::format("{} ({})", describe_ranks(table_[process].ranks),
                     table_[process].origin.text());
}

Status Roster::why_gone(int32_t rank) const {
  const ProcessState& process = states_[process_of(rank)];
  if (process.state == State::Lost)
    return Status::remote_error("{}",
                                describe_loss(describe(process_of(rank)), process.why.message()))
        .with_peer(rank);
  if (process.state == State::Departed || left_[static_cast<size_t>(rank)]) {
    Status status = Status::remote_error("rank {} ({}) has left the communicator", rank,
                                         table_[process_of(rank)].origin.text());
    if (!process.why.is_ok())
      status = Status::remote_error("rank {} ({}) has gone: {}", rank,
                                    table_[process_of(rank)].origin.text(), process.why.message());
    return std::move(status).with_peer(rank);
  }
  return {};
}

bool Roster::has_left(int32_t rank) const {
  const ProcessState& process = states_[process_of(rank)];
  return process.state == State::Departed ||
         (process.state == State::Alive && left_[static_cast<size_t>(rank)]);
}

void Roster::mark_left(int32_t rank) { left_[static_cast<size_t>(rank)] = true; }

void Roster::mark_departed(uint32_t process, Status why) {
  if (is_gone(process)) return;
  states_[process] = {.state = State::Departed, .why = std::move(why)};
}

void Roster::mark_lost(uint32_t process, Status why) {
  if (is_end_explained(process)) return;
  states_[process] = {.state = State::Lost, .why = std::move(why)};
}

std::optional<Roster::End> Roster::end_of(uint32_t process) const {
  const ProcessState& state = states_[process];
  if (state.state == State::Alive) return std::nullopt;
  return End{.is_lost = state.state == State::Lost, .why = state.why.copy()};
}

std::vector<std::pair<uint32_t, Status>> Roster::lost() const {
  std::vector<std::pair<uint32_t, Status>> lost;
  for (uint32_t process = 0; process < states_.size(); ++process)
    if (states_[process].state == State::Lost)
      lost.emplace_back(process, states_[process].why.copy());
  return lost;
}

Status Roster::why_aborted(const Local& local) {
  if (local.abort != nullptr && local.abort->raised()) {
    Status reason = local.abort->reason();
    if (!reason.is_ok()) return reason;
  }
  return Status::invalid_usage("rank {} left the communicator while it was waiting", local.rank);
}

}  // namespace niccolite::bootstrap
