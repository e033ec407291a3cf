// Writing files that others read meanwhile. Thread safety: any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/fd.h"

namespace niccolite {

/// Is there a device, a pipe or a socket at `path`, be it behind links: something that is written
/// to, and not replaced by a new file?
bool is_special_file(const std::string& path);

/// Appends `text` to a special file. SystemError: as of write(), or nobody reads from it.
Status write_special_file(const std::string& path, std::string_view text);

/// Makes `file`, a new one at `temporary`, the whole new content of `path`: readers find the old
/// one or the new one. Where that fails the old one stays, and nothing of the new one.
Status replace_file(const Fd& file, const std::string& temporary, const std::string& path,
                    std::string_view text);

}  // namespace niccolite
