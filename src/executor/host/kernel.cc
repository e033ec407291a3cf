#include "executor/host/kernel.h"

#include <atomic>
#include <utility>
#include <vector>

#include "executor/host/lane.h"
#include "executor/host/plan.h"
#include "executor/host/port.h"

namespace niccolite::executor::host {
namespace {

using gpu::virtual_::Kernel;
using gpu::virtual_::Progress;
using gpu::virtual_::Task;

// About a millisecond of work on a slow core.
constexpr Budget kBudget{.bytes = 1 << 20, .instructions = 256};

// One execution of a Plan: all channels of one rank. It does not touch the connections before its
// first step: the operation before it on the stream may still be using them when it is made.
class Operation final : public Task {
 public:
  explicit Operation(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {
    const uint32_t channels = plan_->launch().partition.channels;
    size_t ports = 0;
    for (uint32_t channel = 0; channel < channels; ++channel) ports += ports_of(channel).size();
    ports_.resize(ports);
    PortState* next = ports_.data();
    for (uint32_t channel = 0; channel < channels; ++channel) {
      for (const CompactLane& lane : plan_->program().lanes) {
        if (lane.channel == pattern_channel(channel))
          lanes_.emplace_back(*plan_, lane, channel, next);
      }
      next += ports_of(channel).size();
    }
  }

  Progress step() override {
    if (is_aborted()) return Progress::Done;
    if (!has_begun_) begin();
    Budget budget = kBudget;
    bool advanced = false;
    // Goes on where the last step stopped, so that no lane waits for those before it.
    for (size_t tried = 0, lanes = lanes_.size(); tried < lanes && !budget.is_spent(); ++tried) {
      if (next_lane_ >= lanes_.size()) next_lane_ = 0;
      const Progress progress = lanes_[next_lane_].run(budget);
      advanced = advanced || progress != Progress::WouldBlock;
      if (progress == Progress::Done) {
        lanes_[next_lane_] = lanes_.back();
        lanes_.pop_back();
      } else {
        ++next_lane_;
      }
    }
    if (lanes_.empty()) {
      for (PortState& port : ports_) port.end();
      return Progress::Done;
    }
    return advanced ? Progress::Advanced : Progress::WouldBlock;
  }

 private:
  uint32_t pattern_channel(uint32_t channel) const {
    return channel % static_cast<uint32_t>(plan_->program().nchannels);
  }
  const std::vector<uint16_t>& ports_of(uint32_t channel) const {
    return plan_->ports_of(pattern_channel(channel));
  }

  bool is_aborted() const {
    // acquire: pairs with the communicator's release store; nothing of the connections is used
    // after it.
    auto& abort =
        const_cast<uint32_t&>(plan_->launch().control->abort);  // atomic_ref needs a mutable object
    return std::atomic_ref(abort).load(std::memory_order_acquire) != 0;
  }

  void begin() {
    has_begun_ = true;
    const Launch& launch = plan_->launch();
    PortState* state = ports_.data();
    for (uint32_t channel = 0; channel < launch.partition.channels; ++channel) {
      for (const uint16_t number : ports_of(channel)) {
        const Port& port = plan_->program().ports[number];
        const uint64_t steps = static_cast<uint64_t>(port.steps) * launch.partition.rounds;
        (state++)->begin(launch.ports[number], launch.shape, channel, port.is_send, steps);
      }
    }
  }

  std::shared_ptr<const Plan> plan_;
  std::vector<PortState> ports_;  // [channel][Plan::ports_of]
  std::vector<Lane> lanes_;       // those that are not done; they point into ports_ and *plan_
  size_t next_lane_ = 0;
  bool has_begun_ = false;
};

class LaunchKernel final : public Kernel {
 public:
  explicit LaunchKernel(Plan plan) : plan_(std::make_shared<const Plan>(std::move(plan))) {}
  std::unique_ptr<Task> start() override { return std::make_unique<Operation>(plan_); }

 private:
  std::shared_ptr<const Plan> plan_;
};

}  // namespace

Result<std::shared_ptr<Kernel>> make_kernel(Launch launch) {
  Plan plan = TRY(Plan::create(std::move(launch)));
  return std::shared_ptr<Kernel>(std::make_shared<LaunchKernel>(std::move(plan)));
}

Status launch(gpu::virtual_::VirtualMachine& machine, int device, gpu::StreamHandle stream,
              Launch launch) {
  std::shared_ptr<Kernel> kernel = TRY(make_kernel(std::move(launch)));
  return machine.launch(device, stream, std::move(kernel));
}

}  // namespace niccolite::executor::host
