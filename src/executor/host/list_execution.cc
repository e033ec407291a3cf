#include "executor/host/list_execution.h"

#include <map>
#include <span>

namespace niccolite::executor::host {

ListExecution::ListExecution(const Plan& plan, const Reducer& reducer) : plan_(plan) {
  struct Ends {
    const PortAddress* send;
    const PortAddress* receive;
  };
  std::map<int, Ends> ends;  // by peer
  for (size_t port = 0; port < plan.program().ports.size(); ++port) {
    const Port& of = plan.program().ports[port];
    Ends& both = ends[of.peer];
    (of.is_send ? both.send : both.receive) = &plan.launch().ports[port];
  }
  peers_of_channel_ = ends.size();
  const uint32_t channels = plan.launch().list_channels;
  peers_.reserve(channels * peers_of_channel_);
  for (uint32_t channel = 0; channel < channels; ++channel)
    for (const auto& [rank, both] : ends) peers_.emplace_back(rank, *both.send, *both.receive);
  for (uint32_t channel = 0; channel < channels; ++channel)
    workers_.emplace_back(
        plan, reducer, channel,
        std::span(peers_).subspan(channel * peers_of_channel_, peers_of_channel_));
}

void ListExecution::begin() {
  for (size_t i = 0; i < peers_.size(); ++i)
    peers_[i].begin(plan_.launch().shape, static_cast<uint32_t>(i / peers_of_channel_));
}

// Each worker has ended its connections.
void ListExecution::end() {}

bool ListExecution::leave() { return leave_all(peers_); }

}  // namespace niccolite::executor::host
