#include "executor/cuda/direct_image.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

#include "executor/cuda/device_types.h"
#include "executor/cuda/lane_forms.h"
#include "executor/cuda/tables.h"

namespace niccolite::executor::cuda {
namespace {

/// What an instruction of such a program may do.
enum class Kind : uint8_t {
  Send,     // of a block of the input, which may be copied beside
  Copy,     // from the input to the output
  Fold,     // of a block of the input with others', into the output
  Receive,  // into the output
  Other,
};

Kind kind_of(const CompactInstruction& instruction) {
  const bool reads = instruction.source == Place::Input;
  const bool writes = instruction.target == Place::Output;
  if (!reads && instruction.source != Place::None) return Kind::Other;
  if (!writes && instruction.target != Place::None) return Kind::Other;
  if (instruction.receive_count == 0) {
    if (!reads || (instruction.flags & ~kReduce) != 0) return Kind::Other;
    if (instruction.send_count != 0) return Kind::Send;
    return writes ? Kind::Copy : Kind::Other;
  }
  if (instruction.send_count != 0 || !writes) return Kind::Other;
  if (reads) return Kind::Fold;
  return instruction.receive_count == 1 && instruction.flags == 0 ? Kind::Receive : Kind::Other;
}

/// The instructions of one work by what they do, in the program's order.
struct Parts {
  std::vector<const CompactInstruction*> sends;
  std::vector<const CompactInstruction*> receives;
  const CompactInstruction* own = nullptr;  // copies or folds the own block
  bool folds = false;
};

uint64_t length_of(const Partition& partition, uint32_t block) {
  const uint64_t start = block * partition.block_stride;
  return start >= partition.count ? 0 : std::min(partition.count - start, partition.block_stride);
}

/// Sorts a lane in; false when it is of another kind. Sends come first: the kernel has its threads
/// send before they receive, and what lanes do at the same time is in no order anyway.
bool add_lane(const Launch& launch, const CompactLane& lane, bool reduces, Parts& parts) {
  const Program& program = *launch.program;
  const Partition& partition = launch.works[lane.work].partition;
  bool has_received = false;
  for (uint32_t i = lane.first; i < uint32_t{lane.first} + lane.count; ++i) {
    const CompactInstruction& instruction = program.instructions[i];
    const Kind kind = kind_of(instruction);
    const bool is_own = kind == Kind::Copy || kind == Kind::Fold ||
                        (kind == Kind::Send && instruction.target == Place::Output);
    if (kind == Kind::Other || (is_own && parts.own != nullptr)) return false;
    if (length_of(partition, instruction.chunk_block) != length_of(partition, 0)) return false;
    if (kind == Kind::Send || kind == Kind::Copy) {
      if (has_received) return false;
      if (kind == Kind::Send) parts.sends.push_back(&instruction);
    } else {
      has_received = true;
      if (kind == Kind::Receive) parts.receives.push_back(&instruction);
    }
    // A kernel that reduces only folds what it receives, and only it does.
    if (reduces ? is_own && kind != Kind::Fold : kind == Kind::Fold) return false;
    if (is_own) parts.own = &instruction;
    parts.folds |= kind == Kind::Fold;
  }
  return true;
}

/// Number of ports that the instructions name.
size_t ports_of(const std::vector<const CompactInstruction*>& instructions, bool sends) {
  return std::accumulate(instructions.begin(), instructions.end(), size_t{0},
                         [&](size_t sum, const CompactInstruction* instruction) {
                           return sum +
                                  (sends ? instruction->send_count : instruction->receive_count);
                         });
}

class TaskMaker {
 public:
  /// Of a list blocks are counted, of others measured.
  TaskMaker(const Launch& launch, size_t work)
      : launch_(launch),
        block_bytes_(launch.is_list()
                         ? 1
                         : launch.works[work].partition.block_stride * size_of(launch.type)) {}

  template <uint32_t kMostPeers>
  DirectTask<kMostPeers> make(const Parts& parts) const {
    DirectTask<kMostPeers> task{};
    for (const CompactInstruction* send : parts.sends) {
      task.reads_own = 1;
      task.own_from = send->source_block * block_bytes_;  // equal for all, or not read
      for (uint32_t i = 0; i < send->send_count; ++i) {
        task.send[task.sends++] = end_of(send->send + i, send->source_block);
      }
    }
    for (const CompactInstruction* receive : parts.receives) {
      task.receive[task.receives++] = end_of(receive->receive, receive->target_block);
    }
    if (parts.own == nullptr) return task;
    task.reads_own = 1;
    task.own_from = parts.own->source_block * block_bytes_;
    task.own_to = parts.own->target_block * block_bytes_;
    if (!parts.folds) {
      task.copies_own = 1;
      return task;
    }
    task.source_position = parts.own->source_position;
    for (uint32_t i = 0; i < parts.own->receive_count; ++i) {
      task.receive[task.receives++] = end_of(parts.own->receive + i, /*block=*/0);
    }
    return task;
  }

 private:
  DirectEnd end_of(uint32_t index, uint32_t block) const {
    return {task_of(launch_, launch_.program->indices[index]), block * block_bytes_};
  }

  const Launch& launch_;
  const uint64_t block_bytes_;
};

template <typename T>
std::vector<std::byte> bytes_of(const T& image, size_t bytes = sizeof(T)) {
  const auto* data = reinterpret_cast<const std::byte*>(&image);
  return {data, data + bytes};
}

/// Threads that have a granule of so many bytes each, in whole warps.
uint32_t threads_for(uint64_t bytes) {
  constexpr uint32_t kGranuleBytes = 8;
  const uint64_t threads = round_up(divide_up(bytes, kGranuleBytes), kWarp);
  return static_cast<uint32_t>(std::clamp<uint64_t>(threads, kWarp, kMaxThreads));
}
uint32_t threads_of(const Launch& launch, size_t work) {
  return threads_for(launch.works[work].partition.chunk * size_of(launch.type));
}

/// The parts of a collective's program of one step, as far as the kernels know such.
struct OneStep {
  Parts parts;
  size_t peers = 0;        // sent to, or received from
  bool sends_own = false;  // all are sent the own block; else each gets one of its own
};

std::optional<OneStep> one_step_of(const Launch& launch, bool reduces) {
  const Program& program = *launch.program;
  OneStep step;
  Parts& parts = step.parts;
  for (const CompactLane& lane : program.lanes) {
    if (!add_lane(launch, lane, reduces, parts)) return std::nullopt;
  }
  if (reduces && !parts.receives.empty()) return std::nullopt;
  const size_t sends = ports_of(parts.sends, /*sends=*/true);
  const size_t receives = parts.folds ? parts.own->receive_count : parts.receives.size();
  step.peers = std::max(sends, receives);
  if (step.peers > kMostDirectPeers || sends + receives != program.ports.size())
    return std::nullopt;
  const CompactInstruction* own = parts.own != nullptr ? parts.own
                                  : sends != 0         ? parts.sends[0]
                                                       : nullptr;
  step.sends_own = std::all_of(
      parts.sends.begin(), parts.sends.end(),
      [&](const CompactInstruction* send) { return send->source_block == own->source_block; });
  return step;
}

std::optional<DirectImage> collective_image(const Launch& launch, bool reduces) {
  const std::optional<OneStep> step = one_step_of(launch, reduces);
  if (!step) return std::nullopt;
  DirectImage image{
      step->sends_own ? Form::Direct : Form::DirectEach,
      step->peers <= kFewDirectPeers ? kFewDirectPeers : kMostDirectPeers,
      launch.threads > 0 ? static_cast<uint32_t>(launch.threads) : threads_of(launch, 0),
      {}};
  const auto make = [&]<uint32_t kMostPeers>() {
    DirectTask<kMostPeers> task = TaskMaker(launch, 0).make<kMostPeers>(step->parts);
    if (!step->sends_own && step->parts.own == nullptr) task.reads_own = 0;
    return bytes_of(task);
  };
  image.bytes = image.most_peers == kFewDirectPeers ? make.operator()<kFewDirectPeers>()
                                                    : make.operator()<kMostDirectPeers>();
  return image;
}

template <uint32_t kMostPeers>
ListParameters list_parameters(const Launch& launch, const Parts& parts) {
  using Image = ListImage<kMostPeers>;
  constexpr size_t kWorksAt = offsetof(Image, work);
  const size_t works = launch.works.size();
  std::vector<std::byte> bytes(kWorksAt + works * sizeof(ListWork));
  Image image{};
  image.channels = launch.list_channels;
  image.task = TaskMaker(launch, 0).make<kMostPeers>(parts);
  const auto element_bytes = static_cast<uint32_t>(size_of(launch.type));
  image.chunk =
      static_cast<uint32_t>(data_bytes(launch.protocol, launch.shape.slot_bytes)) / element_bytes;
  uint32_t threads = kWarp;
  for (size_t w = 0; w < works; ++w) {
    const Work& work = launch.works[w];
    const auto count = static_cast<uint32_t>(length_of(work.partition, 0));
    image.rounds[w % launch.list_channels] += static_cast<uint16_t>(divide_up(count, image.chunk));
    threads =
        std::max(threads, threads_for(uint64_t{std::min(count, image.chunk)} * element_bytes));
    const ListWork listed{.input = nullptr,
                          .output = nullptr,
                          .count = count,
                          .tag = work.tag,
                          .width = 0,
                          .stride_width = stride_width(launch, w)};
    std::memcpy(bytes.data() + kWorksAt + w * sizeof listed, &listed, sizeof listed);
  }
  std::memcpy(bytes.data(), &image, kWorksAt);
  if (launch.threads > 0) threads = static_cast<uint32_t>(launch.threads);
  return {kMostPeers, std::min(threads, kMaxThreads), kWorksAt, std::move(bytes)};
}

/// Where each channel of a list begins that are `channels`: all have as many tiles, or one more.
std::vector<ListPosition> share_tiles(const std::vector<uint32_t>& tiles_of_works,
                                      uint32_t channels) {
  const uint64_t tiles = std::accumulate(tiles_of_works.begin(), tiles_of_works.end(), uint64_t{0});
  std::vector<ListPosition> starts;
  uint32_t work = 0;
  uint64_t before = 0;  // tiles of the works before this one
  for (uint32_t channel = 0; channel < channels; ++channel) {
    const uint64_t start = channel * tiles / channels;
    while (start - before >= tiles_of_works[work]) before += tiles_of_works[work++];
    starts.push_back({static_cast<uint16_t>(work), static_cast<uint16_t>(start - before)});
  }
  starts.push_back({static_cast<uint16_t>(tiles_of_works.size()), 0});
  return starts;
}

/// Of which the channel does something.
uint32_t works_between(const ListPosition& first, const ListPosition& end) {
  return static_cast<uint32_t>(end.work) - first.work + (end.tile > 0 ? 1 : 0);
}

template <uint32_t kMostPeers>
DirectListParameters direct_list_parameters(const Launch& launch, const OneStep& step) {
  using DirectImage = DirectListImage<kMostPeers>;
  constexpr size_t kWorksAt = offsetof(DirectImage, work);
  const auto element_bytes = static_cast<uint32_t>(size_of(launch.type));
  DirectImage image{};
  image.rank = static_cast<uint16_t>(launch.program->rank);
  image.nranks = static_cast<uint16_t>(step.peers + 1);
  image.access = *launch.list_access;
  image.chunk =
      static_cast<uint32_t>(data_bytes(launch.protocol, launch.shape.slot_bytes)) / element_bytes;
  image.task = TaskMaker(launch, 0).make<kMostPeers>(step.parts);

  std::vector<uint32_t> tiles;
  std::vector<std::byte> bytes(kWorksAt + launch.works.size() * sizeof(DirectListWork));
  for (size_t w = 0; w < launch.works.size(); ++w) {
    const Work& work = launch.works[w];
    const uint64_t count = length_of(work.partition, 0);
    tiles.push_back(static_cast<uint32_t>(divide_up(count * element_bytes, kListTileBytes)));
    DirectListWork listed{};
    listed.count = static_cast<uint32_t>(count);
    listed.tag = work.tag;
    std::memcpy(bytes.data() + kWorksAt + w * sizeof listed, &listed, sizeof listed);
  }
  const std::vector<ListPosition> starts = share_tiles(tiles, launch.list_channels);
  std::copy(starts.begin(), starts.end(), image.starts);
  for (uint32_t channel = 0; channel < launch.list_channels; ++channel)
    image.most_works =
        std::max(image.most_works, works_between(starts[channel], starts[channel + 1]));
  std::memcpy(bytes.data(), &image, kWorksAt);
  const uint32_t threads = launch.threads > 0 ? static_cast<uint32_t>(launch.threads) : kMaxThreads;
  return {{kMostPeers, threads, kWorksAt, std::move(bytes)},
          // An address of each buffer, and a word.
          static_cast<uint32_t>((2 * image.nranks * image.most_works + 1) * sizeof(uint64_t))};
}

/// Warps for each message: as many as have data, of `most` together; at least one.
std::vector<uint32_t> warps_of_messages(const Launch& launch, uint32_t most) {
  std::vector<uint32_t> warps;
  for (const CompactLane& lane : launch.program->lanes) {
    warps.push_back(threads_of(launch, lane.work) / kWarp);
  }
  while (std::accumulate(warps.begin(), warps.end(), 0u) > most) {
    --*std::max_element(warps.begin(), warps.end());
  }
  return warps;
}

std::optional<DirectImage> messages_image(const Launch& launch) {
  const Program& program = *launch.program;
  if (program.lanes.empty() || program.lanes.size() > kMaxWarps) return std::nullopt;
  const uint32_t most =
      launch.threads > 0 ? static_cast<uint32_t>(launch.threads) / kWarp : kMaxWarps;
  const std::vector<uint32_t> warps =
      warps_of_messages(launch, std::max(most, static_cast<uint32_t>(program.lanes.size())));
  MessagesImage image{};
  uint32_t warp = 0;
  auto barrier = static_cast<uint16_t>(Barrier::FirstLane);
  for (size_t l = 0; l < program.lanes.size(); ++l) {
    const CompactLane& lane = program.lanes[l];
    Parts parts;
    if (!add_lane(launch, lane, /*reduces=*/false, parts)) return std::nullopt;
    const size_t sends = ports_of(parts.sends, /*sends=*/true);
    if (lane.count != 1 || sends + parts.receives.size() > 1) return std::nullopt;
    MessageTask& message = image.messages[l];
    message.first_thread = static_cast<uint16_t>(warp * kWarp);
    message.threads = static_cast<uint16_t>(warps[l] * kWarp);
    if (warps[l] > 1) message.barrier = barrier++;
    message.work = lane.work;
    message.task = TaskMaker(launch, lane.work).make<1>(parts);
    for (uint32_t w = 0; w < warps[l]; ++w, ++warp) {
      image.messages_of_warps |= uint64_t{l} << (MessagesImage::kBits * warp);
    }
  }
  const size_t used =
      offsetof(MessagesImage, messages) + program.lanes.size() * sizeof(MessageTask);
  return DirectImage{Form::Messages, /*most_peers=*/1, warp * kWarp, bytes_of(image, used)};
}

/// One pattern channel by LL, whose ports move one slot in a round.
bool may_be_direct(const Launch& launch) {
  const Program& program = *launch.program;
  return launch.protocol == Protocol::LL && program.nchannels == 1 && !program.lanes.empty() &&
         std::all_of(program.ports.begin(), program.ports.end(),
                     [](const Port& port) { return port.steps == 1; });
}

}  // namespace

std::optional<ListParameters> list_image(const Launch& launch, bool reduces) {
  if (!may_be_direct(launch) || launch.program->works.size() != 1) return std::nullopt;
  const std::optional<OneStep> step = one_step_of(launch, reduces);
  if (!step || !step->sends_own) return std::nullopt;
  return step->peers <= kFewDirectPeers ? list_parameters<kFewDirectPeers>(launch, step->parts)
                                        : list_parameters<kMostDirectPeers>(launch, step->parts);
}

std::optional<DirectListParameters> direct_list_image(const Launch& launch) {
  if (!may_be_direct(launch) || launch.program->works.size() != 1) return std::nullopt;
  const std::optional<OneStep> step = one_step_of(launch, /*reduces=*/true);
  if (!step || step->peers == 0 || launch.program->ports.size() != 2 * step->peers)
    return std::nullopt;
  return step->peers <= kFewDirectPeers ? direct_list_parameters<kFewDirectPeers>(launch, *step)
                                        : direct_list_parameters<kMostDirectPeers>(launch, *step);
}

std::optional<DirectImage> direct_image(const Launch& launch, bool reduces) {
  if (!may_be_direct(launch)) return std::nullopt;
  if (launch.program->works.size() == 1) return collective_image(launch, reduces);
  return reduces ? std::nullopt : messages_image(launch);
}

}  // namespace niccolite::executor::cuda
