#include "comm/enqueue.h"

#include <algorithm>

#include "base/log.h"

namespace niccolite::comm {
namespace {

// A program that uses more shapes than this in turn plans some of them anew; planning costs
// microseconds.
constexpr size_t kMostPrepared = 1024;

std::string upper(const char* text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return result;
}

}  // namespace

OperationQueue::OperationQueue(gpu::Machine& machine, int device, int rank,
                               const planner::Settings& settings, transport::Endpoint* endpoint,
                               const executor::ControlWords* control)
    : machine_(machine),
      device_(device),
      rank_(rank),
      endpoint_(endpoint),
      control_(control),
      planner_(settings, rank),
      order_(machine, device) {}

Result<std::shared_ptr<Prepared>> OperationQueue::prepare(const AllReduceTask& task,
                                                          const Deadline& deadline) {
  const Key key{task.count, task.type, task.operation};
  if (const auto found = prepared_.find(key); found != prepared_.end()) return found->second;

  auto prepared = std::make_shared<Prepared>();
  prepared->plan = TRY(planner_.all_reduce(task.count, task.type, task.operation));
  const planner::Plan& plan = prepared->plan;
  const auto protocol = static_cast<size_t>(plan.choice.protocol);
  executor::Launch launch;
  launch.program = plan.program;
  launch.protocol = plan.choice.protocol;
  launch.shape = planner_.settings().shapes[protocol];
  launch.ports = TRY(endpoint_->connect(*plan.program, plan.choice.protocol, deadline));
  launch.partition = plan.partition;
  launch.type = task.type;
  launch.reduction = plan.reduction;
  launch.control = control_;
  launch.control_device = control_;
  launch.threads = planner_.settings().threads;
  prepared->launcher = TRY(Launcher::create(machine_, device_, std::move(launch)));
  if (rank_ == 0)
    LOG(Info, Tuning, "AllReduce: {} Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{0..{}}}",
        task.bytes(), planner::log_name_of(plan.choice.algorithm),
        upper(executor::name_of(plan.choice.protocol)), plan.partition.channels - 1);

  if (prepared_.size() >= kMostPrepared) prepared_.erase(prepared_.begin());
  prepared_.emplace(key, prepared);
  return prepared;
}

Status OperationQueue::launch(const AllReduceTask& task, Prepared* prepared) {
  TRY(order_.before(task.stream));
  if (prepared != nullptr) {
    TRY(prepared->launcher->run(task.input, task.output, task.stream));
  } else if (task.input != task.output) {
    TRY(machine_.copy_async(task.output, task.input, task.bytes(), device_, task.stream));
  }
  return order_.after(task.stream);
}

}  // namespace niccolite::comm
