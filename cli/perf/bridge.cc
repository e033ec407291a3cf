#include "cli/perf/bridge.h"

#include <chrono>

#include "base/parameters.h"

namespace niccolite::perf {

Result<std::unique_ptr<Bridge>> Bridge::meet(const bootstrap::UniqueId& id, int process,
                                             int processes) {
  std::unique_ptr<Bridge> bridge(new Bridge);
  bridge->member_ = TRY(bootstrap::Member::join(
      {.id = id,
       .nranks = processes,
       .rank = process,
       .deadline = Deadline::after(std::chrono::seconds(parameters::init_timeout())),
       .abort = &bridge->abort_}));
  return bridge;
}

Result<bootstrap::Gathered> Bridge::exchange(std::span<const std::byte> mine) {
  return member_->all_gather(mine, Deadline::never());
}

void Bridge::end() { abort_.raise(Status::remote_error("this process has failed")); }

}  // namespace niccolite::perf
