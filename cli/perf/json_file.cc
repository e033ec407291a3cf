#include "cli/perf/json_file.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace niccolite::perf {
namespace {

std::string temporary_of(const std::string& path) { return path + ".partial"; }

}  // namespace

Status write_json(const std::string& path, const nlohmann::json& document) {
  const std::string temporary = temporary_of(path);
  {
    std::ofstream stream(temporary);
    stream << document.dump(1) << '\n';
    stream.close();
    if (!stream) return Status::from_errno(errno, "cannot write " + temporary);
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0)
    return Status::from_errno(errno, "cannot rename " + temporary);
  return {};
}

Status check_writable(const std::string& path) {
  std::error_code ignored;  // what is not there is no folder
  if (std::filesystem::is_directory(path, ignored))
    return Status::from_errno(EISDIR, "cannot write " + path);
  const std::string temporary = temporary_of(path);
  const bool is_opened = std::ofstream(temporary, std::ios::app).is_open();
  if (!is_opened) return Status::from_errno(errno, "cannot write " + temporary);
  std::filesystem::remove(temporary, ignored);
  return {};
}

}  // namespace niccolite::perf
