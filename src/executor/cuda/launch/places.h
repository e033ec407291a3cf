// The chunks of a launch that need no slots at connections to other machines
// (protocol/user_memory.h), as kernels read of them (interpreter/places.cuh). Pure, apart from what
// the network reaches.
#pragma once

#include <optional>
#include <vector>

#include "executor/cuda/launch/launch_args.h"
#include "executor/launch.h"

namespace niccolite::executor::cuda {

struct Places {
  std::vector<PortPlaces> ports;                // by port
  std::vector<InstructionPlaces> instructions;  // by instruction
  std::vector<uint16_t> receives;               // see PlacesArea
  std::vector<WorkerPlaces> workers;            // by worker
  std::vector<uint16_t> lists;                  // of workers
  bool operator==(const Places&) const = default;
};

/// May the launch have places, with some buffers?
bool may_have_places(const Launch& launch);
/// Returns the places in the launch's buffers. Nothing: all chunks go through slots.
std::optional<Places> find_places(const Launch& launch);

}  // namespace niccolite::executor::cuda
