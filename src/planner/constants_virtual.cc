// Costs on virtual GPUs of two cores: fitted by hand to bench/results/virtual_variants.md.
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
    {AllReduce, Ring, LL, {2, 1.3, 0.1, 8, 8, 64, 0.1, 0, 0}},
    {AllReduce, Ring, LL128, {2, 1.4, 0.1, 7, 7, 64, 0.1, 0, 0}},
    {AllReduce, Ring, Simple, {2, 1, 0.1, 21, 29, 64, 0.1, 0, 0}},
    {AllReduce, OneShot, LL, {1, 1.3, 0.1, 9, 10, 64, 0.1, 0, 0}},
    {AllReduce, OneShot, LL128, {1, 1.4, 0.1, 8, 8, 64, 0.1, 0, 0}},
    {AllReduce, OneShot, Simple, {3, 1.5, 0.1, 9, 10, 64, 0.1, 0, 0}},
    {AllReduce, TwoShot, LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {AllReduce, TwoShot, LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {AllReduce, TwoShot, Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {Reduce, Ring, LL, {2, 1.3, 0.1, 8, 8, 64, 0.1, 0, 0}},
    {Reduce, Ring, LL128, {2, 1.4, 0.1, 7, 7, 64, 0.1, 0, 0}},
    {Reduce, Ring, Simple, {2, 1, 0.1, 21, 29, 64, 0.1, 0, 0}},
    {Reduce, Direct, LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {Reduce, Direct, LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {Reduce, Direct, Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {Broadcast, Ring, LL, {2, 1.3, 0.1, 8, 8, 64, 0.1, 0, 0}},
    {Broadcast, Ring, LL128, {2, 1.4, 0.1, 7, 7, 64, 0.1, 0, 0}},
    {Broadcast, Ring, Simple, {2, 1, 0.1, 21, 29, 64, 0.1, 0, 0}},
    {Broadcast, Direct, LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {Broadcast, Direct, LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {Broadcast, Direct, Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {Broadcast, ScatterGather, LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {Broadcast, ScatterGather, LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {Broadcast, ScatterGather, Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {AllGather, Ring, LL, {2, 1.3, 0.1, 8, 8, 64, 0.1, 0, 0}},
    {AllGather, Ring, LL128, {2, 1.4, 0.1, 7, 7, 64, 0.1, 0, 0}},
    {AllGather, Ring, Simple, {2, 1, 0.1, 21, 29, 64, 0.1, 0, 0}},
    {AllGather, Direct, LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {AllGather, Direct, LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {AllGather, Direct, Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {AllGather, Pat, LL, {2, 1.3, 0.1, 8, 8, 64, 0.1, 0, 0}},
    {AllGather, Pat, LL128, {2, 1.4, 0.1, 7, 7, 64, 0.1, 0, 0}},
    {AllGather, Pat, Simple, {2, 1, 0.1, 21, 29, 64, 0.1, 0, 0}},
    {ReduceScatter, Ring, LL, {2, 1.3, 0.1, 8, 8, 64, 0.1, 0, 0}},
    {ReduceScatter, Ring, LL128, {2, 1.4, 0.1, 7, 7, 64, 0.1, 0, 0}},
    {ReduceScatter, Ring, Simple, {2, 1, 0.1, 21, 29, 64, 0.1, 0, 0}},
    {ReduceScatter, Direct, LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {ReduceScatter, Direct, LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {ReduceScatter, Direct, Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {ReduceScatter, Pat, LL, {2, 1.3, 0.1, 8, 8, 64, 0.1, 0, 0}},
    {ReduceScatter, Pat, LL128, {2, 1.4, 0.1, 7, 7, 64, 0.1, 0, 0}},
    {ReduceScatter, Pat, Simple, {2, 1, 0.1, 21, 29, 64, 0.1, 0, 0}},
    {AllToAll, Direct, LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {AllToAll, Direct, LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {AllToAll, Direct, Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {Gather, Direct, LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {Gather, Direct, LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {Gather, Direct, Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {Scatter, Direct, LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {Scatter, Direct, LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {Scatter, Direct, Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
    {PointToPoint, Direct, LL, {1, 1.5, 0.1, 6, 10, 64, 0.1, 0, 0}},
    {PointToPoint, Direct, LL128, {1, 1.6, 0.1, 5, 8, 64, 0.1, 0, 0}},
    {PointToPoint, Direct, Simple, {2, 1.5, 0.1, 34, 21, 64, 0.1, 0, 0}},
};
// clang-format on

}  // namespace

std::span<const CostLine> virtual_costs() { return kCosts; }

}  // namespace niccolite::planner
