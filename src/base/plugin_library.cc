#include "base/plugin_library.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <strings.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <mutex>

#include "base/log.h"
#include "base/parameters.h"

namespace niccolite {
namespace {

__attribute__((format(printf, 5, 6))) void log_line(int level, unsigned long flags, const char*,
                                                    int, const char* format, ...) {
  const auto as = static_cast<log::Level>(level);
  if (!log::enabled(as, flags)) return;
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  log::write(as, {__FILE__, __LINE__}, "plug-in", text);
}

std::vector<std::string> files_of(std::string_view prefix, const std::string& name) {
  if (name.empty()) return {fmt::format("{}.so", prefix)};
  const bool is_file =
      name.find('/') != std::string::npos || (name.starts_with("lib") && name.ends_with(".so"));
  if (is_file) return {name};
  return {name, fmt::format("{}-{}.so", prefix, name)};
}

}  // namespace

const PluginLibrary::Logger PluginLibrary::kLogger = log_line;

bool PluginLibrary::is_none(const std::string& name) {
  return strcasecmp(name.c_str(), "none") == 0;
}

std::shared_ptr<PluginLibrary> PluginLibrary::open(std::string_view prefix, const std::string& name,
                                                   std::string& why) {
  const auto opened = [](void* handle, std::string file) {
    return std::shared_ptr<PluginLibrary>(new PluginLibrary(handle, std::move(file)));
  };
  // NCCL compares over the length of the given name.
  const bool is_program =
      !name.empty() && strncasecmp(name.c_str(), "STATIC_PLUGIN", name.size()) == 0;
  if (is_program) return opened(dlopen(nullptr, RTLD_NOW), "the program itself");
  for (const std::string& file : files_of(prefix, name)) {
    if (void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return opened(handle, file);
    const std::string error = dlerror();
    // Its own file, and not one that it needs.
    const bool is_absent =
        error.starts_with(fmt::format("{}: cannot open shared object file: No such file", file));
    if (name.empty() && is_absent) continue;
    why += fmt::format("{}{}", why.empty() ? "" : "; ", error);
  }
  return nullptr;
}

std::string PluginLibrary::describe(std::string_view prefix, const std::string& name,
                                    std::string_view variable) {
  return name.empty() ? fmt::format("{}.so", prefix) : fmt::format("{} ({})", name, variable);
}

int PluginLibrary::init_once(const void* table, const std::shared_ptr<PluginLibrary>& library,
                             const std::function<int()>& init) {
  static std::mutex mutex;
  static std::map<const void*, std::shared_ptr<PluginLibrary>> initialized;
  std::lock_guard lock(mutex);
  if (initialized.contains(table)) return 0;
  const int result = init();
  if (result == 0) initialized.emplace(table, library);
  return result;
}

std::vector<std::string> PluginLibrary::network_names() {
  constexpr size_t kMost = 14;
  const std::string& text = parameters::net_plugin();
  if (is_none(text)) return {};
  std::vector<std::string> names;
  for (size_t at = 0; at <= text.size() && names.size() < kMost;) {
    const size_t end = std::min(text.find(',', at), text.size());
    if (end > at || text.empty()) names.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return names;
}

std::shared_ptr<PluginLibrary> PluginLibrary::open_of_network() {
  std::string why;
  for (const std::string& name : network_names())
    if (auto library = open("libnccl-net", name, why)) return library;
  return nullptr;
}

PluginLibrary::~PluginLibrary() { dlclose(handle_); }

const void* PluginLibrary::find(const std::string& symbol) const {
  return dlsym(handle_, symbol.c_str());
}

}  // namespace niccolite
