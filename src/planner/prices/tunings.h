// Tunings: which tuning holds for a communicator. The files that NICCOLITE_TUNING names come first,
// then the built-in tunings. Among several tunings for one class of machines, the one with the
// longest matching `gpu` is taken. Ranks must have the same tunings: the id travels with the
// fingerprint.
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/prices/tuning.h"

namespace niccolite::planner {

/// A file of tuning/, as it was when this was built.
struct BuiltInTuning {
  const char* name;           // of the file
  const char* machine_class;  // its `class` and `gpu`
  const char* gpu;
  std::string_view text;
};
std::span<const BuiltInTuning> built_in_tunings();

/// A user's tunings.
class Tunings {
 public:
  Tunings() = default;
  /// Reads a file, or all *.json of a folder. Errors: InvalidUsage with file, line and field, if a
  /// file cannot be read or two files are for the same machines.
  static Result<Tunings> read(const std::string& path);

  /// For GPUs of this name (empty: they differ, or have none); null: there is none.
  const Tuning* find(MachineClass machine, std::string_view gpu) const;
  std::span<const Tuning> all() const { return tunings_; }
  /// A hash of all values on which choices depend, without names and remarks; 0: there are no
  /// tunings.
  uint64_t id() const { return id_; }

 private:
  Status add(Tuning tuning);

  std::vector<Tuning> tunings_;
  uint64_t id_ = 0;
};

/// NICCOLITE_TUNING could be read, or is not set; it is read once per process.
Status check_tunings();
/// Tunings::id() of this process's.
uint64_t tunings_id();
/// Returns the tuning in force, which is never destroyed. If check_tunings() fails: the built-in
/// one.
const Tuning& tuning_of(MachineClass machine, std::string_view gpu);
/// Returns the shapes of connections of the tuning's file. If a user's file has none: the built-in
/// shapes.
const Shapes& slots_of(MachineClass machine, std::string_view gpu, int nranks);

}  // namespace niccolite::planner
