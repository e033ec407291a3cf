#include "planner/choice/channel_counts.h"

#include <algorithm>
#include <optional>
#include <span>

namespace niccolite::planner {
namespace {

using executor::Protocol;

constexpr int kChannelCounts[] = {1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64};
/// LL128: a warp moves lines in rows (ll128_step.cuh), and the model does not know the cost of a
/// row that is not full. Between the measured counts (docs/tune.md) it may be 20 % off.
constexpr int kLineChannelCounts[] = {1, 2, 3, 4, 6, 10, 16, 24, 48, 64};
/// LL: the model is off between the measured counts, too, because rounds are short. An all-gather
/// of 768 KiB takes 7.2 us by 40 channels, and 5.7 by 48 (docs/design/planning.md).
constexpr int kWordChannelCounts[] = {1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 48, 64};
/// Chunks in host memory: the times of two counts may differ in either direction. An all-reduce of
/// 1 MiB takes 55 us by 6 channels, 62 by 8 and 54 by 12.
constexpr int kHostChannelCounts[] = {1, 3, 6, 12, 24, 48, 64};
std::span<const int> counts_of(const Settings& settings, Protocol protocol) {
  if (settings.shares_host && publishes_chunks(protocol)) return kHostChannelCounts;
  if (protocol == Protocol::LL128) return kLineChannelCounts;
  if (protocol == Protocol::LL) return kWordChannelCounts;
  return kChannelCounts;
}

/// True if links between GPUs carry the data. Host memory and networks are slower than CTAs.
bool has_links(const Settings& settings) {
  return settings.machine == gpu::Kind::Cuda && !settings.shares_host && !settings.spans_machines;
}

/// True for blocks that lie side by side and whose length is no multiple of 16 bytes. On a GPU
/// threads then take part in the copies, beside bulk copies. So the model's numbers of channels are
/// wrong for them: each channel moves as much as it can. (The alignment of both ends of a message
/// is not known.)
bool has_uneven_blocks(const Settings& settings, const Workload& work) {
  return settings.machine == gpu::Kind::Cuda && schedule::has_blocks_of_ranks(work.collective) &&
         work.bytes % 16 != 0;
}

/// Returns the number of channels for uneven blocks. If one rank's link carries all data, more than
/// 20 channels gain nothing and hinder each other: a gather of two blocks of 15 MB takes 54 us on
/// two H200, and 59 by 24 channels.
int most_of_uneven(Collective collective, std::span<const int> counts) {
  constexpr int kMostOfOneRoot = 20;
  const bool has_one_root = collective == Collective::Gather || collective == Collective::Scatter;
  return has_one_root ? std::clamp(kMostOfOneRoot, counts.front(), counts.back()) : counts.back();
}

/// Channels of such data, whose chunks are whole: all, up to a size that was measured; beyond, as
/// many as leave the data in the cache. (From one H100 to another 16 MiB take 0.35 ms by 24, 0.40
/// by 12, and 64 MiB 1.45 and 1.38.)
int most_through_host(const Workload& work, std::span<const int> counts) {
  constexpr int kMostOfLong = 12;
  constexpr size_t kLong = 32 << 20;
  if (buffer_bytes(work) < kLong) return counts.back();
  return std::clamp(kMostOfLong, counts.front(), counts.back());
}

/// The count that suits the data of `work` whatever the model says, of `counts`; none: the model
/// decides.
std::optional<int> suitable_count(const Settings& settings, const Workload& work,
                                  std::span<const int> counts) {
  // On other links uneven blocks need no special count: threads move all data there.
  if (has_uneven_blocks(settings, work)) return most_of_uneven(work.collective, counts);
  if (is_long_way_through_host(settings, work)) return most_through_host(work, counts);
  return std::nullopt;
}

/// True if an operation of two ranks by LL has more channels than kibibytes, which is slower than
/// fewer channels: a gather of 1 KiB takes 2.6 us by one, and 2.8 by several. (The model knows only
/// the measured counts from six on. Operations through slots do not matter here: they wait much
/// longer for their launch.)
bool is_too_short(const Settings& settings, const Workload& work, int channels) {
  constexpr size_t kLeastOfChannel = 1 << 10;
  return has_links(settings) && settings.reaches_users && settings.nranks == 2 &&
         channels > settings.min_channels &&
         static_cast<size_t>(channels) * kLeastOfChannel > work.bytes;
}

/// True for a scatter that should use all lines. A scatter of 1 MB between two ranks takes 4.7 us
/// by 48 channels of LL128 and 4.8 by 24, which the model takes for equal; from an odd start it
/// takes 5.0 and 6.1.
bool wants_all_lines(const Settings& settings, const Workload& work) {
  constexpr size_t kLeast = 768 << 10;
  return has_links(settings) && settings.nranks == 2 && settings.policy == CtaPolicy::Default &&
         work.collective == Collective::Scatter && buffer_bytes(work) >= kLeast;
}

/// May an operation by `protocol` have more CTAs than the model asks for?
bool may_be_widened(const Settings& settings, Protocol protocol) {
  return has_links(settings) && settings.policy == CtaPolicy::Default && publishes_chunks(protocol);
}

}  // namespace

bool is_long_way_through_host(const Settings& settings, const Workload& work) {
  constexpr size_t kLeast = 4 << 20;
  return settings.shares_host && settings.nranks == 2 && schedule::has_root(work.collective) &&
         buffer_bytes(work) >= kLeast;
}

std::vector<int> channel_counts(const Settings& settings, Protocol protocol) {
  const int most = most_channels(settings, protocol);
  if (most == 0) return {};
  const int fewest = std::min(settings.min_channels, most);
  std::vector<int> counts{fewest};
  for (const int count : counts_of(settings, protocol))
    if (count > fewest && count < most) counts.push_back(count);
  if (most > fewest) counts.push_back(most);
  return counts;
}

std::vector<int> channel_counts(const Settings& settings, Protocol protocol, const Workload& work) {
  std::vector<int> counts = channel_counts(settings, protocol);
  if (protocol == Protocol::LL)
    std::erase_if(counts, [&](int count) { return is_too_short(settings, work, count); });
  if (counts.empty()) return counts;
  const int most = counts.back();
  if (protocol == Protocol::LL128 && wants_all_lines(settings, work))
    std::erase_if(counts, [&](int count) { return count >= kUsualCtas && count < most; });
  if (!publishes_chunks(protocol)) return counts;
  const std::optional<int> suitable = suitable_count(settings, work, counts);
  if (!suitable) return counts;
  std::erase_if(counts, [&](int count) { return count >= *suitable; });
  if (settings.policy == CtaPolicy::Default) counts.clear();
  counts.push_back(*suitable);
  return counts;
}

int channels_for_arithmetic(const Settings& settings, const Request& request,
                            const Choice& choice) {
  const bool divides_bytes =
      schedule::reduces(request.collective) && request.op.operation == Operation::Average &&
      (request.type == executor::DataType::Int8 || request.type == executor::DataType::Uint8);
  if (!divides_bytes || !may_be_widened(settings, choice.protocol)) return choice.channels;
  return most_channels(settings, choice.protocol);
}

int channels_for_alignment(const Settings& settings, size_t bytes, const Choice& choice) {
  // Messages of such lengths often lie side by side, begin anywhere, and are moved by threads. An
  // uneven all-to-all of 64 MiB over two H200 takes 80 us by 20 CTAs, and 100 by 14; if all begin
  // at multiples of 16 bytes, 75 and 76.
  constexpr int kChannels = 20;
  constexpr size_t kLeast = 4 << 20;
  if (settings.nranks != 2 || bytes % 16 == 0 || bytes < kLeast ||
      !may_be_widened(settings, choice.protocol))
    return choice.channels;
  return std::max(choice.channels, std::min(kChannels, most_channels(settings, choice.protocol)));
}

}  // namespace niccolite::planner
