#include "calls/task.h"

#include "base/status.h"
#include "planner/settings.h"

namespace niccolite::calls {
namespace {

/// Mixes `value` into `hash` (the finalizer of splitmix64 after a multiply-add).
uint64_t mix(uint64_t hash, uint64_t value) {
  hash = hash * 0x9e3779b97f4a7c15u + value;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
  return hash ^ (hash >> 31);
}

}  // namespace

uint16_t tag_of(const Call& call) {
  const planner::Request& request = call.request;
  uint64_t hash = mix(0, static_cast<uint64_t>(request.collective));
  if (call.is_message()) {
    hash = mix(hash, request.bytes());
  } else {
    hash = mix(hash, request.count);
    hash = mix(hash, static_cast<uint64_t>(request.type));
    if (schedule::reduces(request.collective))
      hash = mix(hash, static_cast<uint64_t>(request.op.operation));
    if (schedule::has_root(request.collective))
      hash = mix(hash, static_cast<uint64_t>(request.root));
    if (call.settings_tag != 0) hash = mix(hash, call.settings_tag);
  }
  return static_cast<uint16_t>(hash >> 48);
}

const char* function_of(const Call& call) {
  switch (call.request.collective) {
    case Collective::AllReduce:
      return "ncclAllReduce";
    case Collective::Reduce:
      return "ncclReduce";
    case Collective::Broadcast:
      return "ncclBroadcast";
    case Collective::AllGather:
      return "ncclAllGather";
    case Collective::ReduceScatter:
      return "ncclReduceScatter";
    case Collective::AllToAll:
      return "ncclAlltoAll";
    case Collective::Gather:
      return "ncclGather";
    case Collective::Scatter:
      return "ncclScatter";
    case Collective::PointToPoint:
      return call.is_send ? "ncclSend" : "ncclRecv";
  }
  return "?";
}

std::string describe(const Call& call) {
  const planner::Request& request = call.request;
  std::string text = fmt::format("{}(count {}, {}", function_of(call), request.count,
                                 executor::name_of(request.type));
  if (schedule::reduces(request.collective))
    text += fmt::format(", {}", planner::name_of(request.op.operation));
  if (schedule::has_root(request.collective)) text += fmt::format(", root {}", request.root);
  if (call.is_message()) text += fmt::format(", peer {}", call.peer);
  if (call.settings_tag != 0) text += fmt::format(", config {:04x}", call.settings_tag);
  return text + ")";
}

}  // namespace niccolite::calls
