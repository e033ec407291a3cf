// An operation queue binds plans to connections, and lets go of launchers.
#include <algorithm>

#include "base/log.h"
#include "gpu/machine.h"
#include "operations/launch_form.h"
#include "operations/launcher.h"
#include "operations/operation_queue.h"
#include "operations/plans.h"
#include "planner/form.h"
#include "profiling/profiling.h"
#include "transport/endpoint.h"

namespace niccolite::operations {

using planner::Plan;

void OperationQueue::retire(Plans::Forgotten launchers) {
  for (std::shared_ptr<Launcher>& launcher : launchers) retire(std::move(launcher));
}

// A launcher without memory may end while its kernels run. A launcher that others hold (a group
// that is remembered, a launch to come) may be launched again: its event is recorded when they have
// let go.
void OperationQueue::retire(std::shared_ptr<Launcher> launcher) {
  if (launcher == nullptr || !launcher->has_memory()) return;
  const auto is_it = [&](const Retired& retired) { return retired.launcher == launcher; };
  if (std::none_of(retired_.begin(), retired_.end(), is_it))
    retired_.push_back({.launcher = std::move(launcher), .last_use = nullptr});
  else
    launcher.reset();
  std::erase_if(retired_, [&](Retired& retired) { return is_over(retired); });
}

bool OperationQueue::is_over(Retired& retired) {
  if (retired.launcher.use_count() > 1) return false;
  if (!order_.has_begun()) return true;
  if (retired.last_use == nullptr) {
    Result<std::shared_ptr<gpu::Event>> mark = order_.mark();
    if (mark.is_ok()) retired.last_use = std::move(mark).take();
    return false;
  }
  const Result<bool> is_done =
      machine_.await_event(*retired.last_use, Deadline::after(std::chrono::milliseconds(0)));
  return is_done.is_ok() && is_done.value();
}

// Connects the plan's program, hands it to the executor, and remembers the launcher.
Result<std::shared_ptr<Launcher>> OperationQueue::bind(Plans& plans, Planned planned,
                                                       const Deadline& deadline) {
  const log::ScopedDevice speaks_for(device_);
  const bool is_single = planned.name.empty();
  const planner::Request& request = planned.first.request;
  // A group may hold the same call twice: then this is the second.
  std::shared_ptr<Launcher> launcher = is_single ? plans.find(request) : plans.find(planned.name);
  if (launcher != nullptr) return launcher;
  const Plan& plan = planned.plan;
  executor::Launch& launch = planned.launch;
  launch.program = plan.program;
  launch.protocol = plan.protocol;
  launch.shape = plan.shape;
  launch.team_shape = plan.team_shape;
  launch.team_ranks = plan.team_ranks;
  if (plan.team_ranks > 0) launch.team_windows = team_windows_;
  launch.type = plan.type;
  launch.reduction = plan.reduction;
  if (endpoint_ != nullptr) {
    const calls::CallLog::ConnectScope connecting(log_, function_of(planned.first));
    auto ports = TRY(endpoint_->connect(*plan.program, plan.protocol, deadline));
    set_ports(launch, std::move(ports));
  }
  launch.control = control_;
  launch.control_device = control_;
  if (log_ != nullptr) {
    launch.recorder = log_->recorder();
    launch.marks = launch.recorder->marks();
  }
  launch.threads = plans.planner.settings().threads;
  launch.pull_bytes = plan.pull_bytes;
  if (log_ != nullptr) note_plan(planned);
  profiling::LaunchForm form = profiling_ == nullptr ? profiling::LaunchForm{} : form_of(planned);
  std::vector<void*> scratch = TRY(scratch_.reserve(launch));
  launcher = TRY(Launcher::create(machine_, device_, std::move(launch), std::move(scratch)));
  launcher->set_form(std::move(form));
  if (!is_single) {
    retire(plans.remember(std::move(planned.name), launcher));
    return launcher;
  }
  if (plans.planner.rank() == 0)
    LOG(Info, Tuning, "{}: {} Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{0..{}}}",
        planner::function_name(request.collective), request.bytes(),
        planner::log_name_of(plan.choice), planner::log_name_of(plan.protocol),
        plan.partitions[0].channels - 1);
  retire(plans.remember(planned.first, launcher));
  return launcher;
}

// Records the chosen plan, once for all launches to come.
void OperationQueue::note_plan(const Planned& planned) const {
  const std::span<const planner::Form> all = planner::forms();
  observe::Event event = event_of(planned.first);
  event.time = observe::ticks();
  event.kind = observe::EventKind::Planned;
  event.number =
      planned.launch.is_list() ? planned.launch.list_channels : planned.plan.partitions[0].channels;
  event.protocol = static_cast<uint8_t>(planned.plan.protocol);
  const planner::Form* const form = planned.plan.choice.form;
  event.algorithm = form == nullptr || planned.first.is_message()
                        ? observe::Event::kNoAlgorithm
                        : static_cast<uint8_t>(form - all.data());
  log_->recorder()->add(event);
}

}  // namespace niccolite::operations
