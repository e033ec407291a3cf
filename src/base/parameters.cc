#include "base/parameters.h"

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <mutex>

#include "base/log.h"

namespace niccolite::parameters {
namespace {

constexpr size_t kLongestLine = 4095;
constexpr size_t kLongestText = 1023;

// NAME=VALUE lines; whitespace is significant; a variable that is already set stays.
void apply_file(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.size() > kLongestLine) line.resize(kLongestLine);
    const size_t equals = line.find('=');
    if (line.empty() || line.front() == '#' || equals == std::string::npos) continue;
    setenv(line.substr(0, std::min(equals, kLongestText)).c_str(),
           line.substr(equals + 1, kLongestText).c_str(), 0);
  }
}

int64_t read_integer(const char* name, int64_t value, int64_t minimum, int64_t maximum) {
  load_files();
  const char* text = getenv(name);
  if (text == nullptr || *text == '\0') return value;
  errno = 0;
  const long long parsed = strtoll(text, nullptr, 0);
  if (errno == ERANGE || parsed < minimum || parsed > maximum) {
    LOG(Info, Env, "{} set by environment to {} is outside of {} to {}: ignored.", name, text,
        minimum, maximum);
    return value;
  }
  LOG(Info, Env, "{} set by environment to {}.", name, parsed);
  return parsed;
}

std::string read_text(const char* name) {
  load_files();
  const char* text = getenv(name);
  if (text == nullptr || *text == '\0') return {};
  LOG(Info, Env, "{} set by environment to {}", name, text);
  return text;
}

}  // namespace

#define INTEGER(function, name, value, minimum, maximum, meaning)            \
  int64_t function() {                                                       \
    static const int64_t read = read_integer(name, value, minimum, maximum); \
    return read;                                                             \
  }
#define TEXT(function, name, meaning)                                \
  const std::string& function() {                                    \
    static const std::string* const read =                           \
        new std::string(read_text(name)); /* outlives all threads */ \
    return *read;                                                    \
  }
#include "base/parameters.def"
#undef INTEGER
#undef TEXT

bool is_set(const char* name) {
  load_files();
  const char* text = getenv(name);
  return text != nullptr && *text != '\0';
}

std::optional<std::string> read_now(const char* name) {
  return is_set(name) ? std::optional<std::string>(getenv(name)) : std::nullopt;
}

void load_files() {
  static std::once_flag once;
  std::call_once(once, [] {
    const char* file = getenv("NCCL_CONF_FILE");
    const char* home = getenv("HOME");
    if (file != nullptr && *file != '\0') {
      apply_file(file);
    } else if (home != nullptr) {
      apply_file(std::string(home) + "/.nccl.conf");
    }
    apply_file("/etc/nccl.conf");
  });
}

}  // namespace niccolite::parameters
