// Report: prints the table on standard output as rows arrive, and keeps them for the files. On a
// terminal a line on standard error tells how far the run is.
// Thread safety: any thread; finish() and failure() take the last word, whoever comes first.
#pragma once

#include <fmt/core.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cli/perf/document.h"
#include "cli/perf/options.h"
#include "cli/perf/row.h"

namespace niccolite::perf {

class Report : public Sink {
 public:
  /// `command` is the command line as typed. Opens nothing yet.
  Report(const Options& options, std::vector<std::string> command);
  ~Report() override;

  void start(const Start& start) override;
  void row(const Row& row) override;
  void memory(const std::vector<MemoryUse>& uses) override;
  /// Prints the failure on standard error, and writes the files with the rows so far and the
  /// failure.
  void failure(const std::string& message) override;
  /// Prints the closing lines and writes the files; returns the exit status of the command.
  int finish();

 private:
  void print_heads(const std::string& collective);
  void print_place(const std::optional<PlaceResult>& place, const Row& row);
  void print_alone(const Row& row);
  void print_buffers(const Row& row);
  Status write() const;
  /// Prints to standard output, unless a document goes there.
  template <typename... Arguments>
  void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
    if (!options_.hides_table()) fmt::print(format, std::forward<Arguments>(arguments)...);
  }
  /// Replaces the line on the terminal that tells how far the run is. An empty text removes it.
  void show_progress(const std::string& text);

  const Options options_;
  const std::vector<std::string> command_;
  std::mutex mutex_;  // guards all below
  bool is_closed_ = false;
  Start start_;
  std::vector<Row> rows_;
  std::vector<MemoryUse> memory_;
  std::string failure_;
  const bool has_terminal_;  // on standard error
  size_t expected_rows_ = 0;
};

}  // namespace niccolite::perf
