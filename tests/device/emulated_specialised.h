// Operations on the emulated GPU of which some ranks run kernels of their own, and others the
// interpreter: they have to leave the same behind: data, counters, flags.
#pragma once

#include <gtest/gtest.h>

#include <deque>

#include "planner/form.h"
#include "tests/device/emulated_gpu.h"
#include "tests/executor/host/cluster.h"
#include "tests/executor/host/operands.h"

namespace niccolite::device_test {

inline constexpr uint32_t kSlotBytes = 640;

inline executor::FifoShape shape_of(uint32_t channels) {
  return {.channels = channels, .depth = 2, .slot_bytes = kSlotBytes};
}

/// `root`: of collectives that have one.
inline schedule::Schedule build(schedule::Collective collective, const char* algorithm, int nranks,
                                int root) {
  algorithms::Options options;
  if (schedule::has_root(collective)) options.root = root;
  return planner::find_form(collective, algorithm)->build(nranks, options).take();
}

inline executor::cuda::KernelLaunch prepare(executor::host::Cluster& cluster,
                                            executor::Launch launch, int threads,
                                            executor::cuda::Specialisation specialisation) {
  launch.control_device = &cluster.control;
  launch.threads = threads;
  auto kernel = executor::cuda::prepare(launch, specialisation);
  EXPECT_TRUE(kernel.is_ok()) << kernel.status().message();
  return std::move(kernel).take();
}

/// Runs the launches of some ranks; those whose bit in `specialised` is set by the kernels of their
/// own. False: they do not end.
inline bool run(executor::host::Cluster& cluster, const std::vector<executor::Launch>& launches,
                uint64_t seed, uint32_t specialised, uint64_t limit = 20'000'000,
                int threads = 64) {
  std::deque<executor::cuda::KernelLaunch> kernels;
  std::vector<executor::cuda::KernelLaunch*> pointers;
  for (size_t i = 0; i < launches.size(); ++i) {
    const bool is_special = (specialised >> i & 1) != 0;
    kernels.push_back(prepare(cluster, launches[i], threads,
                              is_special ? executor::cuda::Specialisation::Allowed
                                         : executor::cuda::Specialisation::Off));
    pointers.push_back(&kernels.back());
  }
  return emulation::run(pointers, seed, limit);
}

/// One operation, whose result and traces are then looked at. Ranks take turns, operation by
/// operation, in who uses the interpreter.
inline void run_turn(executor::host::Cluster& cluster, const executor::host::Operands& operands,
                     const executor::host::Part& part, executor::DataType type,
                     const executor::Reduction& reduction, uint32_t turn) {
  const uint32_t kSpecialised[] = {0xff, 0x55, 0x00, 0xaa};
  ASSERT_TRUE(run(cluster, cluster.launches({part}, type, reduction), turn,
                  kSpecialised[turn % std::size(kSpecialised)]));
  ASSERT_NO_FATAL_FAILURE(operands.check());
  ASSERT_TRUE(cluster.guards_intact());
  ASSERT_TRUE(cluster.counters_consistent());
  ASSERT_EQ(cluster.control.report, 0u);
}

/// The same of `count` elements, in place and misaligned in some of the turns.
inline void run_turn(executor::host::Cluster& cluster, uint64_t count, executor::DataType type,
                     uint32_t turn) {
  const executor::host::Operands operands(
      cluster.schedule(), type, {count},
      {.is_in_place = turn % 2 == 0, .is_misaligned = turn % 3 == 0});
  const executor::host::Part part{
      .counts = {count}, .buffers = operands.addresses(), .tag = static_cast<uint16_t>(turn)};
  run_turn(cluster, operands, part, type, {}, turn);
}

}  // namespace niccolite::device_test
