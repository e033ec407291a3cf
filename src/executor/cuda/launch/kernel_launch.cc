#include "executor/cuda/launch/kernel_launch.h"

#include <algorithm>
#include <bit>

#include "executor/cuda/interpreter/device_types.h"
#include "executor/cuda/launch/launch_check.h"
#include "executor/cuda/launch/launch_header.h"
#include "executor/cuda/launch/tables.h"
#include "executor/cuda/launch/worker_movers.h"
#include "executor/cuda/patterns/list_launch.h"
#include "executor/cuda/patterns/pattern_kernels.h"

namespace niccolite::executor::cuda {
namespace {

/// Threads that have something to do at once for a chunk of so many bytes.
uint64_t threads_of_chunk(Protocol protocol, uint64_t bytes) {
  switch (protocol) {
    case Protocol::LL:
      return divide_up(bytes, 8);  // a vec8 each
    case Protocol::LL128:
      return divide_up(bytes, 120) * 8;  // eight to a line
    case Protocol::Simple:
      return kMaxThreads;  // all there may be: more loads are then in flight
  }
  return kMaxThreads;
}

/// Threads of a CTA, for its workers together. No more than have data: a thread without only makes
/// the CTA start later.
uint32_t choose_threads(const Launch& launch) {
  size_t most_workers = 1;
  for (int c = 0; c < launch.program->nchannels; ++c) {
    most_workers = std::max(most_workers, workers_of_channel(*launch.program, c));
  }
  uint64_t threads = static_cast<uint64_t>(launch.threads);
  if (launch.threads <= 0) {
    uint64_t chunk = 0;
    for (const Work& work : launch.works) chunk = std::max<uint64_t>(chunk, work.partition.chunk);
    threads = threads_of_chunk(launch.protocol, chunk * size_of(launch.type)) * most_workers;
  }
  threads = std::max<uint64_t>(round_up(threads, kWarp), most_workers * kWarp);
  threads += service_warps(launch.protocol) * kWarp;
  return static_cast<uint32_t>(std::min<uint64_t>(threads, kMaxThreads));
}

void add_works(const Launch& launch, KernelLaunch& result) {
  auto* tasks = reinterpret_cast<WorkTask*>(result.tables());
  for (size_t w = 0; w < launch.works.size(); ++w) {
    tasks[w].partition = launch.works[w].partition;
    tasks[w].tag = launch.works[w].tag;
    tasks[w].first_step = static_cast<uint16_t>(launch.works[w].turn.first_step);
    tasks[w].stride_width = stride_width(launch, w);
    tasks[w].first_pattern_channel = static_cast<uint16_t>(launch.program->works[w].first_channel);
    tasks[w].pattern_channels = static_cast<uint16_t>(launch.program->works[w].nchannels);
  }
  set_buffers(result, buffers_of(launch));
}

/// Enters the team by which some connections go, if any do.
Status set_team(const Launch& launch, LaunchHeader& header) {
  if (launch.team_ranks == 0) return {};
  if ((header.flags & (kScalesInput | kScalesResult)) != 0 ||
      (reduces(launch, header.flags) && !switch_reduces(launch.type, launch.reduction.op))) {
    return Status::internal("a team is to reduce {} as no switch does", name_of(launch.type));
  }
  header.team_shape = launch.team_shape;
  header.team_peers = static_cast<uint32_t>(launch.team_ranks - 1);
  // All ports of a launch are in one team, whose addresses follow each other as the own ones do.
  for (const PortAddress& port : launch.ports)
    if (uses_team(port.way)) header.team_offset = port.team - port.slots;
  header.team_windows = launch.team_windows;
  header.place_at = static_cast<uint32_t>(launch.program->nranks);
  return {};
}

/// Returns the form of the interpreter that runs the launch.
KernelVariant variant_of(const Launch& launch, const Places* places) {
  if (places != nullptr) return KernelVariant::Places;
  if (launch.team_ranks == 0) return KernelVariant::Program;
  return launch.protocol == Protocol::LL ? KernelVariant::TeamWords : KernelVariant::Team;
}

}  // namespace

void set_number(KernelLaunch& launch, const observe::KernelMarks& marks, uint64_t number) {
  launch.header().launch = number;
  launch.header().spans = marks.spans_of(number);
}

void set_buffers(KernelLaunch& launch, std::span<const Buffers> buffers) {
  if (is_list(launch.kernel.variant)) return set_list_buffers(launch, buffers);
  if (launch.kernel.variant == KernelVariant::DirectList)
    return set_direct_list_buffers(launch, buffers);
  auto* tasks = reinterpret_cast<WorkTask*>(launch.tables());
  for (size_t w = 0; w < buffers.size() && w < launch.header().nworks; ++w) {
    const Buffers& of = buffers[w];
    WorkTask& task = tasks[w];
    task.input = static_cast<const std::byte*>(of.input);
    task.output = static_cast<std::byte*>(of.output);
    task.scratch = static_cast<std::byte*>(of.scratch);
    task.input_shifts = of.input_shifts;
    task.output_shifts = of.output_shifts;
    task.width = width_of(of, task.stride_width);
  }
}

bool offers_all(const KernelLaunch& launch, std::span<const Buffers> buffers) {
  const auto* tasks = reinterpret_cast<const WorkTask*>(launch.tables());
  const auto is_offered = [](bool is_to_be, const void* buffer, const uint64_t* shifts,
                             uint8_t can_see) {
    return !is_to_be || buffer == nullptr || shifts != nullptr || can_see != 0;
  };
  for (size_t w = 0; w < buffers.size() && w < launch.header().nworks; ++w) {
    const Buffers& of = buffers[w];
    if (!is_offered(launch.offers_input, of.input, of.input_shifts, tasks[w].can_get) ||
        !is_offered(launch.offers_output, of.output, of.output_shifts, tasks[w].can_put))
      return false;
  }
  return true;
}

bool suits_staged_copies(const KernelLaunch& launch) {
  // Bytes of a channel's part of a block: threads move shorter parts while shifts begin.
  constexpr uint64_t kLongEnoughToShift = 2 << 20;
  const auto* tasks = reinterpret_cast<const WorkTask*>(launch.tables());
  return std::all_of(tasks, tasks + launch.header().nworks, [&](const WorkTask& task) {
    const uint64_t bytes = task.partition.channel_stride * launch.header().element_bytes;
    return task.width == 16 ||
           (launch.has_advertisements &&
            (task.stride_width == 16 || (!launch.passes_on && bytes >= kLongEnoughToShift)));
  });
}

Result<KernelLaunch> prepare(const Launch& launch, Specialisation specialisation, Staging staging,
                             uint32_t most_shared, Expected expected) {
  TRY(check(launch));
  return prepare(launch, plan_workers(launch, staging, expected), specialisation, most_shared);
}

Result<KernelLaunch> prepare_with_places(const Launch& launch, const Places& places,
                                         uint32_t most_shared) {
  TRY(check(launch));
  return prepare(launch, plan_workers(launch, Staging::None, Expected::Direct), Specialisation::Off,
                 most_shared, &places);
}

Result<KernelLaunch> prepare(const Launch& launch, std::span<const lowering::WorkerPlan> plans,
                             Specialisation specialisation, uint32_t most_shared,
                             const Places* places) {
  static_assert(kWorkerBarriers >= kMaxWarps / 2, "every worker of two warps needs a barrier");
  TRY(check(launch));
  TRY(check_plan(launch, plans, facilities_of(launch, Staging::All)));
  const Program& program = *launch.program;
  KernelLaunch result;
  LaunchHeader& header = result.header();
  header.flags = flags_of(launch);
  result.kernel = {.protocol = launch.protocol,
                   .reduces = reduces(launch, header.flags),
                   .variant = variant_of(launch, places),
                   .most_peers = 0,
                   .type = reduced_as(launch.type, launch.reduction.op),
                   .op = launch.reduction.op};
  const PatternKernel* const pattern = launch.is_list() || specialisation == Specialisation::Allowed
                                           ? match(launch, result.kernel.reduces)
                                           : nullptr;
  if (launch.is_list()) {
    if (pattern != nullptr) return pattern->prepare(launch, std::move(result));
    return Status::internal("a list of a program that is not of one step by LL, of rank {}",
                            program.rank);
  }
  result.grid_x = replicas_of(launch);  // 1 also of a rank that has no part in the messages
  result.grid_y = static_cast<uint32_t>(program.nchannels);
  result.threads = choose_threads(launch);
  set_operation(launch, header);
  for (const Work& work : launch.works)
    if (work.turn.is_one_of_several()) header.flags |= kTakesTurns;
  add_works(launch, result);
  if (pattern != nullptr) return pattern->prepare(launch, std::move(result));

  TRY(set_team(launch, header));
  if (launch.protocol == Protocol::LL && is_relayed(launch))
    result.kernel.counters = Counters::OfProxies;
  Params params = TRY(make_params(launch, plans, places, result.threads, result.kernel.reduces,
                                  most_shared, header));
  if (header.shared_bytes > most_shared ||
      (header.copy_stages.stage_bytes + header.reduce_stages.stage_bytes == 0 &&
       header.shared_bytes > kMaxSharedBytes)) {
    return Status::invalid_usage(
        "rank {}'s program needs {} bytes of shared memory ({} instructions, {} ports), a CTA of "
        "the CUDA executor has {}",
        program.rank, header.shared_bytes, program.instructions.size(), program.ports.size(),
        kMaxSharedBytes);
  }

  result.threads = params.threads;
  for (size_t port = 0; port < launch.ports.size(); ++port) {
    if (!advertises(launch, port)) continue;
    const bool is_input = program.ports[port].is_send;
    (is_input ? result.offers_input : result.offers_output) = true;
    if (launch.ports[port].opens_buffers)
      (is_input ? result.advertises_input : result.advertises_output) = true;
  }
  result.has_staged_copies = params.has_staged_copies;
  result.passes_on =
      std::ranges::any_of(program.instructions, [](const CompactInstruction& instruction) {
        return instruction.receive_count != 0 && instruction.send_count != 0;
      });
  result.has_advertisements = params.has_advertisements;
  if (params.bytes.size() <= sizeof(LaunchArgs::tables) - header.params_at) {
    result.end_tables(header.params_at, params.bytes.data(), params.bytes.size());
  } else {
    result.end_tables(header.params_at, nullptr, 0);
    result.device_params = std::move(params.bytes);
  }
  return result;
}

}  // namespace niccolite::executor::cuda
