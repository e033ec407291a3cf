#include "planner/choice/list_choice.h"

#include <algorithm>

#include "executor/program.h"
#include "planner/choice/eligibility.h"
#include "planner/prices/price.h"

namespace niccolite::planner {
namespace {

using executor::Protocol;

// The most received bytes of an operation in a list, where it has one channel. A larger operation
// is faster by itself, with a share of all channels.
constexpr size_t kMostListedBytes = 16 << 10;
constexpr int kMostRanksOfLists = 8;  // of the kernel for them

}  // namespace

std::optional<Choice> choose_for_list(const Settings& settings, Collective collective,
                                      size_t bytes) {
  if (settings.machine != gpu::Kind::Cuda || settings.spans_machines || settings.nranks < 2 ||
      settings.nranks > kMostRanksOfLists ||
      bytes * static_cast<size_t>(settings.nranks - 1) > kMostListedBytes)
    return std::nullopt;
  const Form* const form = one_step(collective);
  if (form == nullptr) return std::nullopt;
  const Variant variant{.form = form, .protocol = Protocol::LL};
  if (!is_allowed(settings, variant)) return std::nullopt;
  const Workload work{.collective = collective, .nranks = settings.nranks, .bytes = bytes};
  return Choice{variant,
                Price::of(settings, *form, variant.protocol).time_of(settings, work, variant)};
}

std::optional<executor::ListAccess> find_list_access(const Settings& settings,
                                                     const executor::ListOperation& operation) {
  if (!settings.reaches_users || settings.spans_machines || settings.nranks < 2 ||
      settings.nranks > static_cast<int>(executor::kMostRanksOfListAccess))
    return std::nullopt;
  // A list uses the connections of the one-shot all-reduce by LL. So it is allowed only if the
  // user's selection excludes no algorithm, and LL is available.
  const auto kind = static_cast<size_t>(operation.collective);
  if (!allows_all(settings, operation.collective) ||
      !settings.protocols[kind][size_t(Protocol::LL)] || most_channels(settings, Protocol::LL) == 0)
    return std::nullopt;
  const std::optional<executor::ListAccess> access = executor::list_access_of(operation);
  if (access && settings.is_invariant && !executor::reduces_in_one_order(*access, operation))
    return std::nullopt;
  return access;
}

namespace {

// Live calls have their buffers looked up, which takes longer than the smallest operations do in
// lists by LL.
constexpr size_t kLeastBytesOfLiveOperation = 16 << 10;

/// The bytes of all operations together from which on a direct list is faster than other launches
/// of several operations, which pass through slots (two ranks on H200s, 2 to 32 operations).
size_t least_bytes_of_direct_list(const Settings& settings, Collective collective, bool is_captured,
                                  bool may_be_listed) {
  if (settings.machine != gpu::Kind::Cuda) return 0;
  // One way, and nothing is reduced.
  if (collective == Collective::Broadcast) return 2 << 20;
  // Two ways, one behind the other, and no buffers to be looked up.
  if (collective == Collective::AllReduce && is_captured && !may_be_listed) return 512 << 10;
  return 768 << 10;
}

}  // namespace

bool pays_direct_list(const Settings& settings, Collective collective, size_t operations,
                      size_t bytes, bool is_captured) {
  if (operations < 2) return false;
  const bool may_be_listed = choose_for_list(settings, collective, bytes / operations).has_value();
  const size_t least = least_bytes_of_direct_list(settings, collective, is_captured, may_be_listed);
  if (!is_captured && may_be_listed)
    return bytes >= std::max(least, operations * kLeastBytesOfLiveOperation);
  // Operations that no other list takes share a launch, as many as share channels
  // (operations/batches.cc), and as there are works in one.
  const int most = std::min(
      {most_channels(settings, Protocol::LL), usual_channels(settings), executor::kMaxWorks});
  return bytes >= least || (!may_be_listed && operations > static_cast<size_t>(most));
}

double predict_direct_list(const Settings& settings) {
  // Two ranks on H200s, in graphs: 6.3 us (all-gathers) to 7.9 (reduce-scatters), and 0.3 us for
  // each 100 KB. Virtual GPUs: an operation outside of a list is a launch, which costs more than
  // both waits of a list.
  return settings.machine == gpu::Kind::Cuda ? 7.5 : 5;
}

double predict_in_direct_list(const Settings& settings, const Request& request) {
  // Rates of a rank's link, one way: two H100, lists of 32 operations of 1 to 16 MiB. An operation
  // that scatters only loads from peers, one that gathers only stores to them. In all others the
  // owners of tiles do both, and the busiest rank moves as much as the root that all others read.
  // (The rates are for sums. Other reductions, and reductions of bytes, take up to half as long
  // again, in a list and alone.)
  const auto bytes = static_cast<double>(request.bytes());
  const double others = settings.nranks - 1;
  const double whole = 2 * others / settings.nranks * bytes;
  const double block = others * bytes;
  constexpr double kBytesPerMicrosecond = 1e3;  // at a gigabyte a second
  if (settings.machine != gpu::Kind::Cuda) return bytes / (8 * kBytesPerMicrosecond);
  switch (request.collective) {
    case Collective::ReduceScatter:
      return block / (280 * kBytesPerMicrosecond);
    case Collective::AllGather:
      return block / (270 * kBytesPerMicrosecond);
    case Collective::Broadcast:
      return whole / (345 * kBytesPerMicrosecond);
    default:
      return whole / (315 * kBytesPerMicrosecond);
  }
}

}  // namespace niccolite::planner
