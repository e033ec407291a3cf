// What a call pays for being remembered (docs/design/0006-call-tags.md).
#include <benchmark/benchmark.h>

#include "comm/call_log.h"

namespace niccolite::comm {
namespace {

Call call_of(Collective collective) {
  Call call;
  call.request = {.collective = collective, .count = 1000, .type = executor::DataType::Float32};
  if (call.is_message()) call.peer = 3;
  return call;
}

void add_collective(benchmark::State& state) {
  CallLog log(8);
  const Call call = call_of(Collective::AllReduce);
  for (auto _ : state) log.add({&call, 1}, /*is_captured=*/false);
}
BENCHMARK(add_collective);

void add_message(benchmark::State& state) {
  CallLog log(8);
  const Call call = call_of(Collective::PointToPoint);
  for (auto _ : state) log.add({&call, 1}, /*is_captured=*/false);
}
BENCHMARK(add_message);

}  // namespace
}  // namespace niccolite::comm

BENCHMARK_MAIN();
