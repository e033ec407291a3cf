// Task: one call of the API with its buffers and stream, as groups collect them. Call: the part of
// the call on which ranks must agree.
#pragma once

#include <cstdint>
#include <string>

#include "gpu/streams.h"
#include "planner/request.h"

namespace niccolite::calls {

using planner::Collective;

/// A collective, or one end of a message (collective PointToPoint; count and type are the
/// caller's).
struct Call {
  planner::Request request;
  int peer = -1;         // of a message
  bool is_send = false;  // of a message
  // For a live message: it was planned for the receiver's own buffer, as both ends know
  // (operations/message_agreement.h).
  bool goes_direct = false;
  // For a collective with settings of its own: planner::tag_of(). Only this tag is told to other
  // ranks. 0: it has no settings.
  uint16_t settings_tag = 0;

  bool is_message() const { return request.collective == Collective::PointToPoint; }
  friend bool operator==(const Call&, const Call&) = default;
};

struct Task {
  Call call;
  const void* input = nullptr;  // null for a receive
  void* output = nullptr;       // null for a send
  gpu::StreamHandle stream = nullptr;
  void* launched = nullptr;  // the user's event (cudaEvent_t), recorded when a collective has been
                             // launched; null: none
};

/// Returns the call's fingerprint (executor/protocol/call_tag.h). It is equal for calls that match:
/// collectives of one kind, count, type, operation, root and settings; a send and a receive of as
/// many bytes. Calls that do not match differ, except for one pair in 65,536.
uint16_t tag_of(const Call& call);

/// The API function: "ncclAllReduce", "ncclSend".
const char* function_of(const Call& call);
/// The call as a user would recognise it: "ncclReduce(count 1024, float, sum, root 0)".
std::string describe(const Call& call);

}  // namespace niccolite::calls
