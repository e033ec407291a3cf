#include "executor/host/program_execution.h"

#include <algorithm>

namespace niccolite::executor::host {

template <typename Visit>
void ProgramExecution::for_each_worker(Visit visit) const {
  uint32_t channels = 0;
  for (const Work& work : plan_.launch().works)
    channels = std::max(channels, work.partition.channels);
  const size_t workers = plan_.program().workers.size();
  for (uint32_t channel = 0; channel < channels; ++channel) {
    for (size_t worker = 0; worker < workers; ++worker) {
      if (plan_.runs_on(worker, channel)) visit(worker, channel);
    }
  }
}

ProgramExecution::ProgramExecution(const Plan& plan, const Reducer& reducer)
    : plan_(plan), reducer_(reducer) {
  size_t ports = 0;
  for_each_worker([&](size_t worker, uint32_t) { ports += plan.ports_of(worker).size(); });
  ports_.resize(ports);
  next_tiles_.resize(plan.program().workers.size());
  for (size_t worker = 0; worker < next_tiles_.size(); ++worker)
    next_tiles_[worker] = plan.work_of(worker).partition.channels;
  PortState* next = ports_.data();
  for_each_worker([&](size_t worker, uint32_t channel) {
    workers_.emplace_back(plan, reducer, worker, channel, next, &next_tiles_[worker]);
    next += plan.ports_of(worker).size();
  });
}

void ProgramExecution::begin() {
  const Launch& launch = plan_.launch();
  PortState* state = ports_.data();
  for_each_worker([&](size_t worker, uint32_t channel) {
    const Work& work = plan_.work_of(worker);
    for (const uint16_t number : plan_.ports_of(worker)) {
      const Port& port = plan_.program().ports[number];
      const uint64_t steps = static_cast<uint64_t>(port.steps) * work.partition.rounds;
      state->begin(launch.ports[number], shape_of(launch, number), work.first_channel + channel,
                   port.is_send, steps, work.tag, work.turn);
      const lowering::Way way = launch.ports[number].way;
      // Whoever stores to a team's slots, or loads from them; the other ends have their own alone.
      if (is_end_of_team(launch, number))
        state->go_by_team(launch.ports[number].team +
                          launch.team_shape.slot_offset(work.first_channel + channel, 0));
      if (!uses_slots(way)) {
        state->begin_advertisement(
            advertises(launch, number) ? AdvertisementRole::Makes : AdvertisementRole::Takes,
            is_get(way), uses_team(way));
      }
      ++state;
    }
  });
  if (launch.team_ranks > 0) {
    team_ = Team::find(*plan_.machine(), launch);
    windows_.resize(launch.works.size());
  }
  for (size_t w = 0; launch.team_windows != nullptr && w < windows_.size(); ++w) {
    TeamWindows& windows = windows_[w];
    const Buffers& of = launch.works[w].buffers;
    windows.input = Team::find(*plan_.machine(), launch, of.input, of.input_bytes, of.input_shifts);
    windows.output =
        Team::find(*plan_.machine(), launch, of.output, of.output_bytes, of.output_shifts);
  }
  if (UserMemorySteps::may_serve(launch))
    user_memory_.emplace(launch, UserMemorySteps::Scaling{.of_input = reducer_.scales_input(),
                                                          .of_result = reducer_.scales_result()});
  for (Worker& worker : workers_) {
    if (user_memory_) worker.use(*user_memory_);
    if (launch.team_ranks > 0) worker.use(team_, windows_);
    worker.make_advertisements();
  }
}

void ProgramExecution::end() {
  for (PortState& port : ports_) port.end();
}

bool ProgramExecution::leave() { return leave_all(ports_); }

bool ProgramExecution::let_go() {
  bool are_free = true;
  for (PortState& port : ports_) are_free = port.let_go() && are_free;
  return are_free;
}

}  // namespace niccolite::executor::host
