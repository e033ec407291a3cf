#include "cli/perf/calls.h"

#include "cli/perf/library.h"

namespace niccolite::perf {
namespace {

Status send(const Library& nccl, const Invocation& call, const std::byte* data, size_t count,
            int peer) {
  return nccl.check(nccl.send(data, count, call.type->id, peer, call.comm, call.stream),
                    "ncclSend");
}
Status receive(const Library& nccl, const Invocation& call, std::byte* data, size_t count,
               int peer) {
  return nccl.check(nccl.receive(data, count, call.type->id, peer, call.comm, call.stream),
                    "ncclRecv");
}

struct Peers {
  int first, count;
};

/// The send buffer's blocks to `targets` and the receive buffer's from `origins`, in one group.
Status exchange(const Library& nccl, const Invocation& call, Peers targets, Peers origins) {
  TRY(nccl.check(nccl.group_start(), "ncclGroupStart"));
  for (int i = 0; i < targets.count; ++i)
    TRY(send(nccl, call, call.send_block(i), call.count, targets.first + i));
  for (int i = 0; i < origins.count; ++i)
    TRY(receive(nccl, call, call.receive_block(i), call.count, origins.first + i));
  return nccl.check(nccl.group_end(), "ncclGroupEnd");
}

}  // namespace

Status call_all_reduce(const Library& nccl, const Invocation& call, int) {
  return nccl.check(nccl.all_reduce(call.send, call.receive, call.count, call.type->id,
                                    call.operation, call.comm, call.stream),
                    "ncclAllReduce");
}

Status call_all_gather(const Library& nccl, const Invocation& call, int) {
  return nccl.check(
      nccl.all_gather(call.send, call.receive, call.count, call.type->id, call.comm, call.stream),
      "ncclAllGather");
}

Status call_reduce_scatter(const Library& nccl, const Invocation& call, int) {
  return nccl.check(nccl.reduce_scatter(call.send, call.receive, call.count, call.type->id,
                                        call.operation, call.comm, call.stream),
                    "ncclReduceScatter");
}

Status call_broadcast(const Library& nccl, const Invocation& call, int) {
  return nccl.check(nccl.broadcast(call.send, call.receive, call.count, call.type->id, call.root,
                                   call.comm, call.stream),
                    "ncclBroadcast");
}

Status call_reduce(const Library& nccl, const Invocation& call, int) {
  return nccl.check(nccl.reduce(call.send, call.receive, call.count, call.type->id, call.operation,
                                call.root, call.comm, call.stream),
                    "ncclReduce");
}

Status call_alltoall(const Library& nccl, const Invocation& call, int) {
  if (call.by_send_recv || nccl.all_to_all == nullptr)
    return exchange(nccl, call, {0, call.nranks}, {0, call.nranks});
  return nccl.check(
      nccl.all_to_all(call.send, call.receive, call.count, call.type->id, call.comm, call.stream),
      "ncclAlltoAll");
}

Status call_gather(const Library& nccl, const Invocation& call, int) {
  if (call.by_send_recv || nccl.gather == nullptr)
    return exchange(nccl, call, {call.root, 1}, {0, call.rank == call.root ? call.nranks : 0});
  return nccl.check(nccl.gather(call.send, call.receive, call.count, call.type->id, call.root,
                                call.comm, call.stream),
                    "ncclGather");
}

Status call_scatter(const Library& nccl, const Invocation& call, int) {
  if (call.by_send_recv || nccl.scatter == nullptr)
    return exchange(nccl, call, {0, call.rank == call.root ? call.nranks : 0}, {call.root, 1});
  return nccl.check(nccl.scatter(call.send, call.receive, call.count, call.type->id, call.root,
                                 call.comm, call.stream),
                    "ncclScatter");
}

Status call_sendrecv(const Library& nccl, const Invocation& call, int) {
  const int next = (call.rank + 1) % call.nranks;
  const int previous = (call.rank + call.nranks - 1) % call.nranks;
  return exchange(nccl, call, {next, 1}, {previous, 1});
}

namespace {

// The receiver knows as many messages of these sizes.
Status call_messages(const Library& nccl, const Invocation& call, size_t messages) {
  const int next = (call.rank + 1) % call.nranks;
  const int previous = (call.rank + call.nranks - 1) % call.nranks;
  const size_t each = call.count / messages;
  const size_t last = call.count - (messages - 1) * each;
  TRY(nccl.check(nccl.group_start(), "ncclGroupStart"));
  for (size_t i = 0; i < messages; ++i) {
    const size_t count = i + 1 == messages ? last : each;
    const size_t begin = i * each * call.type->bytes;
    TRY(send(nccl, call, call.send + begin, count, next));
    TRY(receive(nccl, call, call.receive + begin, count, previous));
  }
  return nccl.check(nccl.group_end(), "ncclGroupEnd");
}

}  // namespace

Status call_messages_8(const Library& nccl, const Invocation& call, int) {
  return call_messages(nccl, call, 8);
}

Status call_messages_32(const Library& nccl, const Invocation& call, int) {
  return call_messages(nccl, call, 32);
}

Status call_alltoallv(const Library& nccl, const Invocation& call, int) {
  TRY(nccl.check(nccl.group_start(), "ncclGroupStart"));
  for (int peer = 0; peer < call.nranks; ++peer) {
    TRY(send(nccl, call, call.send_block(peer), uneven_share(call.count, call.rank, peer), peer));
    TRY(receive(nccl, call, call.receive_block(peer), uneven_share(call.count, peer, call.rank),
                peer));
  }
  return nccl.check(nccl.group_end(), "ncclGroupEnd");
}

/// In step k each rank swaps the 2^k blocks that it has with the rank whose number differs in bit
/// k.
Status call_hypercube(const Library& nccl, const Invocation& call, int step) {
  const int blocks = 1 << step;
  const int peer = call.rank ^ blocks;
  const int mine = call.rank & ~(blocks - 1);
  const size_t count = call.count * static_cast<size_t>(blocks);
  TRY(nccl.check(nccl.group_start(), "ncclGroupStart"));
  TRY(send(nccl, call, call.receive_block(mine), count, peer));
  TRY(receive(nccl, call, call.receive_block(mine ^ blocks), count, peer));
  return nccl.check(nccl.group_end(), "ncclGroupEnd");
}

}  // namespace niccolite::perf
