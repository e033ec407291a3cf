#include "ras/session.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/core.h>

namespace niccolite::ras {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return result;
}

/// Returns the rest of the line behind `words`, without the blanks between, in `rest`. False if the
/// line begins with other words.
bool begins_with(std::string_view line, const char* words, std::string_view* rest) {
  const std::string_view wanted(words);
  if (lower(line.substr(0, wanted.size())) != wanted) return false;
  *rest = line.substr(std::min(wanted.size(), line.size()));
  if (!rest->empty() && rest->front() != ' ') return false;
  rest->remove_prefix(std::min(rest->find_first_not_of(' '), rest->size()));
  return true;
}

}  // namespace

Session::Next Session::receive(std::string_view bytes,
                               const std::function<void(std::string_view)>& out) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    line_ += bytes.substr(0, end);
    if (line_.size() >= kMostLine) return Next::End;
    if (end == std::string_view::npos) return Next::Listen;
    bytes.remove_prefix(end + 1);
    if (line_.ends_with('\r')) line_.pop_back();
    const std::string line = std::exchange(line_, {});
    if (const Next next = obey(line, out); next != Next::Listen) return next;
  }
  return Next::Listen;
}

Session::Next Session::obey(std::string_view line,
                            const std::function<void(std::string_view)>& out) {
  std::string_view rest;
  if (begins_with(line, "client protocol", &rest)) {
    out("SERVER PROTOCOL 2\n");
  } else if (begins_with(line, "timeout", &rest)) {
    out(set_timeout(rest));
  } else if (begins_with(line, "set format", &rest)) {
    const std::string format = lower(rest);
    const bool is_known = format == "json" || format == "text";
    if (is_known) request_.is_json = format == "json";
    out(is_known ? "OK\n" : fmt::format("ERROR: Invalid format {}\n", rest));
  } else if (lower(line) == "status" || lower(line) == "verbose status") {
    request_.is_verbose = lower(line) != "status";
    return Next::Report;
  } else if (lower(line) == "verdict") {
    request_.wants_verdicts = true;
    return Next::Report;
  } else if (lower(line) == "stragglers") {
    request_.wants_stragglers = true;
    return Next::Report;
  } else if (begins_with(line, "monitor", &rest)) {
    out(set_monitors(rest));
  } else {
    out(fmt::format("ERROR: Unknown command {}\n", line));
  }
  return Next::Listen;
}

std::string Session::set_timeout(std::string_view value) {
  int seconds = -1;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), seconds);
  if (error != std::errc() || end != value.data() + value.size() || seconds < 0)
    return fmt::format("ERROR: Invalid timeout value {}\n", value);
  request_.timeout = std::chrono::seconds(seconds);
  return "OK\n";
}

std::string Session::set_monitors(std::string_view groups) {
  unsigned mask = groups.empty() ? kLifecycle : 0;
  while (!groups.empty()) {
    const std::string_view group = groups.substr(0, groups.find(','));
    groups.remove_prefix(std::min(group.size() + 1, groups.size()));
    const std::string name = lower(group);
    if (name == "lifecycle") {
      mask |= kLifecycle;
    } else if (name == "trace") {
      mask |= kTrace;
    } else if (name == "all") {
      mask |= kAllEvents;
    } else {
      return fmt::format("ERROR: Invalid event group '{}'\n", group);
    }
  }
  monitors_ = mask;
  return "OK\n";
}

}  // namespace niccolite::ras
