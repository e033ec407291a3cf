// The conditions that must hold when all workers are done, or stand still.
#include "lowering/execution.h"

#include <algorithm>

#include "schedule/index.h"

namespace niccolite::lowering {

using schedule::at;
using schedule::Buffer;
using schedule::Connection;
using schedule::length;
using schedule::Value;

// ---- the end

/// The kernel of each rank ends with its last worker, and its user has the buffers again.
Status Execution::check_ends() const {
  for (int rank = 0; rank < schedule_.nranks; ++rank) TRY(check_end(rank));
  return check_awaited();
}

/// An announcement, or a release, says nothing of what its worker does over other connections: each
/// buffer that a peer has taken is awaited by itself.
Status Execution::check_awaited() const {
  for (int i = 0; i < length(links_); ++i) {
    for (const Link& link : at(links_, i)) {
      if (!link.memory || !link.is_taken || link.is_awaited) continue;
      const Connection& c = at(schedule_.connections, i);
      const bool is_put = link.memory->rank == c.receiver;
      return Status::invalid_usage(
          "{} has taken {} of rank {}, whose kernel may have ended",
          schedule::describe(position(at(instances_, is_put ? link.sender : link.receiver))),
          describe(link.memory->block), link.memory->rank);
    }
  }
  return {};
}

Status Execution::check_end(int rank) const {
  Clock end(instances_.size() + static_cast<size_t>(schedule_.nranks));
  for (const Instance& instance : instances_) {
    if (instance.rank != rank) continue;
    for (size_t i = 0; i < end.size(); ++i) end[i] = std::max(end[i], instance.clock[i]);
  }
  const Memory& memory = at(memory_, rank);
  const std::pair<const std::vector<std::vector<Location>>*, Buffer> buffers[] = {
      {&memory.input, Buffer::Input},
      {&memory.output, Buffer::Output},
      {&memory.scratch, Buffer::Scratch}};
  for (const auto& [blocks, buffer] : buffers) {
    for (int block = 0; block < length(*blocks); ++block) {
      for (const Location& place : at(*blocks, block)) {
        for (const Access& access : place.accesses) {
          if (end[static_cast<size_t>(access.instance)] >= access.moves) continue;
          const Instance& who = at(instances_, access.instance);
          return Status::invalid_usage("{} {} {} of rank {}, whose kernel may have ended",
                                       schedule::describe({who.rank, scenario_.channel,
                                                           who.worker_number, access.instruction}),
                                       access.is_write ? "writes" : "reads",
                                       describe({buffer, block}), rank);
        }
      }
    }
  }
  return {};
}

Status Execution::report_hang() const {
  constexpr int kNamed = 4;
  std::string waits;
  int count = 0;
  for (const Instance& instance : instances_) {
    if (instance.is_done() || ++count > kNamed) continue;
    const Step& step = instance.steps()[instance.next];
    const Connection& c = at(schedule_.connections, step.connection);
    waits += fmt::format("{}{} waits to {} (rank {})", waits.empty() ? "" : "; ",
                         schedule::describe(position(instance)), name_of(step.event),
                         c.sender == instance.rank ? c.receiver : c.sender);
  }
  return Status::invalid_usage("{}: {}{}", scenario_.abort ? "an abort hangs" : "deadlock", waits,
                               count > kNamed ? fmt::format("; {} more", count - kNamed) : "");
}

Status Execution::check_result() const {
  auto& self = const_cast<Execution&>(*this);  // location() finds, and changes nothing
  for (int rank = 0; rank < schedule_.nranks; ++rank) {
    for (int block = 0; block < length(at(memory_, rank).output); ++block) {
      for (int tile = 0; tile < scenario_.channels; ++tile) {
        const Location& place = self.location(rank, {Buffer::Output, block}, tile);
        if (!place.writer && !place.is_kept) {
          // A message moves in one channel.
          if (schedule_.collective == schedule::Collective::PointToPoint) continue;
          return Status::invalid_usage(
              "rank {} channel {}: no instruction writes tile {} of output block {}", rank,
              scenario_.channel, tile, block);
        }
        const Value& value = *place.value;
        const schedule::Wanted wanted = schedule::wanted_result(schedule_, rank, block);
        const bool is_sum = wanted.from < 0;
        const bool is_right =
            value.block == wanted.block &&
            (is_sum ? value.finished && schedule::missing_ranks(value, schedule_.nranks).empty()
                    : value.ranks[0] == wanted.from);
        if (!is_right) {
          return Status::invalid_usage(
              "rank {} channel {}: tile {} of output block {} is wrong{}", rank, scenario_.channel,
              tile, block, place.writer ? ", by " + schedule::describe(*place.writer) : "");
        }
      }
    }
  }
  return {};
}

}  // namespace niccolite::lowering
