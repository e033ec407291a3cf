// Queue pairs (reliable connections and datagrams) and shared receive queues: their life, and the
// work that is posted to them.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "engine.h"
#include "objects.h"
#include "options.h"

namespace vverbs {

void settle_events(Context& context, std::unique_lock<std::mutex>& lock, const void* handle,
                   const uint32_t& reported, const uint32_t& acknowledged);
void fill_completion_operations(ibv_context_ops& operations);

namespace {

int add_receive(ReceiveQueue& queue, const ibv_recv_wr& wr) {
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > queue.most_sge) return EINVAL;
  if (queue.waiting.size() >= queue.most) return ENOMEM;
  queue.waiting.push_back({wr.wr_id, {wr.sg_list, wr.sg_list + wr.num_sge}});
  return 0;
}

int post_receive(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  Context& context = context_of(qp->context);
  const std::lock_guard lock(context.mutex);
  for (; wr != nullptr; wr = wr->next) {
    int error = qp->srq != nullptr || qp->state == IBV_QPS_RESET ? EINVAL : 0;
    if (error == 0) error = add_receive(pair_of(qp).own_receives, *wr);
    if (error != 0) {
      *bad = wr;
      return error;
    }
  }
  if (qp->state == IBV_QPS_ERR) fail_pair(context, pair_of(qp));
  if (context.held_feeds > 0) wake(context);
  return 0;
}

int post_shared_receive(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  Context& context = context_of(srq->context);
  const std::lock_guard lock(context.mutex);
  if (context.held_feeds > 0) wake(context);
  for (; wr != nullptr; wr = wr->next)
    if (const int error = add_receive(queue_of(srq).queue, *wr); error != 0) {
      *bad = wr;
      return error;
    }
  return 0;
}

// Checks the request and adds it; its memory is checked when it is sent, as a NIC does.
int add_request(QueuePair& pair, Request request) {
  const auto state = pair.qp().state;
  const bool datagram = pair.qp().qp_type == IBV_QPT_UD;
  if (state != IBV_QPS_RTS && state != IBV_QPS_SQD && state != IBV_QPS_SQE && state != IBV_QPS_ERR)
    return EINVAL;
  if (pair.sends.size() >= pair.cap.max_send_wr) return ENOMEM;
  const bool atomic =
      request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  const bool reads = atomic || request.opcode == IBV_WR_RDMA_READ;
  switch (request.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      if (datagram && request.to.pd == nullptr) return EINVAL;
      break;
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      if (datagram) return EINVAL;
      break;
    default:
      return EINVAL;
  }
  if (request.sges.size() > pair.cap.max_send_sge) return EINVAL;
  if ((request.flags & IBV_SEND_INLINE) != 0) {
    if (reads || request.inline_data.size() > pair.cap.max_inline_data) return EINVAL;
    request.bytes = request.inline_data.size();
  } else {
    for (const ibv_sge& sge : request.sges) request.bytes += sge.length;
  }
  if (request.bytes > kMaxMessage || (atomic && request.bytes != 8)) return EINVAL;
  request.seq = pair.next_seq++;
  const auto now = Clock::now();
  request.release =
      options().latency_us > 0
          ? now + std::chrono::nanoseconds(static_cast<int64_t>(options().latency_us * 1000))
          : Clock::time_point{};
  if (pair.sends.empty()) pair.progress_at = now;
  pair.sends.push_back(std::move(request));
  return 0;
}

void start(Context& context, QueuePair& pair) {
  if (pair.qp().state == IBV_QPS_ERR) return fail_pair(context, pair);
  if (pair.qp().state == IBV_QPS_SQE) return stop_sends(context, pair);
  pump(context, pair);
  // The NIC's thread keeps the times.
  if (!pair.sends.empty() && (pair.next == 0 || pair.requester.fd < 0)) wake(context);
}

Destination destination(const ibv_ah* ah, uint32_t number, uint32_t qkey) {
  const AddressHandle& handle = handle_of(ah);
  return {handle.base.pd, handle.attributes, handle.own, number, qkey};
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  Context& context = context_of(qp->context);
  QueuePair& pair = pair_of(qp);
  const std::lock_guard lock(context.mutex);
  int error = 0;
  for (; wr != nullptr; wr = wr->next) {
    Request request;
    request.id = wr->wr_id;
    request.opcode = wr->opcode;
    request.flags = wr->send_flags;
    request.imm = wr->imm_data;
    if (qp->qp_type == IBV_QPT_UD) {
      if (wr->wr.ud.ah != nullptr)
        request.to = destination(wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey);
    } else if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
               wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      request.remote_addr = wr->wr.atomic.remote_addr;
      request.rkey = wr->wr.atomic.rkey;
      request.compare_add = wr->wr.atomic.compare_add;
      request.swap = wr->wr.atomic.swap;
    } else {
      request.remote_addr = wr->wr.rdma.remote_addr;
      request.rkey = wr->wr.rdma.rkey;
    }
    if (wr->num_sge < 0 || wr->num_sge > kMaxSge) {
      error = EINVAL;
    } else if ((wr->send_flags & IBV_SEND_INLINE) != 0) {
      uint64_t bytes = 0;
      for (int i = 0; i < wr->num_sge; ++i) bytes += wr->sg_list[i].length;
      if (bytes > pair.cap.max_inline_data) {
        error = EINVAL;
      } else {
        for (int i = 0; i < wr->num_sge; ++i) {
          const auto* data = reinterpret_cast<const uint8_t*>(wr->sg_list[i].addr);
          request.inline_data.insert(request.inline_data.end(), data, data + wr->sg_list[i].length);
        }
      }
    } else {
      request.sges.assign(wr->sg_list, wr->sg_list + wr->num_sge);
    }
    if (error == 0) error = add_request(pair, std::move(request));
    if (error != 0) {
      *bad = wr;
      break;
    }
  }
  start(context, pair);
  return error;
}

// --- ibv_wr_*: work is built between start and complete, then posted as one.

QueuePair& pair_of(ibv_qp_ex* qp) { return *reinterpret_cast<QueuePair*>(qp); }

Request& build(ibv_qp_ex* qp, ibv_wr_opcode opcode, uint32_t rkey = 0, uint64_t addr = 0,
               uint32_t imm = 0) {
  Request request;
  request.id = qp->wr_id;
  request.opcode = opcode;
  request.flags = qp->wr_flags & ~static_cast<unsigned>(IBV_SEND_INLINE);
  request.imm = imm;
  request.rkey = rkey;
  request.remote_addr = addr;
  pair_of(qp).built.push_back(std::move(request));
  return pair_of(qp).built.back();
}

void refuse_to_build(ibv_qp_ex* qp) { pair_of(qp).build_error = EOPNOTSUPP; }

void set_inline(ibv_qp_ex* qp, size_t count, const ibv_data_buf* buffers) {
  if (pair_of(qp).built.empty()) return;
  Request& request = pair_of(qp).built.back();
  request.flags |= IBV_SEND_INLINE;
  for (size_t i = 0; i < count; ++i) {
    const auto* data = static_cast<const uint8_t*>(buffers[i].addr);
    request.inline_data.insert(request.inline_data.end(), data, data + buffers[i].length);
  }
}

void fill_builder(ibv_qp_ex& qp) {
  qp.wr_start = [](ibv_qp_ex* one) {
    context_of(one->qp_base.context).mutex.lock();
    pair_of(one).built.clear();
    pair_of(one).build_error = 0;
  };
  qp.wr_complete = [](ibv_qp_ex* one) {
    QueuePair& pair = pair_of(one);
    Context& context = context_of(one->qp_base.context);
    int error = pair.build_error;
    if (pair.sends.size() + pair.built.size() > pair.cap.max_send_wr) error = ENOMEM;
    for (Request& request : pair.built)
      if (error == 0) error = add_request(pair, std::move(request));
    pair.built.clear();
    start(context, pair);
    context.mutex.unlock();
    return error;
  };
  qp.wr_abort = [](ibv_qp_ex* one) {
    pair_of(one).built.clear();
    context_of(one->qp_base.context).mutex.unlock();
  };
  qp.wr_send = [](ibv_qp_ex* one) { build(one, IBV_WR_SEND); };
  qp.wr_send_imm = [](ibv_qp_ex* one, __be32 imm) { build(one, IBV_WR_SEND_WITH_IMM, 0, 0, imm); };
  qp.wr_rdma_write = [](ibv_qp_ex* one, uint32_t rkey, uint64_t addr) {
    build(one, IBV_WR_RDMA_WRITE, rkey, addr);
  };
  qp.wr_rdma_write_imm = [](ibv_qp_ex* one, uint32_t rkey, uint64_t addr, __be32 imm) {
    build(one, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr, imm);
  };
  qp.wr_rdma_read = [](ibv_qp_ex* one, uint32_t rkey, uint64_t addr) {
    build(one, IBV_WR_RDMA_READ, rkey, addr);
  };
  qp.wr_atomic_cmp_swp = [](ibv_qp_ex* one, uint32_t rkey, uint64_t addr, uint64_t compare,
                            uint64_t swap) {
    Request& request = build(one, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr);
    request.compare_add = compare;
    request.swap = swap;
  };
  qp.wr_atomic_fetch_add = [](ibv_qp_ex* one, uint32_t rkey, uint64_t addr, uint64_t value) {
    build(one, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr).compare_add = value;
  };
  qp.wr_set_sge = [](ibv_qp_ex* one, uint32_t lkey, uint64_t addr, uint32_t length) {
    if (!pair_of(one).built.empty()) pair_of(one).built.back().sges.assign(1, {addr, length, lkey});
  };
  qp.wr_set_sge_list = [](ibv_qp_ex* one, size_t count, const ibv_sge* list) {
    if (!pair_of(one).built.empty()) pair_of(one).built.back().sges.assign(list, list + count);
  };
  qp.wr_set_inline_data = [](ibv_qp_ex* one, void* data, size_t length) {
    const ibv_data_buf buffer{data, length};
    set_inline(one, 1, &buffer);
  };
  qp.wr_set_inline_data_list = [](ibv_qp_ex* one, size_t count, const ibv_data_buf* list) {
    set_inline(one, count, list);
  };
  qp.wr_bind_mw = [](ibv_qp_ex* one, ibv_mw*, uint32_t, const ibv_mw_bind_info*) {
    refuse_to_build(one);
  };
  qp.wr_local_inv = [](ibv_qp_ex* one, uint32_t) { refuse_to_build(one); };
  qp.wr_send_inv = [](ibv_qp_ex* one, uint32_t) { refuse_to_build(one); };
  qp.wr_send_tso = [](ibv_qp_ex* one, void*, uint16_t, uint16_t) { refuse_to_build(one); };
  qp.wr_set_ud_addr = [](ibv_qp_ex* one, ibv_ah* ah, uint32_t number, uint32_t qkey) {
    if (!pair_of(one).built.empty()) pair_of(one).built.back().to = destination(ah, number, qkey);
  };
  qp.wr_set_xrc_srqn = [](ibv_qp_ex* one, uint32_t) { refuse_to_build(one); };
}

ibv_qp* create(ibv_pd* pd, void* qp_context, ibv_cq* send_cq, ibv_cq* recv_cq, ibv_srq* srq,
               ibv_qp_cap& cap, ibv_qp_type type, bool signal_all) {
  if (type != IBV_QPT_RC && type != IBV_QPT_UD) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  if (context_of(pd->context).gone) {
    errno = EIO;
    return nullptr;
  }
  if (send_cq == nullptr || recv_cq == nullptr || cap.max_send_wr > kMaxWork ||
      cap.max_recv_wr > kMaxWork || cap.max_send_sge > kMaxSge || cap.max_recv_sge > kMaxSge ||
      cap.max_inline_data > kMaxInline) {
    errno = EINVAL;
    return nullptr;
  }
  Context& context = context_of(pd->context);
  const std::lock_guard lock(context.mutex);
  const uint32_t number = new_number(context);
  if (number == 0) {
    errno = ENOMEM;
    return nullptr;
  }
  auto* pair = new QueuePair;
  ibv_qp& qp = pair->qp();
  qp.context = pd->context;
  qp.qp_context = qp_context;
  qp.pd = pd;
  qp.send_cq = send_cq;
  qp.recv_cq = recv_cq;
  qp.srq = srq;
  qp.handle = qp.qp_num = number;
  qp.state = IBV_QPS_RESET;
  qp.qp_type = type;
  pthread_mutex_init(&qp.mutex, nullptr);
  pthread_cond_init(&qp.cond, nullptr);
  fill_builder(pair->base);
  pair->cap = cap;
  pair->signal_all = signal_all;
  pair->own_receives.most = cap.max_recv_wr;
  pair->own_receives.most_sge = cap.max_recv_sge;
  ++queue_of(send_cq).users;
  ++queue_of(recv_cq).users;
  if (srq != nullptr) ++queue_of(srq).users;
  ++pd->handle;
  context.pairs[number] = pair;
  return &qp;
}

ibv_qp* create_extended(ibv_context*, ibv_qp_init_attr_ex* attributes) {
  constexpr uint32_t kKnown = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  if ((attributes->comp_mask & ~kKnown) != 0 ||
      (attributes->comp_mask & IBV_QP_INIT_ATTR_PD) == 0) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  constexpr uint64_t kOffered = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
  if ((attributes->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0 &&
      (attributes->send_ops_flags & ~kOffered) != 0) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  return create(attributes->pd, attributes->qp_context, attributes->send_cq, attributes->recv_cq,
                attributes->srq, attributes->cap, attributes->qp_type, attributes->sq_sig_all != 0);
}

// What a change of state needs, and what it may bring beside (after the tables of the InfiniBand
// specification).
struct Change {
  ibv_qp_state from, to;
  int needed, allowed;
};
constexpr Change kConnected[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
};
constexpr Change kDatagram[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY},
    {IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
};

int check_change(std::span<const Change> changes, ibv_qp_state from, ibv_qp_state to, int mask) {
  mask &= ~IBV_QP_STATE;
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return mask == 0 ? 0 : EINVAL;
  for (const Change& change : changes)
    if (change.from == from && change.to == to)
      return (mask & change.needed) == change.needed &&
                     (mask & ~(change.needed | change.allowed)) == 0
                 ? 0
                 : EINVAL;
  return EINVAL;
}

}  // namespace

void fill_operations(Context& context) {
  ibv_context_ops& operations = context.verbs.context.ops;
  fill_completion_operations(operations);
  operations.post_send = post_send;
  operations.post_recv = post_receive;
  operations.post_srq_recv = post_shared_receive;
  operations.alloc_mw = [](ibv_pd*, ibv_mw_type) -> ibv_mw* {
    errno = EOPNOTSUPP;
    return nullptr;
  };
  operations.bind_mw = [](ibv_qp*, ibv_mw*, ibv_mw_bind*) { return EOPNOTSUPP; };
  operations.dealloc_mw = [](ibv_mw*) { return EOPNOTSUPP; };
  context.verbs.create_qp_ex = create_extended;
}

}  // namespace vverbs

using namespace vverbs;

extern "C" {

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  return create(pd, attributes->qp_context, attributes->send_cq, attributes->recv_cq,
                attributes->srq, attributes->cap, attributes->qp_type, attributes->sq_sig_all != 0);
}

ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) { return &vverbs::pair_of(qp).base; }

int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  Context& context = context_of(qp->context);
  QueuePair& pair = vverbs::pair_of(qp);
  const std::lock_guard lock(context.mutex);
  if (context.gone) return EIO;
  const ibv_qp_state from = qp->state;
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attributes->qp_state : from;
  if (((mask & IBV_QP_CUR_STATE) != 0 && attributes->cur_qp_state != from)) return EINVAL;
  const int error = qp->qp_type == IBV_QPT_UD ? check_change(kDatagram, from, to, mask)
                                              : check_change(kConnected, from, to, mask);
  if (error != 0) return error;
  ibv_qp_attr next = pair.attributes;
  if ((mask & IBV_QP_PKEY_INDEX) != 0) {
    if (attributes->pkey_index != 0) return EINVAL;
    next.pkey_index = 0;
  }
  if ((mask & IBV_QP_PORT) != 0) {
    if (attributes->port_num < 1 || attributes->port_num > context.ports.size()) return EINVAL;
    next.port_num = attributes->port_num;
  }
  if ((mask & IBV_QP_QKEY) != 0) next.qkey = attributes->qkey;
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) next.qp_access_flags = attributes->qp_access_flags;
  if ((mask & IBV_QP_AV) != 0) {
    // RoCE needs addresses: a LID says nothing.
    const auto table = gid_table(context.index, next.port_num);
    if (attributes->ah_attr.is_global == 0 || attributes->ah_attr.grh.sgid_index >= table.size())
      return EINVAL;
    next.ah_attr = attributes->ah_attr;
  }
  if ((mask & IBV_QP_PATH_MTU) != 0) {
    if (attributes->path_mtu < IBV_MTU_256 || attributes->path_mtu > IBV_MTU_4096) return EINVAL;
    next.path_mtu = attributes->path_mtu;
  }
  if ((mask & IBV_QP_DEST_QPN) != 0) next.dest_qp_num = attributes->dest_qp_num & 0xffffff;
  if ((mask & IBV_QP_RQ_PSN) != 0) next.rq_psn = attributes->rq_psn & 0xffffff;
  if ((mask & IBV_QP_SQ_PSN) != 0) next.sq_psn = attributes->sq_psn & 0xffffff;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) {
    if (attributes->max_dest_rd_atomic > kMaxAtomicReads) return EINVAL;
    next.max_dest_rd_atomic = attributes->max_dest_rd_atomic;
  }
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) {
    if (attributes->max_rd_atomic > kMaxAtomicReads) return EINVAL;
    next.max_rd_atomic = attributes->max_rd_atomic;
  }
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) {
    if (attributes->min_rnr_timer > 31) return EINVAL;
    next.min_rnr_timer = attributes->min_rnr_timer;
  }
  if ((mask & IBV_QP_TIMEOUT) != 0) {
    if (attributes->timeout > 31) return EINVAL;
    next.timeout = attributes->timeout;
  }
  if ((mask & IBV_QP_RETRY_CNT) != 0) {
    if (attributes->retry_cnt > 7) return EINVAL;
    next.retry_cnt = attributes->retry_cnt;
  }
  if ((mask & IBV_QP_RNR_RETRY) != 0) {
    if (attributes->rnr_retry > 7) return EINVAL;
    next.rnr_retry = attributes->rnr_retry;
  }
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) catch_up(context, pair);
  pair.attributes = next;
  qp->state = to;
  if (to == IBV_QPS_RESET) {
    reset_pair(context, pair);
    pair.attributes = {};
  } else if (to == IBV_QPS_ERR) {
    fail_pair(context, pair);
  } else if (to == IBV_QPS_RTS) {
    pair.progress_at = Clock::now();
    pump(context, pair);
    wake(context);
  }
  return 0;
}

int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int, ibv_qp_init_attr* init) {
  QueuePair& pair = vverbs::pair_of(qp);
  const std::lock_guard lock(context_of(qp->context).mutex);
  *attributes = pair.attributes;
  attributes->qp_state = attributes->cur_qp_state = qp->state;
  attributes->cap = pair.cap;
  *init = {};
  init->qp_context = qp->qp_context;
  init->send_cq = qp->send_cq;
  init->recv_cq = qp->recv_cq;
  init->srq = qp->srq;
  init->cap = pair.cap;
  init->qp_type = qp->qp_type;
  init->sq_sig_all = pair.signal_all;
  return 0;
}

int ibv_destroy_qp(ibv_qp* qp) {
  Context& context = context_of(qp->context);
  QueuePair* pair = &vverbs::pair_of(qp);
  {
    std::unique_lock lock(context.mutex);
    catch_up(context, *pair);
    context.pairs.erase(qp->qp_num);
    reset_pair(context, *pair);
    settle_events(context, lock, qp, pair->async_reported, qp->events_completed);
    // Its completions that nobody polled go with it.
    for (ibv_cq* cq : {qp->send_cq, qp->recv_cq}) {
      CompletionQueue& queue = queue_of(cq);
      std::erase_if(queue.entries, [&](const ibv_wc& wc) { return wc.qp_num == qp->qp_num; });
      queue.count.store(queue.entries.size(), std::memory_order_release);
      --queue.users;
    }
    if (qp->srq != nullptr) --queue_of(qp->srq).users;
    --qp->pd->handle;
  }
  pthread_mutex_destroy(&qp->mutex);
  pthread_cond_destroy(&qp->cond);
  delete pair;
  return 0;
}

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attributes) {
  if (attributes->attr.max_wr < 1 || attributes->attr.max_wr > kMaxWork ||
      attributes->attr.max_sge > kMaxSge) {
    errno = EINVAL;
    return nullptr;
  }
  auto* shared = new SharedQueue;
  shared->base.context = pd->context;
  shared->base.srq_context = attributes->srq_context;
  shared->base.pd = pd;
  shared->queue.most = attributes->attr.max_wr;
  shared->queue.most_sge = attributes->attr.max_sge;
  pthread_mutex_init(&shared->base.mutex, nullptr);
  pthread_cond_init(&shared->base.cond, nullptr);
  const std::lock_guard lock(context_of(pd->context).mutex);
  ++pd->handle;
  return &shared->base;
}

int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attributes, int mask) {
  const std::lock_guard lock(context_of(srq->context).mutex);
  SharedQueue& shared = queue_of(srq);
  if ((mask & IBV_SRQ_MAX_WR) != 0) {
    if (attributes->max_wr < shared.queue.waiting.size() || attributes->max_wr > kMaxWork)
      return EINVAL;
    shared.queue.most = attributes->max_wr;
  }
  if ((mask & IBV_SRQ_LIMIT) != 0) {
    if (attributes->srq_limit > shared.queue.most) return EINVAL;
    shared.limit = attributes->srq_limit;
  }
  return 0;
}

int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attributes) {
  const std::lock_guard lock(context_of(srq->context).mutex);
  const SharedQueue& shared = queue_of(srq);
  *attributes = {shared.queue.most, shared.queue.most_sge, shared.limit};
  return 0;
}

int ibv_destroy_srq(ibv_srq* srq) {
  Context& context = context_of(srq->context);
  SharedQueue* shared = &queue_of(srq);
  {
    std::unique_lock lock(context.mutex);
    if (shared->users != 0) return EBUSY;
    settle_events(context, lock, srq, shared->async_reported, srq->events_completed);
    --srq->pd->handle;
  }
  pthread_mutex_destroy(&srq->mutex);
  pthread_cond_destroy(&srq->cond);
  delete shared;
  return 0;
}
}
