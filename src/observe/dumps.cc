#include "observe/dumps.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "base/files.h"
#include "base/log.h"
#include "base/parameters.h"
#include "observe/clock.h"

namespace niccolite::observe {
namespace {

constexpr int kFormat = 1;  // of the files

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string fill_in(const std::string& pattern) {
  std::string path;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[++i] : '\0';
    if (next == 'h') {
      path += host_name();
    } else if (next == 'p') {
      path += std::to_string(getpid());
    } else if (next != '\0' && next != '%') {
      path += '%';
      path += next;
    } else {
      path += pattern[i];
    }
  }
  return path;
}

bool is_file_name(std::string_view name) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !name.empty() && name.size() < 200 && name[0] != '.' &&
         std::ranges::all_of(name, is_plain);
}

Dumps* signalled = nullptr;
void on_signal(int) { signalled->request_by_signal(); }

Status replace(const std::string& path, std::string_view text) {
  // The name has this process's id, because other processes may write the same dump.
  const std::string part = fmt::format("{}.{}.part", path, getpid());
  // Always creates a new file, so that it does not write through a file or link that others have
  // put there.
  unlink(part.c_str());
  const Fd file(open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.valid()) return Status::from_errno(errno, "cannot create " + part);
  return replace_file(file, part, path, text);
}

// Writes a file; called by one thread at a time.
void write_file(const std::string& path, std::string_view text, bool& has_complained) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (!parent.empty()) std::filesystem::create_directories(parent, ignored);
  const Status status =
      is_special_file(path) ? write_special_file(path, text) : replace(path, text);
  if (status.is_ok()) {
    LOG(Info, Init, "flight recorder: {} written", path);
    return;
  }
  if (!std::exchange(has_complained, true))
    LOG(Warn, Init, "the flight recorder's dump is lost: {} (NICCOLITE_DUMP)", status.message());
}

}  // namespace

Dumps& Dumps::of_process() {
  // Never destroyed: communicators may outlive static objects.
  static Dumps* const dumps = [] {
    auto* const made = new Dumps(parameters::dump());
    const auto signal = static_cast<int>(parameters::dump_signal());
    if (made->are_on() && signal != 0) made->listen_to(signal);
    return made;
  }();
  return *dumps;
}

Dumps::Dumps(const std::string& pattern)
    : writer_([has_complained = false](const std::string& path, const std::string& text) mutable {
        write_file(path, text, has_complained);
      }) {
  if (pattern.empty()) return;
  std::error_code ignored;
  const bool is_folder = pattern.back() == '/' || std::filesystem::is_directory(pattern, ignored);
  path_ = fill_in(is_folder ? pattern + "/%h-%p.json" : pattern);
}

void Dumps::listen_to(int signal) {
  signalled = this;
  struct sigaction before {
  }, action{};
  action.sa_handler = &on_signal;
  action.sa_flags = SA_RESTART;
  if (sigaction(signal, nullptr, &before) == 0) {
    if (before.sa_handler != SIG_DFL) {
      LOG(Warn, Init, "NICCOLITE_DUMP_SIGNAL={}: the program has a handler of its own, which stays",
          signal);
      return;
    }
    if (sigaction(signal, &action, nullptr) == 0) return;
  }
  LOG(Warn, Init,
      "NICCOLITE_DUMP_SIGNAL={}: no handler can be set for that signal ({}); choose another one, "
      "such as 12 (SIGUSR2)",
      signal, std::strerror(errno));
}

uint64_t Dumps::add(Source source) {
  std::lock_guard lock(mutex_);
  sources_.emplace(++last_id_, std::move(source));
  return last_id_;
}

void Dumps::remove(uint64_t id) {
  if (process_ != getpid()) return;
  {
    std::lock_guard lock(mutex_);
    sources_.erase(id);
  }
  writer_.wait();
}

void Dumps::request(std::string_view reason) {
  if (!are_on()) return;
  std::lock_guard lock(request_mutex_);
  if (reason_.empty()) reason_ = reason;
  // [release] the reason, to write_requested().
  is_requested_.store(true, std::memory_order_release);
}

std::string Dumps::take_reason() {
  std::lock_guard lock(request_mutex_);
  is_requested_.store(false, std::memory_order_relaxed);
  return std::exchange(reason_, {});
}

void Dumps::write_requested() {
  if (!are_on() || process_ != getpid()) return;
  std::lock_guard writing(writing_);
  if (is_signalled_.exchange(false, std::memory_order_relaxed)) request("signal");
  // acquire: pairs with request().
  if (!is_requested_.load(std::memory_order_acquire)) return;
  const std::string reason = take_reason();
  std::string text;
  {
    std::lock_guard lock(mutex_);
    if (sources_.empty()) return;
    text = describe_process(reason);
    const std::string name = std::filesystem::path(path_).filename();
    for (const auto& [id, source] : sources_) source.forward(name, text);
  }
  writer_.write(path_, std::move(text));
}

std::string Dumps::describe_process(std::string_view reason) {
  const Clock clock;
  Json json;
  json.begin_object();
  json.number("format", kFormat).text("host", host_name()).number("pid", getpid());
  json.text("reason", reason).number("time", clock.nanoseconds(ticks()));
  json.begin_list("communicators");
  for (const auto& [id, source] : sources_) {
    json.begin_object();
    source.describe(json);
    json.end_object();
  }
  json.end_list().end_object();
  return json.str() + "\n";
}

void Dumps::keep(std::string_view name, std::string_view text) {
  if (!are_on() || process_ != getpid() || !is_file_name(name)) return;
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  const std::string path = folder / name;
  if (path != path_) writer_.write(path, std::string(text));
}

}  // namespace niccolite::observe
