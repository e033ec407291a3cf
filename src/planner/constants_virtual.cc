// Costs on virtual GPUs of two cores: fitted by hand to bench/results/virtual_variants.md.
//
// Columns: fixed, step, channel (us); link of two ranks, link of more, channel (GB/s); round (us);
// fill; overlap. cost.h says what they mean.
#include "planner/cost.h"

namespace niccolite::planner {
namespace {

using enum Collective;
using enum executor::Protocol;

// clang-format off
constexpr NamedCost kCosts[] = {
    {AllReduce, "ring", LL, {2, 1.3, 0.1, 8, 8, 64, 0.1, 0, 0}},
    {AllReduce, "ring", LL128, {2, 1.4, 0.1, 7, 7, 64, 0.1, 0, 0}},
    {AllReduce, "ring", Simple, {2, 1, 0.1, 21, 29, 64, 0.1, 0, 0}},
    {AllReduce, "one_shot", LL, {1, 1.3, 0.1, 9, 10, 64, 0.1, 0, 0}},
    {AllReduce, "one_shot", LL128, {1, 1.4, 0.1, 8, 8, 64, 0.1, 0, 0}},
    {AllReduce, "one_shot", Simple, {3, 1.5, 0.1, 9, 10, 64, 0.1, 0, 0}},
    {AllReduce, "two_shot", LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {AllReduce, "two_shot", LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {AllReduce, "two_shot", Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {Reduce, "ring", LL, {2, 1.3, 0.1, 8, 8, 64, 0.1, 0, 0}},
    {Reduce, "ring", LL128, {2, 1.4, 0.1, 7, 7, 64, 0.1, 0, 0}},
    {Reduce, "ring", Simple, {2, 1, 0.1, 21, 29, 64, 0.1, 0, 0}},
    {Reduce, "direct", LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {Reduce, "direct", LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {Reduce, "direct", Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {Broadcast, "ring", LL, {2, 1.3, 0.1, 8, 8, 64, 0.1, 0, 0}},
    {Broadcast, "ring", LL128, {2, 1.4, 0.1, 7, 7, 64, 0.1, 0, 0}},
    {Broadcast, "ring", Simple, {2, 1, 0.1, 21, 29, 64, 0.1, 0, 0}},
    {Broadcast, "direct", LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {Broadcast, "direct", LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {Broadcast, "direct", Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {Broadcast, "scatter_gather", LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {Broadcast, "scatter_gather", LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {Broadcast, "scatter_gather", Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {AllGather, "ring", LL, {2, 1.3, 0.1, 8, 8, 64, 0.1, 0, 0}},
    {AllGather, "ring", LL128, {2, 1.4, 0.1, 7, 7, 64, 0.1, 0, 0}},
    {AllGather, "ring", Simple, {2, 1, 0.1, 21, 29, 64, 0.1, 0, 0}},
    {AllGather, "direct", LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {AllGather, "direct", LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {AllGather, "direct", Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {AllGather, "pat", LL, {2, 1.3, 0.1, 8, 8, 64, 0.1, 0, 0}},
    {AllGather, "pat", LL128, {2, 1.4, 0.1, 7, 7, 64, 0.1, 0, 0}},
    {AllGather, "pat", Simple, {2, 1, 0.1, 21, 29, 64, 0.1, 0, 0}},
    {ReduceScatter, "ring", LL, {2, 1.3, 0.1, 8, 8, 64, 0.1, 0, 0}},
    {ReduceScatter, "ring", LL128, {2, 1.4, 0.1, 7, 7, 64, 0.1, 0, 0}},
    {ReduceScatter, "ring", Simple, {2, 1, 0.1, 21, 29, 64, 0.1, 0, 0}},
    {ReduceScatter, "direct", LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {ReduceScatter, "direct", LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {ReduceScatter, "direct", Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {ReduceScatter, "pat", LL, {2, 1.3, 0.1, 8, 8, 64, 0.1, 0, 0}},
    {ReduceScatter, "pat", LL128, {2, 1.4, 0.1, 7, 7, 64, 0.1, 0, 0}},
    {ReduceScatter, "pat", Simple, {2, 1, 0.1, 21, 29, 64, 0.1, 0, 0}},
    {AllToAll, "direct", LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {AllToAll, "direct", LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {AllToAll, "direct", Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {Gather, "direct", LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {Gather, "direct", LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {Gather, "direct", Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {Scatter, "direct", LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {Scatter, "direct", LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {Scatter, "direct", Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {PointToPoint, "direct", LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {PointToPoint, "direct", LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {PointToPoint, "direct", Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
};
// clang-format on

}  // namespace

std::span<const NamedCost> virtual_costs() { return kCosts; }

}  // namespace niccolite::planner
