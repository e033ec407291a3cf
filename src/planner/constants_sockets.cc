// Costs of ranks on several machines, by sockets: by hand, from a few measurements between
// processes on two cores (bench/sockets.cc). Of messages alone: what collectives cost is derived
// from their schedules, since it depends on how many ranks share a machine (price.h).
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
    {PointToPoint, "direct", Simple, {20, 10, 0.1, 5, 5, 64, 5, 0, 0}},
};
// clang-format on

}  // namespace

std::span<const NamedCost> socket_costs() { return kCosts; }

}  // namespace niccolite::planner
