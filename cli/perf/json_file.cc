#include "cli/perf/json_file.h"

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace niccolite::perf {

Status write_json(const std::string& path, const nlohmann::json& document) {
  const std::string temporary = path + ".partial";
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

}  // namespace niccolite::perf
