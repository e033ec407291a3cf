// What is known from the marks of kernels, and when that was by the clock of the host.
#include "observe/kernel_marks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "observe/gpu_clock.h"
#include "observe/recorder.h"
#include "tests/observe/marked_kernels.h"

namespace niccolite::observe {
namespace {

TEST(KernelMarks, TellWhatRunsUntilTheLastCtaHasEnded) {
  MarkedKernels kernels;
  const KernelMarks& marks = kernels.marks();
  EXPECT_EQ(marks.progress().begun, 0u);
  EXPECT_FALSE(marks.progress().is_running);
  for (uint64_t replay = 0; replay < 2; ++replay) {
    const uint64_t now = 1000 * (replay + 1);
    kernels.begin(7, now, 0);
    kernels.begin(7, now + 1, 5);
    EXPECT_EQ(marks.progress().begun, 7u);
    EXPECT_TRUE(marks.progress().is_running);
    kernels.end(7, now + 2, 0);
    EXPECT_TRUE(marks.progress().is_running) << "CTA 5 has not ended";
    kernels.end(7, now + 2, 5);
    EXPECT_FALSE(marks.progress().is_running);
    EXPECT_EQ(marks.progress().begun, 7u);
  }
  kernels.begin(8, 3000);
  EXPECT_EQ(marks.progress().begun, 8u);
  EXPECT_EQ(marks.last().time, 3000u);
}

TEST(KernelMarks, KnowWhetherAllCtasHaveBegun) {
  MarkedKernels kernels;
  const KernelMarks& marks = kernels.marks();
  EXPECT_FALSE(marks.have_all_begun(7, 2));
  kernels.begin(7, 1000, 0);
  EXPECT_FALSE(marks.have_all_begun(7, 2)) << "CTA 1 has no place yet";
  kernels.end(7, 1001, 0);
  EXPECT_FALSE(marks.progress().is_running);
  EXPECT_FALSE(marks.have_all_begun(7, 2)) << "nothing runs, and CTA 1 is still to come";
  kernels.begin(7, 1002, 1);
  EXPECT_TRUE(marks.have_all_begun(7, 2));
  // A narrower one: the other CTAs keep what they have marked.
  kernels.begin(8, 2000, 0);
  EXPECT_TRUE(marks.have_all_begun(8, 1));
  EXPECT_FALSE(marks.have_all_begun(8, 2));
}

TEST(KernelMarks, TellNothingOfLaunchesThatHaveMoreCtas) {
  MarkedKernels kernels;
  for (uint32_t cta = 0; cta < kMarkedCtas; ++cta) kernels.begin(7, 1000, cta);
  EXPECT_TRUE(kernels.marks().have_all_begun(7, kMarkedCtas));
  EXPECT_FALSE(kernels.marks().have_all_begun(7, kMarkedCtas + 1));
}

// A GPU's clock that runs fast, and starts anywhere.
TEST(GpuClock, PlacesTimesBetweenTheLaunchAndTheLook) {
  const Clock clock;
  const double ticks_per_ns = clock.ticks_per_nanosecond();
  constexpr double kFast = 1 + 20e-6;
  constexpr uint64_t kStart = uint64_t{1} << 60;
  const uint64_t start = ticks();
  const auto ticks_at = [&](double ns) { return start + static_cast<uint64_t>(ns * ticks_per_ns); };
  const auto gpu_at = [&](double ns) { return kStart + static_cast<uint64_t>(ns * kFast); };
  GpuClock gpu;
  EXPECT_FALSE(gpu.ticks_of(kStart, clock).has_value());
  constexpr double kMillisecond = 1e6;
  // An operation every ten milliseconds that begins 5 us after its launch, but for some that wait
  // long behind other work; looks come now and then.
  for (int i = 0; i < 1000; ++i) {
    const double launched = i * 10 * kMillisecond;
    const double begun = launched + (i % 3 == 0 ? 5'000.0 : 4 * kMillisecond);
    gpu.came_after(ticks_at(launched), gpu_at(begun), clock);
    if (i % 5 == 0) gpu.came_before(ticks_at(begun + 0.5 * kMillisecond), gpu_at(begun), clock);
    if (i < 10) continue;
    const std::optional<uint64_t> found = gpu.ticks_of(gpu_at(begun), clock);
    ASSERT_TRUE(found.has_value());
    const double error =
        static_cast<double>(static_cast<int64_t>(*found - ticks_at(begun))) / ticks_per_ns;
    EXPECT_LT(std::abs(error), 10'000.0) << "operation " << i;
    EXPECT_LT(gpu.uncertainty(clock), 1'000'000u);
  }
}

// All launches wait behind other work: then the looks bound the times.
TEST(GpuClock, TakesNoLaunchThatWaitedForTheTruth) {
  const Clock clock;
  const double ticks_per_ns = clock.ticks_per_nanosecond();
  const uint64_t start = ticks();
  const auto ticks_at = [&](double ns) { return start + static_cast<uint64_t>(ns * ticks_per_ns); };
  GpuClock gpu;
  gpu.came_after(ticks_at(0), 20'000'000, clock);            // 20 ms late
  gpu.came_before(ticks_at(20'100'000), 20'000'000, clock);  // seen 0.1 ms later
  const std::optional<uint64_t> found = gpu.ticks_of(20'000'000, clock);
  ASSERT_TRUE(found.has_value());
  EXPECT_LE(*found, ticks_at(20'100'000));
  EXPECT_GE(gpu.uncertainty(clock), 20'000'000u) << "it might have begun at once, too";
}

TEST(Recorder, HasWhatKernelsMarkedBetweenTheCallsOfTheHost) {
  MarkedKernels kernels;
  Recorder recorder;
  recorder.read_marks(kernels.marks());
  constexpr uint64_t kGpuTime = 123'456'789;
  for (uint64_t launch = 1; launch <= 3; ++launch) {
    Event called;
    called.time = ticks();
    called.launch = called.number = launch;
    called.kind = EventKind::Called;
    recorder.add_call(launch - 1, launch - 1, called);
    // As on a GPU that begins at once.
    kernels.begin(launch, kGpuTime + launch * 1'000'000'000);
    if (launch < 3) kernels.end(launch, kGpuTime + launch * 1'000'000'000 + 1000);
  }
  recorder.look();
  EXPECT_EQ(recorder.progress().begun, 3u);
  EXPECT_TRUE(recorder.progress().is_running);
  size_t begun = 0, ended = 0;
  for (const Event& event : recorder.events()) {
    begun += event.kind == EventKind::Begun ? 1 : 0;
    ended += event.kind == EventKind::Ended ? 1 : 0;
  }
  EXPECT_EQ(begun, 3u);
  EXPECT_EQ(ended, 2u);
}

// Operations that end at once, and nobody who looks meanwhile or soon after: the launches bound the
// GPU's clock from above.
TEST(Recorder, ComparesClocksAsLaunchesComeAfterMarks) {
  MarkedKernels kernels;
  Recorder recorder;
  recorder.read_marks(kernels.marks());
  recorder.look();
  const auto start = std::chrono::steady_clock::now();
  const auto gpu_time = [&] {
    return 1'000'000'000'000 + static_cast<uint64_t>((std::chrono::steady_clock::now() - start) /
                                                     std::chrono::nanoseconds(1));
  };
  for (uint64_t launch = 1; launch <= 50; ++launch) {
    recorder.before_launch(ticks());
    Event called;
    called.time = ticks();
    called.launch = called.number = launch;
    called.kind = EventKind::Called;
    recorder.add_call(launch - 1, launch - 1, called);
    kernels.begin(launch, gpu_time());
    kernels.end(launch, gpu_time());
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  constexpr std::chrono::milliseconds kNobodyLooks{100};
  std::this_thread::sleep_for(kNobodyLooks);
  recorder.look();
  recorder.events();
  EXPECT_LT(recorder.uncertainty(), kNobodyLooks / std::chrono::nanoseconds(2));
}

}  // namespace
}  // namespace niccolite::observe
