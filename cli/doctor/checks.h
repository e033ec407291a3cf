// The checks of `niccolite doctor`: what a machine must have for a job, read from the kernel's
// files and limits. A check runs nothing, changes nothing, and needs no root. Thread safety: one
// thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace niccolite::doctor {

enum class State {
  Fine,
  Note,     // no fault; worth knowing
  Warning,  // jobs run, slower or with less than the machine has
  Fault,    // jobs of some kind fail
};
/// "fine", "note", "warning", "fault".
const char* name_of(State state);

struct Finding {
  State state = State::Fine;
  std::string check;   // "gpus", "limits", ...
  std::string text;    // what was found, with numbers
  std::string remedy;  // what to do; empty: nothing
};

/// A machine's files, below a folder that stands for its root.
class Files {
 public:
  explicit Files(std::filesystem::path root) : root_(std::move(root)) {}

  /// The file's text without the end of its last line; none: it cannot be read.
  std::optional<std::string> read(const std::string& path) const;
  /// Names in a folder, sorted; none of one that cannot be read.
  std::vector<std::string> list(const std::string& folder) const;
  bool has(const std::string& path) const;
  const std::filesystem::path& root() const { return root_; }
  /// Are they this machine's own?
  bool are_of_this_machine() const { return root_ == "/"; }

 private:
  std::filesystem::path root_;
};

// Each returns one finding or more.
std::vector<Finding> check_gpus();                      // of this machine
std::vector<Finding> check_nvidia(const Files& files);  // driver, fabric manager
std::vector<Finding> check_pci(const Files& files);     // IOMMU, ACS
std::vector<Finding> check_rdma(const Files& files);    // ports of InfiniBand and RoCE
std::vector<Finding> check_host(const Files& files);    // NUMA balancing, governor, memory
std::vector<Finding> check_interfaces();                // of this machine
std::vector<Finding> check_limits(const Files& files);  // of this process
std::vector<Finding> check_clock();                     // of this machine

}  // namespace niccolite::doctor
