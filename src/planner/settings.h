// Settings: what the planner may choose from, and the shapes of connections. Rank 0's settings hold
// for all ranks of a communicator (they are exchanged at init), since all ranks must choose alike.
// Who may use it: planner, comm. Trivially copyable: it travels between processes of the same
// version.
#pragma once

#include <array>
#include <cstdint>

#include "executor/protocol/fifo.h"
#include "gpu/machine.h"

namespace niccolite::planner {

enum class AlgorithmId : uint8_t { Ring, OneShot, TwoShot };
inline constexpr int kAlgorithms = 3;
const char* name_of(AlgorithmId id);  // as the schedule registry and NCCL_ALGO spell it: "ring",
                                      // "one_shot", "two_shot"
const char* log_name_of(AlgorithmId id);  // "RING", as log lines have it

struct Settings {
  gpu::Kind machine = gpu::Kind::Virtual;
  int nranks = 1;
  int min_channels = 1;
  int max_channels = 1;
  int threads = 0;  // of a CTA; 0: the executor's choice
  std::array<executor::FifoShape, executor::kProtocols> shapes{};
  std::array<bool, kAlgorithms> algorithms{};          // allowed by NCCL_ALGO
  std::array<bool, executor::kProtocols> protocols{};  // allowed by NCCL_PROTO
  bool selected_by_user =
      false;  // either variable is set: an empty selection is then the user's error

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
