#include "comm/group_profile.h"

#include <algorithm>

#include "gpu/machine.h"
#include "observe/profiler_abi.h"

namespace niccolite::comm {

using observe::Profiler;
namespace abi = observe::abi;

void GroupProfile::add(const std::shared_ptr<Communicator>& communicator, const calls::Task& task,
                       int depth) {
  const std::shared_ptr<profiling::Profiling>& profiling = communicator->profiling();
  const Result<gpu::Capture> capture =
      communicator->machine().capture_of(communicator->device(), task.stream);
  const bool is_captured = capture.is_ok() && capture.value().state == gpu::CaptureState::Active;
  if (profilings_.empty()) {
    if (const std::shared_ptr<Profiler> to = profiling->profiler()) {
      event_ = to->start_group_call(is_captured, depth);
      to->record(event_, abi::kGroupStartStop);
    }
  }
  if (std::ranges::find(profilings_, profiling) == profilings_.end())
    profilings_.push_back(profiling);
  profiling->add(task, is_captured, event_);
}

void GroupProfile::close() {
  if (profilings_.empty()) return;
  if (const std::shared_ptr<Profiler> to = profilings_.front()->profiler())
    to->record(event_, abi::kGroupEndStart);
}

void GroupProfile::end() {
  if (profilings_.empty()) return;
  for (const std::shared_ptr<profiling::Profiling>& profiling : profilings_)
    profiling->forget(event_);
  if (const std::shared_ptr<Profiler> to = profilings_.front()->profiler()) to->stop(event_);
  profilings_.clear();
  event_ = nullptr;
}

}  // namespace niccolite::comm
