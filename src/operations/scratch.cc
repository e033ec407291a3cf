#include "operations/scratch.h"

#include "gpu/machine.h"

#include <algorithm>
#include <array>

namespace niccolite::operations {

Scratch::Scratch(gpu::Machine& machine, int device)
    : share_(transport::Pool::of(machine, device, transport::Pool::Purpose::Connections)) {}

Result<std::vector<void*>> Scratch::reserve(const executor::Launch& launch) {
  // Each work begins at a line of memory, as users' allocations do.
  std::vector<size_t> starts;
  size_t end = 0;
  for (size_t w = 0; w < launch.works.size(); ++w) {
    const executor::WorkShape& shape = launch.program->works[launch.is_list() ? 0 : w];
    starts.push_back(end);
    end += executor::round_up(static_cast<size_t>(shape.scratch_blocks) *
                                  launch.works[w].partition.block_stride * size_of(launch.type),
                              executor::kLine);
  }
  if (end == 0) return std::vector<void*>();
  if (end > capacity_) {
    // Doubled at least: all earlier memory together, each too small, is less than the new memory.
    const size_t wanted = std::max(end, 2 * capacity_);
    const std::array sizes{wanted};
    const std::vector<transport::Span> spans = TRY(share_.allocate(sizes));
    memory_ = spans.front().data();
    capacity_ = wanted;
  }
  std::vector<void*> memory;
  for (size_t w = 0; w < starts.size(); ++w) {
    const size_t next = w + 1 < starts.size() ? starts[w + 1] : end;
    memory.push_back(next == starts[w] ? nullptr : memory_ + starts[w]);
  }
  return memory;
}

}  // namespace niccolite::operations
