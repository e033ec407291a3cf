// The parts of a context's thread share these. Thread safety: all of it is called with the
// context's mutex held.
#pragma once

#include <sys/socket.h>

#include "objects.h"

namespace vverbs {

constexpr uint64_t kBytesPerTurn = 1 << 20;  // so that no connection keeps the others waiting
constexpr auto kTryAgain = std::chrono::milliseconds(2);
constexpr uint64_t kLeastCorrupt = 1024;  // bytes of a message that a port changes

// Epoll tells a descriptor by its kind, and the queue pair or the descriptor itself.
enum class Source : uint64_t { Wake, Listener, Guest, Requester, Responder, Path, Feed };
inline uint64_t tag(Source source, uint32_t number) {
  return static_cast<uint64_t>(source) << 32 | number;
}

template <typename Value>
void append(std::vector<uint8_t>& bytes, const Value& value) {
  const auto* begin = reinterpret_cast<const uint8_t*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof value);
}

template <typename Value>
Outgoing only(const Value& value) {
  Outgoing result;
  append(result.head, value);
  return result;
}

inline bool is_atomic(uint32_t opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
inline bool has_reply(uint32_t opcode) { return opcode == IBV_WR_RDMA_READ || is_atomic(opcode); }

// --- stream.cc

void watch(Context& context, int fd, uint64_t data, bool write, bool added, bool read = true);
void close_socket(Socket& socket);
enum class Step { Done, Later, Broken, Unregistered };
// Each moves a turn's bytes at most. The pair's memory has to allow `access`.
Step write_out(Context& context, QueuePair& pair, Socket& socket, unsigned access);
Step read_head(Socket& socket, size_t size);
Step read_body(Context& context, QueuePair& pair, Socket& socket, unsigned access);
// Copies registered bytes of the pieces that are memory of a real GPU to their shadows, or from
// there: `bytes` from byte `skip` on. False: the driver refuses.
bool copy_shadows(Context& context, const std::vector<Piece>& pieces, uint64_t skip, uint64_t bytes,
                  bool is_from_gpu);

// --- requester.cc

void complete_first(Context& context, QueuePair& pair, ibv_wc_status status);
// Closes the connection. Requests that are not acknowledged go over a new one.
void lose_requester(QueuePair& pair);
void hear_replies(Context& context, QueuePair& pair);
// Retries and waits; `alarm` becomes the time of the next one if that is sooner.
void check_times(Context& context, QueuePair& pair, Clock::time_point now,
                 Clock::time_point& alarm);

// --- responder.cc

// Moves the next receive to the queue pair; false where none is posted.
bool take_receive(Context& context, QueuePair& pair);
void serve(Context& context, QueuePair& pair);
void flush_responder(Context& context, QueuePair& pair);
// Hears from a new connection which queue pair it wants.
void welcome(Context& context, int fd);

// --- faults.cc

Port& port_of(Context& context, QueuePair& pair);
// Lets the faults of the port strike; false where the message must not go.
bool pass_faults(Context& context, QueuePair& pair, Request& request);
bool is_of_gpu(Context& context, uint32_t key);
void occupy(Port& port, uint64_t bytes);  // for as long as its rate needs

// --- address.cc

// Where the port of a context listens; `scope` is the interface for addresses of a link.
socklen_t socket_address(const ibv_gid& gid, uint16_t port, uint32_t scope,
                         sockaddr_storage& address);

// --- datagrams.cc

void pump_datagrams(Context& context, QueuePair& pair);
// A send that fails stops the send queue until the program sets it to RTS again.
void stop_sends(Context& context, QueuePair& pair);
void add_feed(Context& context, int fd);
void hear_path(Context& context, int fd, uint32_t events);
void hear_feed(Context& context, int fd);
void check_datagrams(Context& context, Clock::time_point now, Clock::time_point& alarm);

}  // namespace vverbs
