// The parts of a context's thread share these: connections (engine.cc) and datagrams
// (datagrams.cc). Thread safety: all of it is called with the context's mutex held.
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

void watch(Context& context, int fd, uint64_t data, bool write, bool added, bool read = true);
void close_socket(Socket& socket);
Port& port_of(Context& context, QueuePair& pair);
// Where the port of a context listens; `scope` is the interface for addresses of a link.
socklen_t socket_address(const ibv_gid& gid, uint16_t port, uint32_t scope,
                         sockaddr_storage& address);
void complete_first(Context& context, QueuePair& pair, ibv_wc_status status);
// Lets the faults of the port strike; false where the message must not go.
bool pass_faults(Context& context, QueuePair& pair, Request& request);
bool is_of_gpu(Context& context, uint32_t key);
void occupy(Port& port, uint64_t bytes);  // for as long as its rate needs
// Moves the next receive to the queue pair; false where none is posted.
bool take_receive(Context& context, QueuePair& pair);

// --- datagrams.cc

void pump_datagrams(Context& context, QueuePair& pair);
// A send that fails stops the send queue until the program sets it to RTS again.
void stop_sends(Context& context, QueuePair& pair);
void add_feed(Context& context, int fd);
void hear_path(Context& context, int fd, uint32_t events);
void hear_feed(Context& context, int fd);
void check_datagrams(Context& context, Clock::time_point now, Clock::time_point& alarm);

}  // namespace vverbs
