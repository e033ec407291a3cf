#include "gpu/virtual/visible.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <utility>

#include "gpu/virtual/host.h"

namespace niccolite::gpu::virtual_ {
namespace {

constexpr std::string_view kUuid = "GPU-";

/// -1: none, or more than one.
int device_of_uuid(std::string_view beginning, int devices) {
  int found = -1;
  for (int device = 0; device < devices; ++device) {
    if (!uuid_text(device_uuid(device)).starts_with(beginning)) continue;
    if (found >= 0) return -1;
    found = device;
  }
  return found;
}

/// -1: none.
int device_of_number(const std::string& entry, int devices) {
  char* end = nullptr;
  const long number = std::strtol(entry.c_str(), &end, 10);
  return end == entry.c_str() || number < 0 || number >= devices ? -1 : static_cast<int>(number);
}

std::vector<int> devices_of(std::string_view text, int devices) {
  std::vector<int> found;
  const bool are_uuids = text.starts_with(kUuid);
  while (true) {
    const size_t comma = text.find(',');
    const std::string entry(text.substr(0, comma));
    const int device =
        are_uuids == entry.starts_with(kUuid)
            ? (are_uuids ? device_of_uuid(entry, devices) : device_of_number(entry, devices))
            : -1;
    if (device < 0) return found;
    if (std::ranges::find(found, device) != found.end()) return {};
    found.push_back(device);
    if (comma == std::string_view::npos) return found;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

VisibleDevices::VisibleDevices(std::optional<std::string> text, int on_machine)
    : text_(std::move(text)), total_(on_machine) {
  if (text_) {
    on_machine_ = devices_of(*text_, total_);
  } else {
    on_machine_.resize(static_cast<size_t>(total_));
    std::iota(on_machine_.begin(), on_machine_.end(), 0);
  }
}

int VisibleDevices::in_process(int on_machine) const {
  const auto at = std::ranges::find(on_machine_, on_machine);
  return at == on_machine_.end() ? -1 : static_cast<int>(at - on_machine_.begin());
}

std::string VisibleDevices::describe() const {
  if (!text_) return fmt::format("{}", total_);
  return fmt::format("{} of {}, as CUDA_VISIBLE_DEVICES is \"{}\"", count(), total_, *text_);
}

}  // namespace niccolite::gpu::virtual_
