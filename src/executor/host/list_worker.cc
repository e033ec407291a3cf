#include "executor/host/list_worker.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "executor/host/control.h"

namespace niccolite::executor::host {
namespace {

using gpu::virtual_::Progress;

// The size of a tile, and of a chunk in a slot.
constexpr uint64_t kListStripBytes = kListTileBytes;
static_assert(kListStripBytes % ll::kDataBytes == 0);

/// Unpacked operands, and a result.
struct Staging {
  std::byte* operand(uint32_t of) { return bytes.data() + of * kListStripBytes; }
  std::byte* result() { return operand(kMostRanksOfListAccess); }
  alignas(64) std::array<std::byte, (kMostRanksOfListAccess + 1) * kListStripBytes> bytes;
};

}  // namespace

ListWorker::ListWorker(const Plan& plan, const Reducer& reducer, uint32_t channel,
                       std::span<ListPeer> peers)
    : plan_(&plan),
      reducer_(&reducer),
      peers_(peers),
      first_(plan.list_starts()[channel]),
      end_(plan.list_starts()[channel + 1]),
      works_(works_between(first_, end_)),
      addresses_(size_t{nranks()} * works_),
      hidden_(works_),
      blocked_(peers.data()),
      work_(first_.work),
      tile_(first_.tile) {}

Progress ListWorker::run(Budget& budget) {
  has_moved_ = false;
  const auto is_over = [&](bool is_phase_over, Phase next) {
    if (!is_phase_over) return false;
    phase_ = next;
    next_peer_ = 0;
    return has_moved_ = true;
  };
  if (phase_ == Phase::Credit && is_over(await_credit(/*round=*/0), Phase::Addresses))
    tell_addresses();
  if (phase_ == Phase::Addresses) is_over(learn_addresses(), Phase::Tiles);
  if (phase_ == Phase::Tiles && is_over(move_tiles(budget), Phase::Slots)) {
    for (ListPeer& peer : peers_) peer.let_go();
    start_slots();
  }
  if (phase_ == Phase::Slots) is_over(move_by_slots(budget), Phase::Release);
  if (phase_ == Phase::Release && is_over(await_release(), Phase::Done))
    for (ListPeer& peer : peers_) peer.end(round_);
  if (phase_ == Phase::Done) return Progress::Done;
  return has_moved_ || budget.is_spent() ? Progress::Advanced : Progress::WouldBlock;
}

Report ListWorker::wait() const {
  const bool is_for_credit =
      phase_ == Phase::Credit || phase_ == Phase::Release || (phase_ == Phase::Slots && !has_sent_);
  return {.kind = is_for_credit ? ReportKind::WaitingForCredit : ReportKind::WaitingForData,
          .peer = static_cast<uint32_t>(blocked_->rank()),
          .own_tag = tag()};
}

// run() looks at the peers in turn.
void ListWorker::look_for_mismatch() {
  if (phase_ != Phase::Addresses) return;
  std::byte ignored[sizeof(Addresses)];
  for (const ListPeer& peer : peers_)
    judge(peer, peer.load(/*round=*/0, 0, sizeof ignored, tag(), ignored));
}

// True: it is there.
bool ListWorker::judge(const ListPeer& peer, const Arrival& seen) {
  if (seen.state == Arrived::Yes) return true;
  if (seen.state == Arrived::Foreign && !has_reported_)
    has_reported_ = report(*launch().control, {.kind = ReportKind::Mismatch,
                                               .peer = static_cast<uint32_t>(peer.rank()),
                                               .own_tag = tag(),
                                               .peer_tag = seen.tag});
  return false;
}

// ---- the list

uint64_t ListWorker::block_bytes(uint32_t number) const {
  return work(number).partition.count * plan_->element_bytes();
}
uint32_t ListWorker::first_tile_of(uint32_t number) const {
  return number == first_.work ? first_.tile : 0;
}
uint32_t ListWorker::end_tile_of(uint32_t number) const {
  if (number == end_.work) return end_.tile;
  return static_cast<uint32_t>(divide_up(block_bytes(number), uint64_t{kListTileBytes}));
}

bool ListWorker::is_hidden(uint32_t number) { return hidden_[number - first_.work]; }

// ---- credit and release

bool ListWorker::await_credit(uint32_t round) {
  for (; next_peer_ < peers_.size(); ++next_peer_) {
    blocked_ = &peers_[next_peer_];
    if (!blocked_->has_credit(round)) return false;
  }
  next_peer_ = 0;
  return true;
}

bool ListWorker::await_release() {
  for (; next_peer_ < peers_.size(); ++next_peer_) {
    blocked_ = &peers_[next_peer_];
    if (!blocked_->is_let_go()) return false;
  }
  return true;
}

// ---- addresses

void ListWorker::tell_addresses() {
  for (uint32_t i = 0; i < works_; ++i) {
    const uint32_t number = first_.work + i;
    const Work& of = work(number);
    std::array<Addresses, kMostSources> seen;  // by peer
    const auto find = [&](bool is_used, const void* buffer, const uint64_t* shifts,
                          uint64_t Addresses::*which) {
      if (!is_used) return;
      const auto own = reinterpret_cast<uint64_t>(buffer);
      bool is_hidden = false;
      for (size_t p = 0; p < peers_.size(); ++p) {
        const ListPeer& peer = peers_[p];
        seen[p].*which = shifts == nullptr ? (peer.opens_buffers() ? own : 0)
                                           : advertisement::seen_by(
                                                 shifts[static_cast<size_t>(peer.rank())], own);
        is_hidden = is_hidden || seen[p].*which == 0;
      }
      // All ranks are to know alike.
      if (is_hidden)
        for (size_t p = 0; p < peers_.size(); ++p) seen[p].*which = 0;
      addresses(rank(), number).*which = is_hidden ? 0 : own;
    };
    find(uses_input(rank()), of.buffers.input, of.buffers.input_shifts, &Addresses::input);
    find(uses_output(rank()), of.buffers.output, of.buffers.output_shifts, &Addresses::output);
    for (size_t p = 0; p < peers_.size(); ++p)
      peers_[p].store(/*round=*/0, i * sizeof(Addresses), sizeof(Addresses), of.tag,
                      reinterpret_cast<const std::byte*>(&seen[p]));
  }
  for (ListPeer& peer : peers_) {
    peer.clean(/*round=*/0, works_ * sizeof(Addresses), tag());
    peer.advertise(tag());
  }
}

bool ListWorker::learn_addresses() {
  for (; next_peer_ < peers_.size(); ++next_peer_) {
    ListPeer& peer = peers_[next_peer_];
    blocked_ = &peer;
    for (uint32_t i = 0; i < works_; ++i) {
      Addresses& of = addresses(static_cast<uint32_t>(peer.rank()), first_.work + i);
      if (!judge(peer, peer.load(/*round=*/0, i * sizeof of, sizeof of, work(first_.work + i).tag,
                                 reinterpret_cast<std::byte*>(&of))))
        return false;
    }
    if (!judge(peer, peer.take(tag()))) return false;
  }
  for (uint32_t i = 0; i < works_; ++i)
    for (uint32_t of = 0; of < nranks(); ++of) {
      const Addresses& seen = addresses(of, first_.work + i);
      hidden_[i] = hidden_[i] || (uses_input(of) && seen.input == 0) ||
                   (uses_output(of) && seen.output == 0);
    }
  return true;
}

// ---- tiles

bool ListWorker::move_tiles(Budget& budget) {
  for (; work_ < first_.work + works_; ++work_, tile_ = 0) {
    for (const uint32_t end = is_hidden(work_) ? 0 : end_tile_of(work_); tile_ < end; ++tile_) {
      if (next_tile_of(access(), rank(), work_, tile_, nranks()) != tile_) continue;
      if (budget.is_spent()) return false;
      move_tile(work_, tile_);
      budget.bytes -= static_cast<int64_t>(kListTileBytes * nranks());
      --budget.instructions;
    }
  }
  return true;
}

// In the order of ranks, so that results do not depend on who owns a tile. In place, an output may
// be an input; a result may be stored where its operands are.
void ListWorker::move_tile(uint32_t number, uint32_t tile) {
  const uint32_t sources = sources_of(access(), rank()), targets = targets_of(access(), rank());
  const uint64_t block = block_bytes(number);
  const uint64_t start = uint64_t{tile} * kListTileBytes;
  const uint64_t bytes = std::min<uint64_t>(kListTileBytes, block - start);
  const uint64_t source_at = start + source_block_of(access(), rank()) * block;
  const uint64_t target_at = start + target_block_of(access(), rank()) * block;

  Staging staging;
  std::array<const std::byte*, kMostSources> operands{};
  uint32_t count = 0;
  for (uint32_t of = 0; of < nranks(); ++of) {
    if (!has_rank(sources, of)) continue;
    operands[count++] = reinterpret_cast<const std::byte*>(addresses(of, number).input) + source_at;
  }
  const std::byte* result = operands[0];
  if (reduces(access())) {
    result = staging.result();
    reducer_->reduce({operands.data(), count}, reducer_->scales_result(), staging.result(),
                     bytes / plan_->element_bytes());
  }
  for (uint32_t of = 0; of < nranks(); ++of) {
    if (!has_rank(targets, of)) continue;
    auto* output = reinterpret_cast<std::byte*>(addresses(of, number).output) + target_at;
    if (output != result) std::memcpy(output, result, bytes);
  }
  has_moved_ = true;
}

// ---- slots

void ListWorker::start_slots() {
  work_ = first_.work;
  at_ = uint64_t{first_tile_of(work_)} * kListTileBytes;
  next_chunk();
}

// From at_ on, of the first work that has any left and that some rank does not see.
void ListWorker::next_chunk() {
  const uint64_t most = data_bytes(Protocol::LL, launch().shape.slot_bytes) /
                        plan_->element_bytes() * plan_->element_bytes();
  for (; work_ < first_.work + works_; ++work_, at_ = 0) {
    const uint64_t end =
        std::min(uint64_t{end_tile_of(work_)} * kListTileBytes, block_bytes(work_));
    if (!is_hidden(work_) || at_ >= end) continue;
    chunk_ = std::min(most, end - at_);
    offset_ = 0;
    has_sent_ = false;
    return;
  }
}

bool ListWorker::move_by_slots(Budget& budget) {
  while (work_ < first_.work + works_) {
    if (budget.is_spent()) return false;
    if (!has_sent_) {
      if (!await_credit(round_)) return false;
      send_chunk();
    }
    while (uses_output(rank()) && offset_ < chunk_) {
      const uint64_t bytes = std::min(kListStripBytes, chunk_ - offset_);
      if (!receive_strip(bytes)) return false;
      offset_ += bytes;
      has_moved_ = true;
    }
    budget.bytes -= static_cast<int64_t>(chunk_ * nranks());
    for (ListPeer& peer : peers_) peer.give_credit(round_);
    ++round_;
    at_ += chunk_;
    next_chunk();
    has_moved_ = true;
  }
  return true;
}

// Returns this rank's strip for `to`: in a Scatter, of the block of `to`.
const std::byte* ListWorker::own_strip(uint32_t to, uint64_t offset) const {
  const uint64_t block = source_block_of(access(), to) * uint64_t{block_bytes(work_)};
  const auto* input = static_cast<const std::byte*>(work(work_).buffers.input);
  return input + block + at_ + offset;
}

// A rank that has an input sends it to all that have an output for it; others count the step.
void ListWorker::send_chunk() {
  const uint16_t tag = work(work_).tag;
  for (ListPeer& peer : peers_) {
    const auto to = static_cast<uint32_t>(peer.rank());
    const bool sends = uses_input(rank()) && uses_output(to);
    for (uint64_t offset = 0; sends && offset < chunk_; offset += kListStripBytes) {
      const uint64_t bytes = std::min(kListStripBytes, chunk_ - offset);
      peer.store(round_, offset, bytes, tag, own_strip(to, offset));
    }
    peer.clean(round_, sends ? chunk_ : 0, tag);
  }
  has_sent_ = has_moved_ = true;
}

bool ListWorker::receive_strip(uint64_t bytes) {
  Staging staging;
  std::array<const std::byte*, kMostSources> operands{};
  uint32_t count = 0;
  const uint16_t tag = work(work_).tag;
  const ListPeer* peer = peers_.data();
  for (uint32_t of = 0; of < nranks(); ++of) {
    const ListPeer* const from = of == rank() ? nullptr : peer++;
    if (!uses_input(of)) continue;
    if (from == nullptr) {
      operands[count++] = own_strip(rank(), offset_);
      continue;
    }
    blocked_ = from;
    if (from->load(round_, offset_, bytes, tag, staging.operand(of)).state != Arrived::Yes)
      return false;
    operands[count++] = staging.operand(of);
  }
  std::byte* output = static_cast<std::byte*>(work(work_).buffers.output) + at_ + offset_;
  if (access().form == ListForm::Gather) {
    for (uint32_t of = 0; of < count; ++of, output += block_bytes(work_))
      if (output != operands[of]) std::memcpy(output, operands[of], bytes);
    return true;
  }
  if (reduces(access())) {
    reducer_->reduce({operands.data(), count}, reducer_->scales_result(), output,
                     bytes / plan_->element_bytes());
  } else if (output != operands[0]) {
    std::memcpy(output, operands[0], bytes);
  }
  return true;
}

}  // namespace niccolite::executor::host
