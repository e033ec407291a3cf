#include "gpu/choice.h"

#include <charconv>

#include "base/parameters.h"

namespace niccolite::gpu {
namespace {

constexpr int kMaxVirtualDevices = 4096;
constexpr std::string_view kVirtual = "virtual";

}  // namespace

Result<Choice> parse_choice(std::string_view text) {
  Choice choice;
  if (text.empty()) return choice;
  if (text == "cuda") {
    choice.kind = Choice::Kind::Cuda;
    return choice;
  }
  choice.kind = Choice::Kind::Virtual;
  if (text == kVirtual) return choice;
  if (text.substr(0, kVirtual.size() + 1) == "virtual:") {
    const std::string_view number = text.substr(kVirtual.size() + 1);
    const char* end = number.data() + number.size();
    const auto [parsed_to, error] = std::from_chars(number.data(), end, choice.virtual_devices);
    if (error == std::errc() && parsed_to == end && choice.virtual_devices >= 1 &&
        choice.virtual_devices <= kMaxVirtualDevices)
      return choice;
  }
  return Status::invalid_usage(
      "NICCOLITE_DEVICES is \"{}\"; it must be cuda, virtual or virtual:N with N from 1 to {}",
      text, kMaxVirtualDevices);
}

Result<Choice> chosen_devices() { return parse_choice(parameters::devices()); }

}  // namespace niccolite::gpu
