#include "transport/net/verbs/pair.h"

#include <arpa/inet.h>

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "base/log.h"

namespace niccolite::transport::net::verbs {
namespace {

constexpr uint32_t kSendQueue = 256;
constexpr uint32_t kReceiveQueue = 2 * kMostMessages;
constexpr uint32_t kReceivesAtOnce = 8;  // posted anew
constexpr uint32_t kSignalEvery = 16;    // so that the send queue gets room again
constexpr uint32_t kMostInline = 128;    // a message of 8 bytes of data is 80 bytes
constexpr uint32_t kLeastSplit = 8192;   // bytes of a message
constexpr uint32_t kUnknown = UINT32_MAX;
constexpr uint32_t kMagic = 0x4e494234;
constexpr uint32_t kNumberOfQueuePair = 0xffffff;
constexpr uint32_t kNone = 0;      // no queue pair of a program has this number
constexpr uint32_t kLooks = 1024;  // of progress(), for one at the devices' events
constexpr int kCompletionsAtOnce = 16;
// A trial lasts no longer. A NIC sends a lost packet again after 4.3 s (NCCL_IB_TIMEOUT).
constexpr std::chrono::seconds kPatience{10};

// An immediate has the number's low bits, the number of pieces, and the round: how many
// queue pairs had failed when the piece was sent.
constexpr uint32_t kNumberBits = 20;
constexpr uint32_t kNumberMask = (1u << kNumberBits) - 1;
constexpr uint32_t kPiecesMask = 63;
uint32_t immediate_of(uint32_t number, uint32_t pieces, uint32_t round) {
  return (number & kNumberMask) | (pieces & kPiecesMask) << kNumberBits | round << 26;
}

// The id of a work request.
enum class Kind : uint8_t { Receive, Piece, Other, Trial };
struct Id {
  Kind kind;
  size_t queue_pair;
  uint32_t round = 0;
  uint32_t posted = 0;  // low bits
  uint32_t number = 0;  // of a message
};
constexpr uint32_t kPostedMask = (1u << 18) - 1;
uint64_t pack(const Id& id) {
  return uint64_t{static_cast<uint8_t>(id.kind)} << 62 | uint64_t{id.queue_pair} << 56 |
         uint64_t{id.round & 63} << 50 | uint64_t{id.posted & kPostedMask} << 32 | id.number;
}
Id unpack(uint64_t word) {
  return {.kind = static_cast<Kind>(word >> 62),
          .queue_pair = (word >> 56) & 63,
          .round = static_cast<uint32_t>(word >> 50) & 63,
          .posted = static_cast<uint32_t>(word >> 32) & kPostedMask,
          .number = static_cast<uint32_t>(word)};
}

// Acquire: what the NIC has written before the number is there. (A NIC writes the bytes of one
// small aligned write in the order of their addresses.)
uint32_t number_in(uint32_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); }

bool is_before(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

uint32_t random_number() {
  static thread_local std::random_device device;
  return device();
}

}  // namespace

/// The content of a DirectName.
struct DirectPlace {
  uint64_t address = 0;
  uint32_t keys[kMostPorts]{};  // by the receiver's rail
};
static_assert(sizeof(DirectPlace) == sizeof(DirectName));

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

Result<std::unique_ptr<Registered>> Registered::create(const Library& library,
                                                       const std::vector<Rail>& rails, void* data,
                                                       size_t bytes, unsigned rights) {
  std::unique_ptr<Registered> made(new Registered(library));
  for (const Rail& rail : rails) {
    ibv_pd* const domain = rail.port.device->domain();
    ibv_mr* const region =
        (rights & IBV_ACCESS_RELAXED_ORDERING) != 0 && library.reg_mr_iova2 != nullptr
            ? library.reg_mr_iova2(domain, data, bytes, reinterpret_cast<uintptr_t>(data), rights)
            : library.reg_mr(domain, data, bytes,
                             static_cast<int>(rights & ~unsigned{IBV_ACCESS_RELAXED_ORDERING}));
    if (const int error = errno; region == nullptr && !rail.port.device->is_gone())
      return Status::from_errno(
          error, fmt::format("{} on host {} refuses to register {} KiB of memory (ibv_reg_mr; is "
                             "'ulimit -l' unlimited?)",
                             rail.port.name(), host(), (bytes + 1023) / 1024));
    made->regions_.push_back(region);
  }
  return made;
}

Result<std::unique_ptr<Registered>> Registered::create_on_gpu(const Library& library,
                                                              const std::vector<Rail>& rails,
                                                              std::byte* data, size_t bytes,
                                                              const Fd& descriptor,
                                                              unsigned rights) {
  std::unique_ptr<Registered> made(new Registered(library));
  for (const Rail& rail : rails) {
    ibv_mr* const region = library.reg_dmabuf_mr(rail.port.device->domain(), 0, bytes,
                                                 reinterpret_cast<uintptr_t>(data),
                                                 descriptor.get(), static_cast<int>(rights));
    if (const int error = errno; region == nullptr && !rail.port.device->is_gone())
      return Status::from_errno(
          error, fmt::format("{} on host {} refuses to register {} KiB of memory of a GPU "
                             "(ibv_reg_dmabuf_mr)",
                             rail.port.name(), host(), (bytes + 1023) / 1024));
    made->regions_.push_back(region);
  }
  return made;
}

Registered::~Registered() {
  for (ibv_mr* const region : regions_)
    if (region != nullptr) static_cast<void>(library_.dereg_mr(region));
}

GpuMemory::GpuMemory(std::vector<Rail> rails, gpu::Memory memory, size_t bytes)
    : process_(getpid()), rails_(std::move(rails)), memory_(std::move(memory)) {
  data_ = static_cast<std::byte*>(memory_.data());
  bytes_ = bytes;
}

Result<std::shared_ptr<GpuMemory>> GpuMemory::create(const Library& library,
                                                     const std::vector<Rail>& rails,
                                                     Network::GpuAllocation from, size_t bytes,
                                                     unsigned rights) {
  std::shared_ptr<GpuMemory> made(new GpuMemory(rails, std::move(from.memory), bytes));
  made->registered_ =
      TRY(Registered::create_on_gpu(library, rails, made->data(), bytes, from.descriptor, rights));
  return made;
}

GpuMemory::~GpuMemory() {
  // In a child made by fork() it is the parent's.
  if (process_ != getpid()) static_cast<void>(registered_.release());
}

DirectName GpuMemory::name() const {
  DirectPlace place{.address = reinterpret_cast<uintptr_t>(data())};
  for (size_t rail = 0; rail < rails_.size(); ++rail)
    place.keys[rail] = registered_->remote_key(rail);
  DirectName name;
  std::memcpy(name.data(), &place, sizeof place);
  return name;
}

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
        "{} bytes to memory of GPUs",
        peer_, messages_, bytes_, work_requests_, signalled_, direct_bytes_);
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
  if (!memory.is_ok()) {  // host memory does
    LOG(Info, Net, "NET/IB : {}; data to {} pass through host memory", memory.status().message(),
        pair->peer_);
    return pair;
  }
  pair->direct_trial_memory_ = std::move(memory).take();
  pair->trials_[1].trial.emplace(count, pair->direct_trial_memory_->data());
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

// ---- trials

bool Pair::has_peer_spoken() {
  return number_in(inbox_->grants[1 % kMostMessages].number) == 1 ||
         number_in(inbox_->report.number) != 0 || number_in(inbox_->verdict.number) != 0;
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
  ibv_sge piece{.addr = reinterpret_cast<uintptr_t>(place.trial->make_pattern(number)),
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

Status Pair::end_trial(size_t number, uint32_t place_number) {
  QueuePair& own = queue_pairs_[number];
  if (own.has_failed || place_number >= trials_.size()) return {};
  const std::optional<std::string> difference = trials_[place_number].trial->difference(number);
  if (difference && place_number == 0) return refuse(number, Finding::IsWrong, *difference);
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
  Status why = Status::remote_error(
      "{}: {} failed with {} (status {}, vendor error 0x{:x}); {}", way(number),
      unpack(completion.wr_id).kind == Kind::Receive ? "a receive" : "an RDMA write",
      library_.wc_status_str(completion.status), static_cast<int>(completion.status),
      completion.vendor_err, remedy);
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

// A queue pair that is not used from the beginning.
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
  Report& report = outbox_->report;
  report.failed = reported_;
  report.first = first_missing_;
  report.came = came_;
  report.refused = refused_;
  report.begin = report.number = ++reports_;
  return write_to_peer(usable_from(0), &report, sizeof report, &report, /*is_signalled=*/true);
}

Status Pair::recover() {
  Report& inbox = inbox_->report;
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
