// Tuning: the measured performance of one class of machines, from a file of tuning/ (docs/tune.md
// has the schema). Constant data once made: any thread.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "planner/prices/cost.h"
#include "planner/shapes.h"

namespace niccolite::planner {

class Tuning {
 public:
  MachineClass machine = MachineClass::Virtual;
  std::string gpu;     // how the names of the GPUs begin that it is for; empty: of all others
  std::string about;   // the measured machine, for people
  std::string origin;  // "built in" or a path, for people
  std::array<Properties, executor::kProtocols> properties{};  // by protocol
  /// Shapes of connections; `channels` is the most that pay. Nothing: the file does not say.
  std::optional<Shapes> slots{};
  std::optional<Shapes> slots_of_two{};  // where two ranks have others
  const std::optional<Shapes>& slots_for(int nranks) const {
    return nranks <= 2 && slots_of_two ? slots_of_two : slots;
  }

  /// In the order in which they were added.
  std::span<const CostLine> costs() const { return costs_; }
  /// Null: nobody has measured it.
  const Cost* find(const Form& form, executor::Protocol protocol) const;
  /// Replaces the costs of the same form and protocol.
  void set(const CostLine& line);

 private:
  std::vector<CostLine> costs_;
};

/// "cuda", "cuda_slots": as the files name it.
const char* name_of(MachineClass machine);
std::optional<MachineClass> machine_class_named(std::string_view name);

inline constexpr const char* kTuningSchema = "niccolite-tuning-1";

/// A number of a file, and where it belongs.
struct PropertyField {
  const char* name;
  double Properties::*field;
  double least, most;
  /// The value for a file without this field, because it was written before the field existed:
  /// prices are then as they were at that time. Nothing: every file has the field.
  std::optional<double> if_missing{};
};
struct CostField {
  const char* name;
  double Cost::*field;
  double least, most;
};
std::span<const PropertyField> property_fields();
std::span<const CostField> cost_fields();

/// Bounds of a slot's memory.
inline constexpr uint32_t kLeastSlotBytes = 512;
inline constexpr uint32_t kMostSlotBytes = 64 << 20;

/// Reads a file's text. Errors: InvalidArgument with `origin`, the line and the field.
Result<Tuning> parse_tuning(std::string_view text, const std::string& origin);

}  // namespace niccolite::planner
