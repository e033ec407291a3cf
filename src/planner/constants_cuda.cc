// Costs on four H200 joined by NVLink through switches: LL and LL128 fitted by `niccolite tune
// --from` to bench/results/h200_variants.md and h200_lanes.md, Simple by hand to the same, for
// slots of 32 and 64 KiB.
//
// Columns: fixed, step, channel (us); link of two ranks, link of more, channel (GB/s); round (us);
// fill; overlap. cost.h says what they mean.
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
    {AllReduce, OneShot, LL, {2.353, 0.27, 0.0089, 204.8, 188.4, 22.27, 1.98, 0.001, 0.005}},
    {AllReduce, OneShot, LL128, {3.6, 0.7, 0.004, 135, 135, 8, 0, 0, 0}},
    {AllReduce, OneShot, Simple, {4, 1.3, 0.004, 250, 150, 8, 0, 0, 0}},
    {AllReduce, TwoShot, LL, {1.082, 2.64, 0.00607, 163.8, 142.8, 5.905, 4.02, 0.00102, 0.935}},
    {AllReduce, TwoShot, LL128, {6.6, 1.2, 0.004, 190, 250, 12, 0, 0, 0}},
    {AllReduce, TwoShot, Simple, {10.7, 1.5, 0.004, 325, 315, 11.7, 0, 0, 0}},
    {AllReduce, TwoShotLanes, LL, {4.838, 0.438, 0.00994, 120, 201.5, 8.906, 0.001, 0.001, 0.00567}},
    {AllReduce, TwoShotLanes, LL128, {5.581, 0.45, 0.004, 190, 265.5, 12.18, 0.001, 0.222, 0.388}},
    {AllReduce, TwoShotLanes, Simple, {9.7, 0.45, 0.004, 325, 315, 11.7, 0, 0, 0}},
    {Reduce, Ring, LL, {2, 2, 0.004, 120, 68, 8.5, 0, 0, 0}},
    {Reduce, Ring, LL128, {1.696, 0.695, 0.00397, 240, 163, 11.88, 0.001, 0.361, 0.856}},
    {Reduce, Ring, Simple, {4.5, 0.5, 0.004, 335, 316.2, 11.7, 0, 0, 0}},
    {Reduce, RingStrands, Simple, {4.5, 0.5, 0.004, 335, 340, 11.7, 0, 0, 0}},
    {Reduce, Direct, LL, {3.576, 0.201, 0.00667, 160, 667.3, 11.5, 0.00121, 0.001, 0.994}},
    {Reduce, Direct, LL128, {3.932, 0.239, 0.00413, 205, 247.4, 9.065, 0.00102, 0.001, 0.962}},
    {Reduce, Direct, Simple, {4, 0.4, 0.004, 335, 330, 11.7, 0, 0, 0}},
    {Broadcast, Ring, LL, {2, 2, 0.004, 120, 68, 8.5, 0, 0, 0}},
    {Broadcast, Ring, LL128, {1.593, 0.646, 0.00394, 240, 166.7, 11.9, 0.001, 0.239, 0.922}},
    {Broadcast, Ring, Simple, {4.5, 0.5, 0.004, 335, 316.2, 11.7, 0, 0, 0}},
    {Broadcast, RingStrands, Simple, {4.5, 0.5, 0.004, 335, 340, 11.7, 0, 0, 0}},
    {Broadcast, Direct, LL, {2.789, 0.18, 0.00497, 180, 261.8, 16.55, 0.00108, 0.162, 0.986}},
    {Broadcast, Direct, LL128, {3.271, 0.1, 0.00399, 245, 296, 11.85, 0.001, 0.223, 0.971}},
    {Broadcast, Direct, Simple, {4, 0.4, 0.004, 330, 330, 11.7, 0, 0, 0}},
    {Broadcast, ScatterGather, LL, {6, 0.5, 0.004, 150, 150, 8.5, 0, 0, 0}},
    {Broadcast, ScatterGather, LL128, {4.983, 0.496, 0.004, 220, 343.1, 44.84, 6.68, 0.00101, 0.005}},
    {Broadcast, ScatterGather, Simple, {8, 0.5, 0.004, 270, 270, 11.7, 0, 0, 0}},
    {AllGather, Ring, LL, {2, 2, 0.004, 68, 68, 8.5, 0, 0, 0}},
    {AllGather, Ring, LL128, {1.612, 1.94, 0.00398, 170, 190.4, 13.42, 0.001, 0.597, 0.98}},
    {AllGather, Ring, Simple, {2, 3.2, 0.004, 230, 240, 4.8, 0, 0, 0}},
    {AllGather, Direct, LL, {4.348, 1.06, 0.00119, 125, 112.9, 6.08, 0.00101, 0.001, 0.983}},
    {AllGather, Direct, LL128, {3.863, 0.9, 0.00396, 217, 167.7, 11.79, 0.001, 0.431, 0.964}},
    {AllGather, Direct, Simple, {7.4, 1.5, 0.004, 322, 335, 11.7, 0, 0, 0}},
    {AllGather, DirectLanes, LL, {3.89, 0.2, 0.00792, 125, 146, 8.485, 0.001, 0.001, 0.401}},
    {AllGather, DirectLanes, LL128, {3.984, 0.248, 0.004, 217, 338.2, 13.22, 0.001, 0.457, 0.243}},
    {AllGather, DirectLanes, Simple, {6.4, 0.4, 0.004, 322, 335, 11.7, 0, 0, 0}},
    {AllGather, Pat, LL, {3, 2.4, 0.004, 68, 68, 8.5, 0, 0, 0}},
    {AllGather, Pat, LL128, {3, 2.6, 0.004, 120, 120, 8.5, 0, 0, 0}},
    {AllGather, Pat, Simple, {3, 5, 0.004, 150, 150, 4.8, 0, 0, 0}},
    {ReduceScatter, Ring, LL, {2, 2, 0.004, 68, 68, 8.5, 0, 0, 0}},
    {ReduceScatter, Ring, LL128, {1.6, 2.2, 0.004, 150, 150, 12, 0, 0, 0}},
    {ReduceScatter, Ring, Simple, {2, 3.8, 0.004, 230, 240, 4.8, 0, 0, 0}},
    {ReduceScatter, Direct, LL, {3.574, 0.925, 0.00635, 110, 776.2, 6.455, 0.00105, 0.001, 0.989}},
    {ReduceScatter, Direct, LL128, {4.195, 1.02, 0.00399, 165, 194.8, 11.86, 0.001, 0.644, 0.973}},
    {ReduceScatter, Direct, Simple, {5.1, 1.55, 0.004, 310, 312, 11.7, 0, 0, 0}},
    {ReduceScatter, DirectLanes, LL, {3.51, 0.444, 0.00804, 110, 206.9, 8.938, 0.001, 0.001, 0.00511}},
    {ReduceScatter, DirectLanes, LL128, {3.428, 0.58, 0.00399, 165, 233.8, 11.94, 0.001, 0.001, 0.005}},
    {ReduceScatter, DirectLanes, Simple, {4.1, 1.55, 0.004, 310, 312, 11.7, 0, 0, 0}},
    {ReduceScatter, Pat, LL, {3, 2.4, 0.004, 68, 68, 8.5, 0, 0, 0}},
    {ReduceScatter, Pat, LL128, {3, 2.6, 0.004, 120, 120, 8.5, 0, 0, 0}},
    {ReduceScatter, Pat, Simple, {3, 5, 0.004, 150, 150, 4.8, 0, 0, 0}},
    {AllToAll, Direct, LL, {5.621, 1.31, 0.00525, 75, 457.7, 5.136, 0.00101, 0.001, 0.979}},
    {AllToAll, Direct, LL128, {5.291, 1.12, 0.004, 155, 136.8, 11.95, 0.001, 0.355, 0.965}},
    {AllToAll, Direct, Simple, {5.4, 1.5, 0.004, 310, 320, 11.7, 0, 0, 0}},
    {AllToAll, DirectLanes, LL, {3.689, 0.149, 0.0105, 75, 88.87, 8.578, 0.001, 0.001, 0.377}},
    {AllToAll, DirectLanes, LL128, {4.116, 0.149, 0.00403, 155, 202.6, 12.06, 0.001, 0.116, 0.005}},
    {AllToAll, DirectLanes, Simple, {4.4, 1.15, 0.004, 310, 320, 11.7, 0, 0, 0}},
    {Gather, Direct, LL, {4.5, 1.2, 0.004, 120, 200, 8.5, 0, 0, 0}},
    {Gather, Direct, LL128, {4.2, 1.2, 0.004, 240, 300, 12, 0, 0, 0}},
    {Gather, Direct, Simple, {4.9, 1.5, 0.004, 335, 375, 11.7, 0, 0, 0}},
    {Gather, DirectLanes, LL, {3.496, 0.05, 0.00349, 120, 154.2, 8.324, 0.001, 0.001, 0.973}},
    {Gather, DirectLanes, LL128, {3.204, 0.0503, 0.00403, 240, 312.4, 7.882, 0.0012, 0.001, 0.983}},
    {Gather, DirectLanes, Simple, {3.9, 0.05, 0.004, 335, 375, 11.7, 0, 0, 0}},
    {Scatter, Direct, LL, {4.4, 1.2, 0.004, 190, 200, 8.5, 0, 0, 0}},
    {Scatter, Direct, LL128, {4.1, 1.2, 0.004, 260, 300, 12, 0, 0, 0}},
    {Scatter, Direct, Simple, {4, 1.5, 0.004, 330, 340, 11.7, 0, 0, 0}},
    {Scatter, DirectLanes, LL, {3.196, 0.0498, 0.00458, 190, 260.4, 9.494, 0.001, 0.001, 0.974}},
    {Scatter, DirectLanes, LL128, {2.904, 0.0498, 0.00399, 260, 335.8, 12.71, 0.001, 0.451, 0.679}},
    {Scatter, DirectLanes, Simple, {3, 0.75, 0.004, 330, 340, 11.7, 0, 0, 0}},
    {PointToPoint, Direct, LL, {3.894, 0.1, 0.00687, 120, 192.2, 3.352, 0.001, 0.001, 0.592}},
    {PointToPoint, Direct, LL128, {4.058, 0.1, 0.004, 180, 262.2, 9.748, 0.001, 0.217, 0.005}},
    {PointToPoint, Direct, Simple, {5.8, 0.1, 0.004, 325, 325, 11.7, 0, 0, 0}},
};
// clang-format on

}  // namespace

std::span<const CostLine> cuda_costs() { return kCosts; }

}  // namespace niccolite::planner
