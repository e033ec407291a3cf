// NVML, by its names: the library is the driver's, and there is none without a GPU.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <map>

#include "topology/detect.h"

namespace niccolite::topology {
namespace {

// Structs of nvml.h, whose layout is fixed.
struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, ids, subsystem_ids;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);
constexpr int kSuccess = 0;
constexpr int kPeerToPeer = 0;  // NVML_NVLINK_CAP_P2P_SUPPORTED

struct Nvml {
  Nvml() {
    // Stays open: the driver's own libraries do not like to be closed.
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto find = [&](const char* name, auto& function) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    int (*initialize)() = nullptr;
    is_usable = find("nvmlInit_v2", initialize) &&
                find("nvmlDeviceGetHandleByPciBusId_v2", handle_of) &&
                find("nvmlDeviceGetNvLinkState", state_of) &&
                find("nvmlDeviceGetNvLinkCapability", capability_of) &&
                find("nvmlDeviceGetNvLinkRemotePciInfo_v2", other_end_of) &&
                find("nvmlDeviceGetIndex", index_of) && initialize() == kSuccess;
  }
  static const Nvml& instance() {
    static const Nvml nvml;
    return nvml;
  }
  bool is_usable = false;
  int (*handle_of)(const char* bus_id, void** device) = nullptr;
  int (*state_of)(void* device, unsigned link, unsigned* is_active) = nullptr;
  int (*capability_of)(void* device, unsigned link, int capability, unsigned* has) = nullptr;
  int (*other_end_of)(void* device, unsigned link, PciInfo* info) = nullptr;
  int (*index_of)(void* device, unsigned* index) = nullptr;
};

unsigned most_links(int compute_capability) {
  if (compute_capability >= 90) return 18;
  if (compute_capability >= 80) return 12;
  if (compute_capability >= 70) return 6;
  return compute_capability >= 60 ? 4 : 0;
}

// NVML writes 00000000:1B:00.0 where others write 0000:1b:00.0.
std::string short_form(std::string bus_id) {
  std::ranges::transform(bus_id, bus_id.begin(),
                         [](unsigned char letter) { return std::tolower(letter); });
  if (bus_id.size() == 16 && bus_id.starts_with("0000")) bus_id.erase(0, 4);
  return bus_id;
}

}  // namespace

std::vector<NvLink> find_nvlinks(const std::string& bus_id, int compute_capability,
                                 const std::function<std::string(const std::string&)>& class_of) {
  const Nvml& nvml = Nvml::instance();
  void* device = nullptr;
  if (!nvml.is_usable || nvml.handle_of(bus_id.c_str(), &device) != kSuccess) return {};
  std::map<std::string, NvLink> links;
  for (unsigned link = 0; link < most_links(compute_capability); ++link) {
    unsigned is_active = 0, reaches_peers = 0;
    PciInfo end{};
    if (nvml.state_of(device, link, &is_active) != kSuccess || is_active == 0) continue;
    if (nvml.capability_of(device, link, kPeerToPeer, &reaches_peers) != kSuccess ||
        reaches_peers == 0)
      continue;
    if (nvml.other_end_of(device, link, &end) != kSuccess) continue;
    end.bus_id[sizeof end.bus_id - 1] = '\0';
    const std::string target = short_form(end.bus_id);
    NvLink& found = links[target];
    if (found.count++ > 0) continue;
    found.target = target;
    found.target_class = class_of(target);
    // Switches are often hidden from machines that are virtual themselves.
    if (found.target_class.empty()) found.target_class = "0x068000";
  }
  std::vector<NvLink> all;
  for (auto& [target, link] : links) all.push_back(std::move(link));
  return all;
}

std::optional<int> nvml_index(const std::string& bus_id) {
  const Nvml& nvml = Nvml::instance();
  void* device = nullptr;
  unsigned index = 0;
  if (!nvml.is_usable || nvml.handle_of(bus_id.c_str(), &device) != kSuccess ||
      nvml.index_of(device, &index) != kSuccess)
    return std::nullopt;
  return static_cast<int>(index);
}

}  // namespace niccolite::topology
