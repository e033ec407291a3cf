// Event: one thing that happened to a communicator on one rank, as its recorder keeps it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace niccolite::observe {

enum class EventKind : uint8_t {
  Called,     // one call of a launch that was queued or captured
  Begun,      // the stream has come to the launch
  Ended,      // the launch is done
  Waiting,    // an operation has waited for a peer, for so many milliseconds
  Stalled,    // a verdict names this peer as the cause of a standstill
  Failed,     // the asynchronous error; its text stands beside the events
  Ready,      // the communicator was made
  Left,       // it was aborted or destroyed
  Planned,    // calls of this kind were planned, and connected, for the first time
  Connected,  // to this peer
  Sent,       // a proxy has handed a slot of a connection to the network
  Received    // the same, has had one from it
};
inline constexpr size_t kEventKinds = 12;

/// Which fields mean something depends on the kind.
struct Event {
  uint64_t time = 0;    // ticks()
  uint64_t launch = 0;  // its number on this communicator, from 1
  uint64_t number = 0;  // Called: of the call (calls::LoggedCall), 0: captured; Planned: channels;
                        // Sent, Received: step of the connection
  uint64_t value = 0;   // Called, Planned: elements; Waiting: milliseconds; Sent, Received: bytes
  uint64_t stream = 0;  // Called; Sent, Received: channel
  int32_t peer = -1;    // of a message, a wait, a verdict, a connection; the root of a collective
                        // that has one
  uint8_t collective = 0, type = 0, operation = 0;  // Called, Planned: of planner::Request
  uint8_t is_send = 0;                              // Called: of a message
  EventKind kind = EventKind::Called;
  uint8_t algorithm = 0;  // Planned: its place among planner::forms(); of messages kNoAlgorithm
  uint8_t protocol = 0;   // Planned: executor::Protocol
  uint16_t settings = 0;  // Called: calls::Call::settings_tag

  static constexpr uint8_t kNoAlgorithm = 0xff;
};

}  // namespace niccolite::observe
