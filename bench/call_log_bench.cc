// Measures the time that it takes to remember a call.
#include <benchmark/benchmark.h>

#include "calls/call_log.h"

namespace niccolite::comm {
namespace {

calls::Call call_of(planner::Collective collective) {
  calls::Call call;
  call.request = {.collective = collective, .count = 1000, .type = executor::DataType::Float32};
  if (call.is_message()) call.peer = 3;
  return call;
}

void add_collective(benchmark::State& state) {
  calls::CallLog log(8);
  const calls::Call call = call_of(planner::Collective::AllReduce);
  for (auto _ : state) {
    log.before_launch_on(7);
    log.add({&call, 1}, /*is_captured=*/false);
  }
}
BENCHMARK(add_collective);

void add_message(benchmark::State& state) {
  calls::CallLog log(8);
  const calls::Call call = call_of(planner::Collective::PointToPoint);
  for (auto _ : state) {
    log.before_launch_on(7);
    log.add({&call, 1}, /*is_captured=*/false);
  }
}
BENCHMARK(add_message);

// What a virtual GPU adds to that when it begins and ends the operation.
void begin_and_end(benchmark::State& state) {
  observe::Recorder recorder;
  uint64_t launch = 0;
  for (auto _ : state) {
    recorder.begin(++launch);
    recorder.end(launch);
  }
}
BENCHMARK(begin_and_end);

}  // namespace
}  // namespace niccolite::comm

BENCHMARK_MAIN();
