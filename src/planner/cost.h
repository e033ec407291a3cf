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
// and transfer hides behind the longer one, but for a third where they are equal; with 0 they add
// up. `crowd` is for channels that hinder each other: those of fixed parts, the slowest of which
// ends the operation (docs/design/0014). The time grows with the size, and is made of operations
// that IEEE 754 rounds in one way, so that all ranks come to the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/machine.h"
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
  const Algorithm* algorithm;
  executor::Protocol protocol;
  Cost cost;
};

/// What a class of machines was measured to do, whatever the algorithm: derived prices are made of
/// it (price.h). Arrays: by protocol. Rates of 0 limit nothing.
struct Properties {
  double fixed = 8;                                 // us: of an operation
  double instruction = 0.2;                         // us
  double end = 0.1;                                 // us: a connection that an instruction has
  double channel = 0.02;                            // us
  double inside[executor::kProtocols] = {2, 2, 4};  // us: a hop inside a machine
  double between = 25;                              // us: a hop between machines
  double link = 0;                                  // GB/s of a rank, inside a machine
  double rail = 0;                                  // GB/s of a rank, between machines
  double wire = 0;                                  // GB/s of a machine, all its rails together
  double engine = 0;                                // GB/s that a rank reads and writes
  double machine_engine = 0;       // GB/s of all ranks of a machine, where they share cores
  double machine_instruction = 0;  // us: of all ranks of a machine, likewise
  double channel_gigabytes[executor::kProtocols] = {8, 18, 35};  // GB/s
  double round = 2;                                              // us
};

/// What has constants of its own.
enum class MachineClass : uint8_t {
  Virtual,
  Cuda,
  // GPUs whose ranks do not all reach each other's users' buffers: of several processes, or with
  // NCCL_P2P_DIRECT_DISABLE (executor/protocol/offer.h). Two have other slots (settings.cc).
  CudaSlotsOfTwo,
  CudaSlots,
  CudaHostMemory,  // GPUs some of which are connected by host memory
  CudaSockets,     // GPUs some of which the network connects
  Sockets,         // the same of virtual GPUs
};
inline constexpr size_t kMachineClasses = 7;
constexpr MachineClass class_of(gpu::Kind machine, bool reaches_users, int nranks) {
  return machine == gpu::Kind::Virtual ? MachineClass::Virtual
         : reaches_users               ? MachineClass::Cuda
         : nranks <= 2                 ? MachineClass::CudaSlotsOfTwo
                                       : MachineClass::CudaSlots;
}

}  // namespace niccolite::planner
