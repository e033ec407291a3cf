// Plan: all that is known about one operation before its buffers and stream are: variant, program,
// partition, reduction. Planner: makes plans; keeps one compiled program per form.
// Thread safety: a Plan is immutable; a Planner belongs to one communicator and is used by one
// thread at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "executor/launch.h"
#include "planner/choice/choice.h"
#include "planner/choice/message_choice.h"
#include "planner/request.h"

namespace niccolite::planner {

struct Plan {
  executor::Protocol protocol = executor::Protocol::Simple;
  executor::FifoShape shape;       // of its connections
  executor::FifoShape team_shape;  // of those by a team
  int team_ranks = 0;              // Launch::team_ranks
  std::shared_ptr<const executor::Program> program;
  std::vector<executor::Partition> partitions;          // by the program's works
  std::vector<executor::Turn> turns;                    // by work, of messages
  executor::DataType type = executor::DataType::Uint8;  // Uint8 for all that only moves bytes
  executor::Reduction reduction;
  bool reduces = false;
  uint32_t pull_bytes = 0;                          // Launch::pull_bytes
  std::optional<executor::ListAccess> list_access;  // Launch::list_access
  executor::ListOperation list_operation{};         // Launch::list_operation
  Choice choice;                                    // of a collective
  double microseconds = 0;                          // predicted
};

/// The helpers of the ranks in an operation: a multicast team, the network's reducer.
enum class Help : uint8_t {
  None,       // there is no such helper
  Given,      // it may carry the operation
  NotOfIt,    // it does not reduce the type by the operation
  NotShared,  // it does not carry operations that share a launch
};
struct Helpers {
  Help team = Help::None, network = Help::None;
  const Request* request = nullptr;  // of a collective
};

class Planner {
 public:
  Planner(const Settings& settings, int rank)
      : settings_(settings),
        messages_reach_(settings.reaches_users),
        fills_slots_first_(settings.machine == gpu::Kind::Virtual && settings.reaches_users),
        rank_(rank) {}

  /// One collective over at most `most_channels` channels (0: as many as pay). Errors: InvalidUsage
  /// when the user's selection leaves no variant.
  Result<Plan> collective(const Request& request, int most_channels = 0);

  /// Plans one collective as an operation of a batched launch (executor::Launch::is_list()). Empty
  /// if the operation cannot be batched; all ranks agree on that.
  Result<std::optional<Plan>> listed(const Request& request);

  /// Plans an operation of a batched launch over buffers that all ranks reach
  /// (executor::Launch::list_access). Empty if ranks do not reach the buffers, or other settings
  /// forbid it.
  Result<std::optional<Plan>> listed_directly(const Request& request);

  /// The protocol that both ends of a message choose. `goes_direct`: Message::goes_direct.
  Result<executor::Protocol> protocol_of_message(size_t bytes, bool goes_direct);
  /// Returns the protocol of a message to the own rank, which no other rank must know.
  Result<executor::Protocol> protocol_of_copy(size_t bytes, bool goes_direct);
  /// Returns by how much a message to the own rank is predicted to take longer than the shortest
  /// one.
  double time_of_copy(size_t bytes, executor::Protocol protocol, bool goes_direct) const {
    return predict_copy(settings_of_message(goes_direct), protocol, bytes);
  }
  /// Returns the partition of a message. Both ends must get the same one.
  executor::Partition partition_of_message(size_t bytes, executor::Protocol protocol,
                                           bool goes_direct) const;
  /// Plans messages that progress together, all by `protocol`. They are given in layers, each with
  /// at most one message for each peer and direction: the sends first, and a message to the own
  /// rank as a send alone, whose work has both buffers. Messages of one peer and direction take
  /// turns (executor::Turn).
  Result<Plan> messages(std::span<const std::vector<Message>> layers, executor::Protocol protocol);

  /// Asked instead of the cost model, about operations that tuner plug-ins decide. The same for the
  /// same arguments, on all ranks.
  using Decide = std::function<Result<Choice>(const Settings& settings, Collective collective,
                                              size_t bytes, int most_channels)>;
  void decide_by(Decide decide) { decide_ = std::move(decide); }

  enum class Of : uint8_t { Collectives, CollectivesAndMessages };
  /// Makes plans of collectives for buffers that ranks do not reach, from now on.
  void plan_for_slots();
  /// Makes plans of operations by a team for buffers in windows, from now on.
  void plan_for_windows_of_team();
  /// Makes plans for buffers that all ranks reach (Settings::reaches_users), from now on, over the
  /// existing connections. False: they are made so already.
  bool plan_for_reach(Of of);

  const Settings& settings() const { return settings_; }
  int rank() const { return rank_; }

 private:
  struct Compiled {
    std::shared_ptr<const executor::Program> program;
    bool partial_sums = false;
  };
  Result<Compiled> program(const Form& form, int root, ByTeam by_team = ByTeam::Nothing);
  Result<std::shared_ptr<const executor::Program>> message_program(
      std::span<const std::vector<Message>> layers, executor::Protocol protocol) const;
  /// Returns the partition of a message to the own rank, which no other rank must know.
  executor::Partition partition_of_copy(const Message& message, executor::Protocol protocol) const;
  executor::Cut cut(Collective collective, const Variant& variant) const;
  Result<Plan> plan_of(const Request& request, const Choice& choice);
  /// choose(), remembered: groups ask for the same again each time.
  Result<Choice> chosen(Collective collective, size_t bytes, int most_channels = 0,
                        bool goes_direct = false, const CallSettings* own = nullptr,
                        Helpers helpers = {}, std::optional<executor::DataType> type = {});
  bool can_reduce(const Request& request) const;
  /// The type of the request's elements; none if no algorithm is chosen by it.
  std::optional<executor::DataType> type_that_matters(const Request& request) const;

  /// The settings that a message is planned by.
  Settings settings_of_message(bool goes_direct) const;

  Settings settings_;
  bool messages_reach_;           // Settings::reaches_users, of all messages
  const bool fills_slots_first_;  // executor::PortAddress, of all connections
  const int rank_;
  Decide decide_;                                                      // null: the cost model
  std::map<std::tuple<const Form*, int, ByTeam>, Compiled> programs_;  // as program() has it
  using Chosen = std::tuple<Collective, size_t, int, bool, const CallSettings*, Help, Help,
                            std::optional<executor::DataType>>;
  std::map<Chosen, Choice> choices_;  // as chosen() has it
};

}  // namespace niccolite::planner
