// Costs of GPUs that the network connects: by hand, from two ranks on one H100 (2026-11,
// bench/results/h100_ways.json). A hop is a store over PCIe, two proxies and a socket between them,
// and a load. The proxies are the bound, however many CTAs there are.
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
    {AllReduce, "ring", Simple, {10, 12, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {AllReduce, "one_shot", Simple, {10, 6, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {AllReduce, "two_shot", Simple, {10, 6, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {AllReduce, "two_shot_lanes", Simple, {10, 6, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {Reduce, "ring", Simple, {10, 12, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {Reduce, "ring_strands", Simple, {10, 12, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {Reduce, "direct", Simple, {10, 6, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {Broadcast, "ring", Simple, {10, 12, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {Broadcast, "ring_strands", Simple, {10, 12, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {Broadcast, "direct", Simple, {10, 6, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {Broadcast, "scatter_gather", Simple, {10, 6, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {AllGather, "ring", Simple, {10, 12, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {AllGather, "direct", Simple, {10, 6, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {AllGather, "direct_lanes", Simple, {10, 6, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {AllGather, "pat", Simple, {10, 12, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {ReduceScatter, "ring", Simple, {10, 12, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {ReduceScatter, "direct", Simple, {10, 6, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {ReduceScatter, "direct_lanes", Simple, {10, 6, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {ReduceScatter, "pat", Simple, {10, 12, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {AllToAll, "direct", Simple, {10, 6, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {AllToAll, "direct_lanes", Simple, {10, 6, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {AllToAll, "pat", Simple, {10, 12, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {Gather, "direct", Simple, {10, 6, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {Gather, "direct_lanes", Simple, {10, 6, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {Scatter, "direct", Simple, {10, 6, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {Scatter, "direct_lanes", Simple, {10, 6, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
    {PointToPoint, "direct", Simple, {10, 6, 0.5, 4, 4, 2.2, 5, 0.3, 0.1, 0.02}},
};
// clang-format on

}  // namespace

std::span<const NamedCost> cuda_socket_costs() { return kCosts; }

}  // namespace niccolite::planner
