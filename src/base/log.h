// Log lines in NCCL's format and levels, because people grep them: NCCL_DEBUG, NCCL_DEBUG_SUBSYS,
// NCCL_DEBUG_FILE, NCCL_DEBUG_TIMESTAMP_LEVELS, NCCL_DEBUG_TIMESTAMP_FORMAT.
//   LOG(Info, Init, "comm {} rank {} nranks {}", ...)     host:pid:tid [dev] NCCL INFO text
//   LOG(Warn, All, "...")                                 also kept for ncclGetLastError
// Rules: WARN is one line per error that the caller gets; INFO one line per object or decision;
// nothing per step. Never in a signal handler. Arguments are evaluated only when the line is
// printed or kept. Thread safety: any thread; a line is written whole.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace niccolite::log {

enum class Level : int { None = 0, Version = 1, Warn = 2, Info = 3, Abort = 4, Trace = 5 };

enum Subsystem : uint64_t {
  Init = 0x1,
  Coll = 0x2,
  P2p = 0x4,
  Shm = 0x8,
  Net = 0x10,
  Graph = 0x20,
  Tuning = 0x40,
  Env = 0x80,
  Alloc = 0x100,
  Call = 0x200,
  Proxy = 0x400,
  Nvls = 0x800,
  Bootstrap = 0x1000,
  Reg = 0x2000,
  Profile = 0x4000,
  Ras = 0x8000,
  Destroy = 0x10000,
  AllocHost = 0x20000,
  All = ~uint64_t{0},
};

/// How often a process that has set no NCCL_DEBUG prints a warning. Limited: each text once, and
/// sixteen texts.
enum class Unasked : uint8_t { Limited, Always };

bool enabled(Level level, uint64_t subsystems);
void write(Level level, SourceLocation place, const char* function, const std::string& text,
           Unasked unasked = Unasked::Limited);
/// Prints `status` as one WARN line (if the level allows) and keeps its message as the last error.
/// Once per error, where it leaves the library.
void error(const Status& status, const char* call);
/// Makes the message of an earlier, printed failure the last error again; an OK status changes
/// nothing.
void keep_error(const Status& status);
/// Prints text without a prefix, once per process: the version line; from INFO on `details`
/// follows.
void version_line(const std::string& text, const std::string& details, bool first_rank);

/// The text of the last error of this process; valid until the thread's next call of last_error().
const char* last_error();

/// Makes the next line read the NCCL_DEBUG* variables again (ncclResetDebugInit).
void reset();

/// Gives the "[dev]" of a line: the calling thread's current device. Set once by gpu/.
void set_device_source(int (*current_device)());

/// While it lives, lines of this thread name `device` instead of the current device: for threads
/// that speak for a communicator.
class ScopedDevice {
 public:
  explicit ScopedDevice(int device);
  ~ScopedDevice();
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

 private:
  const int previous_;
};

}  // namespace niccolite::log

#define LOG(level, subsystem, ...)                                                              \
  do {                                                                                          \
    if (::niccolite::log::enabled(::niccolite::log::Level::level, ::niccolite::log::subsystem)) \
      ::niccolite::log::write(::niccolite::log::Level::level,                                   \
                              {__builtin_FILE(), __builtin_LINE()}, __func__,                   \
                              ::fmt::format(__VA_ARGS__));                                      \
  } while (false)
