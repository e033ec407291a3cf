#include "algorithms/registry.h"

#include "algorithms/all_reduce.h"

namespace niccolite::algorithms {
namespace {

using schedule::Collective;

constexpr Algorithm kAlgorithms[] = {
    {"ring", Collective::AllReduce, 1, kMaxRingRanks, all_reduce_ring},
    {"one_shot", Collective::AllReduce, 1, kMaxDirectRanks, all_reduce_one_shot},
    {"two_shot", Collective::AllReduce, 1, kMaxDirectRanks, all_reduce_two_shot},
    {"two_shot_lane", Collective::AllReduce, 1, kMaxDirectRanks, all_reduce_two_shot_lane},
};

}  // namespace

std::span<const Algorithm> all() { return kAlgorithms; }

const Algorithm* find(Collective collective, std::string_view name) {
  for (const Algorithm& algorithm : kAlgorithms)
    if (algorithm.collective == collective && algorithm.name == name) return &algorithm;
  return nullptr;
}

}  // namespace niccolite::algorithms
