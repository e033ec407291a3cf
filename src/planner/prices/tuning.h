// Tuning: what one class of machines was measured to do, as a file of tuning/ has it
// (docs/tune.md has the schema). Constant data once made: any thread.
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
  std::string about;   // what was measured, for people
  std::string origin;  // "built in" or a path, for people
  std::array<Properties, executor::kProtocols> properties{};  // by protocol
  /// Of connections; `channels`: the most that pay. Nothing: the file does not say.
  std::optional<Shapes> slots{};
  std::optional<Shapes> slots_of_two{};  // where two ranks have others
  const std::optional<Shapes>& slots_for(int nranks) const {
    return nranks <= 2 && slots_of_two ? slots_of_two : slots;
  }

  /// In the order in which they were added.
  std::span<const CostLine> costs() const { return costs_; }
  /// Null: nobody has measured it.
  const Cost* find(const Algorithm& algorithm, executor::Protocol protocol) const;
  /// Replaces what is known of the same algorithm and protocol.
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
  /// What holds where a file lacks it, as those do that were written before there was such a field:
  /// the value with which prices are what they were then. Nothing: every file has it.
  std::optional<double> if_missing{};
};
struct CostField {
  const char* name;
  double Cost::*field;
  double least, most;
};
std::span<const PropertyField> property_fields();
std::span<const CostField> cost_fields();

/// Of a slot's memory.
inline constexpr uint32_t kLeastSlotBytes = 512;
inline constexpr uint32_t kMostSlotBytes = 64 << 20;

/// What a file holds. Errors: InvalidArgument with `origin`, the line and the field.
Result<Tuning> parse_tuning(std::string_view text, const std::string& origin);

}  // namespace niccolite::planner
