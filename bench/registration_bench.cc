// What ncclCommRegister and ncclCommDeregister cost inside the library, with as many other ranges
// registered as an allocator has segments: on CUDA where there is a GPU, else on a virtual one.
//   registration_bench
#include <benchmark/benchmark.h>

#include <vector>

#include "gpu/machine.h"
#include "registry/registrations.h"

namespace niccolite::registry {
namespace {

constexpr size_t kSegmentBytes = size_t{2} << 20;

void add_and_remove(benchmark::State& state, bool shareable) {
  Result<gpu::Machine*> machine = gpu::machine();
  if (!machine.is_ok()) {
    state.SkipWithError(machine.status().message().c_str());
    return;
  }
  Registrations registrations(*machine.value());
  std::vector<gpu::Memory> segments;
  for (int64_t i = 0; i < state.range(0); ++i) {
    Result<gpu::Memory> segment = shareable ? machine.value()->allocate(0, kSegmentBytes, true)
                                            : machine.value()->allocate_as_user(0, kSegmentBytes);
    if (!segment.is_ok()) {
      state.SkipWithError(segment.status().message().c_str());
      return;
    }
    segments.push_back(std::move(segment).take());
    if (i > 0)
      registrations.add(segments.back().data(), kSegmentBytes).ignore("the rest is measured");
  }
  for (auto _ : state) {
    Result<void*> handle = registrations.add(segments.front().data(), kSegmentBytes);
    if (!handle.is_ok() || !registrations.remove(handle.value()).is_ok())
      state.SkipWithError("a registration failed");
  }
}
BENCHMARK_CAPTURE(add_and_remove, plain, false)->Arg(1)->Arg(1000);
BENCHMARK_CAPTURE(add_and_remove, shareable, true)->Arg(1)->Arg(256);

}  // namespace
}  // namespace niccolite::registry

BENCHMARK_MAIN();
