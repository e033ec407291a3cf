#include "base/files.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

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
