#include "base/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

namespace niccolite {
namespace {

std::optional<size_t> parse(std::string_view text) {
  size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return std::nullopt;  // "max"
  return number;
}

std::optional<size_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return parse(word);
}

// The number behind `key` in a file of lines "key number".
std::optional<size_t> read_entry(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, number;
    words >> name >> number;
    if (name == key) return parse(number);
  }
  return std::nullopt;
}

// The files in which a version of control groups keeps the limit and the usage.
struct Hierarchy {
  std::string mount;
  const char* limit;
  const char* usage;
  const char* droppable;  // entry of memory.stat: file pages that go when memory is short
};

// One group; a group without a limit or that is not shown says nothing.
void apply_group(const Hierarchy& hierarchy, const std::string& group, HostMemory& memory) {
  const std::string folder = hierarchy.mount + group + "/";
  const std::optional<size_t> limit = read_number(folder + hierarchy.limit);
  if (!limit || *limit >= size_t{INT64_MAX} / 2) return;  // version 1's "no limit"
  memory.limit = std::min(memory.limit, *limit);
  const size_t usage = read_number(folder + hierarchy.usage).value_or(0);
  const size_t droppable =
      std::min(usage, read_entry(folder + "memory.stat", hierarchy.droppable).value_or(0));
  const size_t taken = std::min(usage - droppable, *limit);
  memory.available = std::min(memory.available, *limit - taken);
}

// The group and all around it. Inside a container the path may be one of the host's, which is not
// shown there; the innermost that is shown is then the container's own.
void apply_groups(const Hierarchy& hierarchy, std::string group, HostMemory& memory) {
  while (!group.empty()) {
    if (group != "/") apply_group(hierarchy, group, memory);
    group.resize(group.rfind('/'));
  }
  apply_group(hierarchy, "", memory);
}

}  // namespace

HostMemory measure_host_memory(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  HostMemory memory;
  const auto page = static_cast<size_t>(std::max(sysconf(_SC_PAGESIZE), 1L));
  const auto total = read_entry(meminfo, "MemTotal:");
  memory.limit =
      total ? *total * 1024 : static_cast<size_t>(std::max(sysconf(_SC_PHYS_PAGES), 1L)) * page;
  const auto available = read_entry(meminfo, "MemAvailable:");
  memory.available =
      std::min(memory.limit,
               available ? *available * 1024
                         : static_cast<size_t>(std::max(sysconf(_SC_AVPHYS_PAGES), 0L)) * page);

  const std::string mounts = root + "/sys/fs/cgroup";
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // number:controllers:path
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos || second + 1 >= line.size() || line[second + 1] != '/') continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      for (const char* mount : {"", "/unified"})
        apply_groups({mounts + mount, "memory.max", "memory.current", "inactive_file"}, group,
                     memory);
    } else if (controllers.find(",memory,") != controllers.npos) {
      apply_groups({mounts + "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                    "total_inactive_file"},
                   group, memory);
    }
  }
  return memory;
}

}  // namespace niccolite
