#include "gpu/virtual/host.h"

#include <fmt/core.h>
#include <unistd.h>

#include <fstream>

#include "base/process.h"

namespace niccolite::gpu::virtual_ {
namespace {

constexpr int kFirstDomain = 0xf000;

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The boot id differs between machines and between boots; the host name tells containers of one
// machine apart, which do not see each other's processes.
std::string host_identity() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  std::string boot = boot_id();
  if (boot.empty()) boot = first_line("/etc/machine-id");
  return fmt::format("{}/{}", name, boot);
}

// 64-bit FNV-1a with a finishing mix, so that neighbouring inputs share no bytes.
uint64_t hash(const std::string& text) {
  uint64_t h = 0xcbf29ce484222325;
  for (const char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  h ^= h >> 31;
  h *= 0x9e3779b97f4a7c15;
  return h ^ h >> 29;
}

}  // namespace

std::array<uint8_t, 16> device_uuid(int device) {
  static const std::string host = host_identity();
  const uint64_t halves[2] = {hash(fmt::format("gpu {} of {}", device, host)),
                              hash(fmt::format("{} has gpu {}", host, device))};
  std::array<uint8_t, 16> uuid;
  for (size_t i = 0; i < uuid.size(); ++i)
    uuid[i] = static_cast<uint8_t>(halves[i / 8] >> (8 * (i % 8)));
  return uuid;
}

std::string uuid_text(const std::array<uint8_t, 16>& uuid) {
  std::string text = "GPU";
  for (size_t i = 0; i < uuid.size(); ++i) {
    const bool begins_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    text += fmt::format("{}{:02x}", begins_group ? "-" : "", uuid[i]);
  }
  return text;
}

int device_bus_domain(int device) { return kFirstDomain + device / 256; }
int device_bus(int device) { return device % 256; }

std::string device_bus_id(int device) {
  return fmt::format("{:04x}:{:02x}:00.0", device_bus_domain(device), device_bus(device));
}

}  // namespace niccolite::gpu::virtual_
