// How a communicator fails, is aborted, is finalized, and ends.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/log.h"
#include "base/parameters.h"
#include "base/thread.h"
#include "comm/communicator.h"
#include "diagnosis/watchdog.h"
#include "gpu/machine.h"
#include "observe/dumps.h"
#include "operations/buffer_comparison.h"
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
#include "registry/windows.h"
#include "transport/endpoint.h"

namespace niccolite::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kAbortTime = seconds(5);           // kernels see the abort word within microseconds
constexpr auto kAbortsAtOnce = milliseconds(50);  // longer: the kernel waits for peers
constexpr auto kKernelTime = seconds(1);   // for kernels of the user; then they are not waited for
constexpr auto kNews = milliseconds(500);  // that travel from process to process
constexpr auto kHandOverTime =
    seconds(10);  // for peers that may be slow; a peer that is stopped gets a second
constexpr auto kPatience = seconds(20);  // after which a wait logs its subject

}  // namespace

// A peer cannot be reached any more. When a rank dies, the ranks that hear of it first fail, and
// their programs may end before this rank has heard: it finds those gone, and hears why a moment
// later.
Status Communicator::first_cause(Status status) {
  if (status.code() != Code::RemoteError) return status;
  std::mutex mutex;
  std::condition_variable news;
  const int listener = lifetime_.waits().listen([&] {  // fail() raises it, too
    std::lock_guard lock(mutex);
    news.notify_all();
  });
  {
    std::unique_lock lock(mutex);
    news.wait_until(lock, Deadline::after(kNews).at(), [&] { return lifetime_.waits().raised(); });
  }
  lifetime_.waits().forget(listener);
  Status known = lifetime_.failure();
  return known.is_ok() ? std::move(status) : std::move(known);
}

Status Communicator::report_failure() {
  const log::ScopedDevice speaks_for(device());
  // The program may end as soon as it knows.
  observe::Dumps::of_process().write_requested();
  Status status = lifetime_.failure();
  log::keep_error(status);
  return status;
}

void Communicator::fail(Status status, Printed printed) {
  const log::ScopedDevice speaks_for(device());
  const char* const last = log_.last_function();
  const Lifetime::News news = lifetime_.fail(status, [&] {
    // Before the program can know: it then has the dump written (report_failure()).
    log_.note(observe::EventKind::Failed);
    observe::Dumps::of_process().request(status.message());
  });
  if (news == Lifetime::News::None) return;
  LOG(Info, Init, "{} fails: {}", describe(), status.message());
  // Failures after an abort are no news.
  if (printed == Printed::No && news == Lifetime::News::Failed && !lifetime_.waits().raised())
    log::error(status, last);
  lifetime_.waits().raise(std::move(status));
  if (parameters::end_failed() != 0) control_.tell(executor::Command::End);
}

void Communicator::abort(Status reason) {
  log_.note(observe::EventKind::Left);
  lifetime_.aborted_by_user().raise(reason.copy());  // a child that is being made ends, too
  lifetime_.waits().raise(std::move(reason));
  control_.tell(executor::Command::End);
}

// Waits until all operations are done, also operations in graphs that were launched, or until a
// failure or an abort. Logs the operations that it waits for.
Result<bool> Communicator::are_operations_done(const Deadline& deadline) {
  const bool are_done = TRY(operations_->drain(deadline));
  if (!are_done) return false;
  return one_sided_->drain(deadline);
}

namespace {

// Is all that has not been acknowledged by other machines sent to processes that are stopped? They
// have it when they go on, since their system does. Asks about each of them, also behind one that
// runs, so that all who are stopped are seen to be.
bool have_absent_alone_to_read(transport::Endpoint& endpoint, bootstrap::Member& member) {
  const std::optional<transport::NetworkState> state = endpoint.network_state();
  return state && std::ranges::count_if(state->peers, [&](const transport::Traffic& traffic) {
                    return traffic.is_under_way && !member.is_absent(traffic.peer);
                  }) == 0;
}

}  // namespace

Status Communicator::await_work(const char* function) {
  if (operations_ == nullptr) return {};
  const auto start = Deadline::Clock::now();
  for (bool reported = false; !lifetime_.waits().raised();) {
    const Deadline look = Deadline::after(milliseconds(100));
    const bool are_done = TRY(are_operations_done(look));
    if (are_done && (endpoint_ == nullptr || endpoint_->await_flush(look))) return {};
    if (are_done && have_absent_alone_to_read(*endpoint_, *member_)) {
      endpoint_->set_farewell(transport::Farewell::Unread);
      return {};
    }
    if (reported || Deadline::Clock::now() - start < kPatience) continue;
    reported = true;
    log::write(log::Level::Warn, {__builtin_FILE(), __builtin_LINE()}, function,
               fmt::format("rank {} of {} waits for the work queued on device {} to end. Have all "
                           "ranks queued the same operations?",
                           rank(), nranks(), device()));
  }
  return {};
}

// Kernels of other ranks may be using buffers that this rank's user will free
// (executor/protocol/advertisement.h). An operation that an abort does not end at once is waiting
// for them: they let go now. A revoke is no failure of theirs.
void Communicator::stop_reaching_peers() {
  if (ways_.reaching_peers().empty() || operations_ == nullptr) return;
  const Result<bool> is_done = operations_->drain(Deadline::after(kAbortsAtOnce));
  if (is_done.is_ok() && is_done.value()) return;
  const Status status = Status::remote_error("rank {} aborted the communicator", rank());
  for (const int peer : ways_.reaching_peers()) {
    if (lifetime_.waits().raised()) peers_.tell_failure(peer, status);
    peers_.tell(peer, Question::LetGo);
  }
}

// Ends all operations, whatever they wait for.
Status Communicator::end_work() {
  control_.tell(executor::Command::End);
  if (operations_ == nullptr) return {};
  stop_reaching_peers();
  if (TRY(are_operations_done(Deadline::after(kAbortTime)))) return {};
  return Status::internal("device {} is still busy {} s after the abort", device(),
                          seconds(kAbortTime).count());
}

Status Communicator::finalize() {
  const log::ScopedDevice speaks_for(device());
  const InUse in_use = use("ncclCommFinalize");
  TRY(await_work("ncclCommFinalize"));
  if (!lifetime_.waits().raised()) TRY(supervision_.compare_before_leaving());
  // Ready when it blocks its caller, InProgress when it works in the background.
  if (!lifetime_.waits().raised() && (lifetime_.change(State::Ready, State::Finalized) ||
                                      lifetime_.change(State::InProgress, State::Finalized)))
    return {};
  return lifetime_.has_outlived_failure() ? Status() : lifetime_.gone();
}

namespace {

void keep_for_ever(std::shared_ptr<Communicator> communicator) {
  static auto* const kept = new std::vector<std::shared_ptr<Communicator>>;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  kept->push_back(std::move(communicator));
}

}  // namespace

Status Communicator::end() {
  const log::ScopedDevice speaks_for(device());
  lifetime_.join_thread();  // its work has settled, or the abort ends its waits
  Status status = Status::internal("another thread is still inside a call on this communicator");
  // Not for ever: a thread may be inside a call that an abort does not end.
  const Deadline patience = Deadline::after(kAbortTime + kAbortTime);
  if (const InUse in_use = usage_.take_until("ncclCommDestroy", patience); in_use.owns_lock()) {
    status = has_ended_ ? Status() : give_back();
    has_ended_ = true;
  }
  if (status.code() != Code::InternalError) return status;
  // A kernel or a thread may still use the memory: losing it is better than pulling it from under
  // them.
  LOG(Warn, All, "{}: its buffers are not given back: {}", describe(), status.message());
  supervision_.stop_watching();
  keep_for_ever(shared_from_this());
  return {};
}

// Called by the holder of usage_.
Status Communicator::give_back() {
  Status status = await_work("ncclCommDestroy");
  // The calls of one that was revoked came to nothing, wherever the ranks were.
  if (status.is_ok() && !lifetime_.waits().raised() && !lifetime_.is_revoked())
    supervision_.compare_before_leaving().ignore("it is the failure now");
  if (status.is_ok() && lifetime_.waits().raised()) status = end_work();
  if (status.code() == Code::InternalError) return status;
  if (status.is_ok()) hand_over();
  leave();
  const char* const how = lifetime_.waits().raised() ? "Abort" : "Destroy";
  // Now, and not when the graphs are gone: captures of the program may have begun by then.
  Result<std::shared_ptr<gpu::Backlog>> kernels = work_of_user();
  if (!kernels.is_ok()) {
    keep_buffers(kernels.status());
    return status;
  }
  is_left_to_graphs_.store(true, std::memory_order_relaxed);  // see network_failed()
  if (graphs_->call_after_last([self = shared_from_this(), kernels = kernels.value()] {
        self->release_after_graphs(kernels);
      })) {
    LOG(Info, Destroy,
        "{} - {} COMPLETE; graphs that hold its operations keep its memory until they are "
        "destroyed",
        describe(), how);
    return status;
  }
  release_after_kernels(kernels.value());
  LOG(Info, Destroy, "{} - {} COMPLETE", describe(), how);
  return status;
}

// The device's work that may use windows or device communicators; null: none does. Only the user
// knows which kernels do. An abort ends the waits of kernels that look at its flag, and of kernels
// that wait for the proxy of their networking, which goes on.
Result<std::shared_ptr<gpu::Backlog>> Communicator::work_of_user() {
  const registry::DeviceComms* const made = buffers_.device_comms();
  const registry::Windows* const windows = buffers_.windows();
  const bool may_run = (made != nullptr && made->has_any()) ||
                       (lifetime_.waits().raised() && windows != nullptr && windows->had_any());
  if (!may_run) return std::shared_ptr<gpu::Backlog>();
  return machine_.backlog(device());
}

void Communicator::keep_buffers(const Status& why) {
  LOG(Warn, All, "{}: its buffers are not given back: {}", describe(), why.message());
  keep_for_ever(shared_from_this());
}

// Calls `release` once the device has done that work.
void Communicator::await_kernels(const char* function, gpu::Backlog& kernels,
                                 const std::function<void()>& release) {
  const log::ScopedDevice speaks_for(device());
  for (Deadline look = Deadline::after(kPatience);; look = Deadline::never()) {
    const Result<bool> is_idle = kernels.await(look);
    if (!is_idle.is_ok()) return keep_buffers(is_idle.status());
    if (is_idle.value()) return release();
    log::write(log::Level::Warn, {__builtin_FILE(), __builtin_LINE()}, function,
               fmt::format("rank {} of {} keeps memory of device communicators and windows: "
                           "kernels on device {} that were queued before have not ended. Do "
                           "they wait for a rank that has left?",
                           rank(), nranks(), device()));
  }
}

// await_kernels(), on a thread of its own.
void Communicator::call_after_kernels(const char* function, std::shared_ptr<gpu::Backlog> kernels,
                                      std::function<void()> release) {
  auto work = [self = shared_from_this(), function, kernels = std::move(kernels),
               release = std::move(release)] { self->await_kernels(function, *kernels, release); };
  Result<Thread> thread = Thread::start("nccl-release", std::move(work));
  if (thread.is_ok()) return thread.value().detach();
  keep_buffers(thread.status());
}

void Communicator::release_after_kernels(const std::shared_ptr<gpu::Backlog>& kernels) {
  if (kernels == nullptr) return release();
  const Result<bool> is_idle = kernels->await(Deadline::after(kKernelTime));
  if (is_idle.is_ok() && is_idle.value()) return release();
  LOG(Info, Destroy, "{}: kernels on device {} keep its memory until they end", describe(),
      device());
  call_after_kernels("ncclCommDestroy", kernels, [this] { release(); });
}

// A peer that has not come to this rank's last operations yet connects when it does, and would find
// this rank gone. So the peer's process keeps the data and memory that it needs, whatever its calls
// are doing (docs/design/connections.md).
void Communicator::hand_over() {
  if (endpoint_ == nullptr || lifetime_.waits().raised() || lifetime_.is_revoked() || is_suspended_)
    return;
  const Deadline deadline = Deadline::after(kHandOverTime);
  Result<std::vector<transport::Endpoint::Legacy>> legacies = endpoint_->hand_over();
  if (!legacies.is_ok()) {
    LOG(Info, Init, "{} hands nothing over: {}", describe(), legacies.status().message());
    return;
  }
  std::vector<bootstrap::Query> queries;
  for (const auto& [peer, message] : *legacies)
    queries.push_back({.peer = peer, .message = message});
  // The answers end with the first failure: of a peer that has ended itself, mostly.
  for (std::span<const bootstrap::Query> rest = queries;
       !rest.empty() && !lifetime_.waits().raised();) {
    const std::vector<Result<Bytes>> answers =
        peers_.ask(Question::HandOver, rest, deadline, bootstrap::Patience::WhileItRuns);
    if (deadline.passed() && !answers.back().is_ok())
      member_->give_up_on(rest[answers.size() - 1].peer);
    rest = rest.subspan(answers.size());
  }
}

// A way to another machine is lost. Nobody asks a destroyed communicator how it does, and nobody
// can abort it: waits for its graphs must end by themselves.
void Communicator::network_failed(Status why) {
  if (!is_left_to_graphs_.load(std::memory_order_relaxed)) return fail(std::move(why));
  const log::ScopedDevice speaks_for(device());
  log::error(std::move(why).with_context(
                 "rank {}: a destroyed communicator whose operations graphs still hold lost a "
                 "connection; from now on their launches end without results",
                 rank()),
             "ncclCommDestroy");
  control_.tell(executor::Command::End);
}

// Ends all that other ranks and threads of ours may still be doing here. Kernels of graphs may be
// launched again.
void Communicator::leave() {
  if (endpoint_ != nullptr && lifetime_.waits().raised())
    endpoint_->set_farewell(transport::Farewell::Hurried);
  supervision_.stop_recording();
  if (member_ != nullptr) member_->leave();  // answer() and the waits of ask() end
  supervision_.hide();
  supervision_.stop_watching();
  if (profiling_ != nullptr) profiling_->close();
  // Kernels do nothing any more, and peers must not wait for them.
  if (endpoint_ != nullptr && lifetime_.waits().raised()) endpoint_->close();
}

// The last launch is done, and its data may still be on their way to other machines.
// Whoever reads nothing for so long has it from its system when it goes on.
void Communicator::release_after_graphs(const std::shared_ptr<gpu::Backlog>& kernels) {
  if (endpoint_ != nullptr && !lifetime_.waits().raised() &&
      !endpoint_->await_flush(Deadline::after(kPatience)))
    endpoint_->set_farewell(transport::Farewell::Unread);
  release_after_kernels(kernels);
}

// Gives back the resources of kernels.
void Communicator::release() {
  const log::ScopedDevice speaks_for(device());
  if (gins_ != nullptr) gins_->close();  // uses windows and the endpoint
  buffers_.close_windows();
  buffers_.close_exports();
  operations_.reset();
  comparison_.reset();
  agreement_.reset();
  message_agreement_.reset();
  tuning_.reset();
  buffers_.close_imports();
  supervision_.release();
  log_.close();
  endpoint_.reset();
  gins_.reset();
  one_sided_.reset();
  member_.reset();
  control_.release();
}

}  // namespace niccolite::comm
