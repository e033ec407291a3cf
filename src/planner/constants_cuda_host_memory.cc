// Costs of GPUs that host memory connects: by hand, from two ranks on one H100 (2026-11,
// bench/results/h100_ways.json), whose one PCIe link both share. A hop is a store over PCIe and a
// load back. LL ends where its loads of single words do, at some 4 KiB; of Simple few CTAs fill the
// link.
//
// Columns: fixed, step, channel (us); link of two ranks, link of more, channel (GB/s); round (us);
// fill; overlap; crowd. cost.h says what they mean.
#include "planner/cost.h"

namespace niccolite::planner {
namespace {

using enum Collective;
using enum executor::Protocol;

// clang-format off
constexpr NamedCost kCosts[] = {
    {AllReduce, "ring", LL, {4, 2.5, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {AllReduce, "ring", Simple, {8, 7, 0.02, 20, 20, 9, 4, 0.3, 0.1, 0.008}},
    {AllReduce, "one_shot", LL, {4, 1.2, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {AllReduce, "one_shot", Simple, {8, 3.5, 0.02, 12, 12, 6, 4, 0.3, 0.1, 0.008}},
    {AllReduce, "two_shot", LL, {4, 1.2, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {AllReduce, "two_shot", Simple, {16, 3.5, 0.02, 20, 20, 9, 4, 0.3, 0.1, 0.008}},
    {AllReduce, "two_shot_lanes", LL, {4, 1.2, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {AllReduce, "two_shot_lanes", Simple, {16, 3.5, 0.02, 20, 20, 9, 4, 0.3, 0.1, 0.008}},
    {Reduce, "ring", LL, {4, 2.5, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {Reduce, "ring", Simple, {8, 7, 0.02, 20, 20, 9, 4, 0.3, 0.1, 0.008}},
    {Reduce, "ring_strands", LL, {4, 2.5, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {Reduce, "ring_strands", Simple, {8, 7, 0.02, 20, 20, 9, 4, 0.3, 0.1, 0.008}},
    {Reduce, "direct", LL, {4, 1.2, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {Reduce, "direct", Simple, {8, 3.5, 0.02, 20, 20, 9, 4, 0.3, 0.1, 0.008}},
    {Broadcast, "ring", LL, {4, 2.5, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {Broadcast, "ring", Simple, {8, 7, 0.02, 19, 19, 4.5, 4, 0.3, 0.1, 0}},
    {Broadcast, "ring_strands", LL, {4, 2.5, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {Broadcast, "ring_strands", Simple, {8, 7, 0.02, 19, 19, 4.5, 4, 0.3, 0.1, 0}},
    {Broadcast, "direct", LL, {4, 1.2, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {Broadcast, "direct", Simple, {8, 3.5, 0.02, 19, 19, 4.5, 4, 0.3, 0.1, 0}},
    {Broadcast, "scatter_gather", Simple, {8, 3.5, 0.02, 19, 19, 4.5, 4, 0.3, 0.1, 0}},
    {Broadcast, "scatter_gather", LL, {4, 1.2, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {AllGather, "ring", LL, {4, 2.5, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {AllGather, "ring", Simple, {8, 7, 0.02, 19, 19, 4.5, 4, 0.3, 0.1, 0}},
    {AllGather, "direct", LL, {4, 1.2, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {AllGather, "direct", Simple, {8, 3.5, 0.02, 19, 19, 4.5, 4, 0.3, 0.1, 0}},
    {AllGather, "direct_lanes", LL, {4, 1.2, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {AllGather, "direct_lanes", Simple, {8, 3.5, 0.02, 19, 19, 4.5, 4, 0.3, 0.1, 0}},
    {AllGather, "pat", LL, {4, 2.5, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {AllGather, "pat", Simple, {8, 7, 0.02, 19, 19, 4.5, 4, 0.3, 0.1, 0}},
    {ReduceScatter, "ring", LL, {4, 2.5, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {ReduceScatter, "ring", Simple, {8, 7, 0.02, 20, 20, 9, 4, 0.3, 0.1, 0.008}},
    {ReduceScatter, "direct", LL, {4, 1.2, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {ReduceScatter, "direct", Simple, {8, 3.5, 0.02, 20, 20, 9, 4, 0.3, 0.1, 0.008}},
    {ReduceScatter, "direct_lanes", LL, {4, 1.2, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {ReduceScatter, "direct_lanes", Simple, {8, 3.5, 0.02, 20, 20, 9, 4, 0.3, 0.1, 0.008}},
    {ReduceScatter, "pat", LL, {4, 2.5, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {ReduceScatter, "pat", Simple, {8, 7, 0.02, 20, 20, 9, 4, 0.3, 0.1, 0.008}},
    {AllToAll, "direct", LL, {6.5, 2, 0.02, 5, 5, 1.5, 1, 0.2, 0, 0}},
    {AllToAll, "direct", Simple, {8, 3.5, 0.02, 19, 19, 4.5, 4, 0.3, 0.1, 0}},
    {AllToAll, "direct_lanes", LL, {6.5, 2, 0.02, 5, 5, 1.5, 1, 0.2, 0, 0}},
    {AllToAll, "direct_lanes", Simple, {8, 3.5, 0.02, 19, 19, 4.5, 4, 0.3, 0.1, 0}},
    {AllToAll, "pat", Simple, {8, 7, 0.02, 19, 19, 4.5, 4, 0.3, 0.1, 0}},
    {AllToAll, "pat", LL, {6.5, 2, 0.02, 5, 5, 1.5, 1, 0.2, 0, 0}},
    {Gather, "direct", LL, {4, 1.2, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {Gather, "direct", Simple, {8, 3.5, 0.02, 19, 19, 4.5, 4, 0.3, 0.1, 0}},
    {Gather, "direct_lanes", LL, {4, 1.2, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {Gather, "direct_lanes", Simple, {8, 3.5, 0.02, 19, 19, 4.5, 4, 0.3, 0.1, 0}},
    {Scatter, "direct", LL, {4, 1.2, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {Scatter, "direct", Simple, {8, 3.5, 0.02, 19, 19, 4.5, 4, 0.3, 0.1, 0}},
    {Scatter, "direct_lanes", LL, {4, 1.2, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {Scatter, "direct_lanes", Simple, {8, 3.5, 0.02, 19, 19, 4.5, 4, 0.3, 0.1, 0}},
    {PointToPoint, "direct", LL, {4, 1.2, 0.02, 1.3, 1.3, 0.3, 1, 0.2, 0, 0}},
    {PointToPoint, "direct", Simple, {8, 3.5, 0.02, 19, 19, 4.5, 4, 0.3, 0.1, 0}},
};
// clang-format on

}  // namespace

std::span<const NamedCost> cuda_host_memory_costs() { return kCosts; }

}  // namespace niccolite::planner
