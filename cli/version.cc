#include "cli/version.h"

#include <fmt/core.h>

#include <cstdio>

#include "cli/perf/exit_code.h"
#include "cli/perf/library.h"

namespace niccolite {

std::string version_of_command() {
  return fmt::format("niccolite {}.{}.{}", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
}

int print_version(const VersionOptions& options) {
  const auto load = [&]() -> Result<perf::Library> {
    if (!options.library.empty()) return perf::Library::open(options.library);
    const std::string path = TRY(perf::default_library_path());
    return perf::Library::open(path);
  };
  fmt::print("{}\n", version_of_command());
  const Result<perf::Library> library = load();
  if (!library.is_ok()) {
    std::fflush(stdout);
    fmt::print(stderr, "niccolite version: {}\n", library.status().message());
    return perf::kExitFailed;
  }
  fmt::print("{} {}\n", library.value().path(), library.value().version_text());
  return perf::kExitFine;
}

}  // namespace niccolite
