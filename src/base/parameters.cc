#include "base/parameters.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "base/environment.h"
#include "base/log.h"

namespace niccolite::parameters {
namespace {

constexpr size_t kLongestLine = 4095;
constexpr size_t kLongestText = 1023;

std::string_view trim(std::string_view text) {
  const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
  while (!text.empty() && is_space(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && is_space(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

// Variables by name, and the file that sets each. Written by load_files() alone, before any other
// use.
std::map<std::string, std::string>& set_by_files() {
  static auto* const files = new std::map<std::string, std::string>;  // outlives all threads
  return *files;
}

bool is_variable_name(std::string_view name) {
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0 &&
         std::ranges::all_of(
             name, [](unsigned char c) { return c == '_' || (std::isalnum(c) != 0 && c < 0x80); });
}

// Was the variable there when the program started? Another library of the process with a copy of
// this code may have applied the same file before.
bool was_set_at_start(const std::string& name) {
  static const auto* const entries = [] {
    std::ifstream file("/proc/self/environ", std::ios::binary);
    return new std::string(std::string(1, '\0') +
                           std::string(std::istreambuf_iterator<char>(file), {}));
  }();
  return entries->find(std::string(1, '\0') + name + '=') != std::string::npos;
}

// NAME=VALUE lines; whitespace is significant; a variable that is already set stays.
void apply_file(const std::string& path, bool is_asked_for) {
  std::ifstream file(path);
  if (!file) {
    if (is_asked_for)
      environment::note_once(
          log::Level::Warn, log::Env,
          fmt::format(
              "NCCL_CONF_FILE={} cannot be read ({}), and sets nothing; ~/.nccl.conf is not "
              "read either. Correct the path, or unset NCCL_CONF_FILE",
              path, strerror(errno)));
    return;
  }
  int number = 0;
  int meaningless = 0;
  std::string first;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.size() > kLongestLine) line.resize(kLongestLine);
    if (trim(line).empty() || line.front() == '#') continue;
    const size_t equals = line.find('=');
    const std::string name = line.substr(0, std::min(equals, kLongestText));
    if (equals == std::string::npos || !is_variable_name(name)) {
      if (++meaningless == 1) first = fmt::format("line {}, \"{}\"", number, line.substr(0, 80));
      continue;
    }
    const std::string value = line.substr(equals + 1, kLongestText);
    const char* const present = getenv(name.c_str());
    if (present == nullptr) setenv(name.c_str(), value.c_str(), 0);
    if (present == nullptr || (value == present && !was_set_at_start(name)))
      set_by_files().emplace(name, path);
  }
  if (meaningless > 0)
    environment::note_once(
        log::Level::Warn, log::Env,
        fmt::format("{}: {}{} has no meaning: a line is NAME=VALUE, without blanks before or after "
                    "the name, quotes or \"export\"",
                    path, first,
                    meaningless == 1 ? "" : fmt::format(", as {} more,", meaningless - 1)));
}

// HOME, else the folder that the password database has for the user.
std::string home_folder() {
  if (const char* home = getenv("HOME"); home != nullptr && *home != '\0') return home;
  std::vector<char> memory(16384);
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(getuid(), &entry, memory.data(), memory.size(), &found) != 0 || found == nullptr)
    return {};
  return found->pw_dir;
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::toupper(x) == std::toupper(y);
  });
}

// The factor that "K", "MiB", ... stands for; 0 for anything else.
int64_t unit(std::string_view suffix) {
  if (suffix.empty()) return 1;
  constexpr std::string_view kUnits = "KMGT";
  const size_t power = kUnits.find(static_cast<char>(std::toupper(suffix.front())));
  const std::string_view rest = suffix.substr(1);
  if (power == std::string_view::npos) return equal_ignoring_case(suffix, "B") ? 1 : 0;
  if (!rest.empty() && !equal_ignoring_case(rest, "B") && !equal_ignoring_case(rest, "iB"))
    return 0;
  return int64_t{1} << (10 * (power + 1));
}

// Parses the whole of `text` as a number; nothing if that fails.
std::optional<int64_t> parse_number(const std::string& text, bool has_unit) {
  char* end = nullptr;
  errno = 0;
  const long long number = strtoll(text.c_str(), &end, 0);
  if (end == text.c_str() || errno == ERANGE) return std::nullopt;
  const std::string_view suffix = trim(end);
  const int64_t factor = has_unit ? unit(suffix) : suffix.empty() ? 1 : 0;
  int64_t product = 0;
  if (factor == 0 || __builtin_mul_overflow(int64_t{number}, factor, &product)) return std::nullopt;
  return product;
}

std::optional<int64_t> parse_flag(std::string_view text) {
  constexpr std::array<std::string_view, 6> kNo{"0", "no", "false", "off", "n", "f"};
  constexpr std::array<std::string_view, 6> kYes{"1", "yes", "true", "on", "y", "t"};
  for (size_t i = 0; i < kNo.size(); ++i) {
    if (equal_ignoring_case(text, kNo[i])) return 0;
    if (equal_ignoring_case(text, kYes[i])) return 1;
  }
  return std::nullopt;
}

void parse_choice(const Declaration& declaration, std::string_view text, Reading& out) {
  for (std::string_view names = declaration.names; !names.empty();) {
    const std::string_view name = names.substr(0, names.find('|'));
    if (equal_ignoring_case(text, name)) {
      out.text = name;
      return;
    }
    names.remove_prefix(std::min(names.size(), name.size() + 1));
  }
  out.refusal = fmt::format("is none of {}", declaration.names);
}

void parse_integer(const Declaration& declaration, std::string_view text, Reading& out) {
  const bool is_bytes = declaration.kind == Kind::Bytes;
  const auto number = parse_number(std::string(text), is_bytes);
  if (!number) {
    out.refusal =
        is_bytes ? "is no number of bytes, with or without K, M or G" : "is no whole number";
  } else if (*number < declaration.minimum || *number > declaration.maximum) {
    out.refusal = fmt::format("is outside of {} to {}", declaration.minimum, declaration.maximum);
  } else {
    out.number = *number;
  }
}

std::string describe_default(const Declaration& declaration) {
  return declaration.value == INT64_MIN ? "as if unset"
                                        : fmt::format("{} is taken", declaration.value);
}

// Reads the process's value of a parameter, and reports it.
Reading read_set(const Declaration& declaration) {
  load_files();
  const std::optional<std::string> text = environment::get(declaration.name);
  environment::write_notes();
  if (!text) return read(declaration, "");
  Reading reading = read(declaration, *text);
  if (text->empty()) return reading;
  if (!reading.refusal.empty()) {
    LOG(Warn, Env, "{}={}{} {}: {}", declaration.name, *text,
        source_of(declaration.name) == Source::File
            ? fmt::format(" (of {})", origin_of(declaration.name))
            : "",
        reading.refusal, describe_default(declaration));
  } else if (declaration.kind == Kind::Text || declaration.kind == Kind::Choice) {
    LOG(Info, Env, "{} set by {} to {}", declaration.name, origin_of(declaration.name),
        reading.text);
  } else {
    LOG(Info, Env, "{} set by {} to {}.", declaration.name, origin_of(declaration.name),
        reading.number);
  }
  return reading;
}

// In the order of parameters.def; each entry's place is its constant below.
enum Place : size_t {
#define INTEGER(function, name, value, minimum, maximum, meaning) place_of_##function,
#define BYTES(function, name, value, minimum, maximum, meaning) place_of_##function,
#define FLAG(function, name, value, meaning) place_of_##function,
#define CHOICE(function, name, names, meaning) place_of_##function,
#define TEXT(function, name, meaning) place_of_##function,
#include "base/parameters.def"
};

constexpr Declaration kDeclarations[] = {
#define INTEGER(function, name, value, minimum, maximum, meaning) \
  {name, Kind::Integer, value, minimum, maximum, "", meaning},
#define BYTES(function, name, value, minimum, maximum, meaning) \
  {name, Kind::Bytes, value, minimum, maximum, "", meaning},
#define FLAG(function, name, value, meaning) {name, Kind::Flag, value, 0, 1, "", meaning},
#define CHOICE(function, name, names, meaning) \
  {name, Kind::Choice, INT64_MIN, 0, 0, names, meaning},
#define TEXT(function, name, meaning) {name, Kind::Text, INT64_MIN, 0, 0, "", meaning},
#include "base/parameters.def"
};

constexpr WithoutEffect kWithoutEffect[] = {
#define WITHOUT_EFFECT(name, reason) {name, reason},
#include "base/parameters.def"
};

}  // namespace

#define NUMBER(function)                                                               \
  int64_t function() {                                                                 \
    static const int64_t number = read_set(kDeclarations[place_of_##function]).number; \
    return number;                                                                     \
  }
#define INTEGER(function, name, value, minimum, maximum, meaning) NUMBER(function)
#define BYTES(function, name, value, minimum, maximum, meaning) NUMBER(function)
#define FLAG(function, name, value, meaning) NUMBER(function)
#define CHOICE(function, name, names, meaning) TEXT(function, name, meaning)
#define TEXT(function, name, meaning)                                       \
  const std::string& function() {                                           \
    static const std::string* const text = /* outlives all threads */       \
        new std::string(read_set(kDeclarations[place_of_##function]).text); \
    return *text;                                                           \
  }
#include "base/parameters.def"
#undef NUMBER

std::span<const Declaration> declarations() { return kDeclarations; }

std::span<const WithoutEffect> without_effect() { return kWithoutEffect; }

void tell_of_those_without_effect() {
  if (!log::enabled(log::Level::Info, log::Env)) return;
  for (const WithoutEffect& each : kWithoutEffect)
    if (const std::optional<std::string> text = read_now(each.name))
      LOG(Info, Env, "{} set by {} to {} has no effect: {}", each.name, origin_of(each.name), *text,
          each.reason);
  environment::write_notes();
}

Reading read(const Declaration& declaration, std::string_view text) {
  Reading reading;
  reading.number = declaration.value;
  if (text.empty()) return reading;
  switch (declaration.kind) {
    case Kind::Integer:
    case Kind::Bytes:
      parse_integer(declaration, trim(text), reading);
      break;
    case Kind::Flag:
      if (const auto flag = parse_flag(trim(text))) {
        reading.number = *flag;
      } else {
        reading.refusal = "is none of 0, 1, no, yes, false, true, off, on";
      }
      break;
    case Kind::Choice:
      parse_choice(declaration, trim(text), reading);
      break;
    case Kind::Text:
      reading.text = text;
      break;
  }
  return reading;
}

Source source_of(const char* name) {
  if (!is_set(name)) return Source::Default;
  return set_by_files().contains(name) ? Source::File : Source::Environment;
}

std::string origin_of(const char* name) {
  const std::string origin = environment::origin();
  const auto file = set_by_files().find(name);
  return origin == "environment" && file != set_by_files().end() ? file->second : origin;
}

bool is_set(const char* name) { return read_now(name).has_value(); }

std::optional<std::string> read_now(const char* name) {
  load_files();
  std::optional<std::string> text = environment::get(name);
  if (text && text->empty()) text.reset();
  return text;
}

void load_files() {
  static std::once_flag once;
  std::call_once(once, [] {
    const char* file = getenv("NCCL_CONF_FILE");
    if (file != nullptr && *file != '\0') {
      apply_file(file, true);
    } else if (const std::string home = home_folder(); !home.empty()) {
      apply_file(home + "/.nccl.conf", false);
    }
    apply_file("/etc/nccl.conf", false);
  });
  environment::open_plugin();
}

}  // namespace niccolite::parameters
