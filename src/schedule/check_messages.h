// The messages of a PointToPoint schedule: that they are numbered as schedule.h says, and that each
// is moved once, by an instruction that moves nothing else. Checker use only. Thread safety: one
// thread.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "schedule/schedule.h"

namespace niccolite::schedule {

class MessageCheck {
 public:
  /// `schedule` must outlive it.
  explicit MessageCheck(const Schedule& schedule) : schedule_(schedule) {}

  /// InvalidUsage: a message names no rank, or its pair or its block belongs to another one too.
  /// Must come before all visits; a schedule of another collective has no messages.
  Status check_table();

  /// Checks one instruction of a PointToPoint schedule, well formed by itself, against its
  /// messages: it fits the message that it sends and the message that it receives. Messages do not
  /// name positions.
  Status visit(const Position& position, const Instruction& instruction);

  /// Checks, after all visits, that each message was moved.
  Status check_all_moved() const;

 private:
  using Key = std::pair<int, int>;

  /// The moves of one message so far.
  struct Moves {
    bool is_sent = false;
    bool is_received = false;
  };

  Result<int> find(const std::map<Key, int>& table, Key key, const char* end) const;

  const Schedule& schedule_;
  std::map<Key, int> by_pair_;           // (sender, receiver) -> index of Schedule::messages
  std::map<Key, int> by_send_block_;     // (sender, block)
  std::map<Key, int> by_receive_block_;  // (receiver, block)
  std::vector<Moves> moves_;             // by message
};

}  // namespace niccolite::schedule
