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
using enum executor::Protocol;

// clang-format off
constexpr NamedCost kCosts[] = {
    {AllReduce, "ring", Simple, {20, 30, 0.1, 6, 6, 64, 5, 0, 0}},
    {AllReduce, "one_shot", Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {AllReduce, "two_shot", Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {Reduce, "ring", Simple, {20, 30, 0.1, 6, 6, 64, 5, 0, 0}},
    {Reduce, "direct", Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {Broadcast, "ring", Simple, {20, 30, 0.1, 6, 6, 64, 5, 0, 0}},
    {Broadcast, "direct", Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {Broadcast, "scatter_gather", Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {AllGather, "ring", Simple, {20, 30, 0.1, 6, 6, 64, 5, 0, 0}},
    {AllGather, "direct", Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {AllGather, "pat", Simple, {20, 30, 0.1, 5, 5, 64, 5, 0, 0}},
    {ReduceScatter, "ring", Simple, {20, 30, 0.1, 6, 6, 64, 5, 0, 0}},
    {ReduceScatter, "direct", Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {ReduceScatter, "pat", Simple, {20, 30, 0.1, 5, 5, 64, 5, 0, 0}},
    {AllToAll, "direct", Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {AllToAll, "pat", Simple, {20, 30, 0.1, 5, 5, 64, 5, 0, 0}},
    {Gather, "direct", Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {Scatter, "direct", Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
    {PointToPoint, "direct", Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
};
// clang-format on

}  // namespace

std::span<const NamedCost> socket_costs() { return kCosts; }

}  // namespace niccolite::planner
