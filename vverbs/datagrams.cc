// Unreliable datagrams. A context has one TCP connection to each context that it sends to (Path),
// and reads the connections of others (Feed). So nothing is lost on the way, as on lossless
// Ethernet. A datagram is lost where a NIC would lose it: without a receive, with a wrong Q_Key, to
// a queue pair that is not there or not ready, over a port that is down.
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine.h"
#include "objects.h"

namespace vverbs {
namespace {

constexpr auto kPathPatience = std::chrono::seconds(1);  // then a path that stands is given up
// A datagram waits this long for a receive, as lossless Ethernet makes senders wait. Then it is
// lost, and those behind it are lost at once, until a receive is posted.
constexpr auto kHold = std::chrono::milliseconds(50);
constexpr size_t kReadAtOnce = 65536;

void watch_path(Context& context, Path& path, bool write) {
  if (path.socket.wants_write == write) return;
  path.socket.wants_write = write;
  watch(context, path.socket.fd, tag(Source::Path, static_cast<uint32_t>(path.socket.fd)), write,
        true);
}

// Writes the queue, as far as the socket takes it. False: the connection is lost.
bool flush(Context& context, Path& path) {
  Socket& socket = path.socket;
  if (socket.connecting) return true;
  while (!socket.out.empty()) {
    Outgoing& first = socket.out.front();
    const ssize_t written = ::send(socket.fd, first.head.data() + first.done,
                                   first.head.size() - first.done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return false;
      watch_path(context, path, true);
      return true;
    }
    path.progress_at = Clock::now();
    first.done += static_cast<size_t>(written);
    if (first.done == first.head.size()) socket.out.pop_front();
  }
  watch_path(context, path, false);
  return true;
}

PathKey key_of(const Destination& to) {
  PathKey key{{}, to.own.ndev_ifindex, static_cast<uint16_t>(to.number >> 8)};
  std::memcpy(key.address.data(), to.attributes.grh.dgid.raw, key.address.size());
  return key;
}

// The path to the context of the queue pair, connected where it was not. Null: there is none.
Path* path_to(Context& context, const Destination& to) {
  const PathKey key = key_of(to);
  if (const auto found = context.paths.find(key); found != context.paths.end())
    return &found->second;
  sockaddr_storage address{};
  const socklen_t size = socket_address(to.attributes.grh.dgid, key.port, key.scope, address);
  const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return nullptr;
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 && errno != EINPROGRESS) {
    close(fd);
    return nullptr;
  }
  Path& path = context.paths[key];
  path.socket.fd = fd;
  path.socket.connecting = path.socket.wants_write = true;
  path.progress_at = Clock::now();
  path.socket.out.emplace_back();
  append(path.socket.out.back().head, Greeting{kMagic, 0, 0, 0});
  watch(context, fd, tag(Source::Path, static_cast<uint32_t>(fd)), true, false);
  return &path;
}

// Datagrams that wait for it are lost.
void drop_path(Context& context, Path& path) {
  const auto entry = std::find_if(context.paths.begin(), context.paths.end(),
                                  [&](const auto& one) { return &one.second == &path; });
  const PathKey key = entry->first;
  close_socket(path.socket);
  context.paths.erase(entry);
  for (auto& [number, pair] : context.pairs)
    while (pair->qp().qp_type == IBV_QPT_UD && pair->qp().state == IBV_QPS_RTS && !context.gone &&
           !pair->sends.empty() && key_of(pair->sends.front().to) == key)
      complete_first(context, *pair, IBV_WC_SUCCESS);
}

void fail_send(Context& context, QueuePair& pair, ibv_wc_status status) {
  complete_first(context, pair, status);
  pair.qp().state = IBV_QPS_SQE;
  stop_sends(context, pair);
}

// The data of the request behind the header; false where its memory is not registered.
bool gather(Context& context, QueuePair& pair, const Request& request, std::vector<uint8_t>& into) {
  if ((request.flags & IBV_SEND_INLINE) != 0) {
    into.insert(into.end(), request.inline_data.begin(), request.inline_data.end());
    return true;
  }
  for (const ibv_sge& sge : request.sges) {
    if (sge.length == 0) continue;
    const uint8_t* from = memory_of(context, pair.qp().pd, sge.lkey, sge.addr, sge.length, 0);
    if (from == nullptr) return false;
    into.insert(into.end(), from, from + sge.length);
  }
  return true;
}

// Sends the first request; false where it has to wait, or the queue stops.
bool send_first(Context& context, QueuePair& pair) {
  Request& request = pair.sends.front();
  const Destination& to = request.to;
  Port& port = port_of(context, pair);
  if (const auto now = Clock::now(); now < request.release || now < port.free_at) return false;
  if (to.pd != pair.qp().pd) {
    fail_send(context, pair, IBV_WC_LOC_QP_OP_ERR);
    return false;
  }
  if (request.bytes > kMtu) {
    fail_send(context, pair, IBV_WC_LOC_LEN_ERR);
    return false;
  }
  Path* path = port.up && !port.drops ? path_to(context, to) : nullptr;
  bool lost = path == nullptr;
  // It completes when the socket has it: the program may end right then.
  if (!lost && (path->socket.connecting || !path->socket.out.empty())) return false;
  if (!pass_faults(context, pair, request)) {
    if (context.gone || pair.qp().state != IBV_QPS_RTS || Clock::now() < port.free_at) return false;
    lost = true;
  }
  const ibv_global_route& route = to.attributes.grh;
  Outgoing message;
  DatagramHeader header{};
  header.to = to.number;
  header.from = pair.qp().qp_num;
  // A program without privileges cannot ask for keys with the upper bit: it means the own one.
  header.qkey = (to.qkey >> 31) != 0 ? pair.attributes.qkey : to.qkey;
  header.imm = request.imm;
  header.flags = (request.opcode == IBV_WR_SEND_WITH_IMM ? kHasImm : 0u) |
                 ((request.flags & IBV_SEND_SOLICITED) != 0 ? kIsSolicited : 0u) |
                 (to.own.gid_type == IBV_GID_TYPE_ROCE_V2 ? kIsRoceV2 : 0u);
  header.flow_label = route.flow_label;
  header.traffic_class = route.traffic_class;
  header.hop_limit = route.hop_limit;
  header.service_level = to.attributes.sl;
  header.bytes = static_cast<uint32_t>(request.bytes);
  std::memcpy(header.from_gid, to.own.gid.raw, sizeof header.from_gid);
  std::memcpy(header.to_gid, route.dgid.raw, sizeof header.to_gid);
  append(message.head, header);
  if (!gather(context, pair, request, message.head)) {
    fail_send(context, pair, IBV_WC_LOC_PROT_ERR);
    return false;
  }
  if (request.bytes >= kLeastCorrupt &&
      (port.corrupts || (port.corrupts_gpu && !request.sges.empty() &&
                         is_of_gpu(context, request.sges.front().lkey))))
    message.head[sizeof header + request.bytes / 2] ^= 1;
  lost = lost || request.refused;
  if (!lost) {
    occupy(port, request.bytes);
    path->progress_at = Clock::now();
    path->socket.out.push_back(std::move(message));
  }
  complete_first(context, pair, IBV_WC_SUCCESS);
  if (!lost && !flush(context, *path)) drop_path(context, *path);
  return true;
}

uint16_t checksum(const iphdr& header) {
  uint16_t words[sizeof header / 2];
  std::memcpy(words, &header, sizeof header);
  uint32_t sum = 0;
  for (const uint16_t word : words) sum += word;
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

// Makes the header that a RoCE NIC puts before the data: of IPv6, or of IPv4 at the end of its
// room.
void write_header(const DatagramHeader& datagram, uint8_t* into) {
  constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  const bool v2 = (datagram.flags & kIsRoceV2) != 0;
  // The transport's headers (12 and 8 bytes) and checksum; UDP's (8 bytes) in RoCE v2.
  const size_t bytes = datagram.bytes + 24 + (v2 ? 8u : 0u);
  std::memset(into, 0, kGrhBytes);
  if (v2 && std::memcmp(datagram.to_gid, kMapped, sizeof kMapped) == 0) {
    iphdr header{};
    header.version = 4;
    header.ihl = 5;
    header.tos = datagram.traffic_class;
    header.tot_len = htobe16(static_cast<uint16_t>(bytes + sizeof header));
    header.frag_off = htobe16(IP_DF);
    header.ttl = datagram.hop_limit;
    header.protocol = IPPROTO_UDP;
    std::memcpy(&header.saddr, datagram.from_gid + 12, 4);
    std::memcpy(&header.daddr, datagram.to_gid + 12, 4);
    header.check = checksum(header);
    std::memcpy(into + kGrhBytes - sizeof header, &header, sizeof header);
    return;
  }
  ibv_grh header{};
  header.version_tclass_flow =
      htobe32(6u << 28 | uint32_t{datagram.traffic_class} << 20 | (datagram.flow_label & 0xfffff));
  header.paylen = htobe16(static_cast<uint16_t>(bytes));
  header.next_hdr = v2 ? IPPROTO_UDP : 0x1b;
  header.hop_limit = datagram.hop_limit;
  std::memcpy(header.sgid.raw, datagram.from_gid, 16);
  std::memcpy(header.dgid.raw, datagram.to_gid, 16);
  std::memcpy(into, &header, sizeof header);
}

// Puts header and data where the receive says.
ibv_wc_status scatter(Context& context, QueuePair& pair, const DatagramHeader& header,
                      const uint8_t* data) {
  uint8_t front[kGrhBytes];
  write_header(header, front);
  const size_t all = kGrhBytes + header.bytes;
  size_t done = 0;
  for (const ibv_sge& sge : pair.receive.sges) {
    const size_t part = std::min<size_t>(sge.length, all - done);
    if (part == 0) continue;
    uint8_t* into =
        memory_of(context, pair.qp().pd, sge.lkey, sge.addr, part, IBV_ACCESS_LOCAL_WRITE);
    if (into == nullptr) return IBV_WC_LOC_PROT_ERR;
    for (size_t i = 0; i < part;) {
      const size_t at = done + i;
      const size_t run = at < kGrhBytes ? std::min(part - i, kGrhBytes - at) : part - i;
      std::memcpy(into + i, at < kGrhBytes ? front + at : data + (at - kGrhBytes), run);
      i += run;
    }
    done += part;
  }
  return done == all ? IBV_WC_SUCCESS : IBV_WC_LOC_LEN_ERR;
}

enum class Delivery { Done, Held };

Delivery deliver(Context& context, Feed& feed, const DatagramHeader& header, const uint8_t* data) {
  const auto found = context.pairs.find(header.to);
  if (found == context.pairs.end()) return Delivery::Done;
  QueuePair& pair = *found->second;
  const ibv_qp_state state = pair.qp().state;
  if (pair.qp().qp_type != IBV_QPT_UD || pair.attributes.qkey != header.qkey ||
      (state != IBV_QPS_RTR && state != IBV_QPS_RTS && state != IBV_QPS_SQD &&
       state != IBV_QPS_SQE))
    return Delivery::Done;
  if (const Port& port = port_of(context, pair); !port.up || port.drops) return Delivery::Done;
  if (!take_receive(context, pair)) {
    if (pair.starved) return Delivery::Done;
    const auto now = Clock::now();
    if (!feed.held) feed.held_since = now;
    if (now - feed.held_since < kHold) return Delivery::Held;
    pair.starved = true;
    return Delivery::Done;
  }
  pair.starved = pair.has_receive = false;
  ibv_wc wc{};
  wc.wr_id = pair.receive.id;
  wc.status = scatter(context, pair, header, data);
  wc.opcode = IBV_WC_RECV;
  wc.byte_len = kGrhBytes + header.bytes;
  wc.qp_num = pair.qp().qp_num;
  wc.src_qp = header.from;
  wc.sl = header.service_level;
  wc.wc_flags = IBV_WC_GRH;
  if ((header.flags & kHasImm) != 0) {
    wc.wc_flags |= IBV_WC_WITH_IMM;
    wc.imm_data = header.imm;
  }
  complete(context, queue_of(pair.qp().recv_cq), wc, (header.flags & kIsSolicited) != 0);
  if (wc.status != IBV_WC_SUCCESS) fail_pair(context, pair);
  return Delivery::Done;
}

void hold(Context& context, Feed& feed, bool held) {
  if (feed.held == held) return;
  feed.held = held;
  context.held_feeds += held ? 1 : -1;
  watch(context, feed.fd, tag(Source::Feed, static_cast<uint32_t>(feed.fd)), false, true, !held);
}

// Delivers the datagrams that are read. False: the connection says what no virtual NIC says.
bool deliver_all(Context& context, Feed& feed) {
  while (feed.bytes.size() - feed.at >= sizeof(DatagramHeader)) {
    DatagramHeader header{};
    std::memcpy(&header, feed.bytes.data() + feed.at, sizeof header);
    if (header.bytes > kMtu) return false;
    if (feed.bytes.size() - feed.at - sizeof header < header.bytes) break;
    if (deliver(context, feed, header, feed.bytes.data() + feed.at + sizeof header) ==
        Delivery::Held) {
      hold(context, feed, true);
      return true;
    }
    hold(context, feed, false);
    feed.at += sizeof header + header.bytes;
  }
  feed.bytes.erase(feed.bytes.begin(), feed.bytes.begin() + static_cast<ptrdiff_t>(feed.at));
  feed.at = 0;
  return true;
}

// Reads and delivers. False: the connection has ended.
bool read_feed(Context& context, Feed& feed) {
  for (uint64_t turn = 0; turn < kBytesPerTurn; turn += kReadAtOnce) {
    if (!deliver_all(context, feed)) return false;
    if (feed.held) return true;
    uint8_t bytes[kReadAtOnce];
    const ssize_t got = recv(feed.fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got == 0) return false;
    if (got < 0 && errno != EINTR) return errno == EAGAIN;
    if (got > 0) feed.bytes.insert(feed.bytes.end(), bytes, bytes + got);
  }
  return deliver_all(context, feed);
}

void close_feed(Context& context, int fd) {
  if (context.feeds[fd].held) --context.held_feeds;
  context.feeds.erase(fd);
  close(fd);
}

}  // namespace

void pump_datagrams(Context& context, QueuePair& pair) {
  while (!pair.sends.empty() && pair.qp().state == IBV_QPS_RTS && !context.gone &&
         send_first(context, pair)) {
  }
}

void stop_sends(Context& context, QueuePair& pair) {
  while (!pair.sends.empty()) complete_first(context, pair, IBV_WC_WR_FLUSH_ERR);
}

void add_feed(Context& context, int fd) {
  context.feeds[fd].fd = fd;
  watch(context, fd, tag(Source::Feed, static_cast<uint32_t>(fd)), false, true);
  hear_feed(context, fd);
}

void hear_path(Context& context, int fd, uint32_t events) {
  for (auto& [key, path] : context.paths) {
    if (path.socket.fd != fd) continue;
    // Nobody writes to it: only its end can be read.
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) return drop_path(context, path);
    path.socket.connecting = false;
    if (!flush(context, path)) drop_path(context, path);
    return;
  }
}

void hear_feed(Context& context, int fd) {
  const auto found = context.feeds.find(fd);
  if (found != context.feeds.end() && !read_feed(context, found->second)) close_feed(context, fd);
}

void check_datagrams(Context& context, Clock::time_point now, Clock::time_point& alarm) {
  for (auto entry = context.paths.begin(); entry != context.paths.end();) {
    Path& path = entry->second;
    ++entry;
    if (path.socket.out.empty()) continue;
    if (now - path.progress_at >= kPathPatience)
      drop_path(context, path);
    else
      alarm = std::min(alarm, path.progress_at + kPathPatience);
  }
  if (context.held_feeds == 0) return;
  std::vector<int> held;
  for (const auto& [fd, feed] : context.feeds)
    if (feed.held) held.push_back(fd);
  for (const int fd : held) {
    hear_feed(context, fd);
    const auto found = context.feeds.find(fd);
    if (found != context.feeds.end() && found->second.held)
      alarm = std::min(alarm, found->second.held_since + kHold);
  }
}

}  // namespace vverbs
