// Chooses the user's buffers that a launch offers to peers, and tells the result to ranks that must
// agree on direct plans.
#include <algorithm>

#include "base/log.h"
#include "gpu/machine.h"
#include "operations/launcher.h"
#include "operations/message_agreement.h"
#include "operations/operation_queue.h"
#include "operations/plan_agreement.h"
#include "operations/plans.h"
#include "registry/buffer_exports.h"
#include "registry/team_buffers.h"
#include "registry/windows.h"

namespace niccolite::operations {
namespace {

using executor::Buffers;

using Uses = std::vector<std::shared_ptr<const registry::BufferExport>>;

constexpr std::chrono::seconds kExportTime{10};  // peers' processes map memory on their own threads

/// The longest message, of powers of two, up to which all go by LL or LL128 where they are planned
/// for direct buffers, too. Longer ones go by Simple then, and would be advertised.
size_t most_by_lines(Plans& plans) {
  if (!plans.most_message_by_lines) {
    const auto goes_by_lines = [&](size_t bytes) {
      const Result<executor::Protocol> protocol =
          plans.planner.protocol_of_message(bytes, /*goes_direct=*/true);
      return protocol.is_ok() && protocol.value() != executor::Protocol::Simple;
    };
    constexpr size_t kMost = size_t{1} << 40;
    size_t longer = 1;
    while (longer < kMost && goes_by_lines(longer)) longer *= 2;
    plans.most_message_by_lines = longer / 2;
  }
  return *plans.most_message_by_lines;
}

/// The export of a buffer with these shifts; null: the buffer lies in a window.
const registry::BufferExport* export_of(const uint64_t* shifts, const Uses& uses) {
  const auto found = std::find_if(uses.rbegin(), uses.rend(),
                                  [&](const auto& used) { return used->shifts() == shifts; });
  return found == uses.rend() ? nullptr : found->get();
}

}  // namespace

void OperationQueue::offer_buffers(const GroupLaunch& launch, Underway& underway) {
  const bool is_noted = agreement_ != nullptr && !order_.is_captured();
  if (is_noted && exports_ == nullptr) note_openness(launch, underway);
  if (launch.launcher->advertises()) {
    if (windows_ == nullptr && exports_ == nullptr) return;  // a team opens windows, too
    for (size_t work = 0; work < underway.buffers.size(); ++work)
      underway.buffers[work] = advertise(underway.buffers[work], launch.calls[work], underway);
  } else if (is_noted && exports_ != nullptr) {
    note_without_advertisements(launch, underway);
  }
}

const uint64_t* OperationQueue::shifts_of(const void* pointer, size_t bytes, Underway& underway) {
  if (pointer == nullptr) return nullptr;
  Uses& uses = underway.uses;
  for (const registry::CapturedBuffer& captured : underway.chosen.captured)
    if (captured.data == pointer && captured.window->holds(pointer, bytes)) return captured.shifts;
  if (windows_ != nullptr)
    if (const uint64_t* shifts = windows_->shifts_of(pointer, bytes, order_.is_captured()))
      return shifts;
  if (team_buffers_ != nullptr && !order_.is_captured())
    if (const uint64_t* shifts = team_buffers_->shifts_of(pointer, bytes)) return shifts;
  if (exports_ == nullptr) return nullptr;
  // In the same call it need not be looked for again. A list's buffers lie in few allocations.
  constexpr std::ptrdiff_t kMostLooks = 8;
  const auto end = uses.rbegin() + std::min(kMostLooks, std::ssize(uses));
  const auto known = std::find_if(
      uses.rbegin(), end, [&](const auto& used) { return used->is_allocation_of(pointer, bytes); });
  if (known != end) return (*known)->shifts();
  using Use = registry::BufferExports::Use;
  auto found = exports_->find(pointer, bytes, order_.is_captured() ? Use::Captured : Use::Plain,
                              Deadline::after(kExportTime));
  if (found == nullptr) return nullptr;
  const uint64_t* const shifts = found->shifts();
  uses.push_back(std::move(found));
  return shifts;
}

// Each launch anew: windows end, and memory is freed and comes back as other memory.
Buffers OperationQueue::with_shifts(Buffers buffers, Underway& underway) {
  buffers.input_shifts = shifts_of(buffers.input, buffers.input_bytes, underway);
  buffers.output_shifts = shifts_of(buffers.output, buffers.output_bytes, underway);
  return buffers;
}

// Advertises the buffers of a launch that makes offers.
Buffers OperationQueue::advertise(Buffers buffers, const calls::Call& call, Underway& underway) {
  buffers = with_shifts(buffers, underway);
  if (buffers.input_shifts != nullptr || buffers.output_shifts != nullptr)
    LOG(Trace, Reg, "{}: peers are offered {}", describe(call),
        buffers.output_shifts == nullptr  ? "the input"
        : buffers.input_shifts == nullptr ? "the output"
                                          : "input and output");
  if (order_.is_captured()) return buffers;
  if (call.is_message()) {
    note_message(call, buffers, underway.uses);
  } else if (agreement_ != nullptr && exports_ != nullptr) {
    note_use(buffers, underway);
  }
  return buffers;
}

// Nobody reaches it; but plans for buffers that are reached suit it, since they take chunks where
// those for slots take lines, and a GPU reads its host's memory three times as fast by chunks.
bool OperationQueue::is_of_host(const void* buffer) const {
  const Result<gpu::PointerInfo> info = machine_.pointer_info(buffer);
  return info.is_ok() && info.value().kind == gpu::PointerKind::Host;
}

ReachHistory::Use OperationQueue::use_of(const void* buffer, size_t bytes, const uint64_t* shifts,
                                         int by, const Uses& uses) const {
  using Use = ReachHistory::Use;
  if (buffer == nullptr || bytes == 0) return {};
  if (shifts != nullptr) {
    const registry::BufferExport* const of = export_of(shifts, uses);
    const bool is_reached =
        of == nullptr || (by == kByAll ? of->is_mapped_by_all() : of->is_mapped_by(by));
    return {is_reached ? Use::Reached : Use::Missed};
  }
  if (is_of_host(buffer)) return {};
  const uint64_t number = exports_ == nullptr ? 0 : exports_->number_of(buffer, bytes);
  return number == 0 ? Use{Use::Missed} : Use{Use::Awaited, number};
}

void OperationQueue::note_use(const Buffers& buffers, const Underway& underway) {
  agreement_->note_use(underway.chosen.kind,
                       std::max(use_of(buffers.input, buffers.input_bytes, buffers.input_shifts,
                                       kByAll, underway.uses),
                                use_of(buffers.output, buffers.output_bytes, buffers.output_shifts,
                                       kByAll, underway.uses)));
}

// Notes the use of the buffer of a live message. Its receiver decides for both ends.
void OperationQueue::note_message(const calls::Call& call, const Buffers& buffers,
                                  const Uses& uses) {
  if (message_agreement_ == nullptr || call.is_send || call.request.count == 0) return;
  if (!message_agreement_->notes_use_of(call.peer)) return;
  message_agreement_->note_use(call.peer, use_of(buffers.output, call.request.bytes(),
                                                 buffers.output_shifts, call.peer, uses));
}

// Notes for ranks of one process whether their buffers are open to each other.
void OperationQueue::note_openness(const GroupLaunch& launch, const Underway& underway) {
  if (!launch.launcher->advertises() && underway.chosen.plans != plain_.get()) return;
  const auto is_open = [&](const void* buffer, uint64_t bytes) {
    return buffer == nullptr || bytes == 0 || machine_.is_open(device_, buffer, bytes) ||
           is_of_host(buffer);
  };
  for (size_t work = 0; work < launch.calls.size(); ++work) {
    const Buffers& of = underway.buffers[work];
    if (launch.calls[work].is_message()) continue;
    const bool is_reached =
        is_open(of.input, of.input_bytes) && is_open(of.output, of.output_bytes);
    agreement_->note_use(underway.chosen.kind,
                         {is_reached ? ReachHistory::Use::Reached : ReachHistory::Use::Missed});
  }
}

// A root to which peers offer their buffers has none that must be reached. Where the plan for slots
// makes no offers at all, the plan for direct buffers may: then its offers count.
void OperationQueue::note_without_advertisements(const GroupLaunch& launch, Underway& underway) {
  const std::vector<calls::Call>& calls = launch.calls;
  const std::vector<Buffers>& buffers = underway.buffers;
  Plans& plans = *underway.chosen.plans;
  if (message_agreement_ != nullptr)
    for (size_t work = 0; work < calls.size(); ++work)
      if (calls[work].is_message() && calls[work].request.bytes() > most_by_lines(plans))
        note_message(calls[work], with_shifts(buffers[work], underway), underway.uses);
  // Collectives by lines, too, that a plan for direct buffers might list with others of their
  // group.
  constexpr size_t kLeastListed = 512 << 10;
  const Launcher::Advertisements advertisements = launch.launcher->advertisements();
  if (advertisements == Launcher::Advertisements::None) {
    size_t bytes = 0;
    for (const calls::Call& call : calls) bytes += call.is_message() ? 0 : call.request.bytes();
    if (&plans != plain_.get() || bytes < kLeastListed) return;
  }
  for (size_t work = 0; work < calls.size(); ++work) {
    if (calls[work].is_message()) continue;
    if (advertisements == Launcher::Advertisements::Taken) {
      agreement_->note_use(underway.chosen.kind, {ReachHistory::Use::Reached});
    } else {
      note_use(with_shifts(buffers[work], underway), underway);
    }
  }
}

}  // namespace niccolite::operations
