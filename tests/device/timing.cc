#include "tests/device/timing.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace niccolite::device_test {

using executor::cuda::PreparedLaunch;

Result<Timing> Bench::run(double milliseconds, bool use_graph) {
  // A first, short run warms up and tells how many fit.
  const double guess = TRY(run_rounds(2, use_graph));
  const double per_round = guess * kOperations / 1000;
  const auto rounds = static_cast<int>(std::clamp(milliseconds / per_round, 2.0, 200.0));
  std::vector<double> times;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const double microseconds = TRY(run_rounds(rounds, use_graph));
    times.push_back(microseconds);
  }
  std::sort(times.begin(), times.end());
  return Timing{times[times.size() / 2]};
}

Result<double> Bench::run_rounds(int rounds, bool use_graph) {
  const int nranks = ranks_.nranks();
  std::barrier meeting(nranks);
  std::vector<Status> results(static_cast<size_t>(nranks));
  std::vector<float> times(static_cast<size_t>(nranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < nranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto r = static_cast<size_t>(rank);
      results[r] = run_rank(rank, rounds, use_graph, meeting, times[r]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Status& result : results) TRY(std::move(result));
  const float slowest = *std::max_element(times.begin(), times.end());
  return double{slowest} * 1000 / rounds / kOperations;
}

Status Bench::run_rank(int rank, int rounds, bool use_graph, std::barrier<>& meeting, float& time) {
  const int device = ranks_.device(rank);
  const gpu::StreamHandle stream = ranks_.stream(rank);
  PreparedLaunch& launch = launches_[static_cast<size_t>(rank)];
  const auto queue = [&]() -> Status {
    for (int i = 0; i < kOperations; ++i) TRY(launch.launch(stream));
    return {};
  };
  gpu::Graph graph;
  gpu::Event start;
  gpu::Event stop;
  const auto prepare = [&]() -> Status {
    start = TRY(machine_.create_event(device, /*timing=*/true));
    stop = TRY(machine_.create_event(device, /*timing=*/true));
    if (!use_graph) return {};
    TRY(machine_.begin_capture(device, stream));
    TRY(queue());
    graph = TRY(machine_.end_capture(device, stream));
    return {};
  };
  Status prepared = prepare();
  meeting.arrive_and_wait();  // whatever came of it: the others wait here
  TRY(std::move(prepared));
  const auto once = [&]() -> Status {
    return use_graph ? machine_.launch_graph(graph, device, stream) : queue();
  };
  TRY(once());  // the ranks meet on the GPUs: they start the timed part together
  TRY(machine_.record_event(start, device, stream));
  for (int i = 0; i < rounds; ++i) TRY(once());
  TRY(machine_.record_event(stop, device, stream));
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(20'000));
  while (!TRY(machine_.query_stream(device, stream))) {
    if (deadline.passed()) {
      ranks_.abort();
      return Status::remote_error("rank {} did not end in 20 s", rank);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  time = TRY(machine_.elapsed_milliseconds(start, stop));
  return {};
}

}  // namespace niccolite::device_test
