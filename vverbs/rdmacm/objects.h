// The objects behind the identifiers and channels that programs see, and the messages by which two
// processes connect.
// Thread safety: the agent's mutex guards identifiers; what a program may only do from one thread
// at a time (bind, resolve, create a queue pair) is not guarded twice.
#pragma once

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "vverbs/event_queue.h"

namespace vverbs::rdmacm {

using Clock = std::chrono::steady_clock;

// Bytes of private data, as the messages of InfiniBand have room for them beside the headers.
// Receivers always see all of them, padded with zeros.
constexpr size_t kRequestBytes = 56;
constexpr size_t kReplyBytes = 196;
constexpr size_t kRejectBytes = 148;
constexpr size_t kDatagramRequestBytes = 180;
constexpr size_t kDatagramReplyBytes = 136;
constexpr size_t kMostPrivate = 196;

// Reasons of a rejection, by the numbers of InfiniBand.
constexpr int kTimedOut = 4;
constexpr int kNobodyListens = 8;
constexpr int kByTheProgram = 28;

// A listener has a UDP socket at its port, which answers where its TCP socket listens: so ports of
// RDMA do not take TCP's ports away, which programs use beside them. All else goes over a TCP
// connection, which lives as long as the NICs' connection.
constexpr uint32_t kMagic = 0x76636d31;
struct Question {
  uint32_t magic;
  uint32_t port;  // 0 in the question, the TCP port in the answer
};

enum class Kind : uint32_t { Request, Reply, Ready, Reject, Disconnect, Disconnected };
struct Message {
  uint32_t magic;
  Kind kind;
  uint32_t port_space;
  uint32_t qp_num;
  uint32_t psn;
  uint32_t qkey;
  uint16_t port;  // of the sender, in its port space; network byte order
  uint8_t responder_resources;
  uint8_t initiator_depth;
  uint8_t flow_control;
  uint8_t retry_count;
  uint8_t rnr_retry_count;
  uint8_t srq;
  ibv_gid gid;
  uint8_t private_data[kMostPrivate];
};

// A device's address.
struct Place {
  ibv_context* device = nullptr;
  uint8_t port = 0;
  uint8_t gid_index = 0;
  ibv_gid gid{};
};

struct Id;

struct Event {
  rdma_cm_event base{};
  Id* owner = nullptr;  // whose events are counted: of requests, the listener
  uint8_t private_data[kMostPrivate] = {};
  // A request has the connection on which it came, until the program takes it.
  int fd = -1;
  Message request{};
  bool is_announced = false;  // a look for events that may not wait has passed it over
};

struct Channel {
  rdma_event_channel base{};
  EventQueue<Event*> events;
};

enum class State {
  Idle,
  Bound,
  AddressResolved,
  RouteResolved,
  Listening,
  Asking,      // the UDP port for the TCP port
  Connecting,  // by TCP
  Requesting,
  Responded,  // the reply is there
  Requested,  // the passive side, from here on
  Accepted,
  Connected,
  Disconnecting,
  Ending,  // the peer has ended it; the program hears of it in a moment
  Closed
};

struct Id {
  rdma_cm_id base{};
  State state = State::Idle;
  bool sync = false;  // calls wait for their events; the channel is ours
  Place place;
  bool four_or_six_only = false;
  std::atomic<uint32_t> events_reported{0};
  uint32_t events_completed = 0;
  ibv_sa_path_rec path{};
  int port_fd = -1;  // UDP: keeps the port
  int link_fd = -1;  // TCP: a listener's, or the connection
  std::vector<uint8_t> in;
  Clock::time_point deadline{};   // of Asking to Requesting, and of Ending
  Clock::time_point ask_again{};  // of Asking, as is the next
  Clock::time_point refused_from{};
  uint32_t psn = 0;
  Message own{};    // to the peer
  Message other{};  // the peer's request or reply
  uint8_t initiator_depth = 0;
  uint8_t responder_resources = 0;
  uint8_t retry_count = 7;
  // Listeners that rdma_create_ep made have these for the queue pairs of clients.
  ibv_pd* pair_pd = nullptr;
  std::optional<ibv_qp_init_attr> pair_attributes;

  bool is_datagram() const { return base.ps == RDMA_PS_UDP; }
};

inline Id& id_of(rdma_cm_id* id) { return *reinterpret_cast<Id*>(id); }
inline Channel& channel_of(rdma_event_channel* channel) {
  return *reinterpret_cast<Channel*>(channel);
}

inline int fail(int error) {
  errno = error;
  return -1;
}

// --- agent.cc: one thread per process, which makes connections and watches them.

enum class Role { Port, Listener, Guest, Link };
struct Watched {
  Role role = Role::Link;
  Id* id = nullptr;
  std::vector<uint8_t> in;    // of guests: the part of their request that has come
  Clock::time_point since{};  // of guests
};

struct Agent {
  std::mutex mutex;
  std::condition_variable acknowledged;  // events
  std::map<int, Watched> watched;        // by descriptor
  std::vector<Id*> ending;
  int poll_fd = -1;
  int wake_fd = -1;

  // All of these are called with the mutex held.
  void watch(int fd, Role role, Id& id, bool write);
  void drop(int& fd);  // closes it
  void wake() const;
};
Agent& agent();

void push(Id& id, rdma_cm_event_type type, int status);
void send(Id& id, const Message& message);
// Starts to ask the listener at the destination; the mutex is held.
void start_connecting(Id& id);

// --- addresses.cc

const std::vector<ibv_context*>& devices();
ibv_pd* domain_of(ibv_context* device);
// The device that has the address; null where none has. Addresses of the loopback interface are the
// first device's where no NIC has them.
std::optional<Place> place_of(const sockaddr& address);
socklen_t size_of(const sockaddr& address);  // 0: of a family that is not known
bool is_any(const sockaddr& address);
uint16_t port_of(const sockaddr& address);  // network byte order
void set_port(sockaddr& address, uint16_t port);
// Takes the address, and the device where it is not a wildcard. 0 or an error.
int bind_to(Id& id, const sockaddr& address);
void settle(Id& id, const Place& place);
ibv_gid gid_of(const sockaddr& address);

// --- connections.cc

// Makes the identifier of a request that the program takes; null: it is refused.
Id* take_request(Event& event);
// Connects the queue pair, if there is one, before the program sees the reply.
void take_reply(Event& event);

// --- identifiers.cc

// Where calls wait: until the event is there. 0, or -1 and errno.
int wait_for_event(Id& id);
Id* new_id(rdma_event_channel* channel, void* context, rdma_port_space space, ibv_qp_type type);

}  // namespace vverbs::rdmacm
