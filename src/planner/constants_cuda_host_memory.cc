// Costs of GPUs that host memory connects: by hand. A hop is a store over PCIe and a load back, and
// all ranks of a machine share what its memory and PCIe give.
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
    {AllReduce, "ring", LL, {4, 2.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {AllReduce, "ring", Simple, {10, 5, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {AllReduce, "one_shot", LL, {4, 1.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {AllReduce, "one_shot", Simple, {10, 3, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {AllReduce, "two_shot", LL, {4, 1.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {AllReduce, "two_shot", Simple, {10, 3, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {AllReduce, "two_shot_lanes", LL, {4, 1.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {AllReduce, "two_shot_lanes", Simple, {10, 3, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {Reduce, "ring", LL, {4, 2.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {Reduce, "ring", Simple, {10, 5, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {Reduce, "ring_strands", LL, {4, 2.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {Reduce, "ring_strands", Simple, {10, 5, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {Reduce, "direct", LL, {4, 1.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {Reduce, "direct", Simple, {10, 3, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {Broadcast, "ring", LL, {4, 2.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {Broadcast, "ring", Simple, {10, 5, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {Broadcast, "ring_strands", LL, {4, 2.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {Broadcast, "ring_strands", Simple, {10, 5, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {Broadcast, "direct", LL, {4, 1.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {Broadcast, "direct", Simple, {10, 3, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {Broadcast, "scatter_gather", Simple, {10, 3, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {Broadcast, "scatter_gather", LL, {4, 1.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {AllGather, "ring", LL, {4, 2.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {AllGather, "ring", Simple, {10, 5, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {AllGather, "direct", LL, {4, 1.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {AllGather, "direct", Simple, {10, 3, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {AllGather, "direct_lanes", LL, {4, 1.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {AllGather, "direct_lanes", Simple, {10, 3, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {AllGather, "pat", LL, {4, 2.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {AllGather, "pat", Simple, {10, 5, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {ReduceScatter, "ring", LL, {4, 2.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {ReduceScatter, "ring", Simple, {10, 5, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {ReduceScatter, "direct", LL, {4, 1.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {ReduceScatter, "direct", Simple, {10, 3, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {ReduceScatter, "direct_lanes", LL, {4, 1.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {ReduceScatter, "direct_lanes", Simple, {10, 3, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {ReduceScatter, "pat", LL, {4, 2.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {ReduceScatter, "pat", Simple, {10, 5, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {AllToAll, "direct", LL, {4, 1.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {AllToAll, "direct", Simple, {10, 3, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {AllToAll, "direct_lanes", LL, {4, 1.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {AllToAll, "direct_lanes", Simple, {10, 3, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {AllToAll, "pat", Simple, {10, 5, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {AllToAll, "pat", LL, {4, 2.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {Gather, "direct", LL, {4, 1.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {Gather, "direct", Simple, {10, 3, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {Gather, "direct_lanes", LL, {4, 1.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {Gather, "direct_lanes", Simple, {10, 3, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {Scatter, "direct", LL, {4, 1.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {Scatter, "direct", Simple, {10, 3, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {Scatter, "direct_lanes", LL, {4, 1.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {Scatter, "direct_lanes", Simple, {10, 3, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
    {PointToPoint, "direct", LL, {4, 1.5, 0.02, 12, 12, 1.5, 3, 0.5, 0.2}},
    {PointToPoint, "direct", Simple, {10, 3, 0.02, 24, 24, 5, 6, 0.3, 0.1}},
};
// clang-format on

}  // namespace

std::span<const NamedCost> cuda_host_memory_costs() { return kCosts; }

}  // namespace niccolite::planner
