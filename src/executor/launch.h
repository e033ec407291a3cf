// Launch: one rank's share of one operation, ready to run: a program, its data and its connections.
// The planner fills it in; an executor turns it into a kernel (CUDA) or a task (virtual GPU) on a
// stream.
//
// Instruction semantics, the same for all executors. In every round each worker runs its
// instructions in order:
//   1. wait until every receive port has its chunk and every send port has credit (both may be
//      waited for in any order);
//   2. reduce the operands in the program's order into one value per element, in the accumulator's
//      type (float for 16- and 8-bit floating types, else the type itself), rounding once; or copy
//      the bytes of the one operand. Scaling (Reduction in numeric.h) is of operands read from the
//      input and of results with `finish`, copies included;
//   3. store to the target block and/or to the slot of every send port;
//   4. give credit for the received slots and publish the sent ones.
// All operands and destinations of an instruction have the same number of elements in a round: the
// elements of the chunk of block CompactInstruction::chunk_block. An empty chunk is still a step:
// its slots are counted, though nothing is stored (LL then has no flag to wait for, and does not
// wait).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "executor/command.h"
#include "executor/kernel_complaints.h"
#include "executor/list_access.h"
#include "executor/list_schedule.h"
#include "executor/numeric.h"
#include "executor/partition.h"
#include "executor/program.h"
#include "executor/protocol/fifo.h"
#include "lowering/workers.h"
#include "observe/kernel_marks.h"
#include "observe/recorder.h"

namespace niccolite::executor {

/// Words in host memory that both the host and the device may access at any time; owned by the
/// communicator.
struct ControlWords {
  alignas(64) uint32_t abort;   // a Command to all kernels of this communicator
  alignas(64) uint64_t report;  // of a wait that takes long (report.h); 0: nothing to report.
                                // Written by executors, taken by the host's watchdog
  alignas(128)
      KernelComplaints complaints;  // of the user's kernels, which find them behind `abort`
};
static_assert(offsetof(ControlWords, abort) == 0 && offsetof(ControlWords, complaints) == 128);

/// The user's memory of one work, aligned to the element and no more; null where the program has no
/// blocks of it.
struct Buffers {
  const void* input = nullptr;
  void* output = nullptr;     // may equal input
  void* scratch = nullptr;    // scratch_blocks blocks of partition.block_stride elements
  uint64_t input_bytes = 0;   // for finding out whose memory it is; 0: as that at its beginning
  uint64_t output_bytes = 0;  // the same
  // By rank, in device memory: where peers see the buffer (advertisement::seen_by()), and behind
  // the ranks its place in a team's windows (advertisement::place_of()). Null: nowhere
  // but at its own address, those whose PortAddress::opens_buffers says so, if at all.
  const uint64_t* input_shifts = nullptr;
  const uint64_t* output_shifts = nullptr;
};

/// Several messages of a launch may go over one connection and the same FIFO channels. They take
/// their steps one after the other, and wait for no more than the connection's credit: LL and LL128
/// mark each slot, and all messages of a launch together take no more steps than there are slots.
struct Turn {
  uint32_t first_step = 0;   // steps on each channel of the messages before this one
  bool is_followed = false;  // by another; the last one moves the connection's counters

  constexpr bool is_one_of_several() const { return first_step > 0 || is_followed; }
};

/// The data of one operation, or of one message. A worker of the program belongs to one work:
/// replica x of its channel moves the part that the partition gives channel x, over FIFO channel
/// first_channel + x; replicas that the partition does not have do nothing. Where several pattern
/// channels share a work (WorkShape::nchannels: one for each ring), they take turns: only pattern
/// channel WorkShape::first_channel + x % nchannels has replica x.
struct Work {
  Partition partition;
  uint32_t first_channel = 0;
  uint16_t tag = 0;  // of the call; equal on all ranks (protocol/call_tag.h)
  Buffers buffers;
  Turn turn{};
};

/// A launch of one program of one work may have several works: a list, of independent operations
/// that the program carries out one after the other. Work w has list_parts channels, from
/// first_list_channel() on, over which its chunks go in turn, and is behind those before it there;
/// there are at most kMostListWorks. (CUDA: programs of one step by LL, of up to 8 ranks.)
/// With list_access, all ranks reach the buffers: the program only gives the connections, between
/// all ranks in both directions, over which they tell each other where the buffers are. The list's
/// data are cut evenly over its channels; there are at most kMostDirectListWorks. Buffers that some
/// rank does not reach go through slots.
struct Launch {
  std::shared_ptr<const Program>
      program;  // kept alive by the executor until the operation (or its graph) is gone
  Protocol protocol = Protocol::Simple;
  FifoShape shape;         // of all connections of the program but those by a team
  FifoShape team_shape{};  // of these
  int team_ranks = 0;      // that are in the team; 0: no connection is by one
  // The addresses of a team of the same ranks which reaches symmetric windows; null: none does.
  std::byte* team_windows = nullptr;
  std::vector<PortAddress> ports;  // by port number; set_ports() sets them
  std::vector<Work> works;         // by the program's numbers
  DataType type = DataType::Uint8;
  Reduction reduction;
  ControlWords* control = nullptr;              // address for the host
  ControlWords* control_device = nullptr;       // the same for the device
  std::shared_ptr<observe::Recorder> recorder;  // virtual GPUs: hears of begin and end; may be null
  uint64_t number = 0;                          // of this launch, for the recorder
  observe::KernelMarks marks{};                 // CUDA: where kernels tell the same; may be none
  int threads = 0;                              // CUDA: threads of a CTA; 0: the executor's choice
  // CUDA, Simple: reductions pull exposed data in tiles of so many bytes (protocol/pull.h), where
  // they can; 0: they read it. A multiple of 512; equal on all ranks.
  uint32_t pull_bytes = 0;
  uint32_t list_channels = 0;  // 0: it is no list
  uint32_t list_parts = 1;     // channels of each of its works; list_channels is a multiple
  std::optional<ListAccess> list_access{};
  ListOperation list_operation{};  // of list_access: what each work is, as prove_list() proves

  bool is_list() const { return list_channels > 0; }
};

/// Returns the first channel of a work, in a list without list_access.
inline uint32_t first_list_channel(const Launch& launch, size_t work) {
  return static_cast<uint32_t>(work * launch.list_parts % launch.list_channels);
}

/// Copies of its pattern channels that the work with most channels has, each for a share of the
/// data: CTAs side by side. At least 1. Not of a list.
inline uint32_t replicas_of(const Launch& launch) {
  uint64_t replicas = 1;
  for (size_t w = 0; w < launch.works.size(); ++w)
    replicas =
        std::max(replicas, divide_up(launch.works[w].partition.channels,
                                     static_cast<uint64_t>(launch.program->works[w].nchannels)));
  return static_cast<uint32_t>(replicas);
}

/// CTAs of the launch: places that it takes on its GPU.
inline uint32_t ctas_of(const Launch& launch) {
  if (launch.is_list()) return launch.list_channels;
  return replicas_of(launch) * static_cast<uint32_t>(std::max(launch.program->nchannels, 1));
}

/// Works that take turns need a slot for each of their steps, and words that bring their flags.
/// Errors: Internal.
Status check_turn(const Launch& launch, const Work& work);

/// The place of one launch among the launches of its virtual GPU that begin in an order: it begins
/// when the launches before it have begun, or never will.
struct StartOrder {
  std::shared_ptr<const void> place;  // let go when the launch has begun; null: in no order
  std::vector<std::weak_ptr<const void>> before;  // expired: it is not waited for
};

/// CUDA: when a launch may begin, with respect to the work before it on its stream
/// (cuda/interpreter/dependent_launch.cuh).
enum class AfterLast : uint8_t {
  Ended,  // after it
  Early,  // before it has ended, and waits for its end then: it is another launch of a communicator
  Beside,  // the same without a wait: that launch uses other connections
};

/// The part of notes about the launch's elements and channels (protocol/relay.h).
uint64_t elements_of(const Launch& launch);

/// The connections of the launch's program, by port; decides how bytes go over each
/// (PortAddress::way), as both of its ends know. The launch has its program, protocol, shape, type,
/// reduction and works; `ports` are as many as the program's.
void set_ports(Launch& launch, std::vector<PortAddress> ports);

/// The shape of the connection of a port.
inline const FifoShape& shape_of(const Launch& launch, size_t port) {
  return uses_team(launch.ports[port].way) ? launch.team_shape : launch.shape;
}

/// The ways of the ports, in the form that lowering reads.
std::vector<lowering::Route> routes_in(const Launch& launch);

/// Does this end of the connection advertise its user's buffer, which the other end puts to or gets
/// from (protocol/advertisement.h)?
inline bool advertises(const Launch& launch, size_t port) {
  const lowering::Way way = launch.ports[port].way;
  return launch.program->ports[port].is_send ? lowering::is_get(way) : lowering::is_put(way);
}

/// Is this the end of a connection by a team that stores to all its ranks, or loads from them?
inline bool is_end_of_team(const Launch& launch, size_t port) {
  const lowering::Way way = launch.ports[port].way;
  return launch.program->ports[port].is_send ? lowering::is_store_to_team(way)
                                             : lowering::is_load_of_team(way);
}

/// Lowering's plans of the program's workers in this launch.
std::vector<lowering::WorkerPlan> plan_workers(const Launch& launch,
                                               const lowering::Facilities& facilities);

/// Refuses ways and plans of workers that the checker of lowered plans (lowering/check.h) would
/// refuse, whoever made them: executors ask before they run anything. As many ports as the
/// program's. Errors: Internal, naming port or worker.
Status check_plan(const Launch& launch, std::span<const lowering::WorkerPlan> workers,
                  const lowering::Facilities& facilities);

}  // namespace niccolite::executor
