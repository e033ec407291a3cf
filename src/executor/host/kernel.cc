#include "executor/host/kernel.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "executor/host/control.h"
#include "executor/host/list_execution.h"
#include "executor/host/plan.h"
#include "executor/host/program_execution.h"
#include "executor/host/residency.h"

namespace niccolite::executor::host {
namespace {

using gpu::virtual_::Kernel;
using gpu::virtual_::Progress;
using gpu::virtual_::Task;
using Clock = std::chrono::steady_clock;

// About a millisecond of work on a slow core.
constexpr Budget kBudget{.bytes = 1 << 20, .instructions = 256};

// One execution of a Plan: all channels of one rank. It does not touch the connections before its
// first step: the operation before it on the stream may still be using them when it is made.
template <typename Execution>
class Operation final : public Task {
 public:
  Operation(std::shared_ptr<const Plan> plan, StartOrder order, Residency* residency)
      : plan_(std::move(plan)),
        order_(std::move(order)),
        residency_(residency),
        reducer_(plan_->reducer()),
        execution_(*plan_, reducer_) {}

  ~Operation() override {
    if (is_resident_) residency_->leave(ctas_of(plan_->launch()));
  }

  Progress step() override {
    if (const Command command = command_in(*plan_->launch().control); command != Command::GoOn)
      return has_left() && command == Command::End ? Progress::Done : Progress::WouldBlock;
    if (!has_begun_ && !may_begin()) return Progress::WouldBlock;
    bool advanced = !has_begun_;  // the credit that it gives may be what a peer waits for
    if (!has_begun_) begin();
    Budget budget = kBudget;
    // Goes on where the last step stopped, so that no worker waits for those before it.
    auto& workers = execution_.workers();
    for (size_t tried = 0, most = workers.size(); tried < most && !budget.is_spent(); ++tried) {
      if (next_worker_ >= workers.size()) next_worker_ = 0;
      const Progress progress = workers[next_worker_].run(budget);
      advanced = advanced || progress != Progress::WouldBlock;
      if (progress == Progress::Done) {
        std::swap(workers[next_worker_], workers.back());
        workers.pop_back();
      } else {
        ++next_worker_;
      }
    }
    if (workers.empty()) {
      execution_.end();
      if (const auto& recorder = plan_->launch().recorder) recorder->end(plan_->launch().number);
      return Progress::Done;
    }
    if (!advanced) watch();
    is_waiting_ = !advanced;
    return advanced ? Progress::Advanced : Progress::WouldBlock;
  }

  bool is_woken() const override {
    return is_waiting_ && std::ranges::all_of(execution_.workers(),
                                              [](const auto& worker) { return worker.is_woken(); });
  }

 private:
  bool may_begin() {
    std::erase_if(order_.before, [](const auto& place) { return place.expired(); });
    if (!order_.before.empty()) return false;
    if (residency_ != nullptr && !is_resident_)
      is_resident_ = residency_->enter(ctas_of(plan_->launch()));
    return residency_ == nullptr || is_resident_;
  }

  void begin() {
    has_begun_ = true;
    order_.place.reset();
    const Launch& launch = plan_->launch();
    if (launch.recorder != nullptr) launch.recorder->begin(launch.number);
    if (launch.reduction.device_scale != nullptr)
      reducer_ = Reducer(launch.type, read_scale(launch.type, launch.reduction));
    execution_.begin();
  }

  // The operation goes no further. False: ranks may still use the memory that this one has
  // advertised.
  bool has_left() {
    constexpr auto kPatience = std::chrono::seconds(2);  // a peer that answers neither way is gone
    if (!has_begun_) return true;
    if (!left_) left_ = Clock::now();
    // This rank's own proxies, which are ended by whoever aborts, and waited for in any case.
    const bool is_free = execution_.let_go();
    return (execution_.leave() || Clock::now() - *left_ > kPatience) && is_free;
  }

  // After a step in which nothing moved. The scheduler steps a blocked operation every millisecond
  // or so.
  void watch() {
    const Clock::time_point now = Clock::now();
    if (!is_waiting_) {
      looked_ = now;
      repeats_ = 0;
    }
    if (now - looked_ < kReportInterval) return;
    looked_ = now;
    for (auto& worker : execution_.workers()) worker.look_for_mismatch();
    // A worker that waits for a call of the peer's says more than one whose data have only to be
    // acknowledged.
    auto waiting = std::ranges::find_if(execution_.workers(),
                                        [](const auto& worker) { return !worker.is_draining(); });
    if (waiting == execution_.workers().end()) waiting = execution_.workers().begin();
    Report wait = waiting->wait();
    wait.repeats = repeats_;
    report(*plan_->launch().control, wait);
    if (repeats_ < std::numeric_limits<uint16_t>::max()) ++repeats_;
  }

  std::shared_ptr<const Plan> plan_;
  StartOrder order_;
  Residency* const residency_;  // null: no limit
  bool is_resident_ = false;
  Reducer reducer_;  // the plan's, or with the scale of this execution
  Execution execution_;
  size_t next_worker_ = 0;
  bool has_begun_ = false;
  bool is_waiting_ = false;                // nothing moved in the last step
  uint16_t repeats_ = 0;                   // reports of the present wait so far
  std::optional<Clock::time_point> left_;  // when it first was to go no further
  Clock::time_point looked_;               // when the wait began, or was last looked into
};

class LaunchKernel final : public Kernel {
 public:
  explicit LaunchKernel(Plan plan, StartOrder order = {}, Residency* residency = nullptr)
      : plan_(std::make_shared<const Plan>(std::move(plan))),
        order_(std::move(order)),
        residency_(residency) {}
  std::unique_ptr<Task> start() override {
    // A kernel with a place is in no graph, and starts once.
    if (plan_->launch().is_list())
      return std::make_unique<Operation<ListExecution>>(plan_, std::move(order_), residency_);
    return std::make_unique<Operation<ProgramExecution>>(plan_, std::move(order_), residency_);
  }

 private:
  std::shared_ptr<const Plan> plan_;
  StartOrder order_;
  Residency* const residency_;
};

}  // namespace

Result<std::shared_ptr<Kernel>> make_kernel(Launch launch) {
  Plan plan = TRY(Plan::create(std::move(launch)));
  TRY(plan.check_buffers());
  return std::shared_ptr<Kernel>(std::make_shared<LaunchKernel>(std::move(plan)));
}

Result<PreparedLaunch> PreparedLaunch::create(Launch launch) {
  Plan plan = TRY(Plan::create(std::move(launch)));
  return PreparedLaunch(std::make_shared<const Plan>(std::move(plan)));
}

Status PreparedLaunch::launch(gpu::virtual_::VirtualMachine& machine, int device,
                              gpu::StreamHandle stream, std::span<const Buffers> buffers,
                              uint64_t number, StartOrder order) const {
  Plan plan = TRY(plan_->with_buffers(buffers, number, &machine));
  return machine.launch(
      device, stream,
      std::make_shared<LaunchKernel>(std::move(plan), std::move(order), Residency::of(device)));
}

}  // namespace niccolite::executor::host
