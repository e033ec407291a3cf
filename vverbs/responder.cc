// The receiving end of a queue pair: greets a peer that connects, executes requests, and
// answers them.
#include <sys/socket.h>

#include <cstring>
#include <utility>

#include "engine.h"
#include "objects.h"

namespace vverbs {

namespace {

constexpr size_t kAtomicResults = 2 * kMaxAtomicReads;

void say(Socket& socket, ReplyKind kind, uint64_t seq, uint32_t timer = 0) {
  socket.out.push_back(only(ReplyHeader{kind, timer, seq, 0}));
}

void finish_receive(Context& context, QueuePair& pair, ibv_wc_status status) {
  ibv_wc wc{};
  wc.wr_id = pair.receive.id;
  wc.status = status;
  const bool write = pair.request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  wc.opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  wc.byte_len = static_cast<uint32_t>(pair.request.bytes);
  wc.qp_num = pair.qp().qp_num;
  wc.src_qp = pair.attributes.dest_qp_num;
  if (write || pair.request.opcode == IBV_WR_SEND_WITH_IMM) {
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.imm_data = pair.request.imm;
  }
  pair.has_receive = false;
  complete(context, queue_of(pair.qp().recv_cq), wc, pair.request.solicited != 0);
}

// Answers the request with an error, after which nothing more is executed. The answer leaves before
// the connection ends.
void refuse(Context& context, QueuePair& pair, ReplyKind kind, ibv_wc_status receive_status) {
  say(pair.responder, kind, pair.request.seq);
  write_out(context, pair, pair.responder, IBV_ACCESS_REMOTE_READ);
  if (pair.has_receive)
    finish_receive(context, pair, receive_status);
  else
    raise_event(context,
                kind == ReplyKind::AccessError ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR,
                &pair, nullptr, nullptr, 0);
  fail_pair(context, pair);
}

}  // namespace

bool take_receive(Context& context, QueuePair& pair) {
  ReceiveQueue& queue = pair.receives();
  if (queue.waiting.empty()) return false;
  pair.receive = std::move(queue.waiting.front());
  queue.waiting.pop_front();
  pair.has_receive = true;
  if (pair.qp().srq != nullptr) {
    SharedQueue& shared = queue_of(pair.qp().srq);
    if (shared.limit > 0 && queue.waiting.size() < shared.limit) {
      shared.limit = 0;
      raise_event(context, IBV_EVENT_SRQ_LIMIT_REACHED, nullptr, nullptr, &shared, 0);
    }
  }
  return true;
}

namespace {

// A request's header is here: decides where its body goes. False: the connection is no longer to be
// read.
bool begin_request(Context& context, QueuePair& pair) {
  Socket& socket = pair.responder;
  const RequestHeader& request = pair.request;
  const bool send = request.opcode == IBV_WR_SEND || request.opcode == IBV_WR_SEND_WITH_IMM;
  const bool write =
      request.opcode == IBV_WR_RDMA_WRITE || request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  const bool read = request.opcode == IBV_WR_RDMA_READ;
  const bool atomic = is_atomic(request.opcode);
  const unsigned rights = pair.attributes.qp_access_flags;
  if ((!send && !write && !read && !atomic) || request.bytes > kMaxMessage ||
      (atomic && request.bytes != 8)) {
    refuse(context, pair, ReplyKind::InvalidRequest, IBV_WC_LOC_QP_OP_ERR);
    return false;
  }
  socket.in = Incoming{};
  socket.in.in_body = true;
  socket.in.body = read || atomic ? 0 : request.bytes;
  // A request that comes twice was executed (reads are harmless). One that comes early follows a
  // message that was not taken.
  pair.drop_body = request.seq > pair.expected || (request.seq < pair.expected && !read && !atomic);
  if (pair.drop_body) return true;
  const auto memory = [&](unsigned access) {
    return memory_of(context, pair.qp().pd, request.rkey, request.addr, request.bytes, access) !=
           nullptr;
  };
  if (write && request.bytes > 0) {
    if ((rights & IBV_ACCESS_REMOTE_WRITE) == 0 || !memory(IBV_ACCESS_REMOTE_WRITE)) {
      refuse(context, pair, ReplyKind::AccessError, IBV_WC_REM_ACCESS_ERR);
      return false;
    }
    socket.in.pieces.push_back({request.rkey, request.addr, request.bytes, nullptr});
  }
  if (read && request.bytes > 0 &&
      ((rights & IBV_ACCESS_REMOTE_READ) == 0 || !memory(IBV_ACCESS_REMOTE_READ))) {
    refuse(context, pair, ReplyKind::AccessError, IBV_WC_REM_ACCESS_ERR);
    return false;
  }
  if (atomic && ((rights & IBV_ACCESS_REMOTE_ATOMIC) == 0 || !memory(IBV_ACCESS_REMOTE_ATOMIC))) {
    refuse(context, pair, ReplyKind::AccessError, IBV_WC_REM_ACCESS_ERR);
    return false;
  }
  if (atomic && request.addr % 8 != 0) {
    refuse(context, pair, ReplyKind::InvalidRequest, IBV_WC_REM_INV_REQ_ERR);
    return false;
  }
  if (send || request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
    // A message that was cut off by a lost connection comes again, into the receive that it had.
    if (!pair.has_receive && !take_receive(context, pair)) {
      say(socket, ReplyKind::NotReady, request.seq, pair.attributes.min_rnr_timer);
      pair.drop_body = true;
      socket.in.pieces.clear();
      return true;
    }
  }
  if (send) {
    uint64_t room = 0;
    for (const ibv_sge& sge : pair.receive.sges) {
      const uint64_t part =
          std::min<uint64_t>(sge.length, request.bytes - std::min(room, request.bytes));
      if (part > 0) {
        if (memory_of(context, pair.qp().pd, sge.lkey, sge.addr, sge.length,
                      IBV_ACCESS_LOCAL_WRITE) == nullptr) {
          refuse(context, pair, ReplyKind::OperationError, IBV_WC_LOC_PROT_ERR);
          return false;
        }
        socket.in.pieces.push_back({sge.lkey, sge.addr, part, nullptr});
      }
      room += sge.length;
    }
    if (room < request.bytes) {
      refuse(context, pair, ReplyKind::InvalidRequest, IBV_WC_LOC_LEN_ERR);
      return false;
    }
  }
  return true;
}

// The body is here, too.
void end_request(Context& context, QueuePair& pair) {
  Socket& socket = pair.responder;
  const RequestHeader request = pair.request;
  socket.in = Incoming{};
  if (pair.drop_body) {
    if (request.seq < pair.expected) say(socket, ReplyKind::Ack, pair.expected);
    return;
  }
  const bool again = request.seq < pair.expected;
  if (!again) ++pair.expected;
  if (request.opcode == IBV_WR_RDMA_READ) {
    Outgoing reply = only(ReplyHeader{ReplyKind::Data, 0, request.seq, request.bytes});
    if (request.bytes > 0)
      reply.pieces.push_back({request.rkey, request.addr, request.bytes, nullptr});
    copy_shadows(context, reply.pieces, 0, request.bytes, true);
    socket.out.push_back(std::move(reply));
    return;
  }
  if (is_atomic(request.opcode)) {
    if (!again) {
      auto* word =
          reinterpret_cast<uint64_t*>(memory_of(context, pair.qp().pd, request.rkey, request.addr,
                                                request.bytes, IBV_ACCESS_REMOTE_ATOMIC));
      uint64_t old = request.compare_add;
      if (request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
        old = __atomic_fetch_add(word, request.compare_add, __ATOMIC_SEQ_CST);
      else
        __atomic_compare_exchange_n(word, &old, request.swap, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST);
      pair.atomic_results[request.seq] = old;
      if (pair.atomic_results.size() > kAtomicResults)
        pair.atomic_results.erase(pair.atomic_results.begin());
    }
    Outgoing reply = only(ReplyHeader{ReplyKind::Data, 0, request.seq, 8});
    append(reply.head, pair.atomic_results[request.seq]);
    socket.out.push_back(std::move(reply));
    return;
  }
  if (request.opcode != IBV_WR_RDMA_WRITE) finish_receive(context, pair, IBV_WC_SUCCESS);
  // One answer for all messages that came at once: acknowledgements say how far the responder is.
  if (!socket.out.empty() && socket.out.back().done == 0 && socket.out.back().pieces.empty()) {
    ReplyHeader last{};
    std::memcpy(&last, socket.out.back().head.data(), sizeof last);
    if (last.kind == ReplyKind::Ack) socket.out.pop_back();
  }
  say(socket, ReplyKind::Ack, pair.expected);
}

}  // namespace

void serve(Context& context, QueuePair& pair) {
  Socket& socket = pair.responder;
  uint64_t turn = 0;
  while (socket.fd >= 0 && turn < kBytesPerTurn) {
    Port& port = port_of(context, pair);
    if (!port.up || port.drops) return close_socket(socket);
    if (!socket.in.in_body) {
      const Step step = read_head(socket, sizeof(RequestHeader));
      if (step == Step::Later) break;
      if (step == Step::Broken) return close_socket(socket);
      std::memcpy(&pair.request, socket.in.head.data(), sizeof pair.request);
      if (!begin_request(context, pair)) return;
    }
    const Step step =
        read_body(context, pair, socket,
                  pair.request.opcode == IBV_WR_SEND || pair.request.opcode == IBV_WR_SEND_WITH_IMM
                      ? IBV_ACCESS_LOCAL_WRITE
                      : IBV_ACCESS_REMOTE_WRITE);
    if (step == Step::Later) break;
    if (step == Step::Unregistered)
      return refuse(context, pair, ReplyKind::AccessError, IBV_WC_LOC_PROT_ERR);
    if (step == Step::Broken) return close_socket(socket);
    turn += sizeof(RequestHeader) + pair.request.bytes;
    end_request(context, pair);
  }
}

void flush_responder(Context& context, QueuePair& pair) {
  Socket& socket = pair.responder;
  if (socket.fd < 0) return;
  const Step step = write_out(context, pair, socket, IBV_ACCESS_REMOTE_READ);
  if (step == Step::Broken || step == Step::Unregistered) return close_socket(socket);
  if (socket.wants_write != (step == Step::Later)) {
    socket.wants_write = step == Step::Later;
    watch(context, socket.fd, tag(Source::Responder, pair.qp().qp_num), socket.wants_write, true);
  }
}

void welcome(Context& context, int fd) {
  auto found = context.guests.find(fd);
  if (found == context.guests.end()) return;
  Socket& socket = found->second.socket;
  const Step step = read_head(socket, sizeof(Greeting));
  if (step == Step::Later) return;
  Greeting greeting{};
  if (step == Step::Done) std::memcpy(&greeting, socket.in.head.data(), sizeof greeting);
  if (step == Step::Done && greeting.magic == kMagic && greeting.to == 0) {
    context.guests.erase(found);
    return add_feed(context, fd);
  }
  const auto pair_found = context.pairs.find(greeting.to);
  QueuePair* pair = pair_found == context.pairs.end() ? nullptr : pair_found->second;
  bool fits = greeting.magic == kMagic && pair != nullptr && pair->qp().qp_type == IBV_QPT_RC &&
              (pair->qp().state == IBV_QPS_RTR || pair->qp().state == IBV_QPS_RTS ||
               pair->qp().state == IBV_QPS_SQD) &&
              pair->attributes.dest_qp_num == greeting.from &&
              pair->attributes.rq_psn == greeting.psn;
  if (fits) {
    const Port& port = port_of(context, *pair);
    fits = port.up && !port.drops;
  }
  if (!fits) {
    const Welcome no{kMagic, 0, 0};
    (void)!send(fd, &no, sizeof no, MSG_NOSIGNAL | MSG_DONTWAIT);
    close_socket(socket);
    context.guests.erase(found);
    return;
  }
  close_socket(pair->responder);
  socket.in = Incoming{};
  pair->responder = std::move(socket);
  context.guests.erase(found);
  pair->responder.out.push_back(only(Welcome{kMagic, 1, pair->expected}));
  watch(context, fd, tag(Source::Responder, greeting.to), false, true);
  if (pair->qp().state == IBV_QPS_RTR)
    raise_event(context, IBV_EVENT_COMM_EST, pair, nullptr, nullptr, 0);
  serve(context, *pair);
  flush_responder(context, *pair);
}

}  // namespace vverbs
