// The cost model: predicted time of one operation by one variant (cost.h has the formula). A pure
// function of its arguments: all ranks compute the same result without a message.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "gpu/devices.h"
#include "planner/prices/cost.h"
#include "planner/prices/tunings.h"
#include "planner/settings.h"

namespace niccolite::planner {

/// One operation: of `bytes` of the buffer that is cut, of one block where blocks lie side by side,
/// or of one message.
struct Workload {
  Collective collective = Collective::AllReduce;
  int nranks = 1;
  size_t bytes = 0;
  friend bool operator==(const Workload&, const Workload&) = default;
};

/// Bytes of the larger buffer.
size_t buffer_bytes(const Workload& work);

/// The constants that a tuning has for a variant, or the constants of a variant that nobody has
/// measured.
struct KnownCost {
  Cost cost;
  bool is_measured;
};
KnownCost find_cost(const Tuning& tuning, const Form& form, executor::Protocol protocol);
/// The class of a communicator with these settings.
inline MachineClass class_of(const Settings& settings) {
  const bool is_cuda = settings.machine == gpu::Kind::Cuda;
  if (settings.spans_machines) return is_cuda ? MachineClass::CudaSockets : MachineClass::Sockets;
  if (settings.shares_host && is_cuda) return MachineClass::CudaHostMemory;
  return class_of(settings.machine, settings.reaches_users, settings.nranks);
}
/// Returns the tuning for these settings.
inline const Tuning& tuning_of(const Settings& settings) {
  return tuning_of(class_of(settings), settings.gpu);
}

/// Why a variant cannot run among so many ranks, whatever the settings are: a phrase without a full
/// stop. Empty: it can. `machines`: that the ranks are on;
/// `may_connect_all`: all ranks with each other, however many.
std::string why_impossible(gpu::Kind machine, int nranks, const Form& form,
                           executor::Protocol protocol, int machines = 1,
                           bool may_connect_all = false);
inline bool is_possible(gpu::Kind machine, int nranks, const Form& form,
                        executor::Protocol protocol, int machines = 1) {
  return form.is_for(nranks, {}) &&
         why_impossible(machine, nranks, form, protocol, machines).empty();
}
/// The most ranks that are all connected to each other, unless there is no other algorithm.
int most_direct_ranks(gpu::Kind machine);

/// Microseconds of `work` by `variant`, when a chunk has at most `chunk_bytes`.
double predict(gpu::Kind machine, const Cost& cost, const Workload& work, const Variant& variant,
               size_t chunk_bytes);

/// Returns the load by which fitted constants of `form` are multiplied: its own statement
/// (Traits::load), or the load of its schedule on one machine.
algorithms::Load fitted_load_of(const Form& form, int nranks);
/// Returns the number of channels that get a part of a block of that many bytes.
double channels_of(double block_bytes, const Variant& variant);
/// Returns the bytes on a link for `bytes` of data.
double wire_bytes(executor::Protocol protocol, double bytes);
/// The larger of two, without a corner where they are equal.
double smooth_max(double a, double b);

/// The most chunks that a slot's data may be cut into, a power of two.
int most_parts(executor::Protocol protocol);
/// In smaller buffers published chunks are not cut, and cut ones were not measured (docs/tune.md):
/// they hardly fill slots. (An all-to-all of 2 MiB over two H200: 13.6 us in quarters, 11.6 whole.)
inline constexpr size_t kLeastPublishedInParts = 8 << 20;

/// Data of the largest chunk of `variant`, a multiple of 16 bytes.
size_t chunk_bytes(const Settings& settings, Collective collective, const Variant& variant);

/// Bytes of the units that reductions of `work` request of their peers (executor/protocol/pull.h),
/// if they can; 0: they read exposed buffers.
uint32_t pull_bytes(const Settings& settings, const Workload& work);

/// Predicted time of messages that progress together: one rank has `ends` message ends, and the
/// busier direction moves `bytes`.
double predict_messages(const Settings& settings, executor::Protocol protocol, int ends,
                        size_t bytes);

}  // namespace niccolite::planner
