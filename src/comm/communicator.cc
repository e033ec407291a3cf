#include "comm/communicator.h"

#include <algorithm>

#include "base/log.h"
#include "base/parameters.h"
#include "diagnosis/stragglers.h"
#include "diagnosis/watch.h"
#include "diagnosis/watchdog.h"
#include "operations/launch_order.h"
#include "operations/message_agreement.h"
#include "operations/one_sided.h"
#include "operations/plan_agreement.h"
#include "operations/tuning.h"
#include "profiling/connection_events.h"
#include "profiling/profiling.h"
#include "registry/buffer_exports.h"
#include "registry/buffer_imports.h"
#include "registry/windows.h"
#include "topology/detect.h"
#include "transport/endpoint.h"

namespace niccolite::comm {
namespace {

/// Differs from communicator to communicator of this process.
uint64_t next_salt() {
  static std::atomic<uint64_t> salt{0};
  return salt.fetch_add(1, std::memory_order_relaxed);  // relaxed: only a number of its own
}

}  // namespace

Deadline Communicator::time_for_all_ranks() {
  return Deadline::after(std::chrono::seconds(parameters::init_timeout()));
}

Communicator::Communicator(gpu::Machine& machine, Identity identity, Configuration configuration)
    : machine_(machine),
      meeting_(std::exchange(identity.meeting, {})),
      identity_(std::move(identity)),
      id_hash_(identity_.hash),
      configuration_(std::move(configuration)),
      operators_(next_salt()),
      registrations_(machine) {}

Communicator::~Communicator() = default;

std::string Communicator::describe() const {
  return fmt::format("comm {} rank {} nranks {} cudaDev {}", static_cast<const void*>(this), rank(),
                     nranks(), device());
}

bool Communicator::spans_machines() const {
  // Numbers are those of the first communicator's machines: a child may lie on its second alone.
  return std::ranges::any_of(machine_of_,
                             [this](int machine) { return machine != machine_of_.front(); });
}

int Communicator::load_store_ranks() const {
  if (nranks() == 1 || lacks_access_) return 1;
  if (!spans_machines()) return nranks();
  const auto other = std::ranges::find_if(
      machine_of_, [this](int machine) { return machine != machine_of_.front(); });
  const auto size = static_cast<size_t>(other - machine_of_.begin());
  if (machine_of_.size() % size != 0) return 1;
  for (size_t rank = 0; rank < machine_of_.size(); ++rank)
    if (machine_of_[rank] != machine_of_[rank / size * size]) return 1;
  return static_cast<int>(size);
}

int Communicator::nvml_device() const {
  if (machine_.kind() == gpu::Kind::Virtual) return device();
  const Result<gpu::DeviceInfo> info = machine_.device_info(device());
  if (!info.is_ok()) return device();
  return topology::nvml_index(info.value().bus_id).value_or(device());
}

void Communicator::await_use(const char* function) {
  const std::shared_ptr<calls::CallLog> log = shared_log();
  const calls::CallLog::BlockedScope blocked(log.get(), function);
  in_use_.lock();
}

Status Communicator::run(const calls::Task& task) {
  const InUse in_use = use(task.call);
  TRY(check_operable());
  Status status = operations_->run(task, kConnectTime);
  if (!status.is_ok()) [[unlikely]]
    return first_cause(std::move(status));
  return status;
}

Status Communicator::run(const operations::OneSidedCall& call) {
  const InUse in_use = use(call.is_wait() ? "ncclWaitSignal" : "ncclPutSignal");
  TRY(check_operable());
  TRY(check_reach(call));
  return first_cause(one_sided_->run(call, Deadline::after(kConnectTime)));
}

Result<bool> Communicator::run_known(std::span<calls::Task> tasks) {
  const InUse in_use = use(tasks.front().call);
  TRY(check_operable());
  return operations_->run_known(tasks);
}

Result<std::vector<operations::Ready>> Communicator::prepare(std::span<calls::Task> tasks) {
  const InUse in_use = use(tasks.front().call);
  TRY(check_operable());
  return operations_->prepare(tasks);
}

Status Communicator::connect(std::span<operations::Ready> launches) {
  const InUse in_use = launches.empty() ? use("ncclGroupEnd") : use(launches[0].calls.front());
  TRY(check_operable());
  return first_cause(operations_->connect(launches, Deadline::after(kConnectTime)));
}

Status Communicator::launch(const operations::Ready& ready) {
  const InUse in_use = use(ready.calls.front());
  TRY(check_operable());
  return operations_->launch(ready);
}

Result<double> Communicator::predict(std::span<const calls::Task> tasks) {
  const InUse in_use = use("ncclGroupSimulateEnd");
  TRY(check_operable());
  return operations_->predict(tasks);
}

std::unique_ptr<operations::OneSided> Communicator::make_one_sided() {
  return std::make_unique<operations::OneSided>(
      machine_, device(), member_.get(), control_.words(),
      [this](std::span<const bootstrap::Query> queries, const Deadline& until) {
        return ask(Question::Signals, queries, until);
      },
      graphs_);
}

Status Communicator::check_reach(const operations::OneSidedCall& call) const {
  const auto refuse = [&](int peer) -> Status {
    if (reach_.pairs.empty()) return {};
    if (is_remote(peer))
      return Status::invalid_usage(
          "rank {} is on another machine than rank {}: puts and signals stay within one machine",
          peer, rank());
    if (!reach_.pairs[static_cast<size_t>(peer)].has_peer_access())
      return Status::invalid_usage(
          "the GPUs of ranks {} and {} have no peer access to each other, which puts and signals "
          "need",
          rank(), peer);
    return {};
  };
  if (!call.is_wait()) return refuse(call.peer);
  for (const operations::OneSidedCall::Wait& wait : call.waits) TRY(refuse(wait.peer));
  return {};
}

Status Communicator::deregister_range(void* handle) {
  TRY(registrations_.remove(handle));
  std::lock_guard lock(exports_mutex_);  // another thread may end the communicator
  if (exports_ != nullptr) exports_->end_unregistered();
  return {};
}

Result<const void*> Communicator::register_window(void* user, size_t bytes, int flags) {
  const InUse in_use = use("ncclCommWindowRegister");
  if (is_over()) return gone();
  const calls::CallLog::HostCallScope in_call(log_.get(), "ncclCommWindowRegister");
  Result<const void*> handle = windows_->add(user, bytes, flags);
  open_windows();
  return handle;
}

// All ranks have registered the same windows, between the same operations of theirs.
void Communicator::open_windows() {
  if (!windows_->had_any() || endpoint_ == nullptr) return;
  endpoint_->open_windows();
  for (int peer = 0; peer < nranks(); ++peer)
    if (reach_.windows[static_cast<size_t>(peer)] && peer != rank() &&
        std::ranges::find(reaching_peers_, peer) == reaching_peers_.end())
      reaching_peers_.push_back(peer);
  operations_->open_windows(*windows_, reach_.has_whole_windows && windows_->had_symmetric());
}

Status Communicator::deregister_window(const void* handle) {
  std::lock_guard lock(windows_mutex_);
  if (windows_ == nullptr) return gone();
  return windows_->remove(handle);
}

std::shared_ptr<const registry::Window> Communicator::find_window(const void* handle) {
  std::lock_guard lock(windows_mutex_);
  return windows_ == nullptr ? nullptr : windows_->find(handle);
}

std::shared_ptr<const registry::Window> Communicator::find_window_of(const void* pointer,
                                                                     size_t bytes) {
  std::lock_guard lock(windows_mutex_);
  return windows_ == nullptr ? nullptr : windows_->containing(pointer, bytes);
}

// The error of a call that another thread's abort overtook.
Status Communicator::gone() const {
  Status status = failure();
  if (!status.is_ok()) return status;
  return Status::invalid_usage("the communicator of rank {} was aborted", rank());
}

Status Communicator::revoked() const {
  return Status::invalid_usage(
      "the communicator of rank {} was revoked (ncclCommRevoke, or NCCL_SHRINK_ABORT): it takes no "
      "operations any more",
      rank());
}

Status Communicator::check_operable() const {
  if (is_over()) return gone();
  // Between the calls of a group and its end, too.
  if (has_failed()) return failure();
  if (is_revoked()) return revoked();
  if (is_suspended_)
    return Status::invalid_usage("the communicator of rank {} is suspended: call ncclCommResume",
                                 rank());
  return {};
}

Status Communicator::check_ready() const {
  if (state() == State::Finalized)
    return Status::invalid_argument(
        "communicator of rank {} was finalized: only ncclCommDestroy may follow", rank());
  return check_usable();
}

Status Communicator::check_usable() const {
  switch (state()) {
    case State::Ready:
    case State::Finalized:
      return {};
    case State::InProgress:
      return Status::invalid_argument(
          "communicator of rank {} is still in progress: poll ncclCommGetAsyncError until it "
          "returns something other than "
          "ncclInProgress",
          rank());
    case State::Failed:
      return has_outlived_failure() ? Status() : failure();
  }
  return Status::internal("communicator in an unknown state");
}

Status Communicator::check_takes_operations() const {
  TRY(check_ready());
  return has_failed() ? failure() : Status();
}

void Communicator::begin_background() {
  std::lock_guard lock(failure_mutex_);  // against fail()
  change_state(State::Ready, State::InProgress);
  // [release] pairs with state()
  if (has_failed()) works_after_failure_.store(true, std::memory_order_release);
}

void Communicator::settle_background(Status result) {
  const bool is_ok = result.is_ok();
  if (!is_ok) {
    keep_background_failure(result);
    fail(std::move(result));
  }
  std::lock_guard lock(failure_mutex_);  // against fail()
  if (is_ok) change_state(State::InProgress, State::Ready);
  works_after_failure_.store(false, std::memory_order_release);  // as above
}

void Communicator::keep_background(std::shared_ptr<Thread> thread) {
  std::shared_ptr<Thread> previous;  // has settled: a communicator in progress takes no new work
  std::lock_guard lock(background_mutex_);
  previous = std::exchange(background_, std::move(thread));
}

}  // namespace niccolite::comm
