// Settings: what the planner may choose from, and the shapes of connections. Rank 0's settings hold
// for all ranks of a communicator (they are exchanged at init), since all ranks must choose alike.
// Who may use it: planner, comm. Trivially copyable: it travels between processes of the same
// version.
#pragma once

#include <array>
#include <cstdint>

#include "executor/protocol/fifo.h"
#include "gpu/machine.h"
#include "schedule/schedule.h"

namespace niccolite::planner {

enum class AlgorithmId : uint8_t { Ring, Direct, OneShot, TwoShot, Pat, ScatterGather };
inline constexpr int kAlgorithms = 6;
const char* name_of(AlgorithmId id);  // as the schedule registry and NCCL_ALGO spell it: "ring",
                                      // "one_shot", "two_shot"
const char* log_name_of(AlgorithmId id);  // "RING", as log lines have it
/// Is `id` an algorithm of `collective`?
bool has_algorithm(schedule::Collective collective, AlgorithmId id);
/// "AllReduce", as NCCL's functions and log lines have it.
const char* function_name(schedule::Collective collective);

struct Settings {
  gpu::Kind machine = gpu::Kind::Virtual;
  int nranks = 1;
  int min_channels = 1;
  int max_channels = 1;
  int threads = 0;  // of a CTA; 0: the executor's choice
  std::array<executor::FifoShape, executor::kProtocols> shapes{};
  // By collective: allowed by NCCL_ALGO and NCCL_PROTO.
  std::array<std::array<bool, kAlgorithms>, schedule::kCollectives> algorithms{};
  std::array<std::array<bool, executor::kProtocols>, schedule::kCollectives> protocols{};

  friend bool operator==(const Settings&, const Settings&) = default;
};

/// What a communicator's configuration (ncclConfig_t) asks for; 0: not set.
struct Limits {
  int min_ctas = 0;
  int max_ctas = 0;
};

/// From the environment and `limits`. Errors: InvalidUsage for an unknown token in NCCL_ALGO or
/// NCCL_PROTO.
Result<Settings> make_settings(gpu::Kind machine, int nranks, const Limits& limits);

}  // namespace niccolite::planner
