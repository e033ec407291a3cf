// The objects behind the handles of a context. Each begins with the struct that programs see.
// Thread safety: the context's mutex guards all of them; channels have their own.
// A reliable queue pair has up to two TCP connections: its own, on which it requests, and its
// peer's, to which it responds. Datagrams of all queue pairs of a context share one connection to
// each context that they go to.
#pragma once

#include <infiniband/verbs.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "event_queue.h"
#include "wire.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port
#undef ibv_get_device_list

namespace vverbs {

using Clock = std::chrono::steady_clock;
struct Context;

constexpr int kMostDevices = 64;
constexpr int kMaxSge = 16;
constexpr uint32_t kMaxInline = 1024;
constexpr uint32_t kMaxMessage = 1u << 30;
constexpr uint32_t kMtu = 4096;     // of a datagram
constexpr uint32_t kGrhBytes = 40;  // before a datagram, in the memory of its receive
constexpr int kMaxWork = 16384;
constexpr int kMaxCqe = 1 << 20;
constexpr int kMaxAtomicReads = 16;

struct Region {
  ibv_mr base{};
  uint64_t iova = 0;
  unsigned access = 0;
  void* mapping = nullptr;  // of a dma-buf, or a shadow of its memory (gpu_copies.h)
  size_t mapped = 0;
  bool is_shadow = false;
};

struct Channel {
  ibv_comp_channel base{};
  EventQueue<ibv_cq*> events;
};

struct CompletionQueue {
  ibv_cq base{};
  std::deque<ibv_wc> entries;
  std::atomic<size_t> count{0};  // of entries, read without the lock
  bool armed = false;
  bool solicited_only = false;
  bool overrun = false;
  uint32_t events_reported = 0;
  uint32_t async_reported = 0;
  int users = 0;
};

struct Receive {
  uint64_t id = 0;
  std::vector<ibv_sge> sges;
};

struct ReceiveQueue {
  std::deque<Receive> waiting;
  uint32_t most = 0;
  uint32_t most_sge = 0;
};

struct SharedQueue {
  ibv_srq base{};
  ReceiveQueue queue;
  uint32_t limit = 0;
  int users = 0;
  uint32_t async_reported = 0;
};

// Where datagrams go.
struct AddressHandle {
  ibv_ah base{};
  ibv_ah_attr attributes{};
  ibv_gid_entry own{};  // the GID that they come from
};

struct Destination {
  const ibv_pd* pd = nullptr;  // of the address handle
  ibv_ah_attr attributes{};
  ibv_gid_entry own{};
  uint32_t number = 0;  // of the queue pair
  uint32_t qkey = 0;
};

struct Request {
  uint64_t id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  unsigned flags = 0;
  uint32_t imm = 0;
  uint64_t remote_addr = 0;
  uint32_t rkey = 0;
  uint64_t compare_add = 0;
  uint64_t swap = 0;
  Destination to;  // of a datagram
  std::vector<ibv_sge> sges;
  std::vector<uint8_t> inline_data;
  uint64_t bytes = 0;
  uint64_t seq = 0;
  Clock::time_point release;  // not sent before
  bool counted = false;       // by the faults of its port
  bool refused = false;       // by a fault: the peer's NIC does not execute it
};

// A part of a message: memory of a region (looked up again at each step, as it may be deregistered
// meanwhile) or of ours.
struct Piece {
  uint32_t key = 0;
  uint64_t addr = 0;
  uint64_t bytes = 0;
  const uint8_t* own = nullptr;
};

struct Outgoing {
  std::vector<uint8_t> head;
  std::vector<Piece> pieces;
  uint64_t done = 0;  // bytes of head and pieces that are written
};

struct Incoming {
  std::vector<uint8_t> head;  // grows to its size
  bool in_body = false;
  std::vector<Piece> pieces;  // none of them: the rest of the body is thrown away
  uint64_t body = 0;
  uint64_t done = 0;
};

struct Socket {
  int fd = -1;
  bool connecting = false;
  bool greeted = false;
  bool wants_write = false;
  Incoming in;
  std::deque<Outgoing> out;
};

struct QueuePair {
  ibv_qp_ex base{};
  ibv_qp_attr attributes{};
  ibv_qp_cap cap{};
  bool signal_all = false;
  uint32_t async_reported = 0;
  bool last_receive_told = false;

  // The requester.
  std::deque<Request> sends;
  size_t next = 0;  // the first that is not handed to the socket
  uint64_t next_seq = 0;
  Socket requester;
  Clock::time_point progress_at{};
  Clock::time_point wait_until{};  // RNR, or the next attempt to connect
  int retries = 0;
  int rnr_retries = 0;

  // The responder.
  Socket responder;
  uint64_t expected = 0;
  bool has_receive = false;  // taken for the message that is coming in
  Receive receive;
  RequestHeader request{};
  ReplyKind body_verdict = ReplyKind::Ack;
  bool drop_body = false;
  std::map<uint64_t, uint64_t> atomic_results;  // the last ones, for requests that come twice
  ReceiveQueue own_receives;
  bool starved = false;  // a datagram was lost as no receive was posted

  // Work that ibv_wr_* builds.
  std::vector<Request> built;
  int build_error = 0;

  ibv_qp& qp() { return base.qp_base; }
  ReceiveQueue& receives();
};

struct Port {
  bool up = true;
  bool drops = false;
  bool corrupts = false;
  bool corrupts_gpu = false;  // memory that is registered by a descriptor
  double slow = 1;
  Clock::time_point up_again{};
  Clock::time_point free_at{};
  uint64_t messages = 0;
};

struct Guest {  // a connection that has not said yet which queue pair it is for
  Socket socket;
  Clock::time_point since{};
};

// The connection on which datagrams go to another context (or to this one).
struct PathKey {
  std::array<uint8_t, 16> address;
  uint32_t scope;
  uint16_t port;
  auto operator<=>(const PathKey&) const = default;
};
struct Path {
  Socket socket;
  Clock::time_point progress_at{};
};

// A connection on which datagrams come.
struct Feed {
  int fd = -1;
  std::vector<uint8_t> bytes;  // read, from `at` on not delivered
  size_t at = 0;
  bool held = false;  // the first datagram waits for a receive to be posted
  Clock::time_point held_since{};
};

struct Listener {
  int fd = -1;
  int port = 0;
  uint32_t cursor = 0;  // of the 256 numbers whose upper 16 bits are the port
};

struct Context {
  verbs_context verbs{};
  int index = 0;  // of the device
  std::mutex mutex;
  std::vector<Port> ports;
  std::vector<Listener> listeners;
  std::unordered_map<uint32_t, Region*> regions;
  std::unordered_map<uint32_t, QueuePair*> pairs;
  std::map<int, Guest> guests;
  std::map<PathKey, Path> paths;
  std::map<int, Feed> feeds;
  int held_feeds = 0;
  EventQueue<ibv_async_event> events;
  std::condition_variable acknowledged;  // events
  uint64_t registrations = 0;
  uint64_t descriptor_registrations = 0;  // of them
  int poll_fd = -1;
  int wake_fd = -1;
  bool stopping = false;
  std::atomic<bool> gone{false};  // by a fault, from the device on: the machine has no such NIC now
  std::thread engine;
};

inline Context& context_of(ibv_context* context) {
  return *reinterpret_cast<Context*>(reinterpret_cast<char*>(context) -
                                     offsetof(verbs_context, context));
}
inline QueuePair& pair_of(ibv_qp* qp) { return *reinterpret_cast<QueuePair*>(qp); }
inline CompletionQueue& queue_of(ibv_cq* cq) { return *reinterpret_cast<CompletionQueue*>(cq); }
inline const AddressHandle& handle_of(const ibv_ah* ah) {
  return *reinterpret_cast<const AddressHandle*>(ah);
}
inline SharedQueue& queue_of(ibv_srq* srq) { return *reinterpret_cast<SharedQueue*>(srq); }
inline ReceiveQueue& QueuePair::receives() {
  return qp().srq != nullptr ? queue_of(qp().srq).queue : own_receives;
}

// All of these are called with the context's mutex held.
void raise_event(Context& context, ibv_event_type type, QueuePair* pair, CompletionQueue* queue,
                 SharedQueue* shared, int port);
void complete(Context& context, CompletionQueue& queue, const ibv_wc& wc, bool solicited);
// The memory of `bytes` at `addr`, or null where the key, the protection domain, the range or the
// rights do not fit.
uint8_t* memory_of(Context& context, ibv_pd* pd, uint32_t key, uint64_t addr, uint64_t bytes,
                   unsigned access);
// Serves bytes that have arrived, before a call ends the queue pair: hardware needs no core for it.
void catch_up(Context& context, QueuePair& pair);
void fail_pair(Context& context, QueuePair& pair);
void reset_pair(Context& context, QueuePair& pair);
void pump(Context& context, QueuePair& pair);
uint32_t new_number(Context& context);      // of a queue pair; 0: no port to listen at
std::atomic<bool>& is_removed(int device);  // from this process, by a fault
bool start_engine(Context& context);
void stop_engine(Context& context);
void wake(Context& context);
// The table of a port: pairs of RoCE v1 and v2 per address.
std::vector<ibv_gid_entry> gid_table(int device, int port);

}  // namespace vverbs
