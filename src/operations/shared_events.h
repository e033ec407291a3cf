// Events that graphs may share with a communicator. The last holder may be a graph, whose end comes
// on a thread that must not call the GPU: so an event is never destroyed, but goes to the next
// communicator of the device. Thread safety: any thread.
#pragma once

#include <memory>

#include "gpu/graphs.h"

namespace niccolite::operations {

/// An event without timing of `device`.
Result<std::shared_ptr<gpu::Event>> take_shared_event(gpu::Streams& machine, int device);

/// Makes the graph into which `stream` captures, and all that is made of the graph, hold `event`.
Status keep_in_graph(gpu::Graphs& machine, int device, gpu::StreamHandle stream,
                     const std::shared_ptr<gpu::Event>& event);

}  // namespace niccolite::operations
