#include "executor/launch.h"

#include <bit>
#include <map>
#include <utility>

#include "executor/protocol/advertisement.h"
#include "executor/protocol/relay.h"

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
  const bool fills_slots = address.fills_slots_first && fits_in_slots(launch, port);
  return {.can_put = address.can_put && !fills_slots,
          .can_get = address.can_get && !fills_slots,
          .has_team = address.team != nullptr,
          .has_windows = launch.team_windows != nullptr &&
                         is_of_units(launch.works[static_cast<size_t>(port.work)].partition,
                                     size_of(launch.type), advertisement::kAlignment)};
}

Status check_team_slots(const Launch& launch, size_t port) {
  const FifoShape& slots = launch.team_shape;
  const Work& work = launch.works[static_cast<size_t>(launch.program->ports[port].work)];
  // Credit is counted as on the other connections.
  if (slots.depth != launch.shape.depth || !std::has_single_bit(slots.depth) ||
      uint64_t{work.first_channel} + work.partition.channels > slots.channels ||
      work.partition.chunk * size_of(launch.type) > data_bytes(launch.protocol, slots.slot_bytes) ||
      launch.protocol == Protocol::LL128 || work.turn.is_one_of_several()) {
    return Status::internal("port {} goes by a team's {} slots of {} bytes in {} channels", port,
                            slots.depth, slots.slot_bytes, slots.channels);
  }
  return {};
}

/// A store to a team, or a load from one, is of all its ranks.
Status check_teams(const Launch& launch) {
  const Program& program = *launch.program;
  for (size_t port = 0; port < launch.ports.size(); ++port)
    if (uses_team(launch.ports[port].way)) TRY(check_team_slots(launch, port));
  // An instruction's ports of a team have one tag, and there is one for each other rank of the
  // team.
  const auto check = [&](uint32_t first, uint32_t count, bool has_own) -> Status {
    std::map<int, int> ports;  // by tag
    std::map<int, Way> ways;
    for (uint32_t i = first; i < first + count; ++i) {
      const uint16_t port = program.indices[i];
      if (!is_end_of_team(launch, port)) continue;
      const int tag = program.ports[port].tag;
      const Way way = launch.ports[port].way;
      ++ports[tag];
      if (ways.try_emplace(tag, way).first->second != way)
        return Status::internal("ports of tag {} go by {} and by {}", tag, name_of(ways[tag]),
                                name_of(way));
      // A store to all ranks' windows reaches this rank's, too, and so does a load.
      if (!uses_slots(way) && !has_own)
        return Status::internal("port {} goes by {} without a block of its own", port,
                                name_of(way));
    }
    if (ports.size() > 1) return Status::internal("an instruction goes by a team twice");
    for (const auto& [tag, number] : ports)
      if (number != launch.team_ranks - 1)
        return Status::internal("{} ports of tag {} go by a team of {} ranks", number, tag,
                                launch.team_ranks);
    return {};
  };
  for (const CompactInstruction& each : program.instructions) {
    TRY(check(each.send, each.send_count, each.target == OperandBuffer::Output));
    TRY(check(each.receive, each.receive_count, each.source == OperandBuffer::Input));
  }
  return {};
}

}  // namespace

uint64_t elements_of(const Launch& launch) {
  // Operations that share a launch do not go through the network's reducer.
  const uint32_t channels = launch.works.empty() ? 1 : launch.works.front().partition.channels;
  return relay::elements_of(static_cast<uint8_t>(launch.type),
                            static_cast<uint8_t>(launch.reduction.op), channels);
}

void set_ports(Launch& launch, std::vector<PortAddress> ports) {
  launch.ports = std::move(ports);
  for (size_t p = 0; p < launch.ports.size(); ++p) {
    const Port& port = launch.program->ports[p];
    launch.ports[p].way = way_over(port.route, link_of(launch, port, launch.ports[p]),
                                   launch.protocol == Protocol::Simple);
    launch.ports[p].elements = elements_of(launch);
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
    // Connections by a team have no other slots.
    const bool is_of_windows = launch.program->ports[p].route.allows_windows &&
                               launch.team_windows != nullptr && through_slots(way) == planned;
    if ((way != Way::Slot || uses_team(planned)) && way != planned && !is_of_windows)
      return Status::internal("port {} goes by {}, its connection by {}", p, name_of(way),
                              name_of(planned));
  }
  TRY(check_teams(launch));
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
