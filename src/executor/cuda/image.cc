#include "executor/cuda/image.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "executor/cuda/byte_quotient.h"
#include "executor/cuda/device_types.h"
#include "executor/cuda/direct_image.h"
#include "executor/cuda/lane_forms.h"
#include "executor/cuda/tables.h"
#include "executor/cuda/two_shot_image.h"
#include "executor/protocol/ll.h"

namespace niccolite::executor::cuda {
namespace {

bool reduces(const Launch& launch, uint32_t flags) {
  if (flags != 0) return true;
  if (launch.list_access) return folds(*launch.list_access);
  for (const CompactInstruction& instruction : launch.program->instructions) {
    if (instruction.receive_count + (instruction.source != Place::None) > 1) return true;
  }
  return false;
}

uint32_t flags_of(const Launch& launch) {
  const Reduction& reduction = launch.reduction;
  const bool floating = is_floating(launch.type);
  uint32_t flags = 0;
  if (floating ? reduction.input_scale != 1 : reduction.input_factor != 1) flags |= kScalesInput;
  if (reduction.device_scale != nullptr) flags |= kScalesInput;
  if (floating ? reduction.finish_scale != 1 : reduction.finish_divisor != 1) {
    flags |= kScalesResult;
    if (folded_as(launch.type, reduction.fold) != launch.type) flags |= kUnsigned;
  }
  return flags;
}

size_t lanes_of_channel(const Program& program, int channel) {
  return static_cast<size_t>(
      std::count_if(program.lanes.begin(), program.lanes.end(),
                    [&](const CompactLane& lane) { return lane.channel == channel; }));
}

/// Threads that have something to do at once for a chunk of so many bytes.
uint64_t threads_of_chunk(Protocol protocol, uint64_t bytes) {
  switch (protocol) {
    case Protocol::LL:
      return divide_up(bytes, 8);  // a granule each
    case Protocol::LL128:
      return divide_up(bytes, 120) * 8;  // eight to a line
    case Protocol::Simple:
      return kMaxThreads;  // all there may be: more loads are then in flight
  }
  return kMaxThreads;
}

/// Threads of a CTA, for its lanes together. No more than have data: a thread without only makes
/// the CTA start later.
uint32_t choose_threads(const Launch& launch) {
  size_t most_lanes = 1;
  for (int c = 0; c < launch.program->nchannels; ++c) {
    most_lanes = std::max(most_lanes, lanes_of_channel(*launch.program, c));
  }
  uint64_t threads = static_cast<uint64_t>(launch.threads);
  if (launch.threads <= 0) {
    uint64_t chunk = 0;
    for (const Work& work : launch.works) chunk = std::max<uint64_t>(chunk, work.partition.chunk);
    threads = threads_of_chunk(launch.protocol, chunk * size_of(launch.type)) * most_lanes;
  }
  threads = std::max<uint64_t>(round_up(threads, kWarp), most_lanes * kWarp);
  threads += service_warps(launch.protocol) * kWarp;
  return static_cast<uint32_t>(std::min<uint64_t>(threads, kMaxThreads));
}

/// The block of the input that the first instruction of the first lane reads, if it does and the
/// program has but one lane, whose threads are then those of the CTA.
uint32_t prefetch_block(const Program& program) {
  if (program.lanes.size() != 1 || program.lanes[0].count == 0) return kNoBlock;
  const CompactInstruction& first = program.instructions[program.lanes[0].first];
  const bool reads_own_chunk =
      first.source == Place::Input && first.source_block == first.chunk_block;
  return reads_own_chunk ? first.source_block : kNoBlock;
}

Status check_list(const Launch& launch) {
  const size_t works = launch.works.size();
  const size_t most = launch.list_access ? kMostDirectListWorks : kMostListWorks;
  if (launch.program->works.size() != 1 || works == 0 || works > most ||
      launch.list_channels > std::min(launch.shape.channels, kMostListChannels)) {
    return Status::internal("a list of {} works on {} of {} channels, by a program of {}", works,
                            launch.list_channels, launch.shape.channels,
                            launch.program->works.size());
  }
  for (const Work& work : launch.works) {
    if (work.partition.channels != 1 || work.first_channel != 0 || work.partition.count == 0)
      return Status::internal("a work of a list has {} elements on {} channels from {} on",
                              work.partition.count, work.partition.channels, work.first_channel);
  }
  return {};
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
    if (work.turn.is_one_of_several() &&
        (launch.protocol == Protocol::Simple ||
         work.turn.first_step + partition.rounds > launch.shape.depth)) {
      return Status::internal("{} steps behind {} others, by {} in {} slots", partition.rounds,
                              work.turn.first_step, name_of(launch.protocol), launch.shape.depth);
    }
  }
  const auto is_known = [&](int work) {
    return work >= 0 && static_cast<size_t>(work) < launch.works.size();
  };
  for (const CompactLane& lane : program.lanes) {
    if (!is_known(lane.work)) return Status::internal("a lane of work {}", lane.work);
    const WorkShape& work = program.works[lane.work];
    if (lane.channel < work.first_channel || lane.channel >= work.first_channel + work.nchannels) {
      return Status::internal("a lane is in channel {}, its work in {} from {} on", lane.channel,
                              work.nchannels, work.first_channel);
    }
  }
  for (const Port& port : program.ports) {
    if (!is_known(port.work)) return Status::internal("a port of work {}", port.work);
  }
  return {};
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
  if (launch.reduction.fold != Fold::Sum && flags_of(launch) != 0) {
    return Status::internal("a reduction that is no sum is launched with a scale");
  }
  TRY(check_works(launch));
  const uint32_t most_lanes = kMaxWarps - service_warps(launch.protocol);
  for (int channel = 0; channel < program.nchannels; ++channel) {
    if (const size_t lanes = lanes_of_channel(program, channel); lanes > most_lanes) {
      return Status::invalid_usage(
          "channel {} of the program has {} lanes, a CTA of the CUDA executor has {} warps for "
          "them",
          channel, lanes, most_lanes);
    }
  }
  constexpr int kMostChannels = std::numeric_limits<uint8_t>::max();  // PortTask
  if (program.lanes.size() >= kNoLane || program.nchannels > kMostChannels) {
    return Status::invalid_usage(
        "the program has {} lanes in {} channels, the CUDA executor knows {} in {}",
        program.lanes.size(), program.nchannels, kNoLane - 1, kMostChannels);
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

/// What the header says of the operation, whatever its data.
void set_operation(const Launch& launch, LaunchHeader& header) {
  header.abort = &launch.control_device->abort;
  header.report = &launch.control_device->report;
  header.newest = launch.marks.newest();
  header.marked_ctas = launch.marks.columns();
  header.device_scale = static_cast<const std::byte*>(launch.reduction.device_scale);
  header.input_scale = launch.reduction.input_scale;
  header.input_factor = launch.reduction.input_factor;
  header.result_scale = launch.reduction.finish_scale;
  header.result_divisor = launch.reduction.finish_divisor;
  header.result_reciprocal =
      byte_reciprocal(static_cast<uint64_t>(launch.reduction.finish_divisor));
  header.shape = launch.shape;
  header.element_bytes = static_cast<uint32_t>(size_of(launch.type));
  header.nworks = static_cast<uint32_t>(launch.works.size());
  header.nports = static_cast<uint32_t>(launch.ports.size());
  header.prefetch_block = prefetch_block(*launch.program);
  header.image_at = header.nworks * static_cast<uint32_t>(sizeof(WorkTask));
}

void add_works(const Launch& launch, KernelLaunch& result) {
  auto* tasks = reinterpret_cast<WorkTask*>(result.args.tables);
  std::vector<Buffers> buffers;
  for (size_t w = 0; w < launch.works.size(); ++w) {
    tasks[w].partition = launch.works[w].partition;
    tasks[w].tag = launch.works[w].tag;
    tasks[w].first_step = static_cast<uint16_t>(launch.works[w].turn.first_step);
    tasks[w].stride_width = stride_width(launch, w);
    tasks[w].first_pattern_channel = static_cast<uint16_t>(launch.program->works[w].first_channel);
    tasks[w].pattern_channels = static_cast<uint16_t>(launch.program->works[w].nchannels);
    buffers.push_back(launch.works[w].buffers);
  }
  set_buffers(result, buffers);
}

/// Nothing but the kernel for it runs a list.
Result<KernelLaunch> prepare_list(const Launch& launch, KernelLaunch result) {
  const std::optional<ListParameters> list = list_image(launch, result.kernel.reduces);
  if (!list)
    return Status::internal("a list of a program that is not of one step by LL, of rank {}",
                            launch.program->rank);
  set_operation(launch, result.args.header);
  result.args.header.nworks = 0;  // WorkTasks
  result.kernel.form = Form::List;
  result.kernel.most_peers = list->most_peers;
  result.list_works_at = list->works_at;
  result.grid_x = launch.list_channels;
  result.grid_y = 1;
  result.threads = list->threads;
  std::memcpy(result.args.tables, list->bytes.data(), list->bytes.size());
  result.parameter_bytes = sizeof(LaunchHeader) + list->bytes.size();
  std::vector<Buffers> buffers;
  for (const Work& work : launch.works) buffers.push_back(work.buffers);
  set_buffers(result, buffers);
  return result;
}

/// The same of a list over buffers that all ranks reach.
Result<KernelLaunch> prepare_direct_list(const Launch& launch, KernelLaunch result) {
  std::optional<DirectListParameters> list = direct_list_image(launch);
  if (!list)
    return Status::internal(
        "a direct list of a program that does not connect all ranks, of rank {}",
        launch.program->rank);
  constexpr uint64_t kMostTiles = std::numeric_limits<uint16_t>::max();  // ListPosition
  for (const Work& work : launch.works) {
    const uint64_t bytes = work.partition.count * size_of(launch.type);
    if (divide_up(bytes, kListTileBytes) > kMostTiles)
      return Status::internal("a work of a direct list has {} bytes", bytes);
  }
  if (launch.list_channels > count_list_tiles(launch))
    return Status::internal("a direct list of {} channels has {} tiles for them",
                            launch.list_channels, count_list_tiles(launch));
  const uint32_t granules = launch.shape.slot_bytes / (2 * ll::kWordBytes);
  const auto most_works =
      list->shared_bytes / (2 * sizeof(uint64_t) * (launch.program->ports.size() / 2 + 1));
  if (2 * most_works > granules)
    return Status::internal("a channel of {} works, whose addresses do not fit a slot of {} bytes",
                            most_works, launch.shape.slot_bytes);
  set_operation(launch, result.args.header);
  result.args.header.nworks = 0;  // WorkTasks
  result.args.header.shared_bytes = list->shared_bytes;
  result.kernel.form = Form::DirectList;
  result.kernel.most_peers = list->list.most_peers;
  result.list_works_at = sizeof(LaunchHeader) + list->list.works_at;
  result.list_works = static_cast<uint32_t>(launch.works.size());
  result.grid_x = launch.list_channels;
  result.grid_y = 1;
  result.threads = list->list.threads;
  result.has_offers = true;
  result.offers_input = result.offers_output =
      std::any_of(launch.ports.begin(), launch.ports.end(),
                  [](const PortAddress& port) { return port.opens_buffers; });
  result.list_args.resize(sizeof(LaunchHeader) + list->list.bytes.size());
  std::memcpy(result.list_args.data(), &result.args.header, sizeof(LaunchHeader));
  std::memcpy(result.list_args.data() + sizeof(LaunchHeader), list->list.bytes.data(),
              list->list.bytes.size());
  result.parameter_bytes = result.list_args.size();
  std::vector<Buffers> buffers;
  for (const Work& work : launch.works) buffers.push_back(work.buffers);
  set_buffers(result, buffers);
  return result;
}

/// As a WorkTask's: bytes that all of its blocks and buffers are aligned to.
uint8_t width_of(const Buffers& buffers, uint32_t stride_width) {
  const uintptr_t bits = std::bit_cast<uintptr_t>(buffers.input) |
                         std::bit_cast<uintptr_t>(buffers.output) |
                         std::bit_cast<uintptr_t>(buffers.scratch) | uintptr_t{stride_width};
  return static_cast<uint8_t>(1u << std::countr_zero(bits));
}

void set_list_buffers(KernelLaunch& launch, std::span<const Buffers> buffers) {
  auto* works = reinterpret_cast<ListWork*>(launch.args.tables + launch.list_works_at);
  for (size_t w = 0; w < buffers.size(); ++w) {
    works[w].input = static_cast<const std::byte*>(buffers[w].input);
    works[w].output = static_cast<std::byte*>(buffers[w].output);
    works[w].width = width_of(buffers[w], works[w].stride_width);
  }
}

void set_direct_list_buffers(KernelLaunch& launch, std::span<const Buffers> buffers) {
  auto* works = reinterpret_cast<DirectListWork*>(launch.list_args.data() + launch.list_works_at);
  for (size_t w = 0; w < buffers.size() && w < launch.list_works; ++w) {
    works[w].input = static_cast<const std::byte*>(buffers[w].input);
    works[w].output = static_cast<std::byte*>(buffers[w].output);
    works[w].input_shifts = buffers[w].input_shifts;
    works[w].output_shifts = buffers[w].output_shifts;
  }
}

}  // namespace

void set_number(KernelLaunch& launch, const observe::KernelMarks& marks, uint64_t number) {
  auto& header = launch.list_args.empty()
                     ? launch.args.header
                     : *reinterpret_cast<LaunchHeader*>(launch.list_args.data());
  header.launch = number;
  header.spans = marks.spans_of(number);
}

void set_buffers(KernelLaunch& launch, std::span<const Buffers> buffers) {
  if (launch.kernel.form == Form::List) return set_list_buffers(launch, buffers);
  if (launch.kernel.form == Form::DirectList) return set_direct_list_buffers(launch, buffers);
  auto* tasks = reinterpret_cast<WorkTask*>(launch.args.tables);
  for (size_t w = 0; w < buffers.size() && w < launch.args.header.nworks; ++w) {
    const auto& [input, output, scratch, input_shifts, output_shifts] = buffers[w];
    WorkTask& task = tasks[w];
    task.input = static_cast<const std::byte*>(input);
    task.output = static_cast<std::byte*>(output);
    task.scratch = static_cast<std::byte*>(scratch);
    task.input_shifts = input_shifts;
    task.output_shifts = output_shifts;
    task.width = width_of(buffers[w], task.stride_width);
  }
}

bool suits_bulk_lanes(const KernelLaunch& launch) {
  const auto* tasks = reinterpret_cast<const WorkTask*>(launch.args.tables);
  return std::all_of(tasks, tasks + launch.args.header.nworks, [&](const WorkTask& task) {
    return task.width == 16 || (launch.has_offers && task.stride_width == 16);
  });
}

Result<KernelLaunch> prepare(const Launch& launch, Specialisation specialisation,
                             BulkCopies bulk_copies) {
  static_assert(kLaneBarriers >= kMaxWarps / 2, "every lane of two warps needs a barrier");
  TRY(check(launch));
  const Program& program = *launch.program;
  KernelLaunch result;
  LaunchHeader& header = result.args.header;
  header.flags = flags_of(launch);
  result.kernel = {.protocol = launch.protocol,
                   .reduces = reduces(launch, header.flags),
                   .form = Form::Program,
                   .most_peers = 0,
                   .type = folded_as(launch.type, launch.reduction.fold),
                   .fold = launch.reduction.fold};
  if (launch.list_access) return prepare_direct_list(launch, std::move(result));
  if (launch.is_list()) return prepare_list(launch, std::move(result));
  result.grid_x = 1;  // also of a rank that has no part in the messages
  for (size_t w = 0; w < launch.works.size(); ++w) {
    const auto replicas = divide_up(launch.works[w].partition.channels,
                                    static_cast<uint64_t>(program.works[w].nchannels));
    result.grid_x = std::max(result.grid_x, static_cast<uint32_t>(replicas));
  }
  result.grid_y = static_cast<uint32_t>(program.nchannels);
  result.threads = choose_threads(launch);
  set_operation(launch, header);
  for (const Work& work : launch.works)
    if (work.turn.is_one_of_several()) header.flags |= kTakesTurns;
  add_works(launch, result);

  if (specialisation == Specialisation::Allowed) {
    if (const std::optional<DirectImage> image = direct_image(launch, result.kernel.reduces)) {
      result.kernel.form = image->form;
      result.kernel.most_peers = image->most_peers;
      result.threads = image->threads;
      std::memcpy(result.args.tables + header.image_at, image->bytes.data(), image->bytes.size());
      result.parameter_bytes = sizeof(LaunchHeader) + header.image_at + image->bytes.size();
      return result;
    }
    if (const std::optional<TwoShotImage> image = two_shot_image(launch)) {
      result.kernel.form = Form::TwoShot;
      result.kernel.most_peers =
          image->peers <= kFewTwoShotPeers ? kFewTwoShotPeers : kMostTwoShotPeers;
      if (launch.threads <= 0) result.threads = two_shot_threads(launch, *image);
      header.shared_bytes = sizeof(TwoShotPorts);
      std::memcpy(result.args.tables + header.image_at, &*image, sizeof *image);
      result.parameter_bytes = sizeof(LaunchHeader) + header.image_at + sizeof *image;
      return result;
    }
  }

  Image image = TRY(make_image(launch, result.threads, result.kernel.reduces, bulk_copies, header));
  if (header.shared_bytes > kMaxSharedBytesWithStages ||
      (header.bulk_stage_bytes + header.fold_piece_bytes == 0 &&
       header.shared_bytes > kMaxSharedBytes)) {
    return Status::invalid_usage(
        "rank {}'s program needs {} bytes of shared memory ({} instructions, {} ports), a CTA of "
        "the CUDA executor has {}",
        program.rank, header.shared_bytes, program.instructions.size(), program.ports.size(),
        kMaxSharedBytes);
  }

  result.threads = image.threads;
  for (size_t port = 0; port < launch.ports.size(); ++port) {
    if (!launch.ports[port].opens_buffers || !advertises(launch, port)) continue;
    (program.ports[port].is_send ? result.offers_input : result.offers_output) = true;
  }
  result.has_bulk_lanes = image.has_bulk_lanes;
  result.has_offers = image.has_offers;
  result.parameter_bytes = sizeof(LaunchHeader) + header.image_at;
  if (image.bytes.size() <= sizeof(result.args.tables) - header.image_at) {
    std::memcpy(result.args.tables + header.image_at, image.bytes.data(), image.bytes.size());
    result.parameter_bytes += image.bytes.size();
  } else {
    result.device_image = std::move(image.bytes);
  }
  return result;
}

}  // namespace niccolite::executor::cuda
