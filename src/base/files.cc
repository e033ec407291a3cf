#include "base/files.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace niccolite {
namespace {

constexpr int kPatience = 1000;  // ms, with a reader that does not read on

Status write_all(const Fd& file, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      pollfd room{.fd = file.get(), .events = POLLOUT, .revents = 0};
      if (poll(&room, 1, kPatience) > 0) continue;
      errno = EAGAIN;
    }
    if (written <= 0) return Status::from_errno(errno, "cannot write " + path);
    text.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

}  // namespace

bool is_special_file(const std::string& path) {
  struct stat state {};
  return stat(path.c_str(), &state) == 0 && !S_ISREG(state.st_mode) && !S_ISDIR(state.st_mode);
}

Result<std::string> read_text_file(const std::string& path, size_t most_bytes) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return Status::from_errno(errno, "cannot read " + path);
  const std::streamoff bytes = file.tellg();
  if (bytes < 0 || static_cast<size_t>(bytes) > most_bytes)
    return Status::invalid_usage("{} is no file of at most {} bytes", path, most_bytes);
  std::string text(static_cast<size_t>(bytes), '\0');
  file.seekg(0);
  file.read(text.data(), bytes);
  if (!file) return Status::from_errno(errno, "cannot read " + path);
  return text;
}

Result<std::vector<std::string>> json_files_in(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  // Incremented by increment(), because operator++ throws.
  auto entry = std::filesystem::directory_iterator(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    if (entry->path().extension() == ".json") files.push_back(entry->path().string());
  if (error) return Status::from_errno(error.value(), "cannot read the folder " + folder);
  std::ranges::sort(files);
  return files;
}

// Refuses a pipe without a reader, and does not wait for a reader that has stopped.
Status write_special_file(const std::string& path, std::string_view text) {
  const Fd file(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  if (!file.valid()) return Status::from_errno(errno, "cannot write " + path);
  return write_all(file, text, path);
}

Status replace_file(const Fd& file, const std::string& temporary, const std::string& path,
                    std::string_view text) {
  Status status = write_all(file, text, temporary);
  if (status.is_ok() && rename(temporary.c_str(), path.c_str()) != 0)
    status = Status::from_errno(errno, "cannot rename " + temporary);
  if (!status.is_ok()) unlink(temporary.c_str());
  return status;
}

}  // namespace niccolite
