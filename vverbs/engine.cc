// The thread of a context: connects queue pairs, sends requests, executes those of peers, watches
// times and faults.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/epoll.h"
#include "engine.h"
#include "gpu_copies.h"
#include "objects.h"
#include "options.h"

namespace vverbs {

void watch(Context& context, int fd, uint64_t data, bool write, bool added, bool read) {
  epoll_event event{};
  event.events = (read ? EPOLLIN : 0u) | (write ? EPOLLOUT : 0u);
  event.data.u64 = data;
  epoll_ctl(context.poll_fd, added ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event);
}

void close_socket(Socket& socket) {
  if (socket.fd >= 0) close(socket.fd);
  socket = Socket{};
}

Port& port_of(Context& context, QueuePair& pair) {
  return context.ports[static_cast<size_t>(pair.attributes.port_num - 1)];
}

namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr auto kDelay = milliseconds(50);         // of a message that is late
constexpr auto kShortestWait = milliseconds(20);  // a host's threads are late where a NIC is not
constexpr auto kGuestPatience = std::chrono::seconds(10);
constexpr size_t kAtomicResults = 2 * kMaxAtomicReads;

template <typename Value>
Outgoing only(const Value& value) {
  Outgoing result;
  append(result.head, value);
  return result;
}

uint64_t bytes_of(const Outgoing& message) {
  uint64_t bytes = message.head.size();
  for (const Piece& piece : message.pieces) bytes += piece.bytes;
  return bytes;
}

// Where the pieces are in memory from byte `skip` on; false where one of them is no longer
// registered.
bool locate(Context& context, QueuePair& pair, const std::vector<Piece>& pieces, uint64_t skip,
            unsigned access, std::vector<iovec>& where) {
  for (const Piece& piece : pieces) {
    if (skip >= piece.bytes) {
      skip -= piece.bytes;
      continue;
    }
    const uint8_t* start = piece.own;
    if (start == nullptr)
      start = memory_of(context, pair.qp().pd, piece.key, piece.addr, piece.bytes, access);
    if (start == nullptr) return false;
    where.push_back({const_cast<uint8_t*>(start) + skip, piece.bytes - skip});
    skip = 0;
  }
  return true;
}

// Copies registered bytes of the pieces that are memory of a real GPU to their shadows, or from
// there: `bytes` from byte `skip` on. False: the driver refuses.
bool copy_shadows(Context& context, const std::vector<Piece>& pieces, uint64_t skip, uint64_t bytes,
                  bool is_from_gpu) {
  for (const Piece& piece : pieces) {
    if (skip >= piece.bytes) {
      skip -= piece.bytes;
      continue;
    }
    const uint64_t part = std::min(piece.bytes - skip, bytes);
    const auto found = context.regions.find(piece.own == nullptr ? piece.key : 0);
    if (part > 0 && found != context.regions.end() && found->second->is_shadow) {
      const Region& region = *found->second;
      const uint64_t address = piece.addr + skip;  // as the program has it, which is the GPU's
      auto* const shadow = static_cast<uint8_t*>(region.base.addr) + (address - region.iova);
      if (!(is_from_gpu ? copy_from_gpu(shadow, address, part)
                        : copy_to_gpu(address, shadow, part)))
        return false;
    }
    bytes -= part;
    skip = 0;
  }
  return true;
}

enum class Step { Done, Later, Broken, Unregistered };

Step write_out(Context& context, QueuePair& pair, Socket& socket, unsigned access) {
  uint64_t turn = 0;
  while (!socket.out.empty()) {
    Outgoing& message = socket.out.front();
    std::vector<iovec> where;
    if (message.done < message.head.size())
      where.push_back({message.head.data() + message.done, message.head.size() - message.done});
    const uint64_t skip =
        message.done > message.head.size() ? message.done - message.head.size() : 0;
    if (!locate(context, pair, message.pieces, skip, access, where)) return Step::Unregistered;
    if (!where.empty()) {
      msghdr header{};
      header.msg_iov = where.data();
      header.msg_iovlen = where.size();
      const ssize_t written = sendmsg(socket.fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (written < 0) {
        if (errno == EINTR) continue;
        return errno == EAGAIN ? Step::Later : Step::Broken;
      }
      message.done += static_cast<uint64_t>(written);
      turn += static_cast<uint64_t>(written);
      // Who is turned away at each greeting makes no progress.
      if (socket.greeted) pair.progress_at = Clock::now();
    }
    if (message.done == bytes_of(message)) socket.out.pop_front();
    if (turn >= kBytesPerTurn) return socket.out.empty() ? Step::Done : Step::Later;
  }
  return Step::Done;
}

Step read_head(Socket& socket, size_t size) {
  while (socket.in.head.size() < size) {
    uint8_t bytes[128];
    const ssize_t got =
        recv(socket.fd, bytes, std::min(sizeof bytes, size - socket.in.head.size()), MSG_DONTWAIT);
    if (got == 0) return Step::Broken;
    if (got < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN ? Step::Later : Step::Broken;
    }
    socket.in.head.insert(socket.in.head.end(), bytes, bytes + got);
  }
  return Step::Done;
}

Step read_body(Context& context, QueuePair& pair, Socket& socket, unsigned access) {
  Incoming& in = socket.in;
  uint64_t turn = 0;
  while (in.done < in.body) {
    if (turn >= kBytesPerTurn) return Step::Later;
    std::vector<iovec> where;
    uint8_t waste[16384];
    if (in.pieces.empty())
      where.push_back({waste, std::min<uint64_t>(sizeof waste, in.body - in.done)});
    else if (!locate(context, pair, in.pieces, in.done, access, where))
      return Step::Unregistered;
    msghdr header{};
    header.msg_iov = where.data();
    header.msg_iovlen = where.size();
    const ssize_t got = recvmsg(socket.fd, &header, MSG_DONTWAIT);
    if (got == 0) return Step::Broken;
    if (got < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN ? Step::Later : Step::Broken;
    }
    if (!copy_shadows(context, in.pieces, in.done, static_cast<uint64_t>(got), false))
      return Step::Unregistered;
    in.done += static_cast<uint64_t>(got);
    turn += static_cast<uint64_t>(got);
    if (socket.greeted) pair.progress_at = Clock::now();
  }
  return Step::Done;
}

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

bool is_atomic(uint32_t opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
bool has_reply(uint32_t opcode) { return opcode == IBV_WR_RDMA_READ || is_atomic(opcode); }

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

// Sends again from the first request that is not acknowledged, over the connection that there is or
// a new one.
void go_back(QueuePair& pair) { pair.next = 0; }

void lose_requester(QueuePair& pair) {
  close_socket(pair.requester);
  go_back(pair);
  pair.wait_until = std::max(pair.wait_until, Clock::now() + kTryAgain);
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

// Nothing completes from now on, not even as flushed: programs hear of it by the event alone.
void remove_device(Context& context) {
  context.gone = is_removed(context.index) = true;
  for (Port& port : context.ports) port.up = false;
  raise_event(context, IBV_EVENT_DEVICE_FATAL, nullptr, nullptr, nullptr, 0);
}

}  // namespace

bool pass_faults(Context& context, QueuePair& pair, Request& request) {
  Port& port = port_of(context, pair);
  if (!request.counted) {
    request.counted = true;
    const uint64_t number = port.messages++;
    bool passes = true;
    for (const Fault& fault : options().faults) {
      if (fault.device != context.index || fault.port != pair.attributes.port_num ||
          fault.after != number)
        continue;
      switch (fault.kind) {
        case FaultKind::Down:
        case FaultKind::Flap:
          port.up = false;
          if (fault.kind == FaultKind::Flap) port.up_again = Clock::now() + milliseconds(100);
          raise_event(context, IBV_EVENT_PORT_ERR, nullptr, nullptr, nullptr, fault.port);
          break;
        case FaultKind::Drop:
          port.drops = true;
          break;
        case FaultKind::Slow:
          port.slow = 10;
          break;
        case FaultKind::Corrupt:
          port.corrupts = true;
          break;
        case FaultKind::CorruptGpu:
          port.corrupts_gpu = true;
          break;
        case FaultKind::Late:
          port.free_at = std::max(port.free_at, Clock::now()) + kDelay;
          passes = false;
          break;
        case FaultKind::Lose:
          if (pair.qp().qp_type == IBV_QPT_RC) lose_requester(pair);
          passes = false;
          break;
        case FaultKind::Refuse:
          request.refused = true;
          break;
        case FaultKind::Gone:
          remove_device(context);
          break;
        case FaultKind::Flush:
          raise_event(context, IBV_EVENT_QP_FATAL, &pair, nullptr, nullptr, 0);
          fail_pair(context, pair);
          return false;
        case FaultKind::MemoryRefused:
        case FaultKind::GpuMemoryRefused:
          break;
      }
    }
    if (!passes) return false;
  }
  return port.up && !port.drops;
}

bool is_of_gpu(Context& context, uint32_t key) {
  const auto found = context.regions.find(key);
  return found != context.regions.end() && found->second->mapping != nullptr;
}

void occupy(Port& port, uint64_t bytes) {
  const double rate = options().rate_gbit > 0 ? options().rate_gbit / port.slow
                      : port.slow > 1         ? options().speed_gbit / port.slow
                                              : 0;
  if (rate > 0)
    port.free_at = std::max(port.free_at, Clock::now()) +
                   duration_cast<Clock::duration>(
                       std::chrono::duration<double>(static_cast<double>(bytes) * 8e-9 / rate));
}

namespace {

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

// What came back from the peer.
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
      // What was executed, and acknowledged on a connection that is lost, is not sent again.
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
          go_back(pair);
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

// --- The responder.

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
  // What comes twice was executed (reads are harmless), what comes early follows a message that was
  // not taken.
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

// Times of a queue pair: retries, waits.
void check_times(Context& context, QueuePair& pair, Clock::time_point now,
                 Clock::time_point& alarm) {
  if (pair.sends.empty() || pair.qp().state != IBV_QPS_RTS || context.gone) return;
  const Request& request =
      pair.next < pair.sends.size() ? pair.sends[pair.next] : pair.sends.front();
  const Port& port = port_of(context, pair);
  // What the NIC waits for by itself: rate, latency, a receiver that is not ready. A peer that
  // cannot be reached is not among it.
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

void handle(Context& context, const epoll_event& event) {
  const auto source = static_cast<Source>(event.data.u64 >> 32);
  const auto number = static_cast<uint32_t>(event.data.u64);
  if (source == Source::Wake) {
    uint64_t count = 0;
    (void)!read(context.wake_fd, &count, sizeof count);
    return;
  }
  if (source == Source::Listener) {
    const int fd =
        accept4(static_cast<int>(number), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    context.guests[fd].socket.fd = fd;
    context.guests[fd].since = Clock::now();
    watch(context, fd, tag(Source::Guest, static_cast<uint32_t>(fd)), false, false);
    return;
  }
  if (source == Source::Guest) return welcome(context, static_cast<int>(number));
  if (source == Source::Path) return hear_path(context, static_cast<int>(number), event.events);
  if (source == Source::Feed) return hear_feed(context, static_cast<int>(number));
  const auto found = context.pairs.find(number);
  if (found == context.pairs.end()) return;
  QueuePair& pair = *found->second;
  if (source == Source::Responder) {
    if (pair.responder.fd < 0) return;
    serve(context, pair);
    flush_responder(context, pair);
    return;
  }
  if (pair.requester.fd < 0) return;
  if (pair.requester.connecting) {
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(pair.requester.fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return lose_requester(pair);
    if ((event.events & EPOLLOUT) == 0) return;
    pair.requester.connecting = false;
  }
  hear_replies(context, pair);
  pump(context, pair);
}

void check_ports(Context& context, Clock::time_point now, Clock::time_point& alarm) {
  for (size_t i = 0; i < context.ports.size(); ++i) {
    Port& port = context.ports[i];
    if (port.up || port.up_again == Clock::time_point{}) continue;
    if (now >= port.up_again) {
      port.up = true;
      port.up_again = {};
      raise_event(context, IBV_EVENT_PORT_ACTIVE, nullptr, nullptr, nullptr,
                  static_cast<int>(i) + 1);
    } else {
      alarm = std::min(alarm, port.up_again);
    }
  }
}

void run(Context& context) {
  auto alarm = Clock::now();
  for (;;) {
    epoll_event events[64];
    const auto left = alarm - Clock::now();
    // Short waits are spent awake by the microsecond, so that latencies are true.
    const int count =
        niccolite::epoll_wait_for(context.poll_fd, events, std::max(left, Clock::duration::zero()));
    const std::lock_guard lock(context.mutex);
    if (context.stopping) return;
    for (int i = 0; i < count; ++i) handle(context, events[i]);
    const auto now = Clock::now();
    alarm = now + std::chrono::seconds(1);
    check_ports(context, now, alarm);
    check_datagrams(context, now, alarm);
    for (auto& [number, pair] : context.pairs) {
      pump(context, *pair);
      check_times(context, *pair, now, alarm);
    }
    for (auto guest = context.guests.begin(); guest != context.guests.end();) {
      if (now - guest->second.since > kGuestPatience) {
        close_socket(guest->second.socket);
        guest = context.guests.erase(guest);
      } else {
        ++guest;
      }
    }
  }
}

}  // namespace

std::atomic<bool>& is_removed(int device) {
  static std::atomic<bool> removed[kMostDevices];
  return removed[device];
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

void catch_up(Context& context, QueuePair& pair) {
  if (context.gone) return;
  if (pair.responder.fd >= 0) serve(context, pair);
  flush_responder(context, pair);
  if (pair.requester.fd >= 0 && !pair.requester.connecting) hear_replies(context, pair);
}

void reset_pair(Context&, QueuePair& pair) {
  close_socket(pair.requester);
  close_socket(pair.responder);
  pair.sends.clear();
  pair.own_receives.waiting.clear();
  pair.has_receive = false;
  pair.next = 0;
  pair.next_seq = pair.expected = 0;
  pair.retries = pair.rnr_retries = 0;
  pair.wait_until = {};
  pair.atomic_results.clear();
  pair.last_receive_told = false;
  pair.starved = false;
}

void fail_pair(Context& context, QueuePair& pair) {
  pair.qp().state = IBV_QPS_ERR;
  close_socket(pair.requester);
  close_socket(pair.responder);
  while (!pair.sends.empty()) complete_first(context, pair, IBV_WC_WR_FLUSH_ERR);
  pair.next = 0;
  const auto flush = [&](uint64_t id) {
    ibv_wc wc{};
    wc.wr_id = id;
    wc.status = IBV_WC_WR_FLUSH_ERR;
    wc.opcode = IBV_WC_RECV;
    wc.qp_num = pair.qp().qp_num;
    complete(context, queue_of(pair.qp().recv_cq), wc, false);
  };
  if (pair.has_receive) flush(pair.receive.id);
  pair.has_receive = false;
  if (pair.qp().srq == nullptr) {
    while (!pair.own_receives.waiting.empty()) {
      flush(pair.own_receives.waiting.front().id);
      pair.own_receives.waiting.pop_front();
    }
  } else if (!pair.last_receive_told) {
    pair.last_receive_told = true;
    raise_event(context, IBV_EVENT_QP_LAST_WQE_REACHED, &pair, nullptr, nullptr, 0);
  }
}

uint32_t new_number(Context& context) {
  // A number comes again as late as it can: peers of its last queue pair may still try to reach it.
  for (Listener& listener : context.listeners)
    for (int i = 0; i < 256; ++i) {
      const uint32_t number =
          static_cast<uint32_t>(listener.port) << 8 | static_cast<uint8_t>(listener.cursor++);
      if (context.pairs.count(number) == 0) return number;
    }
  // One family of sockets takes both; without IPv6 the other is enough.
  int fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  const int off = 0;
  socklen_t size = sizeof six;
  bool bound = fd >= 0 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0 &&
               bind(fd, reinterpret_cast<sockaddr*>(&six), sizeof six) == 0;
  if (!bound) {
    if (fd >= 0) close(fd);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    sockaddr_in four{};
    four.sin_family = AF_INET;
    bound = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&four), sizeof four) == 0;
  }
  if (!bound || listen(fd, 256) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&six), &size) != 0) {
    if (fd >= 0) close(fd);
    return 0;
  }
  const int port = ntohs(six.sin6_port);  // at the same place in both families
  context.listeners.push_back({fd, port, 1});
  watch(context, fd, tag(Source::Listener, static_cast<uint32_t>(fd)), false, false);
  return static_cast<uint32_t>(port) << 8;
}

void wake(Context& context) {
  const uint64_t one = 1;
  (void)!write(context.wake_fd, &one, sizeof one);
}

bool start_engine(Context& context) {
  context.poll_fd = epoll_create1(EPOLL_CLOEXEC);
  context.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (context.poll_fd < 0 || context.wake_fd < 0) return false;
  watch(context, context.wake_fd, tag(Source::Wake, 0), false, false);
  context.engine = std::thread([&context] { run(context); });
  return true;
}

void stop_engine(Context& context) {
  if (context.engine.joinable()) {
    {
      const std::lock_guard lock(context.mutex);
      context.stopping = true;
    }
    wake(context);
    context.engine.join();
  }
  for (auto& [fd, guest] : context.guests) close_socket(guest.socket);
  for (auto& [key, path] : context.paths) close_socket(path.socket);
  for (const auto& [fd, feed] : context.feeds) close(fd);
  for (const Listener& listener : context.listeners) close(listener.fd);
  if (context.wake_fd >= 0) close(context.wake_fd);
  if (context.poll_fd >= 0) close(context.poll_fd);
}

}  // namespace vverbs
