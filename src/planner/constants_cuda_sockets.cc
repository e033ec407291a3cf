// Costs of GPUs that the network connects: by hand. A hop is a store over PCIe, two proxies and a
// socket between them, and a load.
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
    {AllReduce, "ring", Simple, {25, 20, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {AllReduce, "one_shot", Simple, {25, 8, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {AllReduce, "two_shot", Simple, {25, 8, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {AllReduce, "two_shot_lanes", Simple, {25, 8, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {Reduce, "ring", Simple, {25, 20, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {Reduce, "ring_strands", Simple, {25, 20, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {Reduce, "direct", Simple, {25, 8, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {Broadcast, "ring", Simple, {25, 20, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {Broadcast, "ring_strands", Simple, {25, 20, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {Broadcast, "direct", Simple, {25, 8, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {Broadcast, "scatter_gather", Simple, {25, 8, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {AllGather, "ring", Simple, {25, 20, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {AllGather, "direct", Simple, {25, 8, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {AllGather, "direct_lanes", Simple, {25, 8, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {AllGather, "pat", Simple, {25, 20, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {ReduceScatter, "ring", Simple, {25, 20, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {ReduceScatter, "direct", Simple, {25, 8, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {ReduceScatter, "direct_lanes", Simple, {25, 8, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {ReduceScatter, "pat", Simple, {25, 20, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {AllToAll, "direct", Simple, {25, 8, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {AllToAll, "direct_lanes", Simple, {25, 8, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {AllToAll, "pat", Simple, {25, 20, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {Gather, "direct", Simple, {25, 8, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {Gather, "direct_lanes", Simple, {25, 8, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {Scatter, "direct", Simple, {25, 8, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {Scatter, "direct_lanes", Simple, {25, 8, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
    {PointToPoint, "direct", Simple, {25, 8, 0.3, 5, 5, 3, 4, 0.3, 0.1}},
};
// clang-format on

}  // namespace

std::span<const NamedCost> cuda_socket_costs() { return kCosts; }

}  // namespace niccolite::planner
