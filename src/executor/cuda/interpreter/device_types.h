// Types of the kernels that say nothing of instructions: what a thread loads and stores at once,
// and the names of barriers. Plain C++.
#pragma once

#include <cstdint>

namespace niccolite::executor::cuda {

/// Named barriers of a CTA.
enum class Barrier : uint32_t {
  Cta = 0,          // all threads
  FirstWorker = 1,  // and 14 more: one for each worker of more than one warp
};
inline constexpr uint32_t kWorkerBarriers = 15;

struct alignas(16) Words {  // two words of the LL protocol
  uint64_t first;
  uint64_t second;
};
struct alignas(16) Vec16 {  // 16 bytes of data
  uint64_t half[2];
};
inline constexpr uint32_t kVec16 = sizeof(Vec16);

}  // namespace niccolite::executor::cuda
