// VisibleDevices: which of the machine's virtual GPUs a process sees, and under which numbers:
// CUDA_VISIBLE_DEVICES, with CUDA's rules.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace niccolite::gpu::virtual_ {

class VisibleDevices {
 public:
  /// `text`: numbers as strtol reads them, or "GPU-" and the beginning of a UUID, separated by
  /// commas; nothing: all are visible. An entry that names no GPU hides itself and all after it,
  /// and an entry that names a GPU again hides all.
  VisibleDevices(std::optional<std::string> text, int on_machine);

  int count() const { return static_cast<int>(on_machine_.size()); }
  /// The machine's number of a GPU, equal in all its processes.
  int on_machine(int device) const { return on_machine_[static_cast<size_t>(device)]; }
  /// This process's number of the machine's GPU; -1: hidden.
  int in_process(int on_machine) const;
  int total() const { return total_; }
  /// How many there are, for messages: "8", or "1 of 8, as CUDA_VISIBLE_DEVICES is "3"".
  std::string describe() const;

 private:
  const std::optional<std::string> text_;
  const int total_;
  std::vector<int> on_machine_;  // by this process's numbers
};

}  // namespace niccolite::gpu::virtual_
