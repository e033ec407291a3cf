// Environment: the variables that the library reads, as the process environment has them, or as an
// environment plug-in says (NCCL_ENV_PLUGIN, ncclEnvPlugin_v1 and _v2). Source: reference plugins
// §7. A plug-in is opened once, before the first variable is read, and ends with the process; one
// that does not open, fails or throws costs one line, and the process environment serves.
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/log.h"

namespace niccolite::environment {

/// The version of the library, for plug-ins.
struct Version {
  uint8_t major = 0, minor = 0, patch = 0;
};
/// Uses environment plug-ins from now on. The library whose plug-ins these are calls it before the
/// first variable is read: other libraries of the process have a copy of this code, too.
void use_plugin(Version version);

/// Opens the plug-in, the first time. After the configuration files were read.
void open_plugin();

/// Returns the plug-in's value, or without a plug-in the process environment's; nothing: it is not
/// set.
std::optional<std::string> get(const char* name);

/// Names the place of all variables: "environment", or the plug-in that gives them.
std::string origin();

/// Keeps a line for write_notes(): the log itself may be reading its variables now.
void note(log::Level level, uint64_t subsystem, std::string text);
/// Keeps a line in the library of the process that has plug-ins: other libraries with a copy of
/// this code read the same files.
void note_once(log::Level level, uint64_t subsystem, std::string text);
/// Writes these lines.
void write_notes();

}  // namespace niccolite::environment
