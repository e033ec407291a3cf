// CapturedBuffer: a buffer of a captured operation that all ranks pass at the same place of a
// window (team_buffers.h).
#pragma once

#include <cstdint>
#include <memory>

namespace niccolite::registry {

class Window;

struct CapturedBuffer {
  const void* data = nullptr;
  std::shared_ptr<const Window> window{};
  const uint64_t* shifts = nullptr;      // Windows::shifts_in_graphs()
  std::shared_ptr<const void> keeper{};  // the window ends with it; to be kept with the graph
};

}  // namespace niccolite::registry
