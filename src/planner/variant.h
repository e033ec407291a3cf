// Variant: one way to carry out an operation, in all that the planner can choose: the algorithm as
// the schedule registry has it, the protocol, the channels and the size of chunks. Its names.
// Constant data: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "executor/protocol/fifo.h"
#include "schedule/schedule.h"

namespace niccolite::planner {

using schedule::Collective;

/// The algorithms of the schedule registry. Those that differ only in how their instructions are
/// spread over lanes are *forms* of one family.
enum class AlgorithmId : uint8_t {
  Ring,
  RingStrands,
  Direct,
  DirectLanes,
  OneShot,
  TwoShot,
  TwoShotLanes,
  Pat,
  ScatterGather,
  ScatterGatherLanes
};
inline constexpr int kAlgorithms = 10;

/// As the schedule registry spells it: "ring", "two_shot_lanes".
const char* name_of(AlgorithmId id);
/// The form that the family is named after: TwoShot of TwoShotLanes.
AlgorithmId family_of(AlgorithmId id);
/// What NCCL_ALGO selects this form alone with: the family's name means all its forms.
std::string selector_of(AlgorithmId id);
/// As log lines have it: "TWO_SHOT_LANES".
std::string log_name_of(AlgorithmId id);
/// "AllReduce", as NCCL's functions and log lines have it; NCCL_ALGO takes it in any case.
const char* function_name(Collective collective);

/// Is `id` an algorithm of `collective`?
bool has_algorithm(Collective collective, AlgorithmId id);

/// A protocol that publishes whole chunks. (LL and LL128 publish each word or line by itself.)
constexpr bool publishes_chunks(executor::Protocol protocol) {
  return protocol != executor::Protocol::LL && protocol != executor::Protocol::LL128;
}

struct Variant {
  AlgorithmId algorithm = AlgorithmId::Ring;
  executor::Protocol protocol = executor::Protocol::Simple;
  int channels = 1;  // at most: small data use fewer
  int parts = 1;     // a chunk fills a slot, or this part of one
  friend bool operator==(const Variant&, const Variant&) = default;
};

/// "two_shot_lanes Simple 24", "ring Simple 24 /2".
std::string describe(const Variant& variant);

}  // namespace niccolite::planner
