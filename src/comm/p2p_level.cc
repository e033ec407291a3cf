#include "comm/p2p_level.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/parameters.h"

namespace niccolite::comm {
namespace {

constexpr std::pair<std::string_view, int> kLevels[] = {
    {"LOC", 0}, {"NVL", 1}, {"NVB", 2}, {"C2C", 3}, {"PIX", 4},
    {"PXB", 5}, {"P2C", 6}, {"PXN", 7}, {"PHB", 8}, {"SYS", 9}};
constexpr std::array kOlder{Distance::Loc, Distance::Pix, Distance::Pxb, Distance::Phb,
                            Distance::Sys};

std::vector<std::string_view> parts_of(std::string_view path) {
  std::vector<std::string_view> parts;
  for (size_t start = 0; start < path.size();) {
    const size_t end = std::min(path.find('/', start), path.size());
    if (end > start) parts.push_back(path.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

std::string place_of(const std::string& bus_id) {
  std::string lower = bus_id;
  std::ranges::transform(lower, lower.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  std::error_code error;
  const std::filesystem::path place =
      std::filesystem::canonical("/sys/bus/pci/devices/" + lower, error);
  return error ? std::string() : place.string();
}

}  // namespace

std::optional<int> parse_p2p_level(std::string_view text) {
  for (const auto& [name, level] : kLevels)
    if (text == name) return level;
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) == 0) return std::nullopt;
  const size_t digit = text.size() > 1 ? kOlder.size() : static_cast<size_t>(text[0] - '0');
  return static_cast<int>(kOlder[std::min(digit, kOlder.size() - 1)]);
}

Distance pci_distance(std::string_view a, std::string_view b) {
  const std::vector<std::string_view> first = parts_of(a);
  const std::vector<std::string_view> second = parts_of(b);
  const auto [end, other_end] = std::ranges::mismatch(first, second);
  const auto common = static_cast<size_t>(end - first.begin());
  // sys, devices, pci0000:00 (the root), then one bridge after the other, the device at last.
  constexpr size_t kRoot = 3;
  if (common < kRoot || first.size() <= kRoot || second.size() <= kRoot) return Distance::Sys;
  if (common == kRoot) return Distance::Phb;
  // A switch has a bridge up and one down for each device.
  const size_t longest = std::max(first.size(), second.size()) - common;
  return longest <= 2 ? Distance::Pix : Distance::Pxb;
}

Distance distance_by_bus(const std::string& a, const std::string& b) {
  return pci_distance(place_of(a), place_of(b));
}

bool forbids_peer_access(Distance distance) {
  if (parameters::p2p_disable() == 1) return true;
  const std::string& text = parameters::p2p_level();
  if (text.empty()) return false;
  const std::optional<int> level = parse_p2p_level(text);
  if (!level) {
    static std::atomic<bool> told{false};
    if (!told.exchange(true, std::memory_order_relaxed))  // nothing depends on it
      LOG(Warn, Env, "NCCL_P2P_LEVEL={}: none of LOC, NVL, PIX, PXB, PHB, SYS: ignored", text);
    return false;
  }
  return *level == 0 || static_cast<int>(distance) > *level;
}

}  // namespace niccolite::comm
