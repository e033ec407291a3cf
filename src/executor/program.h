// Program: one rank's part of a schedule in the compact form that executors run. Flat arrays of
// small integers, no pointers, trivially copyable to a GPU; the host executor and the CUDA kernel
// read the same bytes.
//
//   workers[l]         instructions [first, first + count) of `instructions`, one list per
//                      (channel, worker)
//   instructions[i]    receives `indices[receive, receive + receive_count)`,
//                      sends `indices[send, send + send_count)`
//   indices[]          numbers of *ports*: this rank's ends of connections
//   ports[p]           one end of one connection: direction, peer, tag, pattern channel
//
// Used by executors, planner and transport. Thread safety: immutable once compiled.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lowering/phases.h"
#include "lowering/routes.h"
#include "lowering/workers.h"
#include "schedule/schedule.h"

namespace niccolite::executor {

enum class OperandBuffer : uint8_t { None, Input, Output, Scratch };

struct CompactInstruction {
  uint16_t receive;  // first index of the receive ports in `indices`, in reduction order
  uint16_t send;     // first index of the send ports in `indices`
  uint8_t receive_count;
  uint8_t send_count;
  uint8_t source_position;  // place of the local operand in the reduction order
  uint8_t flags;            // kReduce | kFinish
  OperandBuffer source;
  OperandBuffer target;
  uint16_t source_block;
  uint16_t target_block;
  uint16_t chunk_block;  // the block whose chunk is moved: gives the number of elements
};
static_assert(sizeof(CompactInstruction) == 16);

inline constexpr uint8_t kReduce = 1;
inline constexpr uint8_t kFinish = 2;

struct CompactWorker {
  uint16_t first;
  uint16_t count;
  uint16_t channel;  // pattern channel
  uint8_t weight;
  uint8_t work;  // of Launch::works: whose data the worker moves
};
static_assert(sizeof(CompactWorker) == 8);

/// One end of a connection at this rank.
struct Port {
  int peer;
  int tag;
  int channel;  // pattern channel
  bool is_send;
  int steps;  // slots this port moves in one round: how often the worker's list names it
  int work;   // of its worker
  lowering::Route route{};  // known at both ends (protocol/advertisement.h)
};

/// The needs that one work of a program has of its buffers.
struct WorkShape {
  int nblocks = 0;        // into which the partition cuts, or which it finds side by side
  int input_blocks = 0;   // 0: no input buffer
  int output_blocks = 0;  // 0: no output buffer
  int scratch_blocks = 0;
  bool has_strides = false;  // some rank's buffers have several blocks, side by side
  int first_channel = 0;  // pattern channels that share the work's data: one for a message; for a
  int nchannels = 1;      // collective one for each ring
};

struct Program {
  int rank = 0;
  int nranks = 0;
  int nchannels = 0;             // pattern channels
  std::vector<WorkShape> works;  // one, but for messages (one each) and for joined programs
  std::vector<CompactWorker> workers;
  std::vector<CompactInstruction> instructions;
  std::vector<uint16_t> indices;
  std::vector<Port> ports;
  /// By worker: the shapes for lowering, with ports in the place of connections.
  std::vector<lowering::WorkerShape> worker_shapes;
  /// By work: its phases, if its workers have the form for them (lowering/phases.h). In the
  /// place of connections they have ports; the one block of a message is block 0.
  std::vector<std::optional<lowering::Phases>> phases;

  /// Null: the work has none.
  const lowering::Phases* phases_of(size_t work) const {
    return work < phases.size() && phases[work] ? &*phases[work] : nullptr;
  }
};

inline constexpr int kMaxWorks = 32;                  // of one program
inline constexpr int kMostInstructions = UINT16_MAX;  // that fit whatever their workers are
inline constexpr size_t kMostListWorks = 448;         // of a list (executor::Launch::is_list())
inline constexpr size_t kMostDirectListWorks = 256;   // of one with Launch::list_access
inline constexpr int kMaxWorkers = 254;               // of one program that a GPU runs

/// Compiles `rank`'s part. Each message of a PointToPoint schedule becomes a work of its own, the
/// sends first, then the receives, both in the order of their blocks, with block 0 of its buffer
/// for every block; a message to oneself is one work with both buffers, among the sends.
/// InvalidUsage when the schedule exceeds a field's range (e.g. an instruction with over 255
/// receives) or kMaxWorks. `routes` belong to the whole schedule (lowering::routes_of());
/// `schedule` may be the part of `rank` alone.
Result<Program> compile(const schedule::Schedule& schedule, int rank,
                        const lowering::Routes& routes);
/// Compiles `rank`'s part of a whole schedule, or of messages that are all of one kind.
Result<Program> compile(const schedule::Schedule& schedule, int rank);

/// Several programs of one rank as one: their works, workers, channels and ports one after the
/// other. Their operations run side by side, so that each must have FIFO channels of its own
/// (Work::first_channel). InvalidUsage when a field's range or kMaxWorks is exceeded.
Result<Program> join(const std::vector<const Program*>& programs);

/// Several programs of one rank's messages as one: their works and workers one after the other, in
/// the same pattern channels. Ports of different programs may be ends of one connection, whose
/// works then take turns (Work::turn). InvalidUsage as above.
Result<Program> join_messages(const std::vector<const Program*>& programs);

}  // namespace niccolite::executor
