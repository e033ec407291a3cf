// The sending end of a queue pair: connects, puts requests on the connection, hears what the peer
// says of them, and sends again.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine.h"
#include "objects.h"
#include "options.h"

namespace vverbs {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr auto kShortestWait = milliseconds(20);  // a host's threads are late where a NIC is not

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_SEND;
  }
}

}  // namespace

void complete_first(Context& context, QueuePair& pair, ibv_wc_status status) {
  const Request& request = pair.sends.front();
  if (status != IBV_WC_SUCCESS || pair.signal_all || (request.flags & IBV_SEND_SIGNALED) != 0) {
    ibv_wc wc{};
    wc.wr_id = request.id;
    wc.status = status;
    wc.opcode = completion_opcode(request.opcode);
    wc.byte_len = static_cast<uint32_t>(request.bytes);
    wc.qp_num = pair.qp().qp_num;
    complete(context, queue_of(pair.qp().send_cq), wc, false);
  }
  pair.sends.pop_front();
  if (pair.next > 0) --pair.next;
}

void lose_requester(QueuePair& pair) {
  close_socket(pair.requester);
  pair.next = 0;
  pair.wait_until = std::max(pair.wait_until, Clock::now() + kTryAgain);
}

namespace {

void fail_first(Context& context, QueuePair& pair, ibv_wc_status status) {
  complete_first(context, pair, status);
  fail_pair(context, pair);
}

// All requests before `seq` are executed at the peer.
void acknowledge(Context& context, QueuePair& pair, uint64_t seq) {
  while (!pair.sends.empty() && pair.next > 0 && pair.sends.front().seq < seq &&
         !has_reply(pair.sends.front().opcode)) {
    complete_first(context, pair, IBV_WC_SUCCESS);
    pair.retries = pair.rnr_retries = 0;
  }
}

void connect_requester(Context& context, QueuePair& pair) {
  const ibv_gid& gid = pair.attributes.ah_attr.grh.dgid;
  const uint16_t port = static_cast<uint16_t>(pair.attributes.dest_qp_num >> 8);
  const auto table = gid_table(context.index, pair.attributes.port_num);
  const auto* own = static_cast<const ibv_gid_entry*>(nullptr);
  for (const ibv_gid_entry& entry : table)
    if (entry.gid_index == pair.attributes.ah_attr.grh.sgid_index) own = &entry;
  sockaddr_storage address{};
  const socklen_t size = socket_address(gid, port, own != nullptr ? own->ndev_ifindex : 0, address);
  const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    pair.wait_until = Clock::now() + kTryAgain;
    return;
  }
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 && errno != EINPROGRESS) {
    close(fd);
    pair.wait_until = Clock::now() + kTryAgain;
    return;
  }
  Socket& socket = pair.requester;
  socket.fd = fd;
  socket.connecting = true;
  socket.out.push_back(only(
      Greeting{kMagic, pair.attributes.dest_qp_num, pair.qp().qp_num, pair.attributes.sq_psn}));
  watch(context, fd, tag(Source::Requester, pair.qp().qp_num), true, false);
  socket.wants_write = true;
}

// Changes a bit in the middle of a message whose pieces are registered. The program's memory stays
// as it is.
void corrupt(Context& context, QueuePair& pair, Outgoing& message) {
  const size_t header = sizeof(RequestHeader);
  for (const Piece& piece : std::exchange(message.pieces, {})) {
    const uint8_t* const from =
        memory_of(context, pair.qp().pd, piece.key, piece.addr, piece.bytes, 0);
    message.head.insert(message.head.end(), from, from + piece.bytes);
  }
  message.head[header + (message.head.size() - header) / 2] ^= 1;
}

// Puts the next request on the connection; false where it has to wait.
bool send_next(Context& context, QueuePair& pair) {
  Request& request = pair.sends[pair.next];
  const auto now = Clock::now();
  Port& port = port_of(context, pair);
  if (now < request.release || now < port.free_at) return false;
  size_t pending = 0;
  for (size_t i = 0; i < pair.next; ++i) pending += has_reply(pair.sends[i].opcode);
  if (pending > 0 && ((request.flags & IBV_SEND_FENCE) != 0 ||
                      (has_reply(request.opcode) &&
                       pending >= std::max<size_t>(pair.attributes.max_rd_atomic, 1))))
    return false;
  if (!pass_faults(context, pair, request)) return false;
  if (request.refused) {
    // Requests before it keep their results: it fails once it is the first.
    if (pair.next > 0) return false;
    fail_first(context, pair, IBV_WC_REM_OP_ERR);
    return false;
  }

  Outgoing message;
  append(message.head,
         RequestHeader{static_cast<uint32_t>(request.opcode), request.imm, request.rkey,
                       (request.flags & IBV_SEND_SOLICITED) != 0, request.seq, request.remote_addr,
                       request.bytes, request.compare_add, request.swap});
  const bool reads = has_reply(request.opcode);
  if ((request.flags & IBV_SEND_INLINE) != 0 && !reads) {
    message.head.insert(message.head.end(), request.inline_data.begin(), request.inline_data.end());
  } else {
    for (const ibv_sge& sge : request.sges) {
      if (sge.length == 0) continue;
      if (memory_of(context, pair.qp().pd, sge.lkey, sge.addr, sge.length,
                    reads ? IBV_ACCESS_LOCAL_WRITE : 0) == nullptr) {
        // Requests before it keep their results: it fails once it is the first.
        if (pair.next > 0) return false;
        fail_first(context, pair, IBV_WC_LOC_PROT_ERR);
        return false;
      }
      if (!reads) message.pieces.push_back({sge.lkey, sge.addr, sge.length, nullptr});
    }
  }
  if (!copy_shadows(context, message.pieces, 0, request.bytes, true)) {
    if (pair.next > 0) return false;
    fail_first(context, pair, IBV_WC_LOC_PROT_ERR);
    return false;
  }
  if (!reads && request.bytes >= kLeastCorrupt &&
      (port.corrupts || (port.corrupts_gpu && !message.pieces.empty() &&
                         is_of_gpu(context, message.pieces.front().key))))
    corrupt(context, pair, message);
  occupy(port, request.bytes);
  if (pair.next == 0) pair.progress_at = now;
  pair.requester.out.push_back(std::move(message));
  ++pair.next;
  return true;
}

}  // namespace

// Takes the replies of the peer.
void hear_replies(Context& context, QueuePair& pair) {
  Socket& socket = pair.requester;
  uint64_t turn = 0;
  while (socket.fd >= 0 && turn++ < 4096) {
    if (!socket.greeted) {
      const Step step = read_head(socket, sizeof(Welcome));
      if (step == Step::Later) return;
      Welcome welcome{};
      if (step == Step::Done) std::memcpy(&welcome, socket.in.head.data(), sizeof welcome);
      if (welcome.magic != kMagic || welcome.accepted == 0) return lose_requester(pair);
      socket.in = Incoming{};
      socket.greeted = true;
      pair.progress_at = Clock::now();
      // A request whose acknowledgement was lost with the last connection is not sent again.
      while (!pair.sends.empty() && pair.sends.front().seq < welcome.expected &&
             !has_reply(pair.sends.front().opcode))
        complete_first(context, pair, IBV_WC_SUCCESS);
      continue;
    }
    Incoming& in = socket.in;
    if (!in.in_body) {
      const Step step = read_head(socket, sizeof(ReplyHeader));
      if (step == Step::Later) return;
      if (step != Step::Done) return lose_requester(pair);
      ReplyHeader reply{};
      std::memcpy(&reply, in.head.data(), sizeof reply);
      pair.progress_at = Clock::now();
      acknowledge(context, pair, reply.seq);
      const bool for_first =
          pair.next > 0 && !pair.sends.empty() && pair.sends.front().seq == reply.seq;
      in = Incoming{};
      switch (reply.kind) {
        case ReplyKind::Ack:
          break;
        case ReplyKind::Data:
          if (!for_first || !has_reply(pair.sends.front().opcode) ||
              reply.bytes != pair.sends.front().bytes)
            return lose_requester(pair);
          in.in_body = true;
          in.body = reply.bytes;
          for (const ibv_sge& sge : pair.sends.front().sges)
            if (sge.length > 0) in.pieces.push_back({sge.lkey, sge.addr, sge.length, nullptr});
          break;
        case ReplyKind::NotReady: {
          if (!for_first) break;  // said twice
          if (pair.attributes.rnr_retry != 7 && ++pair.rnr_retries > pair.attributes.rnr_retry)
            return fail_first(context, pair, IBV_WC_RNR_RETRY_EXC_ERR);
          // The codes of the timer: 0 is 655.36 ms, then 0.01 ms on, two steps a doubling.
          static const double kMilliseconds[32] = {
              655.36, .01,   .02,   .03,   .04,   .06,    .08,    .12,    .16,    .24,   .32,
              .48,    .64,   .96,   1.28,  1.92,  2.56,   3.84,   5.12,   7.68,   10.24, 15.36,
              20.48,  30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52};
          pair.wait_until =
              Clock::now() +
              microseconds(static_cast<int64_t>(kMilliseconds[reply.timer & 31] * 1000));
          pair.next = 0;
          break;
        }
        case ReplyKind::AccessError:
          if (for_first) return fail_first(context, pair, IBV_WC_REM_ACCESS_ERR);
          return lose_requester(pair);
        case ReplyKind::InvalidRequest:
          if (for_first) return fail_first(context, pair, IBV_WC_REM_INV_REQ_ERR);
          return lose_requester(pair);
        case ReplyKind::OperationError:
          if (for_first) return fail_first(context, pair, IBV_WC_REM_OP_ERR);
          return lose_requester(pair);
        default:
          return lose_requester(pair);
      }
      continue;
    }
    const Step step = read_body(context, pair, socket, IBV_ACCESS_LOCAL_WRITE);
    if (step == Step::Later) return;
    if (step == Step::Unregistered) return fail_first(context, pair, IBV_WC_LOC_PROT_ERR);
    if (step == Step::Broken) return lose_requester(pair);
    in = Incoming{};
    complete_first(context, pair, IBV_WC_SUCCESS);
    pair.retries = pair.rnr_retries = 0;
  }
}

void check_times(Context& context, QueuePair& pair, Clock::time_point now,
                 Clock::time_point& alarm) {
  if (pair.sends.empty() || pair.qp().state != IBV_QPS_RTS || context.gone) return;
  const Request& request =
      pair.next < pair.sends.size() ? pair.sends[pair.next] : pair.sends.front();
  const Port& port = port_of(context, pair);
  // The NIC waits by itself for its rate, for latency and for a receiver that is not ready, but for
  // no peer that cannot be reached.
  auto start = std::max(request.release, port.free_at);
  if (pair.requester.fd >= 0) start = std::max(start, pair.wait_until);
  if (now < pair.wait_until) alarm = std::min(alarm, pair.wait_until);
  if (now < start) {
    // Nothing is late while the NIC itself waits.
    if (pair.next == 0) pair.progress_at = std::max(pair.progress_at, std::min(start, now));
    alarm = std::min(alarm, start);
    if (pair.next == 0 && pair.requester.fd >= 0) return;
  }
  if (pair.attributes.timeout == 0) return;
  const auto wait = std::max<Clock::duration>(
      microseconds(static_cast<int64_t>(
          4.096 * static_cast<double>(uint64_t{1} << pair.attributes.timeout) * 2)),
      kShortestWait);
  if (now - pair.progress_at >= wait) {
    pair.progress_at = now;
    if (++pair.retries > pair.attributes.retry_cnt)
      return fail_first(context, pair, IBV_WC_RETRY_EXC_ERR);
  }
  alarm = std::min(alarm, pair.progress_at + wait);
}

void pump(Context& context, QueuePair& pair) {
  if (pair.qp().state != IBV_QPS_RTS || pair.sends.empty()) return;
  if (pair.qp().qp_type == IBV_QPT_UD) return pump_datagrams(context, pair);
  if (Clock::now() < pair.wait_until) return;
  Port& port = port_of(context, pair);
  Socket& socket = pair.requester;
  if (!port.up || port.drops) {
    if (socket.fd >= 0) lose_requester(pair);
    return;
  }
  if (socket.fd < 0) {
    pair.next = 0;
    connect_requester(context, pair);
    return;
  }
  if (socket.connecting) return;
  Step step = Step::Done;
  for (;;) {
    step = write_out(context, pair, socket, 0);
    if (step != Step::Done || !socket.greeted) break;
    if (pair.next >= pair.sends.size() || !send_next(context, pair)) break;
    if (pair.qp().state != IBV_QPS_RTS) return;
  }
  if (pair.qp().state != IBV_QPS_RTS) return;
  if (step == Step::Unregistered) return fail_first(context, pair, IBV_WC_LOC_PROT_ERR);
  if (step == Step::Broken) return lose_requester(pair);
  if (socket.fd >= 0 && socket.wants_write != (step == Step::Later)) {
    socket.wants_write = step == Step::Later;
    watch(context, socket.fd, tag(Source::Requester, pair.qp().qp_num), socket.wants_write, true);
  }
}

}  // namespace vverbs
