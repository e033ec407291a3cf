#include "base/listeners.h"

#include <dirent.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include "base/process.h"

namespace niccolite {
namespace {

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, CloseDirectory> directory(opendir(path.c_str()));
  if (directory == nullptr) return names;
  while (const dirent* entry = readdir(directory.get())) names.emplace_back(entry->d_name);
  return names;
}

/// As /proc/net/tcp and tcp6 have it: words of four bytes, each as this machine reads it.
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

bool has_one_of(const std::string& process, const std::set<std::string>& links) {
  const std::string path = "/proc/" + process + "/fd";
  for (const std::string& name : names_in(path)) {
    std::array<char, 64> target{};
    const ssize_t length =
        readlink((path + "/" + name).c_str(), target.data(), target.size());  // not "." and ".."
    if (length > 0 && links.contains(std::string(target.data(), static_cast<size_t>(length))))
      return true;
  }
  return false;
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
  for (const std::string& process : names_in("/proc")) {
    pid_t number = 0;
    const auto [end, error] =
        std::from_chars(process.data(), process.data() + process.size(), number);
    if (error != std::errc() || end != process.data() + process.size()) continue;
    if (!has_one_of(process, links)) continue;
    std::ifstream name_file("/proc/" + process + "/comm");
    std::string name;
    std::getline(name_file, name);
    listeners.processes.push_back({.number = number, .name = name, .started = start_of(number)});
  }
  std::ranges::sort(listeners.processes, {},
                    [](const auto& process) { return std::pair(process.started, process.number); });
  return listeners;
}

}  // namespace niccolite
