// DumpWriter: writes files for threads that must not wait for a blocked file system. Its thread
// lives as long as there is something to write, and outlives the DumpWriter if need be. Thread
// safety: any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace niccolite::observe {

class DumpWriter {
 public:
  /// Writes one file; called by one thread at a time.
  using Write = std::function<void(const std::string& path, const std::string& text)>;
  /// For which others wait for a file, since a program may end as soon as they return.
  static constexpr std::chrono::seconds kPatience{2};

  explicit DumpWriter(Write write);

  /// The last text for a path counts. Returns when all is written, or as wait() does.
  void write(const std::string& path, std::string text);
  /// Waits until all is written, unless one file takes longer than kPatience.
  void wait() const;

 private:
  struct State;
  static void run(State& state);
  const std::shared_ptr<State> state_;
};

}  // namespace niccolite::observe
