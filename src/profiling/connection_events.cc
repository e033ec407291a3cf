#include "profiling/connection_events.h"

namespace niccolite::profiling {

using observe::EventKind;
using transport::ProxyStepState;

void ConnectionEvents::tell(std::shared_ptr<ProxyProfile> profile) {
  profile_ = std::move(profile);
  told_.store(profile_.get(), std::memory_order_release);
}

void ConnectionEvents::connected(int peer) {
  observe::Event event;
  event.time = observe::ticks();
  event.kind = EventKind::Connected;
  event.peer = peer;
  recorder_->add(event);
}

void ConnectionEvents::step(const transport::ProxyStep& step, ProxyStepState state) {
  if (state == ProxyStepState::Sent || state == ProxyStepState::Arrived) {
    observe::Event event;
    event.time = observe::ticks();
    event.kind = step.is_send ? EventKind::Sent : EventKind::Received;
    event.peer = step.peer;
    event.number = step.step;
    event.value = step.bytes;
    event.stream = step.channel;
    recorder_->add(event);
  }
  if (ProxyProfile* const to = profile()) to->step(step, state);
}

bool ConnectionEvents::wants_state() const {
  const ProxyProfile* const to = profile();
  return to != nullptr && to->wants_state();
}

void ConnectionEvents::state(transport::ProxyState state) {
  if (ProxyProfile* const to = profile()) to->tell(state);
}

void* ConnectionEvents::handle_for_network(const transport::ProxyStep& step) {
  ProxyProfile* const to = profile();
  return to == nullptr ? nullptr : to->name_of(step);
}

}  // namespace niccolite::profiling
