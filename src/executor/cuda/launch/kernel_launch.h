// From a Launch to the kernel's parameters: which kernel, what shape, LaunchArgs. Pure arithmetic,
// no GPU: tests run it with an emulated one. Thread safety: none needed, all functions are pure.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "executor/cuda/launch/launch_args.h"
#include "executor/cuda/launch/places.h"
#include "executor/cuda/launch/worker_movers.h"
#include "executor/cuda/patterns/direct_args.h"
#include "executor/launch.h"

namespace niccolite::executor::cuda {

/// How a kernel finds its work.
enum class KernelVariant : uint8_t {
  Program,      // the interpreter (kernel.cuh)
  Direct,       // direct.cuh, LL: the own block goes to every peer
  DirectEach,   // the same, a block for each
  Messages,     // the same, LL, moving: a task for each message
  List,         // direct.cuh, LL: as Direct, several operations one after the other
  ListEach,     // the same, as DirectEach
  DirectList,   // direct_list.cuh, LL: a list over buffers that all ranks reach
  DirectLines,  // direct_lines.cuh, LL128, reducing
  Phases,       // phase_kernel.cuh, LL128, reducing
  Team,         // team_kernel.cuh, Simple: a program with connections by a multicast team
  TeamWords,    // team_kernel.cuh, LL: the same
  Places,       // places_kernel.cuh, Simple: a program with chunks that need no slots
};
inline constexpr int kKernelVariants = 12;

/// Does it run programs with connections by a multicast team?
constexpr bool is_by_team(KernelVariant variant) {
  return variant == KernelVariant::Team || variant == KernelVariant::TeamWords;
}

/// Are the kernel's parameters ListParams?
constexpr bool is_list(KernelVariant variant) {
  return variant == KernelVariant::List || variant == KernelVariant::ListEach;
}

/// The type whose kernels reduce elements of `type`: sums and products of signed and
/// of unsigned integers are equal, bit for bit. LaunchFlags tell their averages apart.
constexpr DataType reduced_as(DataType type, ReduceOp op) {
  if (op != ReduceOp::Sum && op != ReduceOp::Product) return type;
  switch (type) {
    case DataType::Uint8:
      return DataType::Int8;
    case DataType::Uint32:
      return DataType::Int32;
    case DataType::Uint64:
      return DataType::Int64;
    default:
      return type;
  }
}

/// Which kernel runs a launch.
struct KernelId {
  Protocol protocol;
  bool reduces;  // false: the byte-moving kernel, whatever type and op are
  KernelVariant variant;
  uint32_t most_peers;  // of forms but the first and Messages: kFewDirectPeers or
                        // kMostDirectPeers
  DataType type;        // as reduced_as() says
  ReduceOp op;
  // For Direct, DirectEach and Messages; beside InGpu with kFewDirectPeers at most. Other kernels
  // look at a flag (kCountersInHost), except Program by LL, which has an instance for proxies, too.
  Counters counters = Counters::InGpu;
};

/// Does the kernel wait at its end for the kernel that it runs beside (dependent_launch.cuh)?
/// Kernels of messages do.
constexpr bool awaits_last(const KernelId& kernel) {
  return !kernel.reduces && !is_list(kernel.variant) &&
         kernel.variant != KernelVariant::DirectList && !is_by_team(kernel.variant);
}

/// Is it a kernel of short collectives? One that follows another may begin before that has ended
/// (dependent_launch.cuh). Longer ones may not: CTAs that wait hold a multiprocessor.
constexpr bool begins_early(const KernelId& kernel) {
  return kernel.variant == KernelVariant::Direct || kernel.variant == KernelVariant::DirectEach ||
         kernel.variant == KernelVariant::DirectLines || kernel.variant == KernelVariant::Phases;
}

struct KernelLaunch {
  KernelId kernel{};
  // The part of LaunchArgs that the kernel reads (of lists: of ListArgs): the rest need not be
  // passed.
  std::vector<std::byte> parameters = std::vector<std::byte>(sizeof(LaunchArgs));
  std::vector<std::byte> device_params;  // not empty: to be copied to device memory, its address
                                         // into header().params
  uint32_t grid_x = 0;
  uint32_t grid_y = 0;
  uint32_t threads = 0;
  uint32_t list_works_at = 0;  // of lists: where in tables() the works begin,
  uint32_t list_works = 0;     // and how many there are
  bool has_staged_copies = false;
  bool passes_on = false;  // an instruction sends data that it receives
  bool has_advertisements =
      false;  // connections that may make or take them (protocol/advertisement.h)
  // This rank may have to advertise its users' outputs, or inputs, to peers that see them by their
  // own addresses: set_advertisements().
  bool advertises_output = false;
  bool advertises_input = false;
  // This rank may have to offer its users' outputs, or inputs, to any peers: offers_all().
  bool offers_output = false;
  bool offers_input = false;

  LaunchHeader& header() { return *reinterpret_cast<LaunchHeader*>(parameters.data()); }
  const LaunchHeader& header() const {
    return *reinterpret_cast<const LaunchHeader*>(parameters.data());
  }
  /// LaunchArgs::tables, or ListArgs'.
  std::byte* tables() { return parameters.data() + sizeof(LaunchHeader); }
  const std::byte* tables() const { return parameters.data() + sizeof(LaunchHeader); }
  /// The last of them: `bytes` bytes, `at` bytes from the start of the tables.
  void end_tables(size_t at, const void* data, size_t bytes) {
    parameters.resize(sizeof(LaunchHeader) + at + bytes);
    if (bytes != 0) std::memcpy(tables() + at, data, bytes);
  }
};

/// Whether a pattern that has a kernel of its own may use it; tests hold the two against each
/// other.
enum class Specialisation : uint8_t { Allowed, Off };

/// Workers have the plans that lowering makes for such a device (plan_workers()).
/// `most_shared`: bytes of shared memory that a CTA may have with stages. Errors: InternalError
/// when the launch is inconsistent (ports missing, no abort word), InvalidUsage when the program is
/// larger than the executor can hold.
Result<KernelLaunch> prepare(const Launch& launch,
                             Specialisation specialisation = Specialisation::Allowed,
                             Staging staging = Staging::All,
                             uint32_t most_shared = kMaxSharedBytesWithStages,
                             Expected expected = Expected::Direct);
/// Workers have these plans. Further errors: check_plan(). `places`: null, or find_places() of it.
Result<KernelLaunch> prepare(const Launch& launch, std::span<const lowering::WorkerPlan> plans,
                             Specialisation specialisation, uint32_t most_shared,
                             const Places* places = nullptr);
/// Prepares the launch for buffers that these places are in.
Result<KernelLaunch> prepare_with_places(const Launch& launch, const Places& places,
                                         uint32_t most_shared = kMaxSharedBytes);

/// The part of prepare() that depends on the user's buffers: sets the buffers of all works.
void set_buffers(KernelLaunch& launch, std::span<const Buffers> buffers);
/// Names the launches to come. Their kernels mark their begin and end if Launch::marks were
/// `marks`.
void set_number(KernelLaunch& launch, const observe::KernelMarks& marks, uint64_t number);
/// Says of every work whether peers can reach the memory that it may have to advertise them
/// (protocol/advertisement.h): bool is_open(const void* buffer, uint64_t bytes). They cannot
/// before. `buffers`: the last ones of set_buffers().
template <typename Function>
void set_advertisements(KernelLaunch& launch, std::span<const Buffers> buffers,
                        Function&& is_open) {
  const auto can_see = [&](const void* buffer, uint64_t bytes) -> uint8_t {
    return buffer != nullptr && is_open(buffer, bytes) ? 1 : 0;
  };
  if (launch.kernel.variant == KernelVariant::DirectList) {
    auto* works = reinterpret_cast<DirectListWork*>(launch.tables() + launch.list_works_at);
    for (uint32_t w = 0; w < launch.list_works && w < buffers.size(); ++w) {
      const Buffers& of = buffers[w];
      works[w].input_is_open = of.input_shifts == nullptr ? can_see(of.input, of.input_bytes) : 0;
      works[w].output_is_open =
          of.output_shifts == nullptr ? can_see(of.output, of.output_bytes) : 0;
    }
    return;
  }
  auto* tasks = reinterpret_cast<WorkTask*>(launch.tables());
  for (uint32_t w = 0; w < launch.header().nworks && w < buffers.size(); ++w) {
    const Buffers& of = buffers[w];
    tasks[w].can_put = launch.advertises_output ? can_see(of.output, of.output_bytes) : 0;
    tasks[w].can_get = launch.advertises_input ? can_see(of.input, of.input_bytes) : 0;
  }
}

/// Are all buffers of the last set_buffers() advertised that the launch may offer to peers? After
/// set_advertisements(). Peers mostly find the same, since they run the same program.
bool offers_all(const KernelLaunch& launch, std::span<const Buffers> buffers);
/// Do the buffers that were set last suit staged copies? Buffers suit them if their blocks are
/// aligned to 16 bytes. Other buffers suit them if they may go direct and have aligned strides, so
/// that they are likely to be aligned alike on all ranks, or if they are long and nobody passes
/// them on (stage_shift.cuh). For all other buffers, the threads of many warps are faster.
bool suits_staged_copies(const KernelLaunch& launch);

}  // namespace niccolite::executor::cuda
