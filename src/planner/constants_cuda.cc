// Costs on H200s joined by NVLink through switches. This table is the output of `niccolite tune`
// (docs/tune.md); fitted to bench/results/h200_variants.md and h200_lanes.md.
//
// Columns: fixed, step, channel (us); link of two ranks, of more, channel (GB/s); round (us); fill;
// overlap.
#include "planner/cost.h"

namespace niccolite::planner {
namespace {

using enum Collective;
using enum AlgorithmId;
using enum executor::Protocol;

// clang-format off
constexpr CostLine kCosts[] = {
    {AllReduce, Ring, LL, {2, 2, 0.004, 120, 68, 8.5, 0, 0, 0}},
    {AllReduce, Ring, LL128, {2.1, 2, 0.004, 190, 120, 8.5, 0, 0, 0}},
    {AllReduce, Ring, Simple, {2, 3.7, 0.004, 290, 215, 4.8, 0, 0, 0}},
    {AllReduce, OneShot, LL, {2.4, 0.35, 0.004, 160, 190, 8.5, 0, 0, 0}},
    {AllReduce, OneShot, LL128, {3.6, 0.7, 0.004, 135, 135, 8, 0, 0, 0}},
    {AllReduce, OneShot, Simple, {4, 1.3, 0.004, 250, 150, 8, 0, 0, 0}},
    {AllReduce, TwoShot, LL, {6.2, 1.2, 0.004, 120, 190, 8.5, 0, 0, 0}},
    {AllReduce, TwoShot, LL128, {6.6, 1.2, 0.004, 190, 250, 12, 0, 0, 0}},
    {AllReduce, TwoShot, Simple, {10.7, 1.5, 0.004, 325, 315, 11.7, 0, 0, 0}},
    {AllReduce, TwoShotLanes, LL, {5.2, 0.45, 0.004, 120, 190, 8.5, 0, 0, 0}},
    {AllReduce, TwoShotLanes, LL128, {5.6, 0.45, 0.004, 190, 250, 12, 0, 0, 0}},
    {AllReduce, TwoShotLanes, Simple, {9.7, 0.45, 0.004, 325, 315, 11.7, 0, 0, 0}},
    {Reduce, Ring, LL, {2, 2, 0.004, 120, 68, 8.5, 0, 0, 0}},
    {Reduce, Ring, LL128, {1.9, 0.8, 0.004, 240, 205, 12, 0, 0, 0}},
    {Reduce, Ring, Simple, {4.5, 0.5, 0.004, 335, 316.2, 11.7, 0, 0, 0}},
    {Reduce, RingStrands, Simple, {4.5, 0.5, 0.004, 335, 340, 11.7, 0, 0, 0}},
    {Reduce, Direct, LL, {3.6, 0.2, 0.004, 160, 600, 20, 0, 0, 0}},
    {Reduce, Direct, LL128, {3.5, 0.2, 0.004, 205, 400, 16, 0, 0, 0}},
    {Reduce, Direct, Simple, {4, 0.4, 0.004, 335, 330, 11.7, 0, 0, 0}},
    {Broadcast, Ring, LL, {2, 2, 0.004, 120, 68, 8.5, 0, 0, 0}},
    {Broadcast, Ring, LL128, {1.9, 0.8, 0.004, 240, 205, 12, 0, 0, 0}},
    {Broadcast, Ring, Simple, {4.5, 0.5, 0.004, 335, 316.2, 11.7, 0, 0, 0}},
    {Broadcast, RingStrands, Simple, {4.5, 0.5, 0.004, 335, 340, 11.7, 0, 0, 0}},
    {Broadcast, Direct, LL, {3.2, 0.1, 0.004, 180, 330, 12, 0, 0, 0}},
    {Broadcast, Direct, LL128, {3.2, 0.1, 0.004, 245, 310, 12, 0, 0, 0}},
    {Broadcast, Direct, Simple, {4, 0.4, 0.004, 330, 330, 11.7, 0, 0, 0}},
    {Broadcast, ScatterGather, LL, {6, 0.5, 0.004, 150, 150, 8.5, 0, 0, 0}},
    {Broadcast, ScatterGather, LL128, {5.2, 0.5, 0.004, 220, 220, 12, 0, 0, 0}},
    {Broadcast, ScatterGather, Simple, {8, 0.5, 0.004, 270, 270, 11.7, 0, 0, 0}},
    {AllGather, Ring, LL, {2, 2, 0.004, 68, 68, 8.5, 0, 0, 0}},
    {AllGather, Ring, LL128, {1.6, 2, 0.004, 170, 170, 12, 0, 0, 0}},
    {AllGather, Ring, Simple, {2, 3.2, 0.004, 230, 240, 4.8, 0, 0, 0}},
    {AllGather, Direct, LL, {4.9, 1.2, 0.004, 125, 167, 8.5, 0, 0, 0}},
    {AllGather, Direct, LL128, {5.1, 1.2, 0.004, 217, 270, 12, 0, 0, 0}},
    {AllGather, Direct, Simple, {7.4, 1.5, 0.004, 322, 335, 11.7, 0, 0, 0}},
    {AllGather, DirectLanes, LL, {3.9, 0.2, 0.004, 125, 167, 8.5, 0, 0, 0}},
    {AllGather, DirectLanes, LL128, {4.1, 0.25, 0.004, 217, 270, 12, 0, 0, 0}},
    {AllGather, DirectLanes, Simple, {6.4, 0.4, 0.004, 322, 335, 11.7, 0, 0, 0}},
    {AllGather, Pat, LL, {3, 2.4, 0.004, 68, 68, 8.5, 0, 0, 0}},
    {AllGather, Pat, LL128, {3, 2.6, 0.004, 120, 120, 8.5, 0, 0, 0}},
    {AllGather, Pat, Simple, {3, 5, 0.004, 150, 150, 4.8, 0, 0, 0}},
    {ReduceScatter, Ring, LL, {2, 2, 0.004, 68, 68, 8.5, 0, 0, 0}},
    {ReduceScatter, Ring, LL128, {1.6, 2.2, 0.004, 150, 150, 12, 0, 0, 0}},
    {ReduceScatter, Ring, Simple, {2, 3.8, 0.004, 230, 240, 4.8, 0, 0, 0}},
    {ReduceScatter, Direct, LL, {4.6, 1.2, 0.004, 110, 182, 8.5, 0, 0, 0}},
    {ReduceScatter, Direct, LL128, {4.6, 1.2, 0.004, 165, 226, 12, 0, 0, 0}},
    {ReduceScatter, Direct, Simple, {5.1, 1.55, 0.004, 310, 312, 11.7, 0, 0, 0}},
    {ReduceScatter, DirectLanes, LL, {3.6, 0.45, 0.004, 110, 182, 8.5, 0, 0, 0}},
    {ReduceScatter, DirectLanes, LL128, {3.6, 0.6, 0.004, 165, 226, 12, 0, 0, 0}},
    {ReduceScatter, DirectLanes, Simple, {4.1, 1.55, 0.004, 310, 312, 11.7, 0, 0, 0}},
    {ReduceScatter, Pat, LL, {3, 2.4, 0.004, 68, 68, 8.5, 0, 0, 0}},
    {ReduceScatter, Pat, LL128, {3, 2.6, 0.004, 120, 120, 8.5, 0, 0, 0}},
    {ReduceScatter, Pat, Simple, {3, 5, 0.004, 150, 150, 4.8, 0, 0, 0}},
    {AllToAll, Direct, LL, {4.8, 1.2, 0.004, 75, 100, 8.5, 0, 0, 0}},
    {AllToAll, Direct, LL128, {5.2, 1.2, 0.004, 155, 185, 12, 0, 0, 0}},
    {AllToAll, Direct, Simple, {5.4, 1.5, 0.004, 310, 320, 11.7, 0, 0, 0}},
    {AllToAll, DirectLanes, LL, {3.8, 0.15, 0.004, 75, 100, 8.5, 0, 0, 0}},
    {AllToAll, DirectLanes, LL128, {4.2, 0.15, 0.004, 155, 185, 12, 0, 0, 0}},
    {AllToAll, DirectLanes, Simple, {4.4, 1.15, 0.004, 310, 320, 11.7, 0, 0, 0}},
    {Gather, Direct, LL, {4.5, 1.2, 0.004, 120, 200, 8.5, 0, 0, 0}},
    {Gather, Direct, LL128, {4.2, 1.2, 0.004, 240, 300, 12, 0, 0, 0}},
    {Gather, Direct, Simple, {4.9, 1.5, 0.004, 335, 375, 11.7, 0, 0, 0}},
    {Gather, DirectLanes, LL, {3.5, 0.05, 0.004, 120, 200, 8.5, 0, 0, 0}},
    {Gather, DirectLanes, LL128, {3.2, 0.05, 0.004, 240, 300, 12, 0, 0, 0}},
    {Gather, DirectLanes, Simple, {3.9, 0.05, 0.004, 335, 375, 11.7, 0, 0, 0}},
    {Scatter, Direct, LL, {4.4, 1.2, 0.004, 190, 200, 8.5, 0, 0, 0}},
    {Scatter, Direct, LL128, {4.1, 1.2, 0.004, 260, 300, 12, 0, 0, 0}},
    {Scatter, Direct, Simple, {4, 1.5, 0.004, 330, 340, 11.7, 0, 0, 0}},
    {Scatter, DirectLanes, LL, {3.4, 0.05, 0.004, 190, 200, 8.5, 0, 0, 0}},
    {Scatter, DirectLanes, LL128, {3.1, 0.05, 0.004, 260, 300, 12, 0, 0, 0}},
    {Scatter, DirectLanes, Simple, {3, 0.75, 0.004, 330, 340, 11.7, 0, 0, 0}},
    {PointToPoint, Direct, LL, {3.8, 0.1, 0.004, 120, 135, 8.5, 0, 0, 0}},
    {PointToPoint, Direct, LL128, {4.1, 0.1, 0.004, 180, 180, 8, 0, 0, 0}},
    {PointToPoint, Direct, Simple, {5.8, 0.1, 0.004, 325, 325, 11.7, 0, 0, 0}},
};
// clang-format on

}  // namespace

std::span<const CostLine> cuda_costs() { return kCosts; }

}  // namespace niccolite::planner
