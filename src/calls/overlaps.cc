#include "calls/overlaps.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/parameters.h"

namespace niccolite::calls {
namespace {

struct Placed {
  Range range;
  GroupMessage message;
  bool is_send() const { return message.task->call.is_send; }
};

std::string describe(const Placed& placed) {
  return fmt::format("{} {} of rank {}, {}", placed.is_send() ? "sendbuff" : "recvbuff",
                     placed.range.describe(), placed.message.rank,
                     describe(placed.message.task->call));
}

// A message to oneself in place, as an all-to-all of messages has it.
bool moves_nothing(const Placed& one, const Placed& other) {
  const auto is_to_self = [](const Placed& placed) {
    return placed.message.task->call.peer == placed.message.rank;
  };
  return one.is_send() != other.is_send() && one.range.start == other.range.start &&
         one.range.bytes == other.range.bytes && one.message.rank == other.message.rank &&
         is_to_self(one) && is_to_self(other);
}

}  // namespace

std::optional<bool> asked_buffer_checks() {
  if (!parameters::check_mode().empty() && parameters::check_mode() != "DEFAULT") return true;
  if (parameters::check_mode().empty() && parameters::check_pointers() != INT64_MIN)
    return parameters::check_pointers() != 0;
  return std::nullopt;
}

std::string Range::describe() const {
  return fmt::format("{} to {} ({} bytes)", start, static_cast<const void*>(end()), bytes);
}

// Compares messages in the order of their addresses: each with the receive, and with the send, that
// reaches furthest among the messages before it.
Status check_overlaps(std::span<const GroupMessage> messages) {
  std::vector<Placed> placed;
  for (const GroupMessage& message : messages) {
    const Task& task = *message.task;
    const void* const start = task.call.is_send ? task.input : task.output;
    if (const size_t bytes = task.call.request.bytes(); bytes > 0)
      placed.push_back({.range = {start, bytes}, .message = message});
  }
  std::ranges::stable_sort(
      placed, [](const Placed& a, const Placed& b) { return a.range.begin() < b.range.begin(); });
  const Placed* receive = nullptr;
  const Placed* send = nullptr;
  for (const Placed& next : placed) {
    for (const Placed* const before : {receive, send}) {
      if (before == nullptr || !before->range.overlaps(next.range)) continue;
      if (before->is_send() && next.is_send()) continue;
      if (moves_nothing(*before, next)) continue;
      return Status::invalid_argument(
          "ncclGroupEnd : {}, overlaps {}, in one group, whose messages are under way together: "
          "use memory that does not overlap, or a group for each",
          describe(*before), describe(next));
    }
    const Placed*& furthest = next.is_send() ? send : receive;
    if (furthest == nullptr || furthest->range.end() < next.range.end()) furthest = &next;
  }
  return {};
}

}  // namespace niccolite::calls
