#include "tests/device/checker.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "executor/report.h"

namespace niccolite::device_test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint8_t kPoison = 0xcd;
constexpr size_t kGuardBytes = 256;

Deadline deadline() { return Deadline::after(std::chrono::milliseconds(10'000)); }

// Where a rank's buffers begin, and how far they reach, in the memory of GpuRanks.
struct Place {
  std::byte* input;
  std::byte* output;
  size_t input_bytes;
  size_t output_bytes;
  size_t output_offset;  // in the memory that is compared
};
Place place_of(const Operation& operation, GpuRanks& ranks, int rank) {
  const size_t element = size_of(operation.type);
  const size_t start = kGuardBytes + operation.misalignment * element;
  const Offsets shared = operation.in_place ? in_place_offsets(operation, rank) : Offsets{};
  std::byte* input = operation.in_place ? ranks.output(rank) : ranks.input(rank);
  const size_t output_offset = start + shared.output * element;
  return {input + start + shared.input * element, ranks.output(rank) + output_offset,
          input_count(operation, rank) * element, output_count(operation, rank) * element,
          output_offset};
}

size_t buffer_bytes_of(const Operation& operation) {
  uint64_t most = 1;
  for (int rank = 0; rank < operation.nranks; ++rank) {
    most = std::max({most, input_count(operation, rank), output_count(operation, rank)});
  }
  return 2 * kGuardBytes + (most + operation.misalignment) * size_of(operation.type);
}

// `around`: the whole buffer, but for the output.
Status compare(const Operation& operation, const std::vector<std::byte>& got, size_t offset,
               const std::vector<std::byte>& expected, const std::vector<std::byte>& around) {
  const std::string text = difference(operation, got.data() + offset, expected);
  if (!text.empty()) return Status::internal("{}", text);
  for (size_t b = 0; b < got.size(); ++b) {
    const bool is_output = b >= offset && b < offset + expected.size();
    if (!is_output && got[b] != around[b]) {
      return Status::internal("byte {} was written outside of the output", b);
    }
  }
  return {};
}

}  // namespace

void Checker::begin(const char* group) {
  group_ = group;
  start_ = Clock::now();
  passed_before_ = passed_;
  failed_before_ = failed_;
}

void Checker::end() {
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  fmt::print("{:<44} {:>5} passed {:>3} failed  {:6.1f} s\n", group_, passed_ - passed_before_,
             failed_ - failed_before_, seconds);
  std::fflush(stdout);
}

void Checker::check(const Operation& operation, Mode mode, Inputs inputs, int times) {
  count(run(operation, mode, inputs, times), operation, mode);
}

void Checker::check_mismatch(const Operation& operation) {
  count(run_mismatch(operation), operation, Mode::Stream);
}

void Checker::check_abort(const Operation& operation) {
  count(run_abort(operation), operation, Mode::Stream);
}

void Checker::check_abort_midway(const Operation& operation, std::chrono::microseconds after) {
  count(run_abort_midway(operation, after), operation, Mode::Stream);
}

void Checker::count(const Status& status, const Operation& operation, Mode mode) {
  if (status.is_ok()) {
    ++passed_;
    return;
  }
  ++failed_;
  fmt::print("FAILED {} ({}): {}\n", describe(operation), mode == Mode::Graph ? "graph" : "stream",
             status.message());
  std::fflush(stdout);
}

Status Checker::run(const Operation& operation, Mode mode, Inputs kind, int times) {
  const size_t buffer_bytes = buffer_bytes_of(operation);
  Programs programs = TRY(compile_all(operation));
  GpuRanks ranks =
      TRY(GpuRanks::create(machine_, ngpus_, operation, std::move(programs), buffer_bytes));

  std::vector<std::vector<std::byte>> inputs;
  std::vector<Place> places;
  std::vector<executor::cuda::PreparedLaunch> launches;
  for (int r = 0; r < ranks.nranks(); ++r) {
    inputs.push_back(kind == Inputs::Rough ? rough_input_of(operation, r) : input_of(operation, r));
    places.push_back(place_of(operation, ranks, r));
    launches.push_back(TRY(ranks.prepare(r, operation, places.back().input, places.back().output)));
  }
  std::vector<gpu::Graph> graphs;
  if (mode == Mode::Graph) {
    for (int r = 0; r < ranks.nranks(); ++r) {
      TRY(machine_.begin_capture(ranks.device(r), ranks.stream(r)));
      TRY(launches[static_cast<size_t>(r)].launch(ranks.stream(r)));
      graphs.push_back(TRY(machine_.end_capture(ranks.device(r), ranks.stream(r))));
    }
  }

  std::vector<std::byte> got(buffer_bytes);
  for (int time = 0; time < times; ++time) {
    for (int r = 0; r < ranks.nranks(); ++r) {
      const auto i = static_cast<size_t>(r);
      const int device = ranks.device(r);
      TRY(machine_.set_async(ranks.output(r), kPoison, buffer_bytes, device, ranks.stream(r)));
      if (places[i].input_bytes == 0) continue;
      TRY(machine_.copy_async(places[i].input, inputs[i].data(), places[i].input_bytes, device,
                              ranks.stream(r)));
    }
    TRY(ranks.finish(deadline()));
    for (int r = 0; r < ranks.nranks(); ++r) {
      const auto i = static_cast<size_t>(r);
      if (mode == Mode::Graph) {
        TRY(machine_.launch_graph(graphs[i], ranks.device(r), ranks.stream(r)));
      } else {
        TRY(launches[i].launch(ranks.stream(r)));
      }
    }
    TRY(ranks.finish(deadline()));
    if (ranks.report() != 0) return Status::internal("a report of {:#x}", ranks.report());
    for (int r = 0; r < ranks.nranks(); ++r) {
      const auto i = static_cast<size_t>(r);
      TRY(machine_.copy_async(got.data(), ranks.output(r), buffer_bytes, ranks.device(r),
                              ranks.stream(r)));
      TRY(ranks.finish(deadline()));
      // In place, what the rank keeps of its input stands around its output.
      std::vector<std::byte> expected(buffer_bytes, std::byte{kPoison});
      if (operation.in_place && places[i].input_bytes != 0) {
        std::copy(inputs[i].begin(), inputs[i].end(),
                  expected.begin() + (places[i].input - ranks.output(r)));
      }
      TRY(compare(operation, got, places[i].output_offset, expected_output(operation, inputs, r),
                  expected)
              .with_context("time {}, rank {}", time, r));
    }
  }
  return {};
}

Status Checker::run_mismatch(const Operation& operation) {
  Programs programs = TRY(compile_all(operation));
  GpuRanks ranks = TRY(GpuRanks::create(machine_, ngpus_, operation, std::move(programs),
                                        buffer_bytes_of(operation)));
  for (int r = 0; r < ranks.nranks(); ++r) {
    Operation call = operation;
    if (r == 0) call.tag = static_cast<uint16_t>(operation.tag ^ 0x5555);
    executor::cuda::PreparedLaunch launch =
        TRY(ranks.prepare(r, call, ranks.input(r), ranks.output(r)));
    TRY(launch.launch(ranks.stream(r)));
  }
  const Deadline patience = Deadline::after(std::chrono::milliseconds(500));
  while (ranks.report() == 0 && !patience.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const executor::Report report = executor::decode_report(ranks.report());
  ranks.abort();
  TRY(ranks.finish(deadline()));
  if (report.kind != executor::ReportKind::Mismatch) {
    return Status::internal("the report is of kind {}", static_cast<int>(report.kind));
  }
  if (report.own_tag == report.peer_tag) return Status::internal("the report names one call");
  return {};
}

Status Checker::run_abort(const Operation& operation) {
  Programs programs = TRY(compile_all(operation));
  GpuRanks ranks = TRY(GpuRanks::create(machine_, ngpus_, operation, std::move(programs),
                                        buffer_bytes_of(operation)));
  for (int r = 1; r < ranks.nranks(); ++r) {
    executor::cuda::PreparedLaunch launch =
        TRY(ranks.prepare(r, operation, ranks.input(r), ranks.output(r)));
    TRY(launch.launch(ranks.stream(r)));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (int r = 1; r < ranks.nranks(); ++r)
    if (TRY(machine_.query_stream(ranks.device(r), ranks.stream(r))))
      return Status::internal("rank {} ended without rank 0", r);
  return ranks.abort_and_wait(deadline()).with_context("after the abort");
}

Status Checker::run_abort_midway(const Operation& operation, std::chrono::microseconds after) {
  const size_t bytes = buffer_bytes_of(operation);
  Programs programs = TRY(compile_all(operation));
  GpuRanks ranks = TRY(GpuRanks::create(machine_, ngpus_, operation, std::move(programs), bytes));
  std::vector<executor::cuda::PreparedLaunch> launches;
  for (int r = 0; r < ranks.nranks(); ++r) {
    const Place place = place_of(operation, ranks, r);
    launches.push_back(TRY(ranks.prepare(r, operation, place.input, place.output)));
  }
  for (int r = 0; r < ranks.nranks(); ++r)
    TRY(launches[static_cast<size_t>(r)].launch(ranks.stream(r)));
  const auto end = Clock::now() + after;
  while (Clock::now() < end) continue;  // sleeps are too coarse
  TRY(ranks.abort_and_wait(deadline()).with_context("after the abort"));
  // Each rank's kernel has ended: its user may do with the buffers what he likes.
  for (int r = 0; r < ranks.nranks(); ++r)
    for (std::byte* buffer : {ranks.input(r), ranks.output(r)})
      TRY(machine_.set_async(buffer, kPoison, bytes, ranks.device(r), ranks.stream(r)));
  TRY(ranks.finish(deadline()));
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  std::vector<std::byte> got(bytes);
  for (int r = 0; r < ranks.nranks(); ++r)
    for (const std::byte* buffer : {ranks.input(r), ranks.output(r)}) {
      TRY(machine_.copy_async(got.data(), buffer, bytes, ranks.device(r), ranks.stream(r)));
      TRY(ranks.finish(deadline()));
      if (std::ranges::any_of(got, [](std::byte b) { return b != std::byte{kPoison}; }))
        return Status::internal("a buffer of rank {} was written to after the abort", r);
    }
  return {};
}

}  // namespace niccolite::device_test
