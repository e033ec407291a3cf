// Runs operations on real GPUs and compares all that they leave behind with the reference; counts.
#pragma once

#include <chrono>
#include <vector>

#include "tests/device/gpu_ranks.h"

namespace niccolite::device_test {

class Checker {
 public:
  Checker(gpu::Machine& machine, int ngpus) : machine_(machine), ngpus_(ngpus) {}

  int failed() const { return failed_; }
  int passed() const { return passed_; }

  /// A group of cases; end() prints a line.
  void begin(const char* group);
  void end();

  enum class Inputs { Exact, Rough };
  enum class Mode { Stream, Graph };
  void check(const Operation& operation, Mode mode = Mode::Stream, Inputs inputs = Inputs::Exact,
             int times = 2);
  /// The first rank makes another call: the host hears of it, and the ranks end once aborted.
  void check_mismatch(const Operation& operation);
  /// One rank is missing; the others end once aborted, and not before.
  void check_abort(const Operation& operation);
  /// All ranks are aborted `after` they were launched, perhaps in the middle; they end, and nobody
  /// writes to buffers any more.
  void check_abort_midway(const Operation& operation, std::chrono::microseconds after);

 private:
  void count(const Status& status, const Operation& operation, Mode mode);
  Status run(const Operation& operation, Mode mode, Inputs kind, int times);
  Status run_mismatch(const Operation& operation);
  Status run_abort(const Operation& operation);
  Status run_abort_midway(const Operation& operation, std::chrono::microseconds after);

  gpu::Machine& machine_;
  int ngpus_;
  int passed_ = 0;
  int failed_ = 0;
  int passed_before_ = 0;
  int failed_before_ = 0;
  const char* group_ = "";
  std::chrono::steady_clock::time_point start_{};
};

}  // namespace niccolite::device_test
