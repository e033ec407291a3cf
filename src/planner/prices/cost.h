// Cost: the constants of the cost model, measured by `niccolite tune` for one algorithm of one
// collective over one protocol on one class of machine (tuning.h).
//
//   latency  = fixed + steps * step + channels * channel
//   filling  = 1 + fill * chunk / bytes of a channel
//   link     = bytes that the busiest rank sends / link GB/s * (1 + crowd * channels) * filling
//   channel  = bytes that a channel of it sends / channel GB/s * filling + further rounds * round
//   transfer = (link^4 + channel^4)^(1/4)
//   time     = latency + transfer - overlap * latency * transfer / (latency + transfer)
//
// A round is one pass over a chunk of each block, also if only a byte is left for it; with `fill`
// more of them the last rank of a pipeline has its data. With `overlap` 1 the shorter of latency
// and transfer hides behind the longer one, except for a third where they are equal; with 0 they
// add up. `crowd` is for channels that hinder each other: channels with fixed parts, the slowest of
// which ends the operation. The time grows with the size. Its operations are
// rounded in one way by IEEE 754, so that all ranks get the same time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/devices.h"
#include "planner/variant.h"

namespace niccolite::planner {

struct Cost {
  double fixed;              // us
  double step;               // us
  double channel;            // us
  double link_two_ranks;     // GB/s
  double link_more_ranks;    // GB/s; where ranks share cores, of all of them together
  double channel_gigabytes;  // GB/s
  double round;              // us
  double fill;               // chunks
  double overlap;            // 0 to 1
  double crowd = 0;          // for each channel
};

struct CostLine {
  const Form* form;
  executor::Protocol protocol;
  Cost cost;
};

/// The performance of a class of machines by one protocol, whatever the algorithm: derived prices
/// are made of it (price.h). Rates are GB/s, and a rate of 0 limits nothing. A channel's rate
/// counts all bytes that the channel reads and writes, other rates count sent bytes.
struct Properties {
  // Microseconds:
  double fixed = 8;              // of an operation
  double instruction = 0.2;      // of the longest chain
  double end = 0.1;              // a connection that an instruction of that chain has
  double slot_hop = 2;           // a chunk's way to another rank: through a slot,
  double put_hop = 2;            // put to its buffer,
  double get_hop = 2;            // got from there,
  double between_hop = 25;       // and to a rank of another machine
  double message = 0;            // a rank's further message to or from another machine
  double work = 0;               // an instruction of the rank that has most
  double machine_work = 0;       // and channel: of all ranks of a machine, where they share cores
  double channel = 0.02;         // a channel
  double round = 2;              // a further round
  double round_instruction = 0;  // of it, each instruction of a worker that has slots
  // GB/s:
  double link_two_ranks = 0;   // of a rank, inside a machine
  double link_more_ranks = 0;  // of one of more than two ranks
  double rail = 0;             // of a rank, between machines
  double wire = 0;             // of a machine, all its rails together
  double engine = 0;           // that a rank reads and writes
  double machine_engine = 0;   // that all ranks of a machine do, where they share cores
  double slot_copy = 30;       // of a channel: for copies and reductions, with slots or direct
  double slot_reduction = 30;
  double direct_copy = 60;
  double direct_reduction = 60;
  // Parts:
  double fill = 1;           // of a chunk's transfer, for each hop
  double direct_fill = 1;    // of that, where the hop is a put or a get
  double overlap = 0;        // of latency and transfer, as Cost has it
  double team = 0;           // of a rank's link, each way, for what a switch multicasts or reduces;
                             // 0: unknown, and only NCCL_ALGO has data go so
  double crowd = 0;          // for each channel, of workers with fixed tiles,
  double dynamic_crowd = 0;  // and with dynamic ones
  double spread = 0;         // that a channel is faster by for each worker more than one
};

/// A class of machines with constants of its own.
enum class MachineClass : uint8_t {
  Virtual,
  Cuda,
  // GPUs whose ranks do not all reach each other's users' buffers: of several processes, or with
  // NCCL_P2P_DIRECT_DISABLE (executor/protocol/advertisement.h). Two have other slots
  // (settings.cc).
  CudaSlotsOfTwo,
  CudaSlots,
  CudaHostMemory,  // GPUs, some connected by host memory
  CudaSockets,     // GPUs, some connected by the network
  Sockets,         // virtual GPUs, some connected by the network
};
inline constexpr size_t kMachineClasses = 7;
constexpr MachineClass class_of(gpu::Kind machine, bool reaches_users, int nranks) {
  return machine == gpu::Kind::Virtual ? MachineClass::Virtual
         : reaches_users               ? MachineClass::Cuda
         : nranks <= 2                 ? MachineClass::CudaSlotsOfTwo
                                       : MachineClass::CudaSlots;
}

}  // namespace niccolite::planner
