#include "executor/cuda/patterns/pattern_kernels.h"

#include <algorithm>

#include "executor/cuda/patterns/direct_params.h"
#include "executor/cuda/patterns/direct_task.h"
#include "executor/cuda/patterns/list_launch.h"
#include "executor/cuda/patterns/phase_params.h"

namespace niccolite::executor::cuda {
namespace {

LaunchData data_of(const Launch& launch) {
  if (launch.list_access) return LaunchData::DirectList;
  if (launch.is_list()) return LaunchData::List;
  return launch.works.size() == 1 ? LaunchData::OneWork : LaunchData::SeveralWorks;
}

KernelLaunch run_by(const PatternParams& params, KernelLaunch result) {
  result.kernel.variant = params.variant;
  result.kernel.most_peers = params.most_peers;
  result.kernel.counters = params.counters;
  result.threads = params.threads;
  result.header().shared_bytes = params.shared_bytes;
  result.end_tables(result.header().params_at, params.bytes.data(), params.bytes.size());
  return result;
}

KernelLaunch prepare_direct(const Launch& launch, KernelLaunch result) {
  const PatternParams params = direct_params(launch, result.kernel.reduces);
  return run_by(params, std::move(result));
}
KernelLaunch prepare_lines(const Launch& launch, KernelLaunch result) {
  const PatternParams params = lines_params(launch, result.kernel.reduces);
  return run_by(params, std::move(result));
}
KernelLaunch prepare_messages(const Launch& launch, KernelLaunch result) {
  return run_by(messages_params(launch), std::move(result));
}
KernelLaunch prepare_phases(const Launch& launch, KernelLaunch result) {
  const PatternParams params = phase_params(launch, result.threads);
  return run_by(params, std::move(result));
}

using enum LaunchData;

// clang-format off
constexpr PatternKernel kPatternKernels[] = {
//   name           executes                                                    prepared by
    {"direct list", {DirectList,   Protocol::LL,    reduces_in_one_step},       prepare_direct_list},
    {"list",        {List,         Protocol::LL,    goes_in_one_step},          prepare_list},
    {"one step",    {OneWork,      Protocol::LL,    has_direct_kernel},         prepare_direct},
    {"messages",    {SeveralWorks, Protocol::LL,    are_messages_of_one_step},  prepare_messages},
    {"lines",       {OneWork,      Protocol::LL128, has_lines_kernel},          prepare_lines},
    {"phases",      {OneWork,      Protocol::LL128, goes_through_phases},       prepare_phases},
};
// clang-format on

}  // namespace

const PatternKernel* match(const Launch& launch, bool reduces) {
  if (launch.program->nchannels != 1 || launch.program->workers.empty()) return nullptr;
  if (launch.team_ranks > 0) return nullptr;  // team_kernel.cuh
  const LaunchData data = data_of(launch);
  const auto* const found = std::ranges::find_if(kPatternKernels, [&](const PatternKernel& kernel) {
    const PlanShape& shape = kernel.executes;
    return shape.data == data && shape.protocol == launch.protocol &&
           shape.has_form(launch, reduces);
  });
  return found == std::end(kPatternKernels) ? nullptr : found;
}

}  // namespace niccolite::executor::cuda
