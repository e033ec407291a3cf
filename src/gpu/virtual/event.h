// Event: a place in a stream's order that others can wait for: the operation that marks its last
// record. All fields are guarded by Runtime's mutex, except that the operation itself may be asked
// by anybody.
#pragma once

#include <memory>
#include <vector>

#include "gpu/virtual/graph.h"
#include "gpu/virtual/operation.h"

namespace niccolite::gpu::virtual_ {

struct Event {
  explicit Event(bool with_timing) : timing(with_timing) {}
  const bool timing;
  OperationPtr recorded;           // null: never recorded, which counts as done
  std::weak_ptr<Capture> capture;  // last recorded there, while captured_after is meant
  std::vector<NodeIndex> captured_after;
  bool is_captured = false;
};

}  // namespace niccolite::gpu::virtual_
