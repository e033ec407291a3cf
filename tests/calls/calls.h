// Calls for tests, by what they differ in.
#pragma once

#include "calls/task.h"

namespace niccolite::calls {

using executor::DataType;
using planner::Operation;

inline Call all_reduce(size_t count, DataType type = DataType::Float32,
                       Operation operation = Operation::Sum) {
  Call call;
  call.request = {.collective = Collective::AllReduce, .count = count, .type = type};
  call.request.op.operation = operation;
  return call;
}

inline Call reduce_scatter(size_t count) {
  Call call;
  call.request = {
      .collective = Collective::ReduceScatter, .count = count, .type = DataType::Float32};
  return call;
}

inline Call broadcast(size_t count, int root) {
  Call call;
  call.request = {.collective = Collective::Broadcast,
                  .count = count,
                  .type = DataType::Float32,
                  .op = {},
                  .root = root};
  return call;
}

inline Call message(int peer, size_t count, bool is_send) {
  Call call;
  call.request = {
      .collective = Collective::PointToPoint, .count = count, .type = DataType::Float32};
  call.peer = peer;
  call.is_send = is_send;
  return call;
}
inline Call send(int peer, size_t count) { return message(peer, count, true); }
inline Call receive(int peer, size_t count) { return message(peer, count, false); }

}  // namespace niccolite::calls
