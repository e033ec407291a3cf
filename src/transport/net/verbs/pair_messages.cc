// How a Pair carries messages: work requests and completions.
#include <arpa/inet.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "transport/net/verbs/pair.h"
#include "transport/net/verbs/words.h"

namespace niccolite::transport::net::verbs {
namespace {

constexpr uint32_t kReceivesAtOnce = 8;  // posted anew
constexpr uint32_t kSignalEvery = 16;    // so that the send queue gets room again
constexpr uint32_t kLeastSplit = 8192;   // bytes of a message
constexpr uint32_t kLooks = 1024;        // of progress(), for one at the devices' events
constexpr int kCompletionsAtOnce = 16;

}  // namespace

// ---- posting

bool Pair::has_room(const QueuePair& own, uint32_t count) const {
  return own.posted - own.completed + count <= kSendQueue;
}

// Bits of the queue pairs that carry data: the ones with the fewest spare ports, among all that
// have not failed.
uint32_t Pair::usable() const {
  uint32_t usable = 0;
  int fewest = 2;
  for (size_t i = 0; i < queue_pairs_.size(); ++i) {
    const QueuePair& each = queue_pairs_[i];
    if (each.has_failed || each.spares > fewest) continue;
    if (each.spares < fewest) usable = 0;
    fewest = each.spares;
    usable |= 1u << i;
  }
  return usable;
}

// Returns the queue pair whose turn it is at that number.
size_t Pair::usable_from(uint32_t number) const {
  const uint32_t usable = this->usable();
  const size_t count = queue_pairs_.size();
  for (size_t i = 0; i < count; ++i)
    if (const size_t at = (number + i) % count; (usable & 1u << at) != 0) return at;
  return 0;  // none: a failure, which poll() has returned
}

Status Pair::post_receives(QueuePair& own, uint32_t count) {
  ibv_recv_wr work[kReceiveQueue]{};
  for (uint32_t i = 0; i < count; ++i) {
    work[i].wr_id = pack(
        {.kind = Kind::Receive, .queue_pair = static_cast<size_t>(&own - queue_pairs_.data())});
    work[i].next = i + 1 < count ? &work[i + 1] : nullptr;
  }
  ibv_recv_wr* bad = nullptr;
  const int error = ibv_post_recv(own.handle, work, &bad);
  if (error != 0 && !rails_[own.rail].port.device->is_gone())
    return Status::from_errno(error, fmt::format("{} on host {}: ibv_post_recv failed",
                                                 rails_[own.rail].port.name(), host()));
  own.receives += count;
  work_requests_ += count;
  return {};
}

Status Pair::post(size_t number, ibv_send_wr& work, bool is_last) {
  QueuePair& own = queue_pairs_[number];
  ++own.posted;
  const Id id = unpack(work.wr_id);
  work.wr_id = pack({.kind = id.kind,
                     .queue_pair = number,
                     .round = static_cast<uint32_t>(std::popcount(failed())),
                     .posted = own.posted,
                     .number = id.number});
  if (is_last || own.posted % kSignalEvery == 0) {
    work.send_flags |= IBV_SEND_SIGNALED;
    ++signalled_;
  }
  ++work_requests_;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(own.handle, &work, &bad);
  if (error == 0 || rails_[own.rail].port.device->is_gone()) return {};
  return Status::from_errno(
      error, fmt::format("{} takes no work for {}: ibv_post_send failed", way(number), peer_));
}

// Writes a part of the outbox to its place in the peer's inbox.
Status Pair::write_to_peer(size_t number, const void* from, size_t bytes, const void* to,
                           bool is_signalled) {
  const QueuePair& own = queue_pairs_[number];
  const auto offset = static_cast<uint64_t>(static_cast<const std::byte*>(to) -
                                            reinterpret_cast<const std::byte*>(outbox_.get()));
  ibv_sge piece{.addr = reinterpret_cast<uintptr_t>(from),
                .length = static_cast<uint32_t>(bytes),
                .lkey = outbox_memory_->local_key(own.rail)};
  ibv_send_wr work{};
  work.wr_id = pack({.kind = Kind::Other, .queue_pair = number});
  work.sg_list = &piece;
  work.num_sge = 1;
  work.opcode = IBV_WR_RDMA_WRITE;
  if (bytes <= own.most_inline) work.send_flags = IBV_SEND_INLINE;
  work.wr.rdma.remote_addr = peer_inbox_ + offset;
  work.wr.rdma.rkey = peer_inbox_keys_[own.peer_rail];
  return post(number, work, is_signalled);
}

Status Pair::write_grants() {
  if (!are_tried_ || is_recovering()) return {};
  for (; is_before(next_grant_, next_receive_); ++next_grant_) {
    const size_t number = usable_from(next_grant_);
    if (!has_room(queue_pairs_[number], 1)) break;
    const Grant& grant = outbox_->grants[next_grant_ % kMostMessages];
    TRY(write_to_peer(number, &grant, sizeof grant, &grant, /*is_signalled=*/false));
  }
  return {};
}

Status Pair::write_direct(size_t number, const Request& request, const DirectWrite& write) {
  const QueuePair& own = queue_pairs_[number];
  const Registered& memory = write.memory == nullptr
                                 ? *request.memory
                                 : static_cast<const GpuMemory*>(write.memory)->registered();
  DirectPlace to;
  std::memcpy(&to, write.to.data(), sizeof to);
  ibv_sge piece{.addr = reinterpret_cast<uintptr_t>(write.from),
                .length = write.bytes,
                .lkey = memory.local_key(own.rail)};
  ibv_send_wr work{};
  work.wr_id = pack({.kind = Kind::Other, .queue_pair = number});
  work.sg_list = &piece;
  work.num_sge = 1;
  work.opcode = IBV_WR_RDMA_WRITE;
  work.wr.rdma.remote_addr = to.address + write.offset;
  work.wr.rdma.rkey = to.keys[own.peer_rail];
  return post(number, work, /*is_last=*/false);
}

Status Pair::write_piece(size_t number, const Request& request, const Grant& grant, uint32_t offset,
                         uint32_t bytes, uint32_t immediate) {
  const QueuePair& own = queue_pairs_[number];
  const auto routes = settings_.adaptive_routing == INT64_MIN ? !rails_[own.rail].port.is_roce()
                                                              : settings_.adaptive_routing != 0;
  ibv_sge piece{.addr = reinterpret_cast<uintptr_t>(request.data) + offset,
                .length = bytes,
                .lkey = request.memory->local_key(own.rail)};
  ibv_send_wr work{};
  work.wr_id = pack({.kind = Kind::Piece, .queue_pair = number, .number = request.number});
  work.sg_list = &piece;
  work.num_sge = 1;
  if (bytes <= own.most_inline) work.send_flags = IBV_SEND_INLINE;
  work.wr.rdma.remote_addr = grant.address + offset;
  work.wr.rdma.rkey = grant.keys[own.peer_rail];
  if (routes && bytes > settings_.adaptive_threshold) {
    work.opcode = IBV_WR_RDMA_WRITE;
    work.wr_id = pack({.kind = Kind::Other, .queue_pair = number});
    TRY(post(number, work, /*is_last=*/false));
    work.wr_id = pack({.kind = Kind::Piece, .queue_pair = number, .number = request.number});
    work.num_sge = 0;
    work.send_flags = 0;
  }
  work.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  work.imm_data = htonl(immediate);
  return post(number, work, /*is_last=*/true);
}

Status Pair::send_pieces(Request& request, const Grant& grant) {
  // Direct writes go over the message's queue pair, so that they come before it.
  const bool is_split =
      settings_.splits && request.bytes > kLeastSplit && request.writes_count == 0;
  const uint32_t pieces = is_split ? static_cast<uint32_t>(std::popcount(usable())) : 1;
  request.round = static_cast<uint32_t>(std::popcount(failed()));
  const uint32_t immediate = immediate_of(request.number, pieces, request.round);
  // Pieces begin at multiples of 128 bytes, as NICs like it.
  const uint32_t share = ((request.bytes + pieces - 1) / pieces + 127) / 128 * 128;
  request.missing = pieces;
  request.queue_pairs = 0;
  uint32_t turn = request.number;
  for (uint32_t i = 0; i < pieces; ++i) {
    const size_t number = usable_from(turn);
    turn = static_cast<uint32_t>(number) + 1;
    const uint32_t offset = std::min(i * share, request.bytes);
    request.queue_pairs |= 1u << number;
    for (uint32_t w = 0; w < request.writes_count; ++w)
      TRY(write_direct(number, request, request.writes[w]));
    TRY(write_piece(number, request, grant, offset, std::min(share, request.bytes - offset),
                    immediate));
  }
  return {};
}

Result<void*> Pair::send(void* data, size_t bytes, const Registered& memory,
                         std::span<const DirectWrite> writes) {
  TRY(progress());
  Request& request = sends_[next_send_ % kMostMessages];
  Grant& grant = inbox_->grants[next_send_ % kMostMessages];
  if (request.is_used || !are_tried_ || is_recovering() || number_in(grant.number) != next_send_)
    return static_cast<void*>(nullptr);
  for (const QueuePair& each : queue_pairs_)
    if (!each.has_failed && !has_room(each, static_cast<uint32_t>(2 + writes.size())))
      return static_cast<void*>(nullptr);
  if (bytes > grant.bytes)
    return Status::remote_error("a message of {} bytes for a buffer of {}", bytes, grant.bytes);
  request = {.of = this,
             .is_used = true,
             .is_send = true,
             .number = next_send_++,
             .missing = 0,
             .bytes = static_cast<uint32_t>(bytes),
             .data = static_cast<std::byte*>(data),
             .memory = &memory,
             .queue_pairs = 0,
             .round = 0,
             .writes_count = static_cast<uint32_t>(writes.size())};
  std::ranges::copy(writes, request.writes.begin());
  ++messages_;
  bytes_ += bytes;
  for (const DirectWrite& write : writes) {
    bytes_ += write.bytes;
    direct_bytes_ += write.bytes;
    if (write.is_of_user) bytes_of_users_ += write.bytes;
    if (write.is_to_user) bytes_to_users_ += write.bytes;
  }
  TRY(send_pieces(request, grant));
  return static_cast<void*>(&request);
}

Result<void*> Pair::receive(void* data, size_t bytes, const Registered& memory) {
  Request& request = receives_[next_receive_ % kMostMessages];
  if (request.is_used) return static_cast<void*>(nullptr);
  request = {.of = this,
             .is_used = true,
             .is_send = false,
             .number = next_receive_,
             .missing = kUnknown,
             .bytes = static_cast<uint32_t>(bytes),
             .data = static_cast<std::byte*>(data),
             .memory = &memory,
             .queue_pairs = 0,
             .round = 0};
  Grant& grant = outbox_->grants[next_receive_ % kMostMessages];
  grant.address = reinterpret_cast<uintptr_t>(data);
  grant.bytes = request.bytes;
  for (size_t rail = 0; rail < rails_.size(); ++rail) grant.keys[rail] = memory.remote_key(rail);
  grant.number = next_receive_++;
  TRY(write_grants());
  return static_cast<void*>(&request);
}

Result<bool> Pair::test(void* request) {
  auto& of = *static_cast<Request*>(request);
  if (of.missing != 0) TRY(of.of->progress());
  if (of.missing != 0) return false;
  of.is_used = false;
  return true;
}

// ---- completions

Status Pair::progress() {
  if (!failure_.is_ok()) return failure_.copy();
  Status status = poll();
  if (status.is_ok() && !peer_has_met_) peer_has_met_ = has_peer_spoken();
  if (status.is_ok()) status = hear_verdict();
  if (status.is_ok() && !are_tried_) status = try_queue_pairs();
  if (status.is_ok() && ++looks_ == kLooks) status = look_at_devices();
  if (status.is_ok()) status = recover();
  if (status.is_ok()) status = write_grants();
  if (status.is_ok()) return {};
  failure_ = status.copy();
  return status;
}

Status Pair::poll() {
  ibv_wc completions[kCompletionsAtOnce];
  for (size_t rail = 0; rail < completions_.size(); ++rail) {
    while (completions_[rail] != nullptr) {
      const int count = ibv_poll_cq(completions_[rail], kCompletionsAtOnce, completions);
      if (count < 0)
        return Status::system_error(
            "{} on host {}: ibv_poll_cq failed: its completion queue is "
            "broken (did it overflow, or the device fail?)",
            rails_[rail].port.name(), host());
      for (int i = 0; i < count; ++i) TRY(take(completions[i]));
      if (count < kCompletionsAtOnce) break;
    }
  }
  for (QueuePair& own : queue_pairs_)
    if (own.received >= kReceivesAtOnce && !own.has_failed)
      TRY(post_receives(own, std::exchange(own.received, 0)));
  return {};
}

Status Pair::take(const ibv_wc& completion) {
  const Id id = unpack(completion.wr_id);
  if (id.queue_pair >= queue_pairs_.size()) return {};  // the flushed receive of one without a peer
  QueuePair& own = queue_pairs_[id.queue_pair];
  if (own.is_gone) return {};
  if (id.kind == Kind::Receive) --own.receives;
  if (completion.status != IBV_WC_SUCCESS) return take_failure(id.queue_pair, completion);
  if (id.kind == Kind::Receive) {
    ++own.received;
    if ((completion.wc_flags & IBV_WC_WITH_IMM) == 0)
      return Status::remote_error("a message without its number came over {}", way(id.queue_pair));
    return take_piece(ntohl(completion.imm_data));
  }
  // Send queues complete in order.
  own.completed += (id.posted - own.completed) & kPostedMask;
  if (id.kind == Kind::Trial) return end_trial(id.queue_pair, id.number);
  Request& request = sends_[id.number % kMostMessages];
  if (id.kind == Kind::Piece && request.is_used && request.number == id.number &&
      request.round == id.round && request.missing > 0)
    --request.missing;
  return {};
}

// A piece of an old round is of a message that is sent again as a whole.
Status Pair::take_piece(uint32_t immediate) {
  const uint32_t pieces = immediate >> kNumberBits & kPiecesMask;
  const uint32_t round = immediate >> 26;
  if (pieces > 1 && round != static_cast<uint32_t>(std::popcount(reported_))) return {};
  Request& request = receives_[(immediate & kNumberMask) % kMostMessages];
  if (!request.is_used || request.missing == 0 ||
      (request.number & kNumberMask) != (immediate & kNumberMask))
    return Status::remote_error("a message that nobody has granted (number {})",
                                immediate & kNumberMask);
  if (pieces == 0 || pieces > queue_pairs_.size())
    return Status::remote_error("a message of {} pieces over {} queue pairs", pieces,
                                queue_pairs_.size());
  if (request.missing == kUnknown) request.missing = pieces;
  if (--request.missing > 0) return {};
  came_ |= 1u << (request.number - first_missing_);
  for (; (came_ & 1) != 0; came_ >>= 1) ++first_missing_;
  return {};
}

}  // namespace niccolite::transport::net::verbs
