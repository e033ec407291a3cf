// Correspondence: the questions and messages that a rank sends to the others beside their
// operations (comm/question.h). The answers to questions of other ranks: Communicator::answer().
// Thread safety: any thread, between begin() and the end of the bootstrap::Member.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "bootstrap/member.h"
#include "comm/question.h"

namespace niccolite::comm {

class Correspondence {
 public:
  static constexpr size_t kMostText = 4096;  // of an error that a peer tells

  /// `member` outlives this object's use. `name`: the communicator, for log lines.
  void begin(bootstrap::Member& member, std::string name) {
    member_ = &member;
    name_ = std::move(name);
  }

  /// See bootstrap::Member::request().
  std::vector<Result<Bytes>> ask(Question question, std::span<const bootstrap::Query> queries,
                                 const Deadline& deadline,
                                 bootstrap::Patience patience = bootstrap::Patience::UntilDeadline);
  /// Asks one peer.
  Result<Bytes> ask(Question question, int peer, std::span<const std::byte> message,
                    const Deadline& deadline,
                    bootstrap::Patience patience = bootstrap::Patience::UntilDeadline);
  /// Only queues the message. False: the peer has ended or left, and a line says so.
  bool tell(int peer, Question question, std::span<const std::byte> message = {});
  /// Collective over all ranks, whose statuses become one: the error of the first rank that has
  /// one. Before begin() there is one rank.
  Status agree(const Status& mine);
  /// Tells that the whole communicator fails.
  void tell_failure(int peer, const Status& status);

 private:
  bootstrap::Member* member_ = nullptr;
  std::string name_;
};

}  // namespace niccolite::comm
