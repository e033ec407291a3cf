// NetworkState: a rank's knowledge of its ways to other machines when an operation stands still:
// whether its proxy comes round, and on which connections to which ranks nothing moves. Plain
// values, which travel.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/wire.h"

namespace niccolite::transport {

/// Between this rank and one on another machine, as this rank's proxy sees it.
struct Traffic {
  int peer = -1;
  /// The two ends of the connection on which parts have waited longest for an acknowledgement, or
  /// that is being dialed; empty with a plug-in.
  std::string from{}, to{};
  /// How long the peer has acknowledged nothing of this rank's data. With no parts on their way:
  /// how long the peer's proxy has not said whether it has room. None: nothing is on its way.
  std::optional<std::chrono::milliseconds> unacknowledged{};
  uint64_t parts = 0, bytes = 0;  // on their way
  /// They are about to go, or have just gone, another way than that connection: its silence says
  /// nothing yet of the ranks.
  bool has_another_way = false;
  /// Kernels have published data that the peer's proxy does not have yet.
  bool is_under_way = false;
  /// Time since the peer's proxy last acknowledged something; none: it never has.
  std::optional<std::chrono::milliseconds> acknowledged{};
  /// So long ago bytes last came from the peer; none: never.
  std::optional<std::chrono::milliseconds> heard{};

  /// Why the connection with the peer has broken; empty: it has not. Other ranks are not told.
  std::string broken{};

  /// Is the peer's proxy full, and is there more to send? It has room once the peer makes its call.
  bool waits_for_room() const { return is_under_way && parts == 0 && !unacknowledged; }
};

/// A thread of a proxy and its answer to Engine::probe().
struct ProxyThread {
  std::string name;  // as the log and gdb have it
  int64_t number = 0;
  std::chrono::milliseconds unanswered{0};  // since the open question; 0: there is none
  char state = 'S';                         // as /proc has it, if the thread has not answered
  /// The thread had time to answer and has not: it does not merely wait for a core.
  bool is_stuck = false;
};

struct NetworkState {
  static constexpr size_t kMostPeers = 64;

  /// Adds the state of another proxy of the rank.
  void join(NetworkState other);
  /// Sorts peers by the longest wait on their way, the longest first, and drops the last ones above
  /// kMostPeers.
  void sort_out_peers();

  std::vector<ProxyThread> threads{};
  /// On whose way something is under way, or was in the last 60 s; kMostPeers: and perhaps others.
  std::vector<Traffic> peers{};

  const Traffic* find(int peer) const;
  /// Is something on its way from this rank to `peer`?
  bool is_sending_to(int peer) const;
  /// May something that this rank has sent to `peer` have come there within the last `time`, or
  /// still be on its way?
  bool may_have_reached(int peer, std::chrono::milliseconds time) const;
  /// Returns a thread that is_stuck, or null.
  const ProxyThread* stuck() const;
  /// Has every thread answered, but for a question of just now?
  bool comes_round() const;
};

void write(Writer& writer, const Traffic& traffic);
Traffic read_traffic(Reader& reader);
void write(Writer& writer, const ProxyThread& thread);
ProxyThread read_proxy_thread(Reader& reader);
void write(Writer& writer, const NetworkState& state);
NetworkState read_network_state(Reader& reader);

}  // namespace niccolite::transport
