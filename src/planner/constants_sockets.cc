// Costs of ranks on several machines, by sockets: by hand, from a few measurements between
// processes on two cores (bench/sockets.cc). What counts is their order: a step costs a hop between
// threads and sockets, rings send least over each wire, and slots pay from the first byte.
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
    {AllReduce, Ring, Simple, {20, 30, 0.1, 6, 6, 64, 5, 0, 0}},
    {AllReduce, OneShot, Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {AllReduce, TwoShot, Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {Reduce, Ring, Simple, {20, 30, 0.1, 6, 6, 64, 5, 0, 0}},
    {Reduce, Direct, Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {Broadcast, Ring, Simple, {20, 30, 0.1, 6, 6, 64, 5, 0, 0}},
    {Broadcast, Direct, Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {Broadcast, ScatterGather, Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {AllGather, Ring, Simple, {20, 30, 0.1, 6, 6, 64, 5, 0, 0}},
    {AllGather, Direct, Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {AllGather, Pat, Simple, {20, 30, 0.1, 5, 5, 64, 5, 0, 0}},
    {ReduceScatter, Ring, Simple, {20, 30, 0.1, 6, 6, 64, 5, 0, 0}},
    {ReduceScatter, Direct, Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {ReduceScatter, Pat, Simple, {20, 30, 0.1, 5, 5, 64, 5, 0, 0}},
    {AllToAll, Direct, Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {AllToAll, Pat, Simple, {20, 30, 0.1, 5, 5, 64, 5, 0, 0}},
    {Gather, Direct, Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {Scatter, Direct, Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {PointToPoint, Direct, Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
};
// clang-format on

}  // namespace

std::span<const CostLine> socket_costs() { return kCosts; }

}  // namespace niccolite::planner
