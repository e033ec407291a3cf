// Variant: one way to carry out an operation, in all that the planner can choose: the algorithm and
// its workers, the protocol, the channels and the size of chunks. Its names.
// Constant data: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "executor/protocol/fifo.h"
#include "planner/form.h"

namespace niccolite::planner {

/// The names in log lines: "TWO_SHOT_WORKERS", "SIMPLE".
std::string log_name_of(const Form& form);
std::string log_name_of(executor::Protocol protocol);
struct Variant;
/// As NCCL names what goes by a team: "NVLS", "NVLS_TREE"; else its algorithm's name.
std::string log_name_of(const Variant& variant);
/// "AllReduce", as NCCL's functions and log lines have it; NCCL_ALGO takes it in any case.
const char* function_name(Collective collective);

/// The number of ncclFunc_t, for plug-ins. `is_send`: the end of a message.
int function_number(Collective collective, bool is_send = false);

/// A protocol that publishes whole chunks. (LL and LL128 publish each word or line by itself.)
constexpr bool publishes_chunks(executor::Protocol protocol) {
  return protocol != executor::Protocol::LL && protocol != executor::Protocol::LL128;
}

struct Variant {
  const Form* form = nullptr;  // null: none yet
  executor::Protocol protocol = executor::Protocol::Simple;
  int channels = 1;      // at most: small data use fewer
  int parts = 1;         // a chunk fills a slot, or this part of one
  bool by_team = false;  // the switch multicasts and reduces, where the schedule has it
  friend bool operator==(const Variant&, const Variant&) = default;
};

/// Data that may go by a multicast team: words are stored, chunks are also loaded
/// (lowering::routes_of()).
enum class ByTeam : uint8_t { Nothing, Words, Chunks };
constexpr ByTeam by_team_of(const Variant& variant) {
  if (!variant.by_team) return ByTeam::Nothing;
  return publishes_chunks(variant.protocol) ? ByTeam::Chunks : ByTeam::Words;
}

/// "two_shot_workers Simple 24", "ring Simple 24 /2", "two_shot NVLS Simple 16". The variant has a
/// form.
std::string describe(const Variant& variant);

}  // namespace niccolite::planner
