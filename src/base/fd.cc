#include "base/fd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/forks.h"

namespace niccolite {

Result<Fd> Fd::memfd(const char* name, size_t bytes) {
  Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Status::from_errno(errno, "cannot create shared memory (memfd_create)");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    return Status::from_errno(
        error, fmt::format("cannot size shared memory to {} bytes (ftruncate)", bytes));
  }
  // A process that maps the memory can rely on its size: a page beyond the end of a file is a
  // fault.
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return Status::from_errno(errno, "cannot seal the size of shared memory (F_ADD_SEALS)");
  return fd;
}

Result<Fd> Fd::duplicate() const {
  Fd copy(fcntl(fd_, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid())
    return Status::from_errno(errno, "cannot duplicate a file descriptor (limit: ulimit -n)");
  return copy;
}

void Fd::withhold() const { forks::withhold(fd_); }

int Fd::release() {
  forks::forget(fd_);
  return std::exchange(fd_, -1);
}

void Fd::reset() {
  if (const int fd = release(); fd >= 0) close(fd);
}

Result<Mapping> Mapping::shared(const Fd& fd, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    return Status::from_errno(error,
                              fmt::format("cannot map {} bytes of shared memory (mmap)", bytes));
  }
  return Mapping(data, bytes);
}

void Mapping::reset() {
  if (data_ != nullptr) munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace niccolite
