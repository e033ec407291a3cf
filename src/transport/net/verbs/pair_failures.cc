// How a Pair tries its queue pairs, and goes on without the ones that fail.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "transport/net/verbs/pair.h"
#include "transport/net/verbs/words.h"

namespace niccolite::transport::net::verbs {
namespace {

// A trial lasts no longer. A NIC sends a lost packet again after 4.3 s (NCCL_IB_TIMEOUT).
constexpr std::chrono::seconds kPatience{10};

}  // namespace

// ---- trials

bool Pair::has_peer_spoken() {
  return number_in(inbox_->grants[1 % kMostMessages].number) == 1 ||
         number_in(newest_report().number) != 0 || number_in(inbox_->verdict.number) != 0;
}

// Returns the peer's newest report; number 0: there is none.
Pair::Report& Pair::newest_report() {
  Report* newest = &inbox_->reports[0];
  for (size_t i = 1; i < queue_pairs_.size(); ++i)
    if (Report& other = inbox_->reports[i]; number_in(other.number) > number_in(newest->number))
      newest = &other;
  return *newest;
}

Status Pair::try_queue_pairs() {
  if (!has_met() || !peer_has_met_) return {};
  const bool begins = tried_until_ == Clock::time_point{};
  if (begins) tried_until_ = Clock::now() + kPatience;
  const bool is_over = !begins && Clock::now() > tried_until_;
  are_tried_ = true;
  for (size_t i = 0; i < queue_pairs_.size(); ++i) {
    const QueuePair& own = queue_pairs_[i];
    if (own.is_tried || own.has_failed) continue;
    if (is_over)
      TRY(refuse(i, Finding::IsLate,
                 fmt::format("bytes that were written to the peer's memory did not come back "
                             "within {} seconds",
                             kPatience.count())));
    if (begins) TRY(begin_trial(i));
    are_tried_ = is_over;
  }
  return {};
}

Status Pair::begin_trial(size_t number) {
  queue_pairs_[number].trials = is_direct_ ? 2 : 1;
  TRY(post_trial(number, trials_[0], 0));
  return is_direct_ ? post_trial(number, trials_[1], 1) : Status();
}

Status Pair::post_trial(size_t number, TrialPlace& place, uint32_t place_number) {
  const QueuePair& own = queue_pairs_[number];
  const std::byte* const pattern = TRY(place.trial->make_pattern(number));
  ibv_sge piece{.addr = reinterpret_cast<uintptr_t>(pattern),
                .length = Trial::kBytes,
                .lkey = place.memory->local_key(own.rail)};
  ibv_send_wr work{};
  work.wr_id = pack({.kind = Kind::Other, .queue_pair = number});
  work.sg_list = &piece;
  work.num_sge = 1;
  work.opcode = IBV_WR_RDMA_WRITE;
  work.wr.rdma.remote_addr = Trial::place_at_peer(place.peer, number);
  work.wr.rdma.rkey = place.peer_keys[own.peer_rail];
  TRY(post(number, work, /*is_last=*/false));
  // A read is executed after the writes before it.
  piece.addr = reinterpret_cast<uintptr_t>(place.trial->echo(number));
  work.wr_id = pack({.kind = Kind::Trial, .queue_pair = number, .number = place_number});
  work.opcode = IBV_WR_RDMA_READ;
  return post(number, work, /*is_last=*/true);
}

bool Pair::has_nearer(const QueuePair& own) const {
  return std::ranges::any_of(queue_pairs_, [&](const QueuePair& other) {
    return !other.has_failed && other.spares < own.spares;
  });
}

Status Pair::end_trial(size_t number, uint32_t place_number) {
  QueuePair& own = queue_pairs_[number];
  if (own.has_failed || place_number >= trials_.size()) return {};
  const std::optional<std::string> difference =
      TRY(trials_[place_number].trial->difference(number));
  if (difference && place_number == 0) return refuse(number, Finding::IsWrong, *difference);
  // A port in reserve is not worth the way through host memory.
  if (difference && own.spares > 0 && has_nearer(own))
    return refuse(number, Finding::IsWrong, "in memory of the GPUs " + *difference);
  if (difference && is_direct_) {
    is_direct_ = false;
    LOG(Warn, Net,
        "NET/IB : {}: when memory of the GPUs was tried with a pattern, {}; an IOMMU, PCI switches "
        "(ACS) or a driver lose or change data. Data to {} pass through host memory. "
        "NCCL_NET_GDR_LEVEL=LOC does so without a trial",
        way(number), *difference, peer_);
  }
  own.is_tried = --own.trials == 0;
  return {};
}

std::string Pair::remedy_of(Finding finding, size_t number) const {
  const std::string port = rails_[queue_pairs_[number].rail].port.name();
  if (finding == Finding::IsWrong)
    return fmt::format(
        "a NIC, its driver or an IOMMU changes data: NCCL_IB_HCA=^{} leaves the port out; the log "
        "of the kernel on both hosts may tell more",
        port);
  return fmt::format(
      "do the two ports reach each other (ibv_rc_pingpong)? NCCL_IB_HCA=^{} leaves the port out",
      port);
}

// A queue pair must not carry data.
Status Pair::refuse(size_t number, Finding finding, const std::string& what) {
  Status why = Status::remote_error("{}: when it was tried with a pattern, {}; {}", way(number),
                                    what, remedy_of(finding, number));
  if (std::popcount(failed()) + 1 == std::ssize(queue_pairs_)) {
    // It is not stopped yet, so that this may come through.
    outbox_->verdict = {
        .queue_pair = static_cast<uint32_t>(number), .finding = finding, .number = 1};
    static_cast<void>(write_to_peer(number, &outbox_->verdict, sizeof(Verdict), &outbox_->verdict,
                                    /*is_signalled=*/false));
    queue_pairs_[number].has_failed = true;
    return why;
  }
  refused_ |= 1u << number;
  TRY(stop(number));
  LOG(Warn, Net, "NET/IB : {}. Data to {} go on over {}", why.message(), peer_,
      way(usable_from(0)));
  return {};
}

Status Pair::hear_verdict() {
  if (number_in(inbox_->verdict.number) != 1) return {};
  const Verdict& verdict = inbox_->verdict;
  if (verdict.queue_pair >= queue_pairs_.size())
    return Status::remote_error("{} reports queue pairs that there are not", peer_);
  return Status::remote_error(
      "{}: when {} tried it with a pattern, {}; {}", way(verdict.queue_pair), peer_,
      verdict.finding == Finding::IsWrong ? "bytes came back wrong" : "nothing came back in time",
      remedy_of(verdict.finding, verdict.queue_pair));
}

// ---- failures

uint32_t Pair::failed() const {
  uint32_t bits = 0;
  for (size_t i = 0; i < queue_pairs_.size(); ++i)
    if (queue_pairs_[i].has_failed) bits |= 1u << i;
  return bits;
}

bool Pair::is_recovering() const { return failed() != recovered_; }

Status Pair::take_failure(size_t number, const ibv_wc& completion) {
  QueuePair& own = queue_pairs_[number];
  if (own.has_failed) return {};  // its other work is flushed
  const Port& port = rails_[own.rail].port;
  ibv_port_attr now{};
  const bool is_down = library_.query_port(port.device->context(), port.number, now) == 0 &&
                       now.state != IBV_PORT_ACTIVE;
  const char* const remedy =
      is_down ? "its port is down: look at the cable and the switch (ibv_devinfo)"
      : completion.status == IBV_WC_RETRY_EXC_ERR
          ? "the peer's port does not answer: is its process alive, is its link up, and do the two "
            "ports reach each other (ibv_rc_pingpong; NCCL_IB_HCA, NCCL_IB_GID_INDEX, "
            "NCCL_IB_TIMEOUT)?"
          : "the log of the kernel and of the peer may tell more";
  const Kind kind = unpack(completion.wr_id).kind;
  const char* const work = kind == Kind::Receive ? "a receive"
                           : kind == Kind::Trial ? "the RDMA read of a trial"
                                                 : "an RDMA write";
  Status why =
      Status::remote_error("{}: {} failed with {} (status {}, vendor error 0x{:x}); {}",
                           way(number), work, library_.wc_status_str(completion.status),
                           static_cast<int>(completion.status), completion.vendor_err, remedy);
  Status stopped = stop(number);
  if (std::popcount(failed()) == std::ssize(queue_pairs_)) return why;
  TRY(std::move(stopped));
  LOG(Info, Net, "NET/IB : {}. Data to {} go on over {}", why.message(), peer_,
      way(usable_from(0)));
  return {};
}

// From now on nothing comes by it any more; the receives that it has are flushed.
Status Pair::stop(size_t number) {
  QueuePair& own = queue_pairs_[number];
  own.has_failed = true;
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_ERR;
  const int error = library_.modify_qp(own.handle, &state, IBV_QP_STATE);
  if (error == 0 || rails_[own.rail].port.device->is_gone())
    return {};  // look_at_devices() goes on
  return Status::from_errno(error, fmt::format("{} cannot be stopped", way(number)));
}

// A NIC has done with the memory of a queue pair when that is destroyed.
void Pair::cut() {
  for (size_t i = 0; i < queue_pairs_.size(); ++i) leave_out(i);
  if (failure_.is_ok()) failure_ = Status::remote_error("the connection with {} was cut", peer_);
}

// A queue pair that is not used from the beginning, or will not be used any more.
void Pair::leave_out(size_t number) {
  QueuePair& own = queue_pairs_[number];
  if (own.handle != nullptr) static_cast<void>(library_.destroy_qp(own.handle));
  own.handle = nullptr;
  own.has_failed = own.is_gone = true;
  own.receives = 0;
}

// Nothing but an event tells of a device that is removed.
Status Pair::look_at_devices() {
  looks_ = 0;
  uint32_t gone = 0;
  for (size_t rail = 0; rail < rails_.size(); ++rail)
    if (rails_[rail].port.device->is_gone()) gone |= 1u << rail;
  if (gone == 0) return {};
  TRY(poll());  // what came before
  for (size_t i = 0; i < queue_pairs_.size(); ++i) {
    QueuePair& own = queue_pairs_[i];
    if (own.is_gone || (gone & 1u << own.rail) == 0) continue;
    own.has_failed = own.is_gone = true;
    own.receives = 0;
    Status why = Status::system_error(
        "{}: the device has failed, or was removed (IBV_EVENT_DEVICE_FATAL): look at the log of "
        "the kernel; NCCL_IB_HCA names other devices",
        way(i));
    if (std::popcount(failed()) == std::ssize(queue_pairs_)) return why;
    LOG(Info, Net, "NET/IB : {}. Data to {} go on over {}", why.message(), peer_,
        way(usable_from(0)));
  }
  return {};
}

bool Pair::is_stopped(uint32_t failed) const {
  for (size_t i = 0; i < queue_pairs_.size(); ++i)
    if ((failed & 1u << i) != 0 && queue_pairs_[i].receives > 0) return false;
  return true;
}

Status Pair::write_report() {
  reported_ = failed();
  // Their pieces come anew.
  for (Request& request : receives_)
    if (request.is_used && request.missing > 0) request.missing = kUnknown;
  const size_t carrier = usable_from(0);
  Report& report = outbox_->reports[carrier];
  report.failed = reported_;
  report.first = first_missing_;
  report.came = came_;
  report.refused = refused_;
  report.begin = report.number = ++reports_;
  return write_to_peer(carrier, &report, sizeof report, &report, /*is_signalled=*/true);
}

Status Pair::recover() {
  Report& inbox = newest_report();
  const uint32_t number = number_in(inbox.number);
  if (number == 0 && !is_recovering()) return {};
  const Report report = inbox;
  const uint32_t all = static_cast<uint32_t>((uint64_t{1} << queue_pairs_.size()) - 1);
  if (number != 0 && (report.failed & ~all) != 0)
    return Status::remote_error("{} reports queue pairs that there are not", peer_);
  for (size_t i = 0; number != 0 && i < queue_pairs_.size(); ++i)
    if ((report.failed & 1u << i) != 0 && !queue_pairs_[i].has_failed) {
      LOG(Info, Net, "NET/IB : {} has failed at {}{}, and is used no longer", way(i), peer_,
          (report.refused & 1u << i) != 0 ? " when it was tried with a pattern" : "");
      TRY(stop(i));
    }
  if (!is_recovering()) return {};
  if (failed() == all)
    return Status::remote_error("no queue pair with {} is left: all have failed, the last one {}",
                                peer_, way(0));
  if (!are_tried_ || !is_stopped(failed()) || !has_room(queue_pairs_[usable_from(0)], 1)) return {};
  if (reported_ != failed()) TRY(write_report());
  if (number == 0 || report.begin != number || report.failed != failed()) return {};
  next_grant_ = first_missing_;
  recovered_ = failed();
  for (uint32_t i = next_send_ - kMostMessages; is_before(i, next_send_); ++i) {
    Request& request = sends_[i % kMostMessages];
    if (!request.is_used || request.number != i || request.missing == 0 ||
        (request.queue_pairs & failed()) == 0)
      continue;
    const uint32_t behind = i - report.first;
    const bool has_come =
        is_before(i, report.first) || (behind < 32 && (report.came >> behind & 1) != 0);
    if (has_come)
      request.missing = 0;
    else
      TRY(send_pieces(request, inbox_->grants[i % kMostMessages]));
  }
  return {};
}

}  // namespace niccolite::transport::net::verbs
