#include "cli/version.h"

#include <fmt/core.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/product_version.h"
#include "cli/grammar/exit_code.h"
#include "cli/grammar/options.h"
#include "cli/perf/library.h"

namespace niccolite {

std::string version_of_command() {
  return fmt::format("niccolite {} (NCCL {}.{}.{})", kProductVersion, NCCL_MAJOR, NCCL_MINOR,
                     NCCL_PATCH);
}

void add_options(CLI::App& app, VersionOptions& options) {
  grammar::add(app, grammar::kLibrary, options.library);
  grammar::add_flag(app, grammar::kJsonFlag, options.wants_json, " instead of text");
}

int print_version(const VersionOptions& options) {
  const auto load = [&]() -> Result<perf::Library> {
    if (!options.library.empty()) return perf::Library::open(options.library);
    const std::string path = TRY(perf::default_library_path());
    return perf::Library::open(path);
  };
  const Result<perf::Library> library = load();
  if (options.wants_json) {
    nlohmann::json document{{"command", version_of_command()}, {"library", nullptr}};
    if (library.is_ok())
      document["library"] = {{"path", library.value().path()},
                             {"version", library.value().version_text()}};
    fmt::print("{}\n", document.dump(1));
  } else {
    fmt::print("{}\n", version_of_command());
  }
  if (!library.is_ok()) {
    std::fflush(stdout);
    fmt::print(stderr, "niccolite version: {}\n", library.status().message());
    return grammar::kExitFailed;
  }
  if (!options.wants_json)
    fmt::print("{} {}\n", library.value().path(), library.value().version_text());
  return grammar::kExitFine;
}

}  // namespace niccolite
