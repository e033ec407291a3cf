// How a Pair is made and meets its peer.
#include "transport/net/verbs/pair.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "base/log.h"
#include "transport/net/verbs/words.h"

namespace niccolite::transport::net::verbs {
namespace {

constexpr uint32_t kMostInline = 128;  // a message of 8 bytes of data is 80 bytes
constexpr uint32_t kMagic = 0x4e494234;
constexpr uint32_t kNumberOfQueuePair = 0xffffff;
constexpr uint32_t kNone = 0;  // no queue pair of a program has this number

uint32_t random_number() {
  static thread_local std::random_device device;
  return device();
}

}  // namespace

struct Pair::Greeting {
  struct Rail {
    ibv_gid gid{};
    uint16_t lid = 0;
    uint8_t mtu = 0;
    uint8_t is_roce = 0;
    uint8_t is_spare = 0;
    char name[27]{};
  };
  uint32_t magic = kMagic;
  uint16_t rails_count = 0;
  uint16_t queue_pairs_count = 0;
  uint32_t first_packet = 0;
  uint32_t unused = 0;
  uint64_t inbox = 0;
  uint32_t inbox_keys[kMostPorts]{};
  uint64_t trials[2]{};
  uint32_t trial_keys[2][kMostPorts]{};
  Rail rails[kMostPorts]{};
  uint32_t queue_pairs[kMostQueuePairs]{};  // number, and its rail in the upper 8 bits
};

Pair::Pair(const Library& library, std::vector<Rail> rails, const Settings& settings,
           std::string peer)
    : library_(library),
      rails_(std::move(rails)),
      settings_(settings),
      peer_(std::move(peer)),
      first_packet_(random_number() & 0xffffff),
      inbox_(std::make_unique<Mail>()),
      outbox_(std::make_unique<Mail>()) {}

Pair::~Pair() {
  for (const QueuePair& each : queue_pairs_)
    if (each.handle != nullptr) static_cast<void>(library_.destroy_qp(each.handle));
  for (ibv_cq* const queue : completions_)
    if (queue != nullptr) static_cast<void>(library_.destroy_cq(queue));
  if (messages_ > 0)
    LOG(Info, Net,
        "NET/IB : to {}: {} messages of {} bytes in all, by {} work requests with {} completions; "
        "{} bytes to memory of GPUs, {} of them from buffers of the user and {} to buffers of the "
        "peer's",
        peer_, messages_, bytes_, work_requests_, signalled_, direct_bytes_, bytes_of_users_,
        bytes_to_users_);
}

Result<std::shared_ptr<Pair>> Pair::create(const Library& library, std::vector<Rail> rails,
                                           const Settings& settings, std::string peer,
                                           const Direct& direct) {
  std::shared_ptr<Pair> pair(new Pair(library, std::move(rails), settings, std::move(peer)));
  TRY(pair->make_queue_pairs());
  pair->inbox_memory_ =
      TRY(Registered::create(library, pair->rails_, pair->inbox_.get(), sizeof(Mail),
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  pair->outbox_memory_ = TRY(
      Registered::create(library, pair->rails_, pair->outbox_.get(), sizeof(Mail), /*rights=*/0));
  const size_t count = pair->queue_pairs_.size();
  constexpr unsigned kRights =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  pair->trial_bytes_.resize(Trial::bytes_for(count));
  // Without relaxed ordering: a read must not overtake the write before it.
  pair->trial_memory_ = TRY(Registered::create(library, pair->rails_, pair->trial_bytes_.data(),
                                               pair->trial_bytes_.size(), kRights));
  pair->trials_[0].trial.emplace(count, pair->trial_bytes_.data());
  pair->trials_[0].memory = pair->trial_memory_.get();
  if (direct == nullptr) return pair;
  Result<std::shared_ptr<GpuMemory>> memory = direct(Trial::bytes_for(count), kRights);
  if (!memory.is_ok()) return pair;  // host memory does
  pair->direct_trial_memory_ = std::move(memory).take();
  pair->trials_[1].trial.emplace(count, pair->direct_trial_memory_->data(),
                                 pair->direct_trial_memory_.get());
  pair->trials_[1].memory = &pair->direct_trial_memory_->registered();
  return pair;
}

Status Pair::make_queue_pairs() {
  const size_t count = std::min(settings_.queue_pairs * rails_.size(), kMostQueuePairs);
  const auto of_rail = static_cast<int>((count + rails_.size() - 1) / rails_.size());
  for (const Rail& rail : rails_) {
    ibv_cq* const queue = library_.create_cq(rail.port.device->context(),
                                             of_rail * static_cast<int>(kSendQueue + kReceiveQueue),
                                             nullptr, nullptr, 0);
    if (const int error = errno; queue == nullptr && !rail.port.device->is_gone())
      return Status::from_errno(
          error, fmt::format("{} on host {}: ibv_create_cq failed", rail.port.name(), host()));
    completions_.push_back(queue);
  }
  for (size_t i = 0; i < count; ++i) {
    Status made = make_queue_pair(i % rails_.size());
    if (made.is_ok()) continue;
    if (!rails_[i % rails_.size()].port.device->is_gone()) return made;
    queue_pairs_.resize(i + 1);
    queue_pairs_[i].rail = i % rails_.size();
    leave_out(i);
  }
  return {};
}

Status Pair::make_queue_pair(size_t rail) {
  const Port& port = rails_[rail].port;
  if (completions_[rail] == nullptr) return Status::system_error("{} is gone", port.name());
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = completions_[rail];
  attributes.cap = {.max_send_wr = kSendQueue,
                    .max_recv_wr = kReceiveQueue,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = settings_.is_inline ? kMostInline : 0};
  attributes.qp_type = IBV_QPT_RC;
  QueuePair made{.rail = rail};
  made.handle = library_.create_qp(port.device->domain(), &attributes);
  if (made.handle == nullptr && settings_.is_inline) {  // a device that cannot
    attributes.cap.max_inline_data = 0;
    made.handle = library_.create_qp(port.device->domain(), &attributes);
  }
  if (made.handle == nullptr)
    return Status::from_errno(errno, fmt::format("{} on host {}: ibv_create_qp failed (is 'ulimit "
                                                 "-l' unlimited?)",
                                                 port.name(), host()));
  made.most_inline = settings_.is_inline ? attributes.cap.max_inline_data : 0;
  queue_pairs_.push_back(made);
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_INIT;
  state.pkey_index = settings_.partition;
  state.port_num = port.number;
  state.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  const int error = library_.modify_qp(
      made.handle, &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0)
    return Status::from_errno(
        error, fmt::format("{} on host {}: its queue pair cannot be prepared with partition key "
                           "index {} (NCCL_IB_PKEY)",
                           port.name(), host(), settings_.partition));
  return post_receives(queue_pairs_.back(), kReceiveQueue);
}

Network::Handle Pair::handle() const {
  Greeting greeting;
  greeting.rails_count = static_cast<uint16_t>(rails_.size());
  greeting.queue_pairs_count = static_cast<uint16_t>(queue_pairs_.size());
  greeting.first_packet = first_packet_;
  greeting.inbox = reinterpret_cast<uintptr_t>(inbox_.get());
  for (size_t i = 0; i < rails_.size(); ++i) {
    const Port& port = rails_[i].port;
    greeting.inbox_keys[i] = inbox_memory_->remote_key(i);
    Greeting::Rail& rail = greeting.rails[i];
    rail.gid = rails_[i].gid.bytes;
    rail.lid = port.attributes.lid;
    rail.mtu = static_cast<uint8_t>(port.attributes.active_mtu);
    rail.is_roce = port.is_roce() ? 1 : 0;
    rail.is_spare = rails_[i].is_spare ? 1 : 0;
    const std::string name = port.name();
    std::memcpy(rail.name, name.data(), std::min(name.size(), sizeof rail.name - 1));
  }
  for (size_t i = 0; i < queue_pairs_.size(); ++i) {
    const QueuePair& own = queue_pairs_[i];
    greeting.queue_pairs[i] = (own.handle != nullptr ? own.handle->qp_num : kNone) |
                              static_cast<uint32_t>(own.rail) << 24;
  }
  for (size_t at = 0; at < trials_.size(); ++at) {
    if (trials_[at].memory == nullptr) continue;
    greeting.trials[at] = reinterpret_cast<uintptr_t>(trials_[at].trial->data());
    for (size_t i = 0; i < rails_.size(); ++i)
      greeting.trial_keys[at][i] = trials_[at].memory->remote_key(i);
  }
  Network::Handle handle{};
  static_assert(sizeof greeting <= sizeof handle);
  std::memcpy(handle.data(), &greeting, sizeof greeting);
  return handle;
}

Status Pair::meet(const Network::Handle& peer) {
  Greeting greeting;
  std::memcpy(&greeting, peer.data(), sizeof greeting);
  if (greeting.magic != kMagic || greeting.rails_count == 0 || greeting.rails_count > kMostPorts ||
      greeting.queue_pairs_count == 0 || greeting.queue_pairs_count > kMostQueuePairs)
    return Status::remote_error("{} describes {} queue pairs on {} ports", peer_,
                                greeting.queue_pairs_count, greeting.rails_count);
  for (Greeting::Rail& rail : std::span(greeting.rails).first(greeting.rails_count)) {
    rail.name[sizeof rail.name - 1] = 0;
    peer_rails_.push_back(fmt::format("{} (GID {})", rail.name, text_of(rail.gid)));
  }
  peer_inbox_ = greeting.inbox;
  std::ranges::copy(greeting.inbox_keys, peer_inbox_keys_.begin());
  for (size_t at = 0; at < trials_.size(); ++at) {
    trials_[at].peer = greeting.trials[at];
    std::ranges::copy(greeting.trial_keys[at], trials_[at].peer_keys.begin());
  }
  is_direct_ = trials_[1].memory != nullptr && trials_[1].peer != 0;
  // Queue pairs without a partner are of no use.
  const size_t count = std::min<size_t>(queue_pairs_.size(), greeting.queue_pairs_count);
  for (size_t i = count; i < queue_pairs_.size(); ++i) leave_out(i);
  queue_pairs_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const bool is_offered = (greeting.queue_pairs[i] & kNumberOfQueuePair) != kNone;
    if (queue_pairs_[i].handle == nullptr || !is_offered) leave_out(i);
  }
  // Both ends know of these.
  recovered_ = reported_ = failed();
  if (std::popcount(recovered_) == std::ssize(queue_pairs_))
    return Status::system_error(
        "{} and this rank have no devices in common: those that they had have failed or were "
        "removed: look at the log of the kernel on both hosts",
        peer_);
  for (size_t i = 0; i < count; ++i)
    if (queue_pairs_[i].handle != nullptr) TRY(join(queue_pairs_[i], greeting, i));
  // release: pairs with has_met().
  has_met_.store(true, std::memory_order_release);
  return {};
}

Status Pair::join(QueuePair& own, const Greeting& peer, size_t number) {
  const Rail& rail = rails_[own.rail];
  const Port& port = rail.port;
  own.peer_rail = peer.queue_pairs[number] >> 24;
  if (own.peer_rail >= peer.rails_count)
    return Status::remote_error("{} has a queue pair on port {} of {}", peer_, own.peer_rail,
                                peer.rails_count);
  const Greeting::Rail& to = peer.rails[own.peer_rail];
  own.spares = static_cast<uint8_t>((rail.is_spare ? 1 : 0) + (to.is_spare != 0 ? 1 : 0));
  if (to.mtu < IBV_MTU_256 || to.mtu > IBV_MTU_4096)
    return Status::remote_error("{} has an MTU of number {} on {}", peer_, to.mtu,
                                peer_rails_[own.peer_rail]);
  const auto kind = [](bool is_roce) { return is_roce ? "RoCE" : "InfiniBand"; };
  if ((to.is_roce != 0) != port.is_roce())
    return Status::invalid_usage(
        "{} of host {} is {}, and {} of {} is {}: name ports of one kind on all machines "
        "(NCCL_IB_HCA)",
        port.name(), host(), kind(port.is_roce()), peer_rails_[own.peer_rail], peer_,
        kind(to.is_roce != 0));
  if (port.is_roce() && is_ipv4(to.gid) != is_ipv4(rail.gid.bytes))
    return Status::invalid_usage(
        "{} cannot reach {}: one is an IPv4 address and the other one of IPv6: choose GIDs of one "
        "family on all machines (NCCL_IB_ADDR_FAMILY, NCCL_IB_GID_INDEX)",
        way(number), peer_);
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_RTR;
  state.path_mtu = std::min(port.attributes.active_mtu, static_cast<ibv_mtu>(to.mtu));
  state.dest_qp_num = peer.queue_pairs[number] & kNumberOfQueuePair;
  state.rq_psn = peer.first_packet;
  state.max_dest_rd_atomic = 1;
  state.min_rnr_timer = 12;  // 0.64 ms
  state.ah_attr.port_num = port.number;
  state.ah_attr.sl = settings_.service_level;
  state.ah_attr.dlid = to.lid;
  // Packets to another subnet of InfiniBand, and all of RoCE, have a global header.
  state.ah_attr.is_global =
      port.is_roce() || to.gid.global.subnet_prefix != rail.gid.bytes.global.subnet_prefix ? 1 : 0;
  if (state.ah_attr.is_global != 0) {
    state.ah_attr.grh.dgid = to.gid;
    state.ah_attr.grh.sgid_index = static_cast<uint8_t>(rail.gid.index);
    state.ah_attr.grh.hop_limit = 255;
    state.ah_attr.grh.traffic_class = settings_.traffic_class;
  }
  int error =
      library_.modify_qp(own.handle, &state,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error == 0) {
    state = {};
    state.qp_state = IBV_QPS_RTS;
    state.timeout = settings_.timeout;
    state.retry_cnt = settings_.retries;
    state.rnr_retry = 7;  // for ever: a receive is always posted
    state.sq_psn = first_packet_;
    state.max_rd_atomic = 1;
    error = library_.modify_qp(own.handle, &state,
                               IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                   IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  }
  if (error != 0 && port.device->is_gone()) return {};  // progress() tells the peer
  if (error != 0)
    return Status::from_errno(
        error, fmt::format("{} cannot be joined with {}. Do the two ports reach each other "
                           "(ibv_rc_pingpong)? NCCL_IB_HCA and NCCL_IB_GID_INDEX choose others",
                           way(number), peer_));
  LOG(Info, Net, "NET/IB : queue pair {} of {}: {}", number, peer_, way(number));
  return {};
}

std::string Pair::way(size_t number) const {
  const QueuePair& own = queue_pairs_[number];
  const Rail& rail = rails_[own.rail];
  return fmt::format("{} on host {} (GID {}, index {}) to {}", rail.port.name(), host(),
                     text_of(rail.gid.bytes), rail.gid.index, peer_rails_[own.peer_rail]);
}

Result<std::unique_ptr<Registered>> Pair::register_memory(void* data, size_t bytes,
                                                          bool is_received) {
  unsigned rights = 0;
  if (is_received) rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  if (is_received && settings_.has_relaxed_ordering) rights |= IBV_ACCESS_RELAXED_ORDERING;
  return Registered::create(library_, rails_, data, bytes, rights);
}

}  // namespace niccolite::transport::net::verbs
