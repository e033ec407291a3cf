// Files that subcommands read and write. "-" is standard output (or input) everywhere.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/status.h"

namespace niccolite::grammar {

inline constexpr const char* kStandardOutput = "-";

/// The content of the file at `path`, or of standard input. InvalidArgument names the file: it
/// cannot be read, or has more than 1 GiB.
Result<std::string> read_text(const std::string& path);

/// Replaces the file at `path`, or the file that a link there leads to, by `text`, in one step:
/// readers find the old file or the new one. A device or a pipe gets the text.
Status write_text(const std::string& path, const std::string& text);
Status write_json(const std::string& path, const nlohmann::json& document);

/// Fails if no file can be written at `path`, and leaves a file there as it is. For commands that
/// measure for minutes before they write.
Status check_writable(const std::string& path);

}  // namespace niccolite::grammar
