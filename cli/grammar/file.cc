#include "cli/grammar/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/files.h"

namespace niccolite::grammar {
namespace {

// Follows links to a path that may have no file yet.
std::string end_of_links(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // as of the system
  std::error_code error;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(path, error); ++i)
    path = path.parent_path() / std::filesystem::read_symlink(path, error);
  return path;
}

// A new file in the folder of the file that `path` names or leads to.
struct Temporary {
  std::string target;
  std::string name;
  Fd file;
};
Result<Temporary> make_temporary(const std::string& path) {
  Temporary made{.target = end_of_links(path), .name = {}, .file = {}};
  made.name = made.target + ".XXXXXX";
  made.file = Fd(mkostemp(made.name.data(), O_CLOEXEC));
  if (!made.file.valid()) return Status::from_errno(errno, "cannot write " + path);
  const mode_t mask = umask(0);
  umask(mask);
  fchmod(made.file.get(), 0666 & ~mask);
  return made;
}

}  // namespace

Result<std::string> read_text(const std::string& path) {
  constexpr size_t kMost = size_t{1} << 30;
  std::FILE* const file = path == kStandardOutput ? stdin : std::fopen(path.c_str(), "rbe");
  const auto failed = [&](int error) {
    return Status::invalid_argument("cannot read {}: {}", path,
                                    std::generic_category().message(error));
  };
  if (file == nullptr) return failed(errno);
  std::string text;
  std::array<char, 65536> piece;
  size_t bytes = 0;
  while ((bytes = std::fread(piece.data(), 1, piece.size(), file)) > 0 && text.size() <= kMost)
    text.append(piece.data(), bytes);
  const int error = std::ferror(file) != 0 ? errno : text.size() > kMost ? EFBIG : 0;
  if (file != stdin) std::fclose(file);
  if (error != 0) return failed(error);
  return text;
}

Status write_text(const std::string& path, const std::string& text) {
  if (path == kStandardOutput) {
    const bool is_written =
        std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
    return is_written ? Status() : Status::from_errno(errno, "cannot write standard output");
  }
  if (is_special_file(path)) return write_special_file(path, text);
  const Temporary made = TRY(make_temporary(path));
  return replace_file(made.file, made.name, made.target, text);
}

Status write_json(const std::string& path, const nlohmann::json& document) {
  return write_text(path, document.dump(1) + "\n");
}

Status check_writable(const std::string& path) {
  if (path == kStandardOutput) return {};
  std::error_code ignored;  // a path without a file is no folder
  if (std::filesystem::is_directory(path, ignored))
    return Status::from_errno(EISDIR, "cannot write " + path);
  if (is_special_file(path))
    return access(path.c_str(), W_OK) == 0 ? Status()
                                           : Status::from_errno(errno, "cannot write " + path);
  const Temporary made = TRY(make_temporary(path));
  unlink(made.name.c_str());
  return {};
}

}  // namespace niccolite::grammar
