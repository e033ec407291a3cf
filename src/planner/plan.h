// Plan: all that is known about one operation before its buffers and stream are: variant, program,
// partition, reduction. Planner: makes plans; keeps one compiled program per algorithm variant.
// Thread safety: a Plan is immutable; a Planner belongs to one communicator and is used by one
// thread at a time.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "executor/launch.h"
#include "planner/model.h"

namespace niccolite::planner {

enum class Operation : uint8_t { Sum, Product, Max, Min, Average };
inline constexpr int kOperations = 5;
const char* name_of(Operation operation);

struct Plan {
  Choice choice;
  std::shared_ptr<const executor::Program> program;
  executor::Partition partition;
  executor::Reduction reduction;
};

class Planner {
 public:
  Planner(const Settings& settings, int rank) : settings_(settings), rank_(rank) {}

  /// `count` > 0 elements per rank. Errors: InvalidUsage when the user's selection leaves no
  /// variant.
  Result<Plan> all_reduce(size_t count, executor::DataType type, Operation operation);
  const Settings& settings() const { return settings_; }

 private:
  struct Compiled {
    std::shared_ptr<const executor::Program> program;
    bool partial_sums = false;
  };
  Result<Compiled> program(const std::string& algorithm);

  const Settings settings_;
  const int rank_;
  std::map<std::string, Compiled> programs_;
};

}  // namespace niccolite::planner
