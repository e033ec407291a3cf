// Loaded by the dynamic linker (LD_AUDIT) into the program that `niccolite which` starts, before
// anything of it: tells the first libnccl that is opened, by whatever way it was found, and ends
// the process before a line of that library runs. Linked with the C library alone, since it gets a
// copy of all that it needs.
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "cli/which/protocol.h"

extern "C" {

__attribute__((visibility("default"))) unsigned int la_version(unsigned int version) {
  return version;
}

__attribute__((visibility("default"))) unsigned int la_objopen(link_map* object, Lmid_t,
                                                               uintptr_t*) {
  const char* const path = object->l_name;
  const char* const slash = std::strrchr(path, '/');
  const char* const name = slash == nullptr ? path : slash + 1;
  const char* const report = std::getenv(niccolite::which::kReport);
  if (std::strncmp(name, niccolite::which::kName, std::strlen(niccolite::which::kName)) != 0 ||
      report == nullptr)
    return 0;
  const int fd = open(report, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return 0;  // `niccolite which` has its answer
  char line[4096];
  const size_t length = std::strlen(path);
  if (length + 1 > sizeof line) return 0;
  std::memcpy(line, path, length);
  line[length] = '\n';
  // At most PIPE_BUF bytes: whole, or not at all.
  if (write(fd, line, length + 1) < 0) return 0;
  _exit(0);
}
}
