// PluginLibrary: a shared library with plug-ins of NCCL's ABI (network, tuner, profiler,
// environment), found and opened by NCCL's rules, and the logger that all kinds of plug-ins get.
// Source: reference plugins §1.1, §2. Thread safety: any thread; plug-ins expect one opening at a
// time, which callers see to.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace niccolite {

class PluginLibrary {
 public:
  /// The logger that plug-ins get (ncclDebugLogger_t). It writes a plug-in's lines to our log.
  using Logger = void (*)(int level, unsigned long flags, const char* file, int line,
                          const char* format, ...);
  static const Logger kLogger;

  /// Opens the library that `name` stands for: a file; NAME for `prefix`-NAME.so; STATIC_PLUGIN for
  /// the program itself; empty for `prefix`.so. Null if nothing opens, with dlopen's error in
  /// `why`. `why` stays empty if `name` is empty and there is no such file, which is no mistake.
  static std::shared_ptr<PluginLibrary> open(std::string_view prefix, const std::string& name,
                                             std::string& why);
  /// The first library of NCCL_NET_PLUGIN that opens, where tuners and profilers may be, too; null:
  /// there is none.
  static std::shared_ptr<PluginLibrary> open_of_network();
  /// Calls a table's init, unless it has succeeded in this process before: older tables expect
  /// that. The library of a table that has succeeded stays loaded. Returns init's result, which is
  /// 0 for success, or 0.
  static int init_once(const void* table, const std::shared_ptr<PluginLibrary>& library,
                       const std::function<int()>& init);
  /// Returns the names in NCCL_NET_PLUGIN; nothing: no plug-ins.
  static std::vector<std::string> network_names();
  /// For messages: the name with its variable, or the file that is looked for without one.
  static std::string describe(std::string_view prefix, const std::string& name,
                              std::string_view variable);
  /// "none", in any case: no plug-in of that kind.
  static bool is_none(const std::string& name);

  ~PluginLibrary();
  PluginLibrary(const PluginLibrary&) = delete;

  /// A table, which is data; null: there is none of that name.
  const void* find(const std::string& symbol) const;
  const std::string& file() const { return file_; }

 private:
  PluginLibrary(void* handle, std::string file) : handle_(handle), file_(std::move(file)) {}

  void* const handle_;
  const std::string file_;
};

}  // namespace niccolite
