#include "algorithms/registry.h"

#include "algorithms/all_gather.h"
#include "algorithms/all_reduce.h"
#include "algorithms/all_to_all.h"
#include "algorithms/broadcast.h"
#include "algorithms/gather.h"
#include "algorithms/lanes.h"
#include "algorithms/reduce.h"
#include "algorithms/reduce_scatter.h"
#include "algorithms/scatter.h"

namespace niccolite::algorithms {
namespace {

using schedule::Collective;

constexpr Algorithm kAlgorithms[] = {
    {"ring", Collective::AllReduce, 1, kMaxRingRanks, all_reduce_ring},
    {"one_shot", Collective::AllReduce, 1, kMaxDirectRanks, all_reduce_one_shot},
    {"two_shot", Collective::AllReduce, 1, kMaxDirectRanks, all_reduce_two_shot},
    {"two_shot_lanes", Collective::AllReduce, 1, kMaxLanesRanks, all_reduce_two_shot_lanes},
    {"ring", Collective::Reduce, 1, kMaxRingRanks, reduce_ring},
    {"ring_strands", Collective::Reduce, 1, kMaxRingRanks, reduce_ring_strands},
    {"direct", Collective::Reduce, 1, kMaxDirectRanks, reduce_direct},
    {"two_shot", Collective::Reduce, 1, kMaxDirectRanks, reduce_two_shot},
    {"two_shot_lanes", Collective::Reduce, 1, kMaxLanesRanks, reduce_two_shot_lanes},
    {"ring", Collective::Broadcast, 1, kMaxRingRanks, broadcast_ring},
    {"ring_strands", Collective::Broadcast, 1, kMaxRingRanks, broadcast_ring_strands},
    {"direct", Collective::Broadcast, 1, kMaxDirectRanks, broadcast_direct},
    {"scatter_gather", Collective::Broadcast, 1, kMaxDirectRanks, broadcast_scatter_gather},
    {"scatter_gather_lanes", Collective::Broadcast, 1, kMaxLanesRanks,
     broadcast_scatter_gather_lanes},
    {"ring", Collective::AllGather, 1, kMaxRingRanks, all_gather_ring},
    {"direct", Collective::AllGather, 1, kMaxDirectRanks, all_gather_direct},
    {"direct_lanes", Collective::AllGather, 1, kMaxLanesRanks, all_gather_direct_lanes},
    {"pat", Collective::Gather, 1, kMaxRingRanks, gather_pat},
    {"pat", Collective::AllGather, 1, kMaxRingRanks, all_gather_pat},
    {"ring", Collective::ReduceScatter, 1, kMaxRingRanks, reduce_scatter_ring},
    {"direct", Collective::ReduceScatter, 1, kMaxDirectRanks, reduce_scatter_direct},
    {"direct_lanes", Collective::ReduceScatter, 1, kMaxLanesRanks, reduce_scatter_direct_lanes},
    {"pat", Collective::Scatter, 1, kMaxRingRanks, scatter_pat},
    {"pat", Collective::ReduceScatter, 1, kMaxRingRanks, reduce_scatter_pat},
    {"direct", Collective::AllToAll, 1, kMaxDirectRanks, all_to_all_direct},
    {"direct_lanes", Collective::AllToAll, 1, kMaxLanesRanks, all_to_all_direct_lanes},
    {"pat", Collective::AllToAll, 1, kMaxForwardingRanks, all_to_all_pat},
    {"direct", Collective::Gather, 1, kMaxDirectRanks, gather_direct},
    {"direct_lanes", Collective::Gather, 1, kMaxLanesRanks, gather_direct_lanes},
    {"direct", Collective::Scatter, 1, kMaxDirectRanks, scatter_direct},
    {"direct_lanes", Collective::Scatter, 1, kMaxLanesRanks, scatter_direct_lanes},
};

}  // namespace

std::span<const Algorithm> all() { return kAlgorithms; }

const Algorithm* find(Collective collective, std::string_view name) {
  for (const Algorithm& algorithm : kAlgorithms)
    if (algorithm.collective == collective && algorithm.name == name) return &algorithm;
  return nullptr;
}

}  // namespace niccolite::algorithms
