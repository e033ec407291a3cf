// Reading whole files, and writing files that others read meanwhile. Thread safety: any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"

namespace niccolite {

/// Returns the content of the file at `path`. SystemError: it cannot be read. InvalidUsage: it has
/// more than `most_bytes`, or is no file.
Result<std::string> read_text_file(const std::string& path, size_t most_bytes);

/// Returns the paths of all files *.json in a folder, sorted; empty: there are none. SystemError:
/// the folder cannot be read.
Result<std::vector<std::string>> json_files_in(const std::string& folder);

/// True if there is a device, a pipe or a socket at `path`, also behind links. Such a file is
/// written to, and not replaced by a new file.
bool is_special_file(const std::string& path);

/// Appends `text` to a special file. SystemError: as of write(), or there is no reader.
Status write_special_file(const std::string& path, std::string_view text);

/// Makes `file`, a new one at `temporary`, the whole new content of `path`: readers find the old
/// one or the new one. Where that fails the old one stays, and nothing of the new one.
Status replace_file(const Fd& file, const std::string& temporary, const std::string& path,
                    std::string_view text);

}  // namespace niccolite
