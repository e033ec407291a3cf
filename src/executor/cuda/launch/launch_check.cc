#include "executor/cuda/launch/launch_check.h"

#include <algorithm>
#include <limits>

#include "executor/cuda/launch/launch_header.h"
#include "executor/cuda/launch/worker_movers.h"
#include "executor/cuda/patterns/direct_args.h"
#include "executor/list_tiles.h"

namespace niccolite::executor::cuda {
namespace {

Status check_list(const Launch& launch) {
  const size_t works = launch.works.size();
  const size_t most = launch.list_access ? kMostDirectListWorks : kMostListWorks;
  if (launch.program->works.size() != 1 || works == 0 || works > most ||
      launch.list_channels > std::min(launch.shape.channels, kMostListChannels) ||
      launch.list_parts == 0 || launch.list_channels % launch.list_parts != 0) {
    return Status::internal("a list of {} works on {} of {} channels, {} each, by a program of {}",
                            works, launch.list_channels, launch.shape.channels, launch.list_parts,
                            launch.program->works.size());
  }
  if (is_relayed(launch))
    return Status::internal(
        "a list over connections to other machines, whose kernel tells no proxy");
  for (const Work& work : launch.works) {
    if (work.partition.channels != 1 || work.first_channel != 0 || work.partition.count == 0)
      return Status::internal("a work of a list has {} elements on {} channels from {} on",
                              work.partition.count, work.partition.channels, work.first_channel);
  }
  return launch.list_access ? check_direct_list(launch) : Status();
}

Status check_works(const Launch& launch) {
  const Program& program = *launch.program;
  if (launch.is_list()) return check_list(launch);
  if (launch.works.size() != program.works.size() || launch.works.size() > kMaxWorks) {
    return Status::internal("a program of {} works is launched with the data of {}",
                            program.works.size(), launch.works.size());
  }
  for (const Work& work : launch.works) {
    const Partition& partition = work.partition;
    if (partition.channels == 0) {
      return Status::internal("a launch of no channels, for {} elements", partition.count);
    }
    if (work.first_channel + partition.channels > launch.shape.channels && !program.ports.empty()) {
      return Status::internal("{} channels from {} on are launched over connections of {}",
                              partition.channels, work.first_channel, launch.shape.channels);
    }
    TRY(check_turn(launch, work));
  }
  const auto is_known = [&](int work) {
    return work >= 0 && static_cast<size_t>(work) < launch.works.size();
  };
  for (const CompactWorker& worker : program.workers) {
    if (!is_known(worker.work)) return Status::internal("a worker of work {}", worker.work);
    const WorkShape& work = program.works[worker.work];
    if (worker.channel < work.first_channel ||
        worker.channel >= work.first_channel + work.nchannels) {
      return Status::internal("a worker is in channel {}, its work in {} from {} on",
                              worker.channel, work.nchannels, work.first_channel);
    }
  }
  for (const Port& port : program.ports) {
    if (!is_known(port.work)) return Status::internal("a port of work {}", port.work);
  }
  return {};
}

}  // namespace

size_t workers_of_channel(const Program& program, int channel) {
  return static_cast<size_t>(
      std::count_if(program.workers.begin(), program.workers.end(),
                    [&](const CompactWorker& worker) { return worker.channel == channel; }));
}

Status check(const Launch& launch) {
  const Program& program = *launch.program;
  if (launch.ports.size() != program.ports.size()) {
    return Status::internal("a program of {} ports is launched with the addresses of {}",
                            program.ports.size(), launch.ports.size());
  }
  if (launch.control_device == nullptr) {
    return Status::internal("a launch without control words");
  }
  if (launch.reduction.op != ReduceOp::Sum && flags_of(launch) != 0) {
    return Status::internal("a reduction that is no sum is launched with a scale");
  }
  TRY(check_works(launch));
  const uint32_t most_workers = kMaxWarps - service_warps(launch.protocol);
  for (int channel = 0; channel < program.nchannels; ++channel) {
    if (const size_t warps = least_warps(launch, channel); warps > most_workers) {
      return Status::invalid_usage(
          "channel {} of the program has {} workers, a CTA of the CUDA executor has {} warps for "
          "them",
          channel, warps, most_workers);
    }
  }
  constexpr int kMostChannels = std::numeric_limits<uint8_t>::max();  // PortTask
  if (program.workers.size() >= kNoWorker || program.nchannels > kMostChannels) {
    return Status::invalid_usage(
        "the program has {} workers in {} channels, the CUDA executor knows {} in {}",
        program.workers.size(), program.nchannels, kNoWorker - 1, kMostChannels);
  }
  for (const Port& port : program.ports) {
    constexpr int kMostSteps = std::numeric_limits<uint16_t>::max();  // PortTask
    if (port.steps > kMostSteps) {
      return Status::invalid_usage("a port of the program moves {} slots in a round, at most {}",
                                   port.steps, kMostSteps);
    }
  }
  return {};
}

}  // namespace niccolite::executor::cuda
