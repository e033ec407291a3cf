#include "group.h"

#include <algorithm>
#include <utility>

#include "library.h"
#include "waiting.h"

namespace nb = nanobind;

namespace niccolite::python {
namespace {

std::vector<Communicator*> communicators_of(const std::vector<Group::Call>& calls) {
  std::vector<Communicator*> all;
  for (const Group::Call& call : calls) all.push_back(call.communicator);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace

Group& Group::current() {
  // Never freed: its calls hold Python objects, and a thread that ends does not hold the GIL.
  static thread_local Group* const group = new Group;
  return *group;
}

void Group::start() {
  check(library().GroupStart());
  ++depth_;
}

void Group::add(nb::object owner, Communicator* communicator) {
  if (is_open())
    calls_.push_back({.owner = std::move(owner),
                      .communicator = communicator,
                      .buffers = {},
                      .stream = 0,
                      .is_awaited = false});
}

std::vector<Group::Call> Group::close() {
  depth_ = std::max(0, depth_ - 1);  // without a group the library's call fails
  return depth_ == 0 ? std::exchange(calls_, {}) : std::vector<Call>{};
}

void Group::end() {
  std::vector<Call> calls = close();
  const std::vector<Communicator*> communicators = communicators_of(calls);
  std::vector<ncclComm_t*> handles;
  for (Communicator* communicator : communicators) handles.push_back(&communicator->handle);
  watch_for_interrupts();
  const auto& end_group = library().GroupEnd.loaded();
  try {
    const bool works_aside =
        run(communicators, handles, [&] { return end_group(); }) == ncclInProgress;
    for (Communicator* communicator : communicators) communicator->works_aside |= works_aside;
    for (const Call& call : calls) {
      if (!call.is_awaited) continue;
      if (call.communicator->works_aside) wait_settled(*call.communicator);
      wait_finished(*call.communicator, call.stream, communicators);
    }
  } catch (...) {
    // Some may have been queued.
    for (Call& call : calls)
      for (Buffer& buffer : call.buffers)
        call.communicator->in_flight.keep_cut_off(std::move(buffer));
    throw;
  }
  for (Call& call : calls)
    if (!call.is_awaited)
      call.communicator->in_flight.keep(call.buffers, call.stream, call.communicator->is_settled());
}

float Group::end_simulated() {
  const std::vector<Call> calls = close();  // dies after the library has forgotten them
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  const auto& end_group = library().GroupSimulateEnd.loaded();
  run(std::span<Communicator* const>(), std::span<ncclComm_t* const>(),
      [&] { return end_group(&info); });
  return info.estimatedTime;
}

}  // namespace niccolite::python
