// How settings travel: the user's decisions. Values that follow from them (shapes) are made anew on
// arrival.
#include "planner/settings.h"

namespace niccolite::planner {
namespace {

constexpr int kMostThreads = 512;
constexpr int kMostParts = 4;

template <size_t kCount>
uint32_t bits_of(const std::array<bool, kCount>& allowed) {
  uint32_t bits = 0;
  for (size_t i = 0; i < kCount; ++i) bits |= uint32_t{allowed[i]} << i;
  return bits;
}

template <size_t kCount>
void read_bits(Reader& reader, std::array<bool, kCount>& allowed) {
  const uint32_t bits = reader.u32();
  if (bits >> kCount != 0) reader.reject("protocols that there are not");
  for (size_t i = 0; i < kCount; ++i) allowed[i] = (bits >> i & 1) != 0;
}

/// A number from `least` to `most`.
int read_int(Reader& reader, int least, int most, const char* what) {
  const int value = reader.i32();
  if (value >= least && value <= most) return value;
  reader.reject(what);
  return least;
}

}  // namespace

void write(Writer& writer, const Settings& settings) {
  writer.i32(settings.min_channels);
  writer.i32(settings.max_channels);
  writer.i32(settings.threads);
  writer.i32(settings.chunk_parts);
  writer.u64(static_cast<uint64_t>(settings.pull_block));
  writer.u64(static_cast<uint64_t>(settings.slots_bytes));
  writer.u8(static_cast<uint8_t>(settings.policy));
  writer.u8(settings.are_channels_named ? 1 : 0);
  writer.u8(settings.is_policy_named ? 1 : 0);
  writer.u8(settings.maps_captured ? 1 : 0);
  writer.u8(settings.is_invariant ? 1 : 0);
  writer.u8(settings.is_tuned ? 1 : 0);
  writer.u8(settings.asks_for_team ? 1 : 0);
  writer.i32(settings.team_channels);
  writer.i32(settings.least_of_reducer);
  for (const FormSet& allowed : settings.forms)
    writer.u32(static_cast<uint32_t>(allowed.to_ulong()));
  for (const auto& allowed : settings.protocols) writer.u32(bits_of(allowed));
}

Settings read_settings(Reader& reader, gpu::Kind machine, int nranks) {
  Settings settings;
  settings.machine = machine;
  settings.nranks = nranks;
  settings.min_channels = read_int(reader, 1, kMostChannels, "a least number of channels");
  settings.max_channels =
      read_int(reader, settings.min_channels, kMostChannels, "a greatest number of channels");
  settings.threads = read_int(reader, 0, kMostThreads, "a number of threads");
  settings.chunk_parts = read_int(reader, 0, kMostParts, "a number of parts");
  settings.pull_block = static_cast<int64_t>(reader.u64());
  settings.slots_bytes = static_cast<int64_t>(reader.u64());
  if (settings.threads % 32 != 0 || settings.pull_block < -1 || settings.slots_bytes < -1)
    reader.reject("settings that no rank can have");
  const uint8_t policy = reader.u8();
  if (policy > static_cast<uint8_t>(CtaPolicy::Zero)) reader.reject("an unknown policy");
  settings.policy = static_cast<CtaPolicy>(policy);
  settings.are_channels_named = reader.u8() != 0;
  settings.is_policy_named = reader.u8() != 0;
  settings.maps_captured = reader.u8() != 0;
  settings.is_invariant = reader.u8() != 0;
  settings.is_tuned = reader.u8() != 0;
  settings.asks_for_team = reader.u8() != 0;
  settings.team_channels = read_int(reader, 0, INT32_MAX, "a number of channels of teams");
  settings.least_of_reducer = read_int(reader, 0, INT32_MAX, "a number of machines");
  for (size_t c = 0; c < schedule::kCollectives; ++c) {
    const uint32_t bits = reader.u32();
    settings.forms[c] = bits;
    FormSet forms = settings.forms[c];
    forms.reset(kNvlsBit);
    forms.reset(kNvlsTreeBit);
    if (forms.to_ulong() >> forms_of(static_cast<Collective>(c)).size() != 0)
      reader.reject("algorithms that there are not");
  }
  for (auto& allowed : settings.protocols) read_bits(reader, allowed);
  if (!reader.failed()) set_reach(settings, /*reaches_users=*/true);
  return settings;
}

}  // namespace niccolite::planner
