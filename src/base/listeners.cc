#include "base/listeners.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/process.h"

namespace niccolite {
namespace {

/// Returns the entries that this process may read and that do not vanish meanwhile.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> entries;
  std::error_code error;
  auto entry = std::filesystem::directory_iterator(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    entries.push_back(entry->path());
  return entries;
}

/// Formats an address like /proc/net/tcp and tcp6: words of four bytes, each as this machine reads
/// it.
std::string hexadecimal(std::span<const std::byte> address) {
  std::string text;
  for (size_t at = 0; at + sizeof(uint32_t) <= address.size(); at += sizeof(uint32_t)) {
    uint32_t word = 0;
    std::memcpy(&word, address.data() + at, sizeof word);
    text += fmt::format("{:08X}", word);
  }
  return text;
}

struct ListeningSocket {
  std::string inode;
  uid_t user = 0;
};

std::vector<ListeningSocket> sockets_at(const Address& address) {
  std::vector<ListeningSocket> found;
  const std::string port = fmt::format(":{:04X}", address.port());
  const std::string mine = hexadecimal(address.bytes()) + port;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream table(path);
    std::string line;
    std::getline(table, line);  // the head
    while (std::getline(table, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retries, user, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retries >> user >> timeout >>
          inode;
      constexpr const char* kListening = "0A";
      if (state != kListening || inode.empty()) continue;
      const size_t colon = std::min(local.find(':'), local.size());
      const bool is_everywhere =
          local.find_first_not_of('0') == colon && local.substr(colon) == port;
      if (local != mine && !is_everywhere) continue;
      found.push_back({.inode = inode, .user = static_cast<uid_t>(std::stoul(user))});
    }
  }
  return found;
}

bool has_one_of(const std::filesystem::path& process, const std::set<std::string>& links) {
  return std::ranges::any_of(entries_of(process / "fd"), [&](const auto& descriptor) {
    std::error_code error;
    return links.contains(std::filesystem::read_symlink(descriptor, error).string());
  });
}

}  // namespace

std::string Listeners::text() const {
  if (!processes.empty())
    return fmt::format("process {} ({})", processes.front().number, processes.front().name);
  return users.empty() ? "another process" : fmt::format("a process of user {}", users.front());
}

Listeners listeners_at(const Address& address) {
  Listeners listeners;
  std::set<std::string> links;
  std::set<uid_t> users;
  for (const ListeningSocket& socket : sockets_at(address)) {
    links.insert("socket:[" + socket.inode + "]");
    users.insert(socket.user);
  }
  listeners.users.assign(users.begin(), users.end());
  if (links.empty()) return listeners;
  for (const std::filesystem::path& process : entries_of("/proc")) {
    const std::string digits = process.filename();
    pid_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc() || end != digits.data() + digits.size()) continue;
    if (!has_one_of(process, links)) continue;
    std::ifstream name_file(process / "comm");
    std::string name;
    std::getline(name_file, name);
    listeners.processes.push_back(
        {.number = number, .name = name, .started = start_of(static_cast<uint64_t>(number))});
  }
  std::ranges::sort(listeners.processes, {},
                    [](const auto& process) { return std::pair(process.started, process.number); });
  return listeners;
}

}  // namespace niccolite
