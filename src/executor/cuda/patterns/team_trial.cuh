// The kernel of a multicast team's trial (executor/team_trial.h). Launch shape: one warp, a thread
// for each member.
#pragma once

#include "executor/cuda/ptx/ptx.cuh"
#include "executor/team_trial.h"

namespace niccolite::executor::cuda {

__device__ __forceinline__ void run_team_trial(const TeamTrial& trial) {
  const uint32_t of = ptx::thread();
  const auto pattern_of = [](uint32_t word) {
    return Vec16{{ptx::pair(word, word), ptx::pair(word, word)}};
  };
  const auto equals = [](const Vec16& a, const Vec16& b) {
    return a.half[0] == b.half[0] && a.half[1] == b.half[1];
  };
  if (trial.step == TeamTrial::Step::Store) {
    if (of != 0) return;
    ptx::store_to_team(trial.team + trial.number * kTrialBytes,
                       pattern_of(trial_word(trial.number)));
    ptx::fence_aliases();
    ptx::fence_system();  // the kernel's end, and what the host tells the others, come behind
    return;
  }
  bool has_lost = false, is_wrong = false;
  if (of < trial.members) {
    ptx::fence_aliases();
    const size_t at = of * kTrialBytes;
    has_lost = !equals(ptx::load_vec16(trial.own + at), pattern_of(trial_word(of)));
    is_wrong = !equals(ptx::load_from_team<DataType::Int32, ReduceOp::Sum>(trial.team + at),
                       pattern_of(trial.members * trial_word(of)));
  }
  has_lost = ptx::any_of_warp(has_lost);
  is_wrong = ptx::any_of_warp(is_wrong);
  if (of != 0) return;
  ptx::store_relaxed_system(trial.verdict,
                            static_cast<uint32_t>(has_lost   ? TeamVerdict::StoreLost
                                                  : is_wrong ? TeamVerdict::LoadIsWrong
                                                             : TeamVerdict::Works));
}

}  // namespace niccolite::executor::cuda

extern "C" __global__ void __launch_bounds__(32, 1)
    niccolite_team_trial(const __grid_constant__ niccolite::executor::TeamTrial trial) {
  niccolite::executor::cuda::run_team_trial(trial);
}
