#include "executor/host/team_trial.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

namespace niccolite::executor::host {
namespace {

using gpu::virtual_::Kernel;
using gpu::virtual_::MulticastMemory;
using gpu::virtual_::Progress;
using gpu::virtual_::Task;

using Pattern = std::array<uint32_t, kTrialBytes / sizeof(uint32_t)>;

Pattern load(const std::byte* address) {
  Pattern pattern;
  std::memcpy(pattern.data(), address, sizeof pattern);
  return pattern;
}

class TrialTask final : public Task {
 public:
  TrialTask(gpu::virtual_::VirtualMachine& machine, const TeamTrial& trial)
      : machine_(machine), trial_(trial) {}

  Progress step() override {
    size_t offset = 0;
    memory_ = machine_.multicast_memory(trial_.team, &offset);
    if (memory_ != nullptr) members_.resize(static_cast<size_t>(memory_->devices()));
    const bool is_there = memory_ != nullptr && members_.size() == trial_.members &&
                          memory_->find(offset, members_) >= trial_.members * kTrialBytes;
    if (trial_.step == TeamTrial::Step::Store) {
      if (is_there) store();
    } else {
      *trial_.verdict = static_cast<uint32_t>(is_there ? look() : TeamVerdict::StoreLost);
    }
    return Progress::Done;
  }

 private:
  void store() {
    Pattern pattern;
    pattern.fill(trial_word(trial_.number));
    for (std::byte* const member : members_)
      std::memcpy(member + trial_.number * kTrialBytes, pattern.data(), sizeof pattern);
  }

  TeamVerdict look() const {
    for (uint32_t of = 0; of < trial_.members; ++of) {
      Pattern expected, sum{};
      expected.fill(trial_word(of));
      if (load(trial_.own + of * kTrialBytes) != expected) return TeamVerdict::StoreLost;
      for (const std::byte* const member : members_) {
        const Pattern pattern = load(member + of * kTrialBytes);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += pattern[i];
      }
      expected.fill(trial_.members * trial_word(of));
      if (sum != expected) return TeamVerdict::LoadIsWrong;
    }
    return TeamVerdict::Works;
  }

  gpu::virtual_::VirtualMachine& machine_;
  const TeamTrial trial_;
  std::shared_ptr<const MulticastMemory> memory_;
  std::vector<std::byte*> members_;
};

class TrialKernel final : public Kernel {
 public:
  TrialKernel(gpu::virtual_::VirtualMachine& machine, const TeamTrial& trial)
      : machine_(machine), trial_(trial) {}
  std::unique_ptr<Task> start() override { return std::make_unique<TrialTask>(machine_, trial_); }

 private:
  gpu::virtual_::VirtualMachine& machine_;
  const TeamTrial trial_;
};

}  // namespace

Status launch(gpu::virtual_::VirtualMachine& machine, int device, gpu::StreamHandle stream,
              const TeamTrial& trial) {
  return machine.launch(device, stream, std::make_shared<TrialKernel>(machine, trial));
}

}  // namespace niccolite::executor::host
