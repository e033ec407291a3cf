#include "operations/call_key.h"

#include <bit>

namespace niccolite::operations {
namespace {

template <typename Value>
void add_to(std::string& name, const Value& value) {
  name.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// All of a call that a plan depends on.
void add_call(std::string& name, const calls::Call& call) {
  const planner::Request& request = call.request;
  add_to(name, request.collective);
  if (call.is_message()) {
    add_to(name, request.bytes());
    add_to(name, call.peer);
    add_to(name, call.is_send);
    add_to(name, call.goes_direct);
    return;
  }
  add_to(name, request.count);
  add_to(name, request.type);
  add_to(name, request.root);
  add_to(name, request.op.operation);
  add_to(name, request.op.scale);
  add_to(name, request.op.factor);
  add_to(name, request.op.device_scale);
  add_to(name, request.settings);
}

}  // namespace

std::string name_of(const Batch& batch) {
  std::string name;
  add_to(name, batch.protocol);
  add_to(name, batch.is_list);
  add_to(name, batch.goes_direct);
  add_to(name, batch.most_channels);
  for (const calls::Task* task : batch.tasks) add_call(name, task->call);
  return name;
}

namespace {

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 32;
}

uint64_t mixed(uint64_t hash, const calls::Call& call) {
  const auto peer = static_cast<uint64_t>(call.peer);
  return mixed(mixed(hash, hash_of(call.request)),
               peer << 2 | (call.goes_direct ? 2 : 0) | (call.is_send ? 1 : 0));
}

}  // namespace

uint64_t hash_of(const planner::Request& request) {
  const uint64_t kinds = static_cast<uint64_t>(request.collective) << 16 |
                         static_cast<uint64_t>(request.type) << 8 |
                         static_cast<uint64_t>(request.op.operation);
  const uint64_t hash = mixed(mixed(request.count, kinds), static_cast<uint64_t>(request.root));
  if (request.settings == nullptr) return hash;
  return mixed(hash, std::bit_cast<uintptr_t>(request.settings));
}

uint64_t hash_of(std::span<const calls::Call> calls) {
  uint64_t hash = 0;
  for (const calls::Call& call : calls) hash = mixed(hash, call);
  return hash;
}

uint64_t hash_of(std::span<const calls::Task> tasks) {
  uint64_t hash = 0;
  for (const calls::Task& task : tasks) hash = mixed(hash, task.call);
  return hash;
}

}  // namespace niccolite::operations
