#include "executor/host/worker.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "executor/host/control.h"
#include "executor/host/ll_words.h"
#include "executor/host/packed_slot.h"
#include "executor/protocol/advertisement.h"

namespace niccolite::executor::host {
namespace {

using gpu::virtual_::Progress;

constexpr uint64_t kGrain = PackedSlot::kGrain;
constexpr uint32_t kMostOperands = 256;       // 255 receives and a local one
constexpr uint64_t kStripBytes = 8 << 10;     // a few operands fit the first-level cache
constexpr uint64_t kStagingBytes = 64 << 10;  // unpacked and scaled operands of a strip
constexpr uint64_t kLongestCopy = 1 << 20;    // a strip that nobody reads again
static_assert(kStagingBytes / (kMostOperands + 1) >= kGrain);
static_assert(kStagingBytes >= kStripBytes);  // Simple: the local operand, scaled

}  // namespace

Worker::Worker(const Plan& plan, const Reducer& reducer, size_t number, uint32_t channel,
               PortState* ports, uint64_t* next_tile)
    : plan_(&plan),
      reducer_(&reducer),
      work_(&plan.work_of(number)),
      ports_(ports),
      port_numbers_(plan.ports_of(number)),
      first_(plan.program().workers[number].first),
      instructions_(plan.program().instructions.data() + plan.program().workers[number].first),
      count_(plan.program().workers[number].count),
      channel_(channel),
      next_tile_(next_tile),
      lowered_(&plan.worker(number)),
      has_tile_(count_ > 0 && work_->partition.rounds > 0) {
  if (count_ > 0) start();
}

PortState& Worker::port(uint32_t index) const {
  return ports_[plan_->port_in_worker(plan_->program().indices[index])];
}

std::byte* Worker::chunk_at(OperandBuffer place, uint32_t block, uint64_t start) const {
  const Partition& partition = work_->partition;
  const Buffers& buffers = work_->buffers;
  const uint64_t element = block * partition.block_stride + start;
  void* buffer = place == OperandBuffer::Scratch ? buffers.scratch : buffers.output;
  if (place == OperandBuffer::Input)
    buffer = const_cast<void*>(buffers.input);  // check_instruction: never a target
  return static_cast<std::byte*>(buffer) + element * plan_->element_bytes();
}

void Worker::make_advertisements() {
  for (uint32_t i = 0; i < count_; ++i) {
    const CompactInstruction& of = instructions_[i];
    const auto advertise = [&](uint32_t index, uint64_t place) {
      if (port(index).makes_advertisement())
        port(index).make_advertisement(place, may_serve_pulls());
    };
    for (uint32_t r = 0; r < of.receive_count; ++r)
      advertise(of.receive + r, count_ == 1 ? put_address(of.receive + r) : 0);
    for (uint32_t s = 0; s < of.send_count; ++s)
      advertise(of.send + s, count_ == 1 ? get_address(of.send + s) : 0);
  }
  if (count_ > 0) start();
  if (user_memory_ != nullptr) make_places();
}

void Worker::use(const Team& team, std::span<const TeamWindows> windows) {
  team_ = &team;
  windows_ = &windows[static_cast<size_t>(work_ - plan_->launch().works.data())];
}

uint64_t Worker::seen_by_peer(uint32_t index, const std::byte* memory,
                              const uint64_t* shifts) const {
  const uint16_t number = plan_->program().indices[index];
  const auto address = reinterpret_cast<uint64_t>(memory);
  if (shifts == nullptr) return plan_->launch().ports[number].opens_buffers ? address : 0;
  const auto peer = static_cast<size_t>(plan_->program().ports[number].peer);
  return advertisement::seen_by(shifts[peer], address);
}

// Returns the address for puts, which are stored as they are (lowering/routes.h). A worker that
// passes data on reads it where it was put.
uint64_t Worker::put_address(uint32_t index) const {
  const CompactInstruction& only = instruction();
  if (bytes_ == 0) return 0;
  if (uses_team(way_of(index))) return place_of(only.target, only.target_block);
  return seen_by_peer(index, local(only.target, only.target_block), work_->buffers.output_shifts);
}

uint64_t Worker::get_address(uint32_t index) const {
  const CompactInstruction& only = instruction();
  if (reducer_->scales_input() || bytes_ == 0) return 0;
  if (uses_team(way_of(index))) return place_of(only.source, only.source_block);
  return seen_by_peer(index, local(only.source, only.source_block), work_->buffers.input_shifts);
}

lowering::Way Worker::way_of(uint32_t index) const {
  return plan_->launch().ports[plan_->program().indices[index]].way;
}

uint64_t Worker::place_of(OperandBuffer buffer, uint32_t block) const {
  const bool is_input = buffer == OperandBuffer::Input;
  const uint64_t* const shifts =
      is_input ? work_->buffers.input_shifts : work_->buffers.output_shifts;
  // A window of several pieces of memory has no place here: its bytes do not follow each other in
  // the memory of each member.
  const bool is_reached =
      windows_ != nullptr && (is_input ? windows_->input : windows_->output).is_complete();
  if (shifts == nullptr || !is_reached) return 0;
  return advertisement::place_of(shifts[plan_->program().nranks],
                                 reinterpret_cast<uint64_t>(local(buffer, block)));
}

// One address of the team is one place in the windows of all ranks, the own one included. So all
// that one instruction loads, or stores, has the place of the own block, or goes through slots.
// False: it shall go through slots from now on.
bool Worker::have_one_place(uint32_t first, uint32_t count, OperandBuffer buffer, uint32_t block) {
  const uint64_t own = place_of(buffer, block);
  bool has_any = false, are_same = own != 0;
  for (uint32_t i = first; i < first + count; ++i) {
    const PortState& end = port(i);
    if (!end.goes_by_team() || uses_slots(way_of(i))) continue;
    const uint64_t theirs = end.place(distance_);
    has_any |= theirs != 0;
    are_same &= theirs == own;
  }
  if (!has_any || are_same) return true;
  for (uint32_t i = first; i < first + count; ++i)
    if (port(i).goes_by_team() && !uses_slots(way_of(i))) port(i).refuse();
  return false;
}

bool Worker::only_awaits() const {
  const CompactInstruction& present = instruction();
  // A worker that has advertised to receive has one receive.
  if (present.receive_count > 0) return present.send_count == 0 && receive_port(0).has_advertised();
  if (present.send_count == 0 || present.target != OperandBuffer::None) return false;
  for (uint32_t i = 0; i < present.send_count; ++i)
    if (!send_port(i).has_advertised()) return false;
  return true;
}

// Ends that make advertisements belong to workers of one instruction.
bool Worker::is_released() {
  if (count_ == 0) return true;
  for (uint32_t i = 0; i < instruction().send_count; ++i) {
    if (send_port(i).is_released()) continue;
    blocked_ = instruction().send + i;
    return false;
  }
  return true;
}

Progress Worker::run(Budget& budget) {
  bool advanced = false;
  while (has_tile_) {
    if (budget.is_spent()) return Progress::Advanced;
    if (!has_begun_ && !may_begin()) return advanced ? Progress::Advanced : Progress::WouldBlock;
    has_begun_ = true;
    if (user_memory_ != nullptr && has_nothing_to_move()) offset_ = bytes_;
    if (lowered_->tiles == lowering::Tiles::Dynamic && !shares_tiles_ && has_all_taken()) {
      shares_tiles_ = true;
      if (may_pull()) {
        begin_pulls();
        advanced = true;  // the pulls may be what a peer waits for
        continue;
      }
    }
    while (offset_ < bytes_) {
      if (budget.is_spent()) return Progress::Advanced;
      if (!move_strip()) return advanced ? Progress::Advanced : Progress::WouldBlock;
      advanced = true;
      arrived_ = 0;
      offset_ += strip_;
      budget.bytes -= static_cast<int64_t>(strip_) *
                      (1 + instruction().receive_count + instruction().send_count);
    }
    finish();
    advanced = true;
    --budget.instructions;
  }
  if (may_serve_pulls()) advanced = serve_pulls() || advanced;
  if (!is_released() || !is_drained()) return advanced ? Progress::Advanced : Progress::WouldBlock;
  return Progress::Done;
}

// Goes to the first strip of the present instruction.
void Worker::start() {
  start_tile(channel_, round_);
  awaits_ = only_awaits();
  if (awaits_) bytes_ = 0;
  arrived_ = 0;
  has_begun_ = false;
  has_reported_ = false;
}

void Worker::start_tile(uint32_t channel, uint32_t round) {
  const Partition& partition = work_->partition;
  const uint64_t count = partition.range(instruction().chunk_block, channel, round).count;
  start_tile_at(partition.start_of(channel, round), count * plan_->element_bytes());
}

void Worker::start_tile_at(uint64_t start, uint64_t bytes) {
  tile_start_ = start;
  bytes_ = bytes;
  distance_ = static_cast<std::ptrdiff_t>((start - work_->partition.start_of(channel_, 0)) *
                                          plan_->element_bytes());
  offset_ = 0;
}

bool Worker::may_begin() {
  // A member without memory has left: the communicator hears of that.
  if (team_ != nullptr && !team_->is_complete()) return false;
  for (uint32_t i = 0; i < instruction().send_count; ++i) {
    if (send_port(i).has_credit()) continue;
    blocked_ = instruction().send + i;
    if (const auto tag = send_port(i).foreign_tag()) report_mismatch(blocked_, *tag);
    return false;
  }
  if (pulls()) return has_pulled_tile_arrived();
  if (is_packed(plan_->launch().protocol)) return true;
  if (!all_arrived()) return false;
  if (team_ == nullptr) return true;
  if (awaits_ && !only_awaits()) {  // refused
    awaits_ = false;
    start_tile(channel_, round_);
  }
  if (bytes_ == 0) return true;
  const CompactInstruction& present = instruction();
  const bool loads_once =
      have_one_place(present.receive, present.receive_count, present.source, present.source_block);
  const bool stores_once =
      have_one_place(present.send, present.send_count, present.target, present.target_block);
  if (loads_once && stores_once) return true;
  arrived_ = 0;
  return may_begin();
}

// Looks at the whole slot with Simple, at the present strip otherwise.
Arrival Worker::arrival(uint32_t receive) const {
  PortState& from = receive_port(receive);
  const Protocol protocol = plan_->launch().protocol;
  if (!is_packed(protocol)) return from.arrival();
  return PackedSlot(protocol, from).arrival(offset_, strip_);
}

// A worker that waits looks at one receive.
bool Worker::all_arrived() {
  for (; arrived_ < instruction().receive_count; ++arrived_) {
    const Arrival seen = arrival(arrived_);
    if (seen.state == Arrived::Yes) continue;
    blocked_ = instruction().receive + arrived_;
    if (seen.state == Arrived::Foreign) report_mismatch(blocked_, seen.tag);
    return false;
  }
  return true;
}

Report Worker::wait() const {
  const Port& port = plan_->program().ports[plan_->program().indices[blocked_]];
  const ReportKind of_sender =
      is_draining_ ? ReportKind::WaitingForAcknowledgement : ReportKind::WaitingForCredit;
  return {.kind = port.is_send ? of_sender : ReportKind::WaitingForData,
          .peer = static_cast<uint32_t>(port.peer),
          .own_tag = work_->tag};
}

void Worker::look_for_mismatch() {
  if (!has_tile_) return;
  const bool is_packed_slot = is_packed(plan_->launch().protocol);
  // An empty chunk has no flags.
  strip_ = std::min(strip_bytes(), bytes_ - offset_);
  if (is_packed_slot && strip_ == 0) return;
  for (uint32_t i = 0; i < instruction().receive_count; ++i) {
    const Arrival seen = arrival(i);
    if (seen.state == Arrived::Foreign) report_mismatch(instruction().receive + i, seen.tag);
  }
}

void Worker::report_mismatch(uint32_t index, uint16_t tag) {
  report_once(ReportKind::Mismatch, index, tag);
}

void Worker::report_once(ReportKind kind, uint32_t index, uint16_t tag) {
  if (has_reported_) return;
  const Program& program = plan_->program();
  const Port& port = program.ports[program.indices[index]];
  has_reported_ = report(*plan_->launch().control, {.kind = kind,
                                                    .peer = static_cast<uint32_t>(port.peer),
                                                    .own_tag = work_->tag,
                                                    .peer_tag = tag});
}

uint64_t Worker::strip_bytes() const {
  const CompactInstruction& present = instruction();
  const uint32_t destinations =
      present.send_count + (present.target != OperandBuffer::None ? 1u : 0u);
  if (is_packed(plan_->launch().protocol)) {
    // Each receive is unpacked, and there may be a scaled operand or a result to stage.
    return std::min(kStripBytes, kStagingBytes / (present.receive_count + 2u)) / kGrain * kGrain;
  }
  const bool is_one_copy = destinations == 1 && !(present.flags & (kReduce | kFinish));
  const bool is_scaled = present.source == OperandBuffer::Input && reducer_->scales_input();
  return is_one_copy && !is_scaled ? kLongestCopy : kStripBytes;
}

// Moves the strip at offset_ of the chunk. False when it is not all there.
bool Worker::move_strip() {
  strip_ = std::min(strip_bytes(), bytes_ - offset_);
  const bool is_packed_slot = is_packed(plan_->launch().protocol);
  if (is_packed_slot && !all_arrived()) return false;

  // Packed: [operand][strip_], then the result. Simple: the local operand, if it is scaled.
  alignas(64) std::byte staging[kStagingBytes];
  const std::byte* operands[kMostOperands];
  const uint32_t operand_count = gather(staging, operands);
  if (operand_count == 0) return false;

  const CompactInstruction& present = instruction();
  const bool scales_result = (present.flags & kFinish) != 0 && reducer_->scales_result();
  const std::byte* result = operands[0];
  if (operand_count > 1 || scales_result) {
    // To the first destination that is plain memory; deliver() copies it to the others while it is
    // in the cache.
    std::byte* reduced = staging + operand_count * strip_;
    if (stores_to_windows()) {
      reduced = in_window(windows_->output, 0, present.target, present.target_block);
    } else if (present.target != OperandBuffer::None) {
      reduced = local(present.target, present.target_block);
    } else if (!is_packed_slot) {
      reduced = destination(send_port(0)) + offset_;
    }
    reducer_->reduce({operands, operand_count}, scales_result, reduced,
                     strip_ / plan_->element_bytes());
    result = reduced;
  }
  deliver(result);
  return true;
}

bool Worker::stores_to_windows() const {
  for (uint32_t i = 0; i < instruction().send_count; ++i)
    if (send_port(i).goes_by_team() && send_port(i).has_taken()) return true;
  return false;
}

bool Worker::has_team_among(uint32_t first, uint32_t count) const {
  for (uint32_t i = first; i < first + count; ++i)
    if (port(i).goes_by_team()) return true;
  return false;
}

// This strip of the local operand; scaled, if it is to be, in `staging`, which has `room` bytes.
const std::byte* Worker::local_operand(std::byte* staging, [[maybe_unused]] size_t room) {
  const CompactInstruction& present = instruction();
  const std::byte* const operand = local(present.source, present.source_block);
  if (present.source != OperandBuffer::Input || !reducer_->scales_input()) return operand;
  assert(strip_ <= room);
  reducer_->scale_input(operand, staging, strip_ / plan_->element_bytes());
  return staging;
}

// This strip of a block in a member's window.
std::byte* Worker::in_window(const Team& windows, size_t member, OperandBuffer buffer,
                             uint32_t block) const {
  const void* const begin =
      buffer == OperandBuffer::Input ? work_->buffers.input : work_->buffers.output;
  return windows.memory(member) + (local(buffer, block) - static_cast<const std::byte*>(begin));
}

// The strip of all members' windows, or of all members' slots, the local operand in its own; in the
// order in which they joined.
uint32_t Worker::load_from_team(const PortState& from, std::byte* staging,
                                const std::byte** operands) {
  if (from.has_taken()) {
    const CompactInstruction& present = instruction();
    for (size_t member = 0; member < windows_->input.size(); ++member)
      operands[member] = in_window(windows_->input, member, present.source, present.source_block);
    return static_cast<uint32_t>(windows_->input.size());
  }
  std::memcpy(from.slot() + offset_, local_operand(staging, kStagingBytes), strip_);
  for (size_t member = 0; member < team_->size(); ++member)
    operands[member] = team_->at(member, from.team_slot()) + offset_;
  return static_cast<uint32_t>(team_->size());
}

void Worker::store_to_team(const PortState& to, const std::byte* result) {
  if (to.has_taken()) {
    const CompactInstruction& present = instruction();
    for (size_t member = 0; member < windows_->output.size(); ++member) {
      std::byte* const at =
          in_window(windows_->output, member, present.target, present.target_block);
      if (at != result) std::memcpy(at, result, strip_);
    }
    return;
  }
  const Protocol protocol = plan_->launch().protocol;
  for (size_t member = 0; member < team_->size(); ++member) {
    std::byte* const slot = team_->at(member, to.team_slot());
    if (is_packed(protocol))
      PackedSlot(protocol, to, slot).pack(offset_, strip_, result);
    else
      std::memcpy(slot + offset_, result, strip_);
  }
}

// Finds this strip of every operand, in reduction order: how many there are, or 0 if it is not all
// there. A packed slot is read once; were its words to be read again, they might not be the same.
uint32_t Worker::gather(std::byte* staging, const std::byte** operands) {
  const CompactInstruction& present = instruction();
  const Protocol protocol = plan_->launch().protocol;
  uint32_t operand = 0;
  const bool loads_from_team = has_team_among(present.receive, present.receive_count);
  bool has_loaded = false;
  for (uint32_t i = 0; i <= present.receive_count; ++i) {
    if (present.source != OperandBuffer::None && i == present.source_position && !loads_from_team) {
      // With Simple no other operand is staged, and a strip does not shrink with their number.
      const size_t taken = is_packed(protocol) ? operand * strip_ : 0;
      operands[operand++] = local_operand(staging + taken, kStagingBytes - taken);
    }
    if (i == present.receive_count) break;
    const PortState& from = receive_port(i);
    if (from.goes_by_team()) {
      // An instruction has one load.
      if (!has_loaded) operand += load_from_team(from, staging, operands + operand);
      has_loaded = true;
      continue;
    }
    if (is_packed(protocol)) {
      std::byte* unpacked = staging + operand * strip_;
      assert(unpacked + strip_ <= staging + kStagingBytes);
      if (!PackedSlot(protocol, from).unpack(offset_, strip_, unpacked)) {
        blocked_ = present.receive + i;
        return 0;
      }
      operands[operand] = unpacked;
    } else {
      operands[operand] = from.has_advertised() || from.has_landed()
                              ? local(present.target, present.target_block)
                              : operand_at(from) + offset_;
    }
    ++operand;
  }
  return operand;
}

// Stores the strip to all destinations that do not have it yet; in place, the source may be one.
void Worker::deliver(const std::byte* result) {
  const CompactInstruction& present = instruction();
  const Protocol protocol = plan_->launch().protocol;
  bool is_stored_to_team = false;
  // A store to windows reaches the target, too.
  if (present.target != OperandBuffer::None && !stores_to_windows()) {
    std::byte* target = local(present.target, present.target_block);
    if (target != result) std::memcpy(target, result, strip_);
  }
  for (uint32_t i = 0; i < present.send_count; ++i) {
    const PortState& to = send_port(i);
    // The peer, or the proxy, reads it where it is.
    if (to.has_advertised() || sent_from(to) != nullptr) continue;
    if (to.goes_by_team()) {
      // An instruction has one store.
      if (!is_stored_to_team) store_to_team(to, result);
      is_stored_to_team = true;
    } else if (is_packed(protocol)) {
      PackedSlot(protocol, to).pack(offset_, strip_, result);
    } else if (std::byte* const at = destination(to) + offset_; at != result) {
      std::memcpy(at, result, strip_);
    }
  }
}

// Have the peers' advertisements been taken for everything that the only instruction gets and puts?
bool Worker::has_all_taken() const {
  for (uint32_t i = 0; i < instruction().receive_count; ++i)
    if (!receive_port(i).has_taken()) return false;
  for (uint32_t i = 0; i < instruction().send_count; ++i)
    if (!send_port(i).has_taken()) return false;
  return true;
}

// The chunk is moved: goes on to the next tile that nobody has taken; when there is none, tells the
// peers.
void Worker::take_tile() {
  const Partition& partition = work_->partition;
  const uint64_t tile = (*next_tile_)++;
  if (tile >= uint64_t{partition.channels} * partition.rounds) return end_sharing();
  start_tile(static_cast<uint32_t>(tile % partition.channels),
             static_cast<uint32_t>(tile / partition.channels));
}

void Worker::end_sharing() {
  has_tile_ = false;
  for (uint32_t i = 0; i < instruction().receive_count; ++i)
    receive_port(i).done_at_taken(/*is_send=*/false);
  for (uint32_t i = 0; i < instruction().send_count; ++i)
    send_port(i).done_at_taken(/*is_send=*/true);
}

// Writes the words of the slot that the chunk leaves unused.
void Worker::clean(const PortState& to) {
  const Launch& launch = plan_->launch();
  const uint32_t flag = ll::flag_of(to.step(), to.tag());
  if (!to.goes_by_team()) return ll_clean(to.slot(), bytes_, launch.shape.slot_bytes, flag);
  for (size_t member = 0; member < team_->size(); ++member)
    ll_clean(team_->at(member, to.team_slot()), bytes_, launch.team_shape.slot_bytes, flag);
}

// Ends the chunk: gives back the received slots, publishes the sent ones, goes on to the next
// instruction.
void Worker::finish() {
  if (pulls()) return take_pulled_tile();
  if (shares_tiles_) return take_tile();
  const Launch& launch = plan_->launch();
  for (uint32_t i = 0; i < instruction().receive_count; ++i) receive_port(i).received();
  bool is_team_clean = false;
  for (uint32_t i = 0; i < instruction().send_count; ++i) {
    PortState& to = send_port(i);
    if (launch.protocol == Protocol::LL && ll::cleans(to.step(), launch.shape.depth) &&
        !(to.goes_by_team() && is_team_clean)) {
      clean(to);
      is_team_clean |= to.goes_by_team();
    }
    to.sent(launch.protocol, bytes_, sent_from(to));
  }
  if (++next_ == count_) {
    next_ = 0;
    has_tile_ = ++round_ < work_->partition.rounds;
  }
  start();
  if (user_memory_ != nullptr) make_places();
}

}  // namespace niccolite::executor::host
