// The agreement between `niccolite which` and its spy in the other program (audit.cc).
#pragma once

namespace niccolite::which {

/// The environment variable with the path of the FIFO that takes the answer: a path and a newline.
inline constexpr const char* kReport = "NICCOLITE_WHICH_REPORT";
/// How the names of the libraries begin that are looked for.
inline constexpr const char* kName = "libnccl.so";

}  // namespace niccolite::which
