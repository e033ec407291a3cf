// TeamTrial: a look at the addresses of a multicast team before they are trusted. Each member
// stores a pattern to all; when all have, each looks whether it has all patterns in its own memory,
// and whether a load reduces them. Each is one kernel of one CTA.
#pragma once

#include <cstddef>
#include <cstdint>

namespace niccolite::executor {

struct TeamTrial {
  enum class Step : uint8_t { Store, Look };
  Step step = Step::Store;
  std::byte* team = nullptr;       // address of the team's range
  const std::byte* own = nullptr;  // this rank's memory there
  uint32_t number = 0;             // of this rank on its machine
  uint32_t members = 0;
  uint32_t* verdict = nullptr;  // Look: a TeamVerdict, in memory of the host that GPUs reach
};

enum class TeamVerdict : uint32_t {
  None,  // the kernel has not said anything
  Works,
  StoreLost,    // what some member has stored is not there
  LoadIsWrong,  // a load does not bring the sum
};

/// The pattern of a member is four times this word, in the 16 bytes of its number.
constexpr uint32_t trial_word(uint32_t number) { return 0x9e3779b9u * (number + 1); }
inline constexpr size_t kTrialBytes = 16;  // of each member

}  // namespace niccolite::executor
