#include "executor/buffer_needs.h"

namespace niccolite::executor {

BufferNeeds::BufferNeeds(const Launch& launch) {
  const auto rank = static_cast<uint32_t>(launch.program->rank);
  for (size_t w = 0; w < launch.works.size(); ++w) {
    const WorkShape& shape = launch.program->works[launch.is_list() ? 0 : w];
    OfWork& needs = works_.emplace_back();
    if (launch.works[w].partition.count == 0) continue;
    if (launch.list_access) {  // the program says nothing of buffers
      needs.input = has_rank(launch.list_access->inputs, rank);
      needs.output = has_rank(launch.list_access->outputs, rank);
      continue;
    }
    needs = {.input = shape.input_blocks > 0,
             .output = shape.output_blocks > 0,
             .scratch = shape.scratch_blocks > 0};
  }
}

Status BufferNeeds::check(std::span<const Buffers> buffers) const {
  if (buffers.size() < works_.size())
    return Status::internal("buffers of {} works, for a launch of {}", buffers.size(),
                            works_.size());
  for (size_t w = 0; w < works_.size(); ++w) {
    const char* const missing = works_[w].input && buffers[w].input == nullptr       ? "input"
                                : works_[w].output && buffers[w].output == nullptr   ? "output"
                                : works_[w].scratch && buffers[w].scratch == nullptr ? "scratch"
                                                                                     : nullptr;
    if (missing != nullptr)
      return Status::internal("work {} of a launch: no {} buffer", w, missing);
  }
  return {};
}

}  // namespace niccolite::executor
