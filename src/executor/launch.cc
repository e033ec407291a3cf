#include "executor/launch.h"

#include <utility>

namespace niccolite::executor {

using lowering::Route;
using lowering::Way;

namespace {

/// Do the slots of the connection hold all that it carries of this operation, on each channel? Both
/// ends come to the same, whatever else is in their launches.
bool fits_in_slots(const Launch& launch, const Port& port) {
  const Work& work = launch.works[static_cast<size_t>(port.work)];
  const uint64_t steps = static_cast<uint64_t>(port.steps) * work.partition.rounds;
  return steps <= launch.shape.depth;
}

/// The link as it is in this launch.
lowering::Link link_of(const Launch& launch, const Port& port, const PortAddress& address) {
  if (address.fills_slots_first && fits_in_slots(launch, port))
    return {.can_put = false, .can_get = false};
  return {.can_put = address.can_put, .can_get = address.can_get};
}

}  // namespace

void set_ports(Launch& launch, std::vector<PortAddress> ports) {
  launch.ports = std::move(ports);
  for (size_t p = 0; p < launch.ports.size(); ++p) {
    const Port& port = launch.program->ports[p];
    launch.ports[p].way = way_over(port.route, link_of(launch, port, launch.ports[p]),
                                   launch.protocol == Protocol::Simple);
  }
}

std::vector<Route> routes_in(const Launch& launch) {
  std::vector<Route> routes;
  for (size_t p = 0; p < launch.ports.size(); ++p) {
    const Way way = launch.ports[p].way;
    routes.push_back(way == Way::Slot
                         ? Route{}
                         : Route{.way = way, .is_final = launch.program->ports[p].route.is_final});
  }
  return routes;
}

std::vector<lowering::WorkerPlan> plan_workers(const Launch& launch,
                                               const lowering::Facilities& facilities) {
  return lowering::plan_workers(launch.program->worker_shapes, routes_in(launch), facilities);
}

Status check_plan(const Launch& launch, std::span<const lowering::WorkerPlan> workers,
                  const lowering::Facilities& facilities) {
  if (launch.program->worker_shapes.size() != launch.program->workers.size())
    return Status::internal("{} shapes of {} workers", launch.program->worker_shapes.size(),
                            launch.program->workers.size());
  for (size_t p = 0; p < launch.ports.size(); ++p) {
    const Way way = launch.ports[p].way;
    const Way planned = launch.program->ports[p].route.way;
    if (way != Way::Slot && way != planned)
      return Status::internal("port {} goes by {}, its connection by {}", p, name_of(way),
                              name_of(planned));
  }
  const Status status = lowering::check_workers(launch.program->worker_shapes, routes_in(launch),
                                                workers, facilities);
  return status.is_ok() ? Status() : Status::internal("{}", status.message());
}

Status check_turn(const Launch& launch, const Work& work) {
  if (work.turn.is_one_of_several() &&
      (launch.protocol == Protocol::Simple ||
       work.turn.first_step + work.partition.rounds > launch.shape.depth)) {
    return Status::internal("{} steps behind {} others, by {} in {} slots", work.partition.rounds,
                            work.turn.first_step, name_of(launch.protocol), launch.shape.depth);
  }
  return {};
}

}  // namespace niccolite::executor
