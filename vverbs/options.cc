#include "options.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace vverbs {
namespace {

bool number(const std::string& text, double low, double high, double& value) {
  char* end = nullptr;
  value = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && value >= low && value <= high;
}

bool integer(const std::string& text, double low, double high, double& value) {
  return text.find_first_not_of("0123456789") == std::string::npos &&
         number(text, low, high, value);
}

bool parse_fault(const std::string& text, const Options& options, Fault& fault) {
  static const struct {
    const char* name;
    FaultKind kind;
  } kinds[] = {{"down", FaultKind::Down},        {"flap", FaultKind::Flap},
               {"drop", FaultKind::Drop},        {"lose", FaultKind::Lose},
               {"late", FaultKind::Late},        {"refuse", FaultKind::Refuse},
               {"flush", FaultKind::Flush},      {"slow", FaultKind::Slow},
               {"corrupt", FaultKind::Corrupt},  {"gpu", FaultKind::CorruptGpu},
               {"mr", FaultKind::MemoryRefused}, {"dmabuf", FaultKind::GpuMemoryRefused},
               {"gone", FaultKind::Gone}};
  const size_t at = text.find('@');
  const size_t colon = text.find(':');
  if (at == std::string::npos || colon == std::string::npos || colon < at) return false;
  bool known = false;
  for (const auto& kind : kinds)
    if (text.substr(0, at) == kind.name) {
      fault.kind = kind.kind;
      known = true;
    }
  std::string device = text.substr(at + 1, colon - at - 1);
  double value = 0;
  if (const size_t slash = device.find('/'); slash != std::string::npos) {
    if (!integer(device.substr(slash + 1), 1, options.ports, value)) return false;
    fault.port = static_cast<int>(value);
    device.resize(slash);
  }
  if (!integer(device, 0, options.devices - 1, value)) return false;
  fault.device = static_cast<int>(value);
  if (!integer(text.substr(colon + 1), 0, 1e15, value)) return false;
  fault.after = static_cast<uint64_t>(value);
  return known;
}

}  // namespace

std::string parse_options(const std::string& text, Options& options) {
  std::istringstream words(text);
  std::string word;
  double value = 0;
  std::getline(words, word, ',');
  if (word.rfind("virtual:", 0) != 0 || !integer(word.substr(8), 0, 64, value))
    return "'" + word + "' is not virtual:N with N of 0 to 64";
  options.devices = static_cast<int>(value);
  while (std::getline(words, word, ',')) {
    const size_t equal = word.find('=');
    const std::string key = word.substr(0, equal);
    const std::string setting = equal == std::string::npos ? "" : word.substr(equal + 1);
    if (key == "ports" && integer(setting, 1, 8, value)) {
      options.ports = static_cast<int>(value);
    } else if (key == "speed" && integer(setting, 1, 800, value)) {
      options.speed_gbit = static_cast<int>(value);
    } else if (key == "rate" && number(setting, 0.001, 1e6, value)) {
      options.rate_gbit = value;
    } else if (key == "latency" && number(setting, 0, 1e6, value)) {
      options.latency_us = value;
    } else if (Fault fault; key == "fault" && parse_fault(setting, options, fault)) {
      options.faults.push_back(fault);
    } else {
      return "'" + word +
             "' is none of ports=1..8, speed=1..800 (Gbit/s), rate=0.001..1000000 (Gbit/s), "
             "latency=0..1000000 (us), "
             "fault=down|flap|drop|lose|late|refuse|flush|slow|corrupt|gpu|mr|gone@DEVICE[/"
             "PORT]:AFTER "
             "(after ports=)";
    }
  }
  return {};
}

const Options& options() {
  // Never destroyed: threads of devices that a program leaves open read it until the end.
  static const Options& parsed = *new Options([] {
    Options result;
    const char* text = std::getenv("NICCOLITE_NICS");
    if (text == nullptr || *text == '\0') return result;
    if (const std::string wrong = parse_options(text, result); !wrong.empty()) {
      std::fprintf(stderr, "vverbs: NICCOLITE_NICS=%s: %s; there are no virtual NICs\n", text,
                   wrong.c_str());
      result = Options{};
      result.devices = 0;
    }
    return result;
  }());
  return parsed;
}

}  // namespace vverbs
