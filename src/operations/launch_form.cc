#include "operations/launch_form.h"

#include <algorithm>

namespace niccolite::operations {
namespace {

// Returns the shares of one work that proxies carry, by the connections' channels. All works of a
// list go over the ports of its one program.
std::vector<profiling::ProxyShare> proxies_of(const executor::Launch& launch, size_t work) {
  std::vector<profiling::ProxyShare> shares;
  const executor::Program& program = *launch.program;
  const executor::Work& of = launch.works[work];
  const auto bytes = static_cast<uint32_t>(of.partition.chunk * executor::size_of(launch.type));
  for (size_t p = 0; p < launch.ports.size(); ++p) {
    const executor::Port& port = program.ports[p];
    const bool is_of_work = launch.is_list() || static_cast<size_t>(port.work) == work;
    if (!launch.ports[p].is_relayed() || !is_of_work) continue;
    profiling::ProxyShare share{.peer = port.peer,
                                .tag = port.tag,
                                .protocol = launch.protocol,
                                .is_send = port.is_send,
                                .channel = 0,
                                .steps = static_cast<uint32_t>(port.steps) * of.partition.rounds,
                                .chunk_bytes = std::min(bytes, launch.shape.slot_bytes)};
    if (launch.is_list()) {
      for (uint32_t part = 0; part < launch.list_parts; ++part) {
        share.channel = first_list_channel(launch, work) + part;
        shares.push_back(share);
      }
      continue;
    }
    const executor::WorkShape& shape = program.works[work];
    const auto patterns = static_cast<uint32_t>(shape.nchannels);
    auto channel = static_cast<uint32_t>(port.channel - shape.first_channel);
    for (; channel < of.partition.channels; channel += patterns) {
      share.channel = of.first_channel + channel;
      shares.push_back(share);
    }
  }
  return shares;
}

}  // namespace

profiling::LaunchForm form_of(const Planned& planned) {
  const executor::Launch& launch = planned.launch;
  profiling::LaunchForm form{
      .protocol = profiling::constant_name(planner::log_name_of(launch.protocol)),
      .warps = static_cast<uint8_t>(launch.threads / 32),
      .works = {}};
  const std::vector<executor::WorkShape>& shapes = launch.program->works;
  const uint32_t replicas = launch.is_list() ? 1 : replicas_of(launch);
  for (size_t work = 0; work < launch.works.size(); ++work) {
    const planner::Choice& choice =
        work < planned.choices.size() ? planned.choices[work] : planned.plan.choice;
    form.works.push_back(
        {.algorithm = choice.form == nullptr
                          ? ""  // of messages
                          : profiling::constant_name(planner::log_name_of(choice)),
         .first_channel =
             launch.is_list() ? first_list_channel(launch, work) : launch.works[work].first_channel,
         .channels = launch.is_list() ? launch.list_parts : launch.works[work].partition.channels});
    profiling::LaunchForm::Work& form_of_work = form.works.back();
    form_of_work.replicas = replicas;
    form_of_work.first_cta =
        launch.is_list() ? form_of_work.first_channel : replicas * shapes[work].first_channel;
    form_of_work.proxies = proxies_of(launch, work);
    if (!launch.is_list()) form_of_work.patterns = static_cast<uint32_t>(shapes[work].nchannels);
  }
  return form;
}

}  // namespace niccolite::operations
