#include "comm/communicator.h"

#include <algorithm>

#include "base/log.h"
#include "base/parameters.h"
#include "diagnosis/stragglers.h"
#include "diagnosis/watch.h"
#include "diagnosis/watchdog.h"
#include "gpu/machine.h"
#include "operations/buffer_comparison.h"
#include "operations/launch_order.h"
#include "operations/message_agreement.h"
#include "operations/one_sided.h"
#include "operations/plan_agreement.h"
#include "operations/tuning.h"
#include "profiling/connection_events.h"
#include "profiling/profiling.h"
#include "registry/buffer_exports.h"
#include "registry/buffer_imports.h"
#include "registry/device_comms.h"
#include "registry/gins.h"
#include "registry/team_buffers.h"
#include "registry/windows.h"
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

Communicator::Communicator(gpu::Machine& machine, const Identity& identity,
                           Configuration configuration)
    : machine_(machine),
      configuration_(std::move(configuration)),
      operators_(next_salt()),
      membership_(identity),
      lifetime_(identity.rank),
      buffers_(machine, lifetime_),
      log_(identity.function),
      supervision_(membership_, lifetime_, log_, peers_),
      usage_(log_) {}

Communicator::~Communicator() = default;

std::string Communicator::describe() const {
  return fmt::format("comm {} rank {} nranks {} cudaDev {}", static_cast<const void*>(this), rank(),
                     nranks(), device());
}

Status Communicator::perform(std::span<calls::Task> tasks) {
  const InUse in_use = use(tasks.front().call);
  TRY(check_operable());
  std::vector<registry::CapturedBuffer> captured;
  if (comparison_ != nullptr && TRY(comparison_->is_due(tasks)))
    captured = TRY(compare_held(tasks));
  Status status = operations_->carry_out(tasks, kConnectTime, std::move(captured));
  if (comparison_ != nullptr && status.is_ok()) comparison_->launched();
  if (!status.is_ok()) [[unlikely]]
    return first_cause(std::move(status));
  return status;
}

Status Communicator::perform_one_sided(const operations::OneSidedCall& call) {
  const InUse in_use = use(call.function);
  TRY(check_operable());
  TRY(ways_.check(call, membership_));
  if (log_.is_open()) log_->note_function(call.function);
  return first_cause(one_sided_->run(call, Deadline::after(kConnectTime)));
}

Result<operations::Chosen> Communicator::choose_launches(
    std::span<calls::Task> tasks, std::vector<registry::CapturedBuffer> captured) {
  const InUse in_use = use(tasks.front().call);
  TRY(check_operable());
  return operations_->choose(tasks, std::move(captured));
}

Result<bool> Communicator::compares_buffers(std::span<const calls::Task> tasks) {
  if (comparison_ == nullptr) return false;
  const InUse in_use = use(tasks.front().call);
  TRY(check_operable());
  return comparison_->is_due(tasks);
}

Result<std::vector<registry::CapturedBuffer>> Communicator::compare_buffers(
    std::span<const calls::Task> tasks) {
  const InUse in_use = use(tasks.front().call);
  TRY(check_operable());
  return compare_held(tasks);
}

Result<std::vector<registry::CapturedBuffer>> Communicator::compare_held(
    std::span<const calls::Task> tasks) {
  const calls::CallLog::HostCallScope in_call(log_.get(), function_of(tasks.front().call));
  Result<std::vector<registry::CapturedBuffer>> found = comparison_->compare(tasks);
  if (!found.is_ok()) return first_cause(std::move(found).status());
  return found;
}

Status Communicator::connect_chosen(operations::Chosen& chosen) {
  const InUse in_use = use(chosen.tasks.front().call);
  TRY(check_operable());
  return first_cause(operations_->connect(chosen, Deadline::after(kConnectTime)));
}

Status Communicator::launch_chosen(const operations::Chosen& chosen, size_t number) {
  const InUse in_use = use(chosen.tasks.front().call);
  TRY(check_operable());
  TRY(operations_->launch(chosen, number, 1));
  if (comparison_ != nullptr) comparison_->launched();
  return {};
}

Result<double> Communicator::predict(std::span<const calls::Task> tasks) {
  const InUse in_use = use("ncclGroupSimulateEnd");
  TRY(check_operable());
  return operations_->predict(tasks);
}

std::unique_ptr<operations::OneSided> Communicator::make_one_sided() {
  return std::make_unique<operations::OneSided>(operations::OneSided::Options{
      .machine = machine_,
      .device = device(),
      .member = member_.get(),
      .control = control_.words(),
      .ask = [this](
                 std::span<const bootstrap::Query> queries,
                 const Deadline& until) { return peers_.ask(Question::Signals, queries, until); },
      .graphs = graphs_,
      .is_remote = [this](int peer) { return endpoint_ != nullptr && membership_.is_remote(peer); },
      .connect = [this](int peer,
                        const Deadline& until) { return endpoint_->connect_for_puts(peer, until); },
      .find_window = [this](uint64_t number) { return buffers_.find_numbered(number); }});
}

std::unique_ptr<registry::Gins> Communicator::make_gins() {
  return std::make_unique<registry::Gins>(registry::Gins::Options{
      .machine = machine_,
      .device = device(),
      .member = member_.get(),
      .is_remote = [this](int peer) { return membership_.is_remote(peer); },
      .connect = [this](int peer,
                        const Deadline& until) { return endpoint_->connect_for_gin(peer, until); },
      .find_window = [this](const void* handle) { return buffers_.find_window(handle); },
      .find_numbered = [this](uint64_t number) { return buffers_.find_numbered(number); },
      .fail = [this](Status status) { fail(std::move(status)); },
      .is_over = [this] { return lifetime_.waits().raised(); },
      .has_left = [this](int peer) { return member_->has_left(peer); }});
}

// A refusal is a failure of all ranks: the peer's next put would wait for ever. On a proxy's
// thread.
bool Communicator::note_landing(int peer, Status landed) {
  if (landed.is_ok()) return true;
  if (!is_left_to_graphs_.load(std::memory_order_relaxed) && !lifetime_.waits().raised())
    fail_all(std::move(landed).with_peer(peer));
  return false;
}

bool Communicator::land(int peer, std::span<const std::byte> chunk) {
  const log::ScopedDevice speaks_for(device());
  return note_landing(peer, one_sided_->land(peer, chunk).with_context("ncclPutSignal"));
}

bool Communicator::land_gin(int peer, std::span<const std::byte> chunk) {
  const log::ScopedDevice speaks_for(device());
  return note_landing(peer, gins_->land(peer, chunk));
}

Result<const void*> Communicator::register_window(void* user, size_t bytes, int flags) {
  const InUse in_use = use("ncclCommWindowRegister");
  if (is_over()) return lifetime_.gone();
  const calls::CallLog::HostCallScope in_call(log_.get(), "ncclCommWindowRegister");
  Result<const void*> handle = buffers_.windows()->add(user, bytes, flags);
  if (handle.is_ok() && handle.value() != nullptr) buffers_.note_window(user, bytes);
  if (handle.is_ok() && buffers_.windows()->had_symmetric()) reach_windows_by_team();
  open_windows();
  return handle;
}

Result<registry::DeviceComm> Communicator::make_device_comm(const registry::DeviceNeeds& needs) {
  const InUse in_use = use("ncclDevCommCreate");
  if (is_over()) return lifetime_.gone();
  const calls::CallLog::HostCallScope in_call(log_.get(), "ncclDevCommCreate");
  return buffers_.device_comms()->make(needs, Deadline::after(kConnectTime));
}

Status Communicator::end_device_comm(const void* window) {
  const InUse in_use = use("ncclDevCommDestroy");
  TRY(buffers_.withdraw_device_comm(window));
  if (window == nullptr) return {};
  Result<std::shared_ptr<gpu::Backlog>> kernels = machine_.backlog(device());
  if (!kernels.is_ok()) {
    keep_buffers(kernels.status());
    return {};
  }
  const Result<bool> is_idle = kernels.value()->await(Deadline::after({}));
  if (is_idle.is_ok() && is_idle.value()) {
    release_device_comm(window);
    return {};
  }
  // A kernel that uses it may be running, and needs its memory and its proxy.
  call_after_kernels("ncclDevCommDestroy", std::move(kernels).take(), [this, window] {
    const InUse held = use("ncclDevCommDestroy");
    if (!is_over()) release_device_comm(window);  // else it ended with the communicator
  });
  return {};
}

void Communicator::release_device_comm(const void* window) {
  gins_->end(window);
  buffers_.end_device_comm(window);
}

bool Communicator::may_have_multicast() const {
  return ways_.has_windows() && buffers_.windows() != nullptr &&
         buffers_.windows()->may_have_multicast();
}

// Operations by the team need slots no more where all ranks pass the same place of a symmetric
// window. Collective, when all ranks have registered the first one, or capture buffers that are to
// be some.
void Communicator::reach_windows_by_team() {
  registry::Windows& windows = *buffers_.windows();
  if (!team_may_reach_windows() || team_windows_ != TeamWindows::Untried) return;
  const Status status = windows.begin_multicast();  // fails on all ranks, or on none
  team_windows_ = status.is_ok() ? TeamWindows::Reached : TeamWindows::NotReached;
  if (rank() != 0) return;
  if (status.is_ok())
    LOG(Info, Nvls, "operations by the team load and store symmetric windows themselves");
  else
    LOG(Info, Nvls, "the team reaches no windows, so its operations go through its own memory: {}",
        status.message());
}

// On each machine the team for windows must have the same ranks as the team for slots: all of them.
bool Communicator::team_may_reach_windows() const {
  return has_team_ && ways_.has_windows() &&
         buffers_.windows()->team_ranks() * membership_.count_machines() == nranks();
}

// After reach_windows_by_team().
void Communicator::open_windows_of_team() {
  if (team_windows_ != TeamWindows::Reached) return;
  for (int peer = 0; peer < nranks(); ++peer)
    if (peer != rank() && !membership_.is_remote(peer)) ways_.add_reaching(peer);
  const registry::Windows& windows = *buffers_.windows();
  operations_->open_windows(windows, /*plans_for_it=*/false, windows.multicast_base());
}

// All ranks have registered the same windows, between the same operations of theirs.
void Communicator::open_windows() {
  const registry::Windows& windows = *buffers_.windows();
  if (!windows.had_any() || endpoint_ == nullptr) return;
  // Across machines, other plans do without: not all ranks reach the buffers.
  if (!ways_.maps_all_memory()) return open_windows_of_team();
  endpoint_->open_windows();
  for (int peer = 0; peer < nranks(); ++peer)
    if (ways_.reach().windows[static_cast<size_t>(peer)] && peer != rank())
      ways_.add_reaching(peer);
  operations_->open_windows(
      windows, ways_.reach().has_whole_windows && windows.had_symmetric(),
      team_windows_ == TeamWindows::Reached ? windows.multicast_base() : nullptr);
}

Status Communicator::check_operable() const {
  if (is_over()) return lifetime_.gone();
  // Between the calls of a group and its end, too.
  if (lifetime_.has_failed()) return lifetime_.failure();
  if (lifetime_.is_revoked()) return lifetime_.revoked();
  if (is_suspended_)
    return Status::invalid_usage("the communicator of rank {} is suspended: call ncclCommResume",
                                 rank());
  return {};
}

void Communicator::settle_background(Status result) {
  const bool is_ok = result.is_ok();
  if (!is_ok) {
    // fail() takes and prints the first failure alone. Where the communicator has outlived that
    // one, the user would hear of no other.
    const log::ScopedDevice speaks_for(device());
    if (lifetime_.keep_background_failure(result)) log::error(result, log_.last_function());
    fail(std::move(result));
  }
  lifetime_.settle(is_ok);
}

}  // namespace niccolite::comm
