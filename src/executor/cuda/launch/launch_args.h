// LaunchArgs: the parameters of a launch, as one block. Host and device include it.
//
//   header   control words, scales, where the tables are
//   works    the user's buffers and how they are cut up
//   tables   the program as the kernel reads it: ports | instructions | workers | uses | warps
//
// The works always lie in the parameters, so that other buffers need no upload. So do the other
// tables when it fits there, and nothing has to be loaded from device memory before the first
// store; a larger one lies in device memory. The kernel copies everything behind the ports to
// shared memory, and makes a PortState of every port. CTA (x, y) of the grid runs replica x of
// pattern channel y. A work's pattern channels share its data: replica x of the p-th of n handles
// channel x * n + p of the partition, over the FIFO channel of that number behind the work's first.
// Workers of works that have fewer channels do nothing there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/list_access.h"
#include "executor/partition.h"
#include "executor/program.h"
#include "executor/protocol/fifo.h"
#include "executor/protocol/user_memory.h"
#include "observe/kernel_marks.h"

namespace niccolite::executor::cuda {

inline constexpr uint32_t kWarp = 32;
inline constexpr uint32_t kMaxThreads = 512;  // of a CTA: 128 registers a thread
inline constexpr uint32_t kMaxWarps = kMaxThreads / kWarp;
inline constexpr uint8_t kNoWorker = 0xff;       // of a warp that has nothing to do
inline constexpr uint8_t kServiceWorker = 0xfe;  // of the service warp (service_warp.cuh)
static_assert(kMaxWorkers <= kServiceWorker);
constexpr uint32_t service_warps(Protocol protocol) { return protocol == Protocol::Simple ? 1 : 0; }
inline constexpr uint32_t kNoBlock = ~uint32_t{0};
inline constexpr size_t kParameterBytes = 4096;   // of every architecture and driver
inline constexpr uint32_t kPlanPointers = 5;      // used by SimplePlan (simple_step.cuh)
inline constexpr uint32_t kHandoverPointers = 2;  // used by Handover (handover.cuh)
inline constexpr uint32_t kCopyStages = 8;        // of a worker that copies through stages
// For a reduction that pulls, or whose result is put. Reductions of more ranks do neither.
inline constexpr uint32_t kMaxReductionOperands = 8;
/// Shared memory that a program may have in a CTA; the limit with stages (pipeline.cuh); and the
/// least size that makes stages worthwhile. GPUs of 8.0, and from 9.0 on, have it; 8.6 to 8.9 do
/// not.
inline constexpr uint32_t kMaxSharedBytes = 96 * 1024;
inline constexpr uint32_t kMaxSharedBytesWithStages = 224 * 1024;
inline constexpr uint32_t kLeastSharedBytesWithStages = 160 * 1024;
/// The workers that may have stages: none; workers that reduce; all, for buffers that suit workers
/// that copy (kernel_launch.h).
enum class Staging : uint8_t { None, Reductions, All };

/// Properties that the lowered plan gives to a worker of Simple (lowering/workers.h,
/// worker_movers.h).
enum WorkerForm : uint8_t {
  kCopiesStaged = 1,   // copy_worker.cuh
  kReducesStaged = 2,  // reduce_worker.cuh: the CTA's one worker that does
  kDynamicTiles = 4,   // the CTAs share its tiles, if there is enough to share
  kServesPulls = 8,    // it can also send the data that it exposes (pull_server.cuh)
  kSharesWarps = 16,   // with others of its group (team_kernel.cuh)
};

/// A worker of a pattern channel: its instructions, and the threads of the CTA that run them.
struct WorkerTask {
  uint16_t first;         // instruction
  uint16_t count;         // of instructions
  uint16_t first_thread;  // a multiple of kWarp
  uint16_t threads;       // a multiple of kWarp
  uint16_t barrier;       // Barrier id when the worker has more than one warp
  uint16_t pointers;      // Simple: its first element of the shared array of slot addresses
  uint16_t work;
  uint8_t forms;  // WorkerForm: several
  uint8_t ring;   // of kCopiesStaged: its number among the CTA's workers that have it; of
                  // kSharesWarps: the next worker of the group, or kNoWorker

  constexpr bool has(WorkerForm what) const { return (forms & what) != 0; }
};
static_assert(sizeof(WorkerTask) == 16);

/// A port that an instruction names, with what the kernel would otherwise have to count.
struct PortUse {
  uint16_t port;
  uint16_t use;  // how often the worker's list has named the port before, in one round
};
static_assert(sizeof(PortUse) == 4);

/// One end of a connection. The addresses belong to its work's first FIFO channel, so that only the
/// channel of the partition has to be added.
struct PortTask {
  std::byte* slots;
  ControlBlock* control;
  ControlBlock* remote_control;
  uint16_t steps;   // in one round
  uint8_t channel;  // pattern channel
  uint8_t work;
  uint32_t end;  // rank of the peer; kSendEnd: this end sends; kDirectPut: data may be put
                 // (advertisement.h), also by a team to windows; kStays: and are not passed on from
                 // there (Port::stays); kDirectGet: data may be exposed; kOpens: the peer sees open
                 // buffers (PortAddress::opens_buffers); kFollowed: the work's turn is followed by
                 // another (Turn); kRelay: the other end is a proxy's (protocol/relay.h); kTeam:
                 // the slots are a team's (LaunchHeader::team_shape); kTeamEnd: this end stores to
                 // the slots, or windows, of all members, or loads from them; kPlaces: PortPlaces
                 // has its places

  static constexpr uint32_t kSendEnd = uint32_t{1} << 31;
  static constexpr uint32_t kDirectPut = uint32_t{1} << 30;
  static constexpr uint32_t kStays = uint32_t{1} << 29;
  static constexpr uint32_t kDirectGet = uint32_t{1} << 28;
  static constexpr uint32_t kOpens = uint32_t{1} << 27;
  static constexpr uint32_t kFollowed = uint32_t{1} << 26;
  static constexpr uint32_t kRelay = uint32_t{1} << 25;
  static constexpr uint32_t kTeam = uint32_t{1} << 24;
  static constexpr uint32_t kTeamEnd = uint32_t{1} << 23;
  static constexpr uint32_t kPlaces = uint32_t{1} << 22;
  static constexpr uint32_t kPeerMask = kPlaces - 1;
};
static_assert(sizeof(PortTask) == 32);

/// For a port that advertises (protocol/advertisement.h): the place of the chunks of its worker's
/// only instruction.
struct alignas(8) AdvertisedBlock {
  uint16_t block;
  uint16_t chunk_block;  // CompactInstruction's
  OperandBuffer buffer;  // None: nothing can be advertised
  uint8_t serves;        // 1: of an exposing sender, its worker serves pulls (kServesPulls)
};
static_assert(sizeof(AdvertisedBlock) == 8);

/// For a port of a launch with places (protocol/user_memory.h).
struct PortPlaces {
  relay::Place* places;  // of the work's first FIFO channel; null: its proxy reaches no buffer
  uint32_t least_bytes;  // UserMemory's
  uint32_t receives;     // of a receiver: its first entry in the list of instructions that receive
  bool operator==(const PortPlaces&) const = default;
};
static_assert(sizeof(PortPlaces) == 16);

/// Places of an instruction: as UserMemorySteps says, in buffers that proxies reach.
struct alignas(8) InstructionPlaces {
  static constexpr uint16_t kAnyTime = 0xffff;  // no instruction has that number

  uint16_t source_block;
  uint16_t placed_from;  // an instruction of the program, or kAnyTime
  OperandBuffer source;  // None: sends go through slots
  uint8_t is_placed;     // 1: its received chunk may go to its place
  bool operator==(const InstructionPlaces&) const = default;
};
static_assert(sizeof(InstructionPlaces) == 8);

/// The ports with places of a worker: the first ones of its list receive, the others send.
struct WorkerPlaces {
  uint16_t first;  // of the list
  uint16_t receives;
  uint16_t sends;
  bool operator==(const WorkerPlaces&) const = default;
};
static_assert(sizeof(WorkerPlaces) == 6);

/// Their tables: bytes from the start of shared memory.
struct PlacesArea {
  uint32_t ports_at;         // PortPlaces [port]
  uint32_t instructions_at;  // InstructionPlaces [instruction]
  uint32_t receives_at;      // uint16_t: by port, the instructions that receive there, in order
  uint32_t workers_at;       // WorkerPlaces [worker]
  uint32_t lists_at;         // uint16_t: the lists of workers
};

/// How far an end of a connection is with the advertisement of an operation
/// (protocol/advertisement.h).
enum class Advertisement : uint64_t {
  None,     // data go through slots
  Pending,  // who takes: has seen none
  Agreed,   // who advertises: has. Who takes: has taken it
  Refused,  // who takes, by a team: data shall go through slots after all; then None
};

/// Does this end of a connection store to all members of a team, or load from them
/// (PortTask::kTeamEnd)? To or from slots alone, or windows where all ranks have advertised some.
enum class TeamEnd : uint8_t { None, OfSlots, OfWindows };

/// Whether a reduction pulls a connection's exposed data, or reads it (protocol/pull.h).
enum class Pulls : uint32_t {
  None,      // the sender does not serve them
  Possible,  // it would
  Made,      // the worker makes them
};

/// Shared memory: one end of a connection on this CTA's channel, while the operation runs. The step
/// of a use is base + round * steps + use: nothing has to be counted, so that the threads of a
/// worker need not run in step.
struct alignas(16) PortState {
  std::byte* slots;    // of this channel; once this end has taken an advertisement: the memory that
                       // was advertised
  uint64_t base;       // step of the operation's first use
  uint64_t end;        // step after its last
  uint64_t cached;     // ControlBlock::remote when last looked at
  uint64_t completed;  // Simple: slots that the worker has stored, or read
  uint64_t published;  // Simple: `completed` when the peer was last told, for the service warp
  ControlBlock* control;         // of this channel; null: the port is none of this CTA
  ControlBlock* remote_control;  // of this channel
  uint64_t advertisement;  // Advertisement: of who advertises as the CTA has started, else written
                           // by the service warp
  uint64_t detached;       // not 0 once the worker, aborted, uses no memory of others any more
  uint32_t peer;           // rank
  uint32_t other_tag;      // Simple: of the call that the slots which are there belong to
  uint16_t steps;          // in one round
  uint16_t tag;            // of the work
  uint8_t is_send;
  uint8_t stays;          // PortTask::kStays
  uint8_t is_direct_get;  // PortTask::kDirectGet
  uint8_t has_places;     // PortTask::kPlaces
  std::byte* own_slots;   // of this channel, whatever `slots` is
  uint32_t pulls;         // Pulls: of a receiver
  uint32_t delivered;  // pulled tiles that are there, by the service warp; of an exposing sender:
                       // that the worker has stored
  uint32_t published_delivered;  // of an exposing sender: when the peer was last told, for the
                                 // service warp
  uint8_t is_followed;           // PortTask::kFollowed
  uint8_t is_relay;              // PortTask::kRelay
  uint8_t by_team;               // PortTask::kTeam
  TeamEnd team_end;
  // In a launch with places. A receiver: places were made, or will not be, for the steps before it.
  // A sender: chunks of the steps before it may be on their way from their places.
  uint64_t in_places;
};
static_assert(sizeof(PortState) == 128);

/// Shared memory: a stage (stage_ring.cuh), and its content.
struct Stage {
  uint64_t barrier;
  uint32_t at;     // vec16s: where in its block, in the channel's part of it, or in slots
  uint32_t bytes;  // a multiple of 16; the lowest bit: the last of the stages that are announced
                   // together
};

/// The place of the rings of stages: bytes from the start of shared memory.
struct StageArea {
  uint32_t states_at;    // Stage [ring][stages]
  uint32_t stages_at;    // [ring][stages][operand] of stage_bytes
  uint32_t stage_bytes;  // a multiple of 128; 0: there are none
  uint32_t stages;       // of a ring
};

/// Shared memory, of a reduction whose tiles are pulled (pulled_tiles.cuh).
struct PullState {
  uint64_t tile[kMostPulls];  // number of the pulled tile; above it, one more than the pull's
                              // number
  uint64_t end;               // one more than the number of pulls, once it is known
  uint64_t read[kMaxWarps];   // by warp: pulls whose pieces it has all read
  // By operand, in reduction order: the slots of its channel, or, for the own input, the block.
  const std::byte* operands[kMaxReductionOperands];
};

/// CompactInstruction::flags, beside kReduce and kFinish: a receive port of the instruction moves
/// more slots in the operation than its FIFO is deep, or has a proxy at its other end (LL), so that
/// credit has to be given back.
inline constexpr uint8_t kGivesCredit = 0x80;

/// The place of the counters of connections, which decides how kernels of LL look at them. Counters
/// of proxies are in the host's memory, and proxies are told the bytes of each chunk
/// (protocol/relay.h).
enum class Counters : uint8_t { InGpu, InHost, OfProxies };

enum LaunchFlags : uint32_t {
  kScalesInput = 1,      // the reduction scales operands from the input
  kScalesResult = 2,     // the reduction scales the result of instructions with kFinish
  kTakesTurns = 8,       // works take turns on connections (Turn)
  kUnsigned = 4,         // the results that are scaled are unsigned, in a kernel for signed ones
  kBeginsEarly = 32,     // the launch may begin before the kernel before it has ended
                         // (dependent_launch.cuh)
  kCountersInHost = 16,  // PortAddress::in_host of connections: a CTA looks at each by one warp
};

/// A work as the kernel sees it.
struct alignas(16) WorkTask {
  const std::byte* input;
  std::byte* output;
  std::byte* scratch;
  const uint64_t* input_shifts;  // Buffers'
  const uint64_t* output_shifts;
  Partition partition;
  uint16_t tag;
  uint8_t width;         // bytes that all blocks of all buffers are aligned to: 1, 2, 4, 8 or 16
  uint8_t stride_width;  // bytes that blocks are aligned to in a buffer that is; for set_buffers()
  uint8_t can_put;       // 1: peers that see open buffers (kOpens) can store to the output
  uint8_t can_get;       // 1: the same, can read the input
  uint16_t first_pattern_channel;
  uint16_t pattern_channels;
  uint16_t first_step;  // Turn
};
static_assert(sizeof(WorkTask) == 96);

struct alignas(16) LaunchHeader {
  const uint32_t* abort;
  uint64_t* report;
  const std::byte* params;        // in device memory; null: behind the works
  const std::byte* device_scale;  // an element; null: the input's scale is one of the following

  double input_scale;
  double result_scale;
  int64_t input_factor;
  int64_t result_divisor;
  uint64_t elements;  // part of the notes (protocol/relay.h)

  FifoShape shape;
  uint32_t flags;
  uint32_t element_bytes;   // for the byte-moving kernels
  uint32_t result_divider;  // byte_divider() of the divisor
  uint32_t nworks;
  uint32_t nports;
  uint32_t prefetch_block;  // of the first work's input, which every thread reads first; kNoBlock:
                            // unknown

  uint32_t params_at;  // bytes from the start of LaunchArgs::tables
  // Bytes from the start of the parameters, which begins with the ports.
  uint32_t advertised_at;  // AdvertisedBlock [port]; 0: no port advertises
  uint32_t staged_at;      // end of both
  uint32_t params_bytes;
  // Bytes from the start of shared memory, which begins with the parameters from staged_at on.
  uint32_t instructions_at;
  uint32_t workers_at;
  uint32_t uses_at;
  uint32_t warps_at;  // uint8_t [pattern channel][kMaxWarps]: worker of a warp, kServiceWorker or
                      // kNoWorker
  uint32_t notes_at;  // uint64_t* [port]: PortAddress::notes of the work's first FIFO channel; 0:
                      // no port has any, or the protocol is LL (protocol/relay.h)
  uint32_t ports_at;
  uint32_t scale_at;  // a vec8 that begins with the element at device_scale
  uint32_t pointers_at;
  StageArea copy_stages;    // a ring for each worker that has kCopiesStaged
  StageArea reduce_stages;  // a ring for each warp of the worker that has kReducesStaged
  uint32_t pulled_at;       // PullState
  uint32_t pull_bytes;      // Launch::pull_bytes; 0 also where there is no room for it
  uint32_t most_pulls;      // pull::most_of(); a power of two
  uint32_t shared_bytes;

  // The marks of the CTAs (progress.cuh).
  uint32_t marked_ctas;          // that have a span
  observe::KernelStamp* newest;  // null: nobody wants to know
  observe::KernelSpan* spans;    // of this launch
  uint64_t launch;               // Launch::number

  // Set where a launch goes by a team (team_kernel.cuh).
  FifoShape team_shape;
  uint32_t team_peers;      // ranks of the team but this one
  int64_t team_offset;      // bytes from an own slot of the team to the team's address of it
  std::byte* team_windows;  // Launch's
  uint32_t place_at;        // entry of Buffers::input_shifts for the place in windows

  PlacesArea places;  // of a launch with places

  uint64_t* copy_counter;  // ControlBlock::tile_counters[1] of the first port: numbers the dynamic
                           // tiles of the worker that only copies; null: there are no ports
};

struct LaunchArgs {
  LaunchHeader header;
  std::byte
      tables[kParameterBytes - sizeof(LaunchHeader)];  // WorkTask [header.nworks] | parameters
};
static_assert(sizeof(LaunchArgs) == kParameterBytes);
static_assert(offsetof(LaunchArgs, tables) % 16 == 0, "the parameters is read 16 bytes at a time");
static_assert(sizeof(LaunchArgs::tables) >= kMaxWorks * sizeof(WorkTask));

}  // namespace niccolite::executor::cuda
