// Schedules as files: JSON that people and programs can write, read back as it was written.
// docs/schedule-file.md describes the format. Thread safety: functions of values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "schedule/schedule.h"

namespace niccolite::schedule {

/// Names of data types, by ncclDataType_t.
inline constexpr std::array<std::string_view, 12> kTypeNames{
    "int8", "uint8", "int32",  "uint32",   "int64",  "uint64",
    "half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2"};

/// The operations for which a file offers its schedule, beyond its collective and its ranks.
struct Use {
  size_t min_bytes = 0;  // of the call's count; both bounds are included
  size_t max_bytes = SIZE_MAX;
  uint16_t types = 0;  // bits, by ncclDataType_t, of collectives that reduce; 0: all
  int machines = 0;    // that the ranks are on; 0: any number
  int priority = 0;    // algorithms of a higher priority come before all others
  friend bool operator==(const Use&, const Use&) = default;

  bool is_for_type(int type) const { return types == 0 || (types >> type & 1) != 0; }
};
/// "half, bfloat16"; empty: all types.
std::string names_of_types(const Use& use);

/// All that a file says.
struct File {
  Schedule schedule;
  Use use{};
  friend bool operator==(const File&, const File&) = default;
};

/// The whole of `schedule`, one instruction a line.
std::string to_file(const Schedule& schedule, const Use& use = {});

/// The schedule that `text` holds. The form is read, nothing is proved: check() does that.
/// InvalidArgument names the line and the field: malformed JSON, an unknown or missing field, a
/// value out of its range (ranks, blocks and indices of connections included).
Result<Schedule> from_file(std::string_view text);
/// Reads like from_file(), and also the operations that the schedule is for.
Result<File> read_file(std::string_view text);

}  // namespace niccolite::schedule
