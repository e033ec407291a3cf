// PipeSink: a child's end of the pipe to its supervisor. On it go lines of JSON: {"start": ...},
// {"row": ...}, {"memory": ...} from the child with rank 0, {"failure": "text"} from any, and
// before all of them what send() is given.
//
// Thread safety: as for Sink.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "cli/perf/row.h"

namespace niccolite::perf {

class PipeSink : public Sink {
 public:
  /// `fd` outlives it.
  explicit PipeSink(int fd) : fd_(fd) {}
  void start(const Start& start) override;
  void row(const Row& row) override;
  void memory(const std::vector<MemoryUse>& uses) override;
  void failure(const std::string& message) override;

  /// Where the supervisor has gone, nobody is left to tell, and nothing happens.
  void send(const nlohmann::json& message);

 private:
  int fd_;
};

}  // namespace niccolite::perf
