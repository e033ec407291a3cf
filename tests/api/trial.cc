#include "tests/api/trial.h"

#include <algorithm>

namespace niccolite::test {

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"AllReduce", "Reduce",        "Broadcast", "Bcast",
                                    "AllGather", "ReduceScatter", "AlltoAll",  "Gather",
                                    "Scatter",   "Message"};
  return kNames[static_cast<int>(kind)];
}
bool reduces(Kind kind) {
  return kind == Kind::AllReduce || kind == Kind::Reduce || kind == Kind::ReduceScatter;
}
bool has_root(Kind kind) {
  return kind == Kind::Reduce || kind == Kind::Broadcast || kind == Kind::Bcast ||
         kind == Kind::Gather || kind == Kind::Scatter;
}

std::ostream& operator<<(std::ostream& out, const Operation& o) {
  out << name_of(o.kind) << " count " << o.count << " type " << o.type;
  if (reduces(o.kind)) out << " op " << o.op;
  if (has_root(o.kind)) out << " root " << o.root;
  if (o.kind == Kind::Message) out << " from " << o.root << " to " << o.receiver;
  if (o.in_place) out << " in place";
  if (o.misalignment != 0) out << " misaligned by " << o.misalignment;
  return out;
}

// Blocks of `count` elements that a rank's buffers have (NCCL guide, "Collective Operations").
size_t Trial::blocks_in(int rank) const {
  const auto n = static_cast<size_t>(nranks_);
  const bool is_root = rank == operation_.root;
  switch (operation_.kind) {
    case Kind::ReduceScatter:
    case Kind::AllToAll:
      return n;
    case Kind::Scatter:
      return is_root ? n : 0;
    case Kind::Broadcast:
    case Kind::Bcast:
    case Kind::Message:
      return is_root ? 1 : 0;
    default:
      return 1;
  }
}
size_t Trial::blocks_out(int rank) const {
  const auto n = static_cast<size_t>(nranks_);
  const bool is_root = rank == operation_.root;
  switch (operation_.kind) {
    case Kind::AllGather:
    case Kind::AllToAll:
      return n;
    case Kind::Gather:
      return is_root ? n : 0;
    case Kind::Reduce:
      return is_root ? 1 : 0;
    case Kind::Message:
      return rank == operation_.receiver ? 1 : 0;
    default:
      return 1;
  }
}

bool Trial::is_in_place(int rank) const {
  if (operation_.kind == Kind::Bcast) return true;
  const bool may_be = operation_.kind != Kind::AllToAll && operation_.kind != Kind::Message;
  return operation_.in_place && may_be && blocks_in(rank) > 0 && blocks_out(rank) > 0;
}

bool Trial::takes_part(int rank) const {
  return operation_.kind != Kind::Message || rank == operation_.root || rank == operation_.receiver;
}

Trial::Trial(const Operation& operation, int nranks, const Place& place)
    : operation_(operation), nranks_(nranks) {
  const size_t block = operation_.count * bytes_of(operation_.type);
  for (int rank = 0; rank < nranks_; ++rank) {
    Buffers& buffers = buffers_.emplace_back();
    const auto make = [&](size_t blocks) {
      const size_t bytes = blocks * block, off = operation_.misalignment;
      void* memory = place ? place(rank, DeviceBuffer::needed(bytes, off)) : nullptr;
      return memory == nullptr ? std::make_unique<DeviceBuffer>(rank, bytes, off)
                               : std::make_unique<DeviceBuffer>(rank, bytes, off, memory);
    };
    const size_t in = blocks_in(rank), out = blocks_out(rank);
    const auto own = static_cast<size_t>(rank);
    if (is_in_place(rank)) {
      buffers.output = make(std::max(in, out));
      unsigned char* data = buffers.output->data();
      buffers.send = in < out ? data + own * block : data;
      buffers.receive = out < in ? data + own * block : data;
      continue;
    }
    if (in > 0) buffers.input = make(in);
    if (out > 0) buffers.output = make(out);
    if (in > 0) buffers.send = buffers.input->data();
    if (out > 0) buffers.receive = buffers.output->data();
  }
  reset();
}

void Trial::reset() {
  for (int rank = 0; rank < nranks_; ++rank) {
    Buffers& buffers = buffers_[static_cast<size_t>(rank)];
    if (buffers.output) buffers.output->poison();
    const Bytes input = input_of(rank);
    if (buffers.send == nullptr || input.empty()) continue;
    EXPECT_CUDA(cudaSetDevice(rank));
    EXPECT_CUDA(cudaMemcpy(buffers.send, input.data(), input.size(), cudaMemcpyHostToDevice));
  }
}

ncclResult_t Trial::call_with(const ncclCollConfig_t* config, const Buffers& buffers,
                              ncclComm_t comm, cudaStream_t stream) const {
  const Operation& o = operation_;
  const unsigned char* send = buffers.send;
  unsigned char* receive = buffers.receive;
  switch (o.kind) {
    case Kind::AllReduce:
      return ncclAllReduceConfig(send, receive, o.count, o.type, o.op, comm, stream, config);
    case Kind::Reduce:
      return ncclReduceConfig(send, receive, o.count, o.type, o.op, o.root, comm, stream, config);
    case Kind::Broadcast:
      return ncclBroadcastConfig(send, receive, o.count, o.type, o.root, comm, stream, config);
    case Kind::Bcast:
      return ncclBroadcastConfig(receive, receive, o.count, o.type, o.root, comm, stream, config);
    case Kind::AllGather:
      return ncclAllGatherConfig(send, receive, o.count, o.type, comm, stream, config);
    case Kind::ReduceScatter:
      return ncclReduceScatterConfig(send, receive, o.count, o.type, o.op, comm, stream, config);
    case Kind::AllToAll:
      return ncclAlltoAllConfig(send, receive, o.count, o.type, comm, stream, config);
    case Kind::Gather:
      return ncclGatherConfig(send, receive, o.count, o.type, o.root, comm, stream, config);
    case Kind::Scatter:
      return ncclScatterConfig(send, receive, o.count, o.type, o.root, comm, stream, config);
    case Kind::Message:
      break;
  }
  return ncclInternalError;
}

ncclResult_t Trial::call(int rank, ncclComm_t comm, cudaStream_t stream,
                         const ncclCollConfig_t* config) const {
  const Operation& o = operation_;
  const Buffers& buffers = buffers_[static_cast<size_t>(rank)];
  if (config != nullptr) return call_with(config, buffers, comm, stream);
  const unsigned char* send = buffers.send;
  unsigned char* receive = buffers.receive;
  switch (o.kind) {
    case Kind::AllReduce:
      return ncclAllReduce(send, receive, o.count, o.type, o.op, comm, stream);
    case Kind::Reduce:
      return ncclReduce(send, receive, o.count, o.type, o.op, o.root, comm, stream);
    case Kind::Broadcast:
      return ncclBroadcast(send, receive, o.count, o.type, o.root, comm, stream);
    case Kind::Bcast:
      return ncclBcast(receive, o.count, o.type, o.root, comm, stream);
    case Kind::AllGather:
      return ncclAllGather(send, receive, o.count, o.type, comm, stream);
    case Kind::ReduceScatter:
      return ncclReduceScatter(send, receive, o.count, o.type, o.op, comm, stream);
    case Kind::AllToAll:
      return ncclAlltoAll(send, receive, o.count, o.type, comm, stream);
    case Kind::Gather:
      return ncclGather(send, receive, o.count, o.type, o.root, comm, stream);
    case Kind::Scatter:
      return ncclScatter(send, receive, o.count, o.type, o.root, comm, stream);
    case Kind::Message: {
      ncclResult_t result = ncclSuccess;
      if (rank == o.root) result = ncclSend(send, o.count, o.type, o.receiver, comm, stream);
      if (result == ncclSuccess && rank == o.receiver)
        result = ncclRecv(receive, o.count, o.type, o.root, comm, stream);
      return result;
    }
  }
  return ncclInternalError;
}

double Trial::value(int rank, size_t block, size_t index) const {
  return input_value(operation_.op, rank, index + block * 31 + operation_.salt * 17, nranks_);
}

// What `rank` has in block `block` of its input: numbers where they are reduced, else any bytes.
Bytes Trial::contribution(int rank, size_t block) const {
  if (reduces(operation_.kind)) {
    std::vector<double> values(operation_.count);
    for (size_t i = 0; i < values.size(); ++i) values[i] = value(rank, block, i);
    return encode(operation_.type, values);
  }
  Bytes bytes(operation_.count * bytes_of(operation_.type));
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t mixed = i * 7 + i / 255 + static_cast<size_t>(rank) * 61 + block * 29;
    bytes[i] = static_cast<unsigned char>(mixed + operation_.salt * 11);
  }
  return bytes;
}

Bytes Trial::input_of(int rank) const {
  Bytes all;
  for (size_t block = 0; block < blocks_in(rank); ++block) {
    const Bytes bytes = contribution(rank, block);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

Bytes Trial::expected_of(int rank) const {
  const auto own = static_cast<size_t>(rank);
  if (reduces(operation_.kind)) {
    const size_t block = operation_.kind == Kind::ReduceScatter ? own : 0;
    std::vector<double> values(operation_.count);
    for (size_t i = 0; i < values.size(); ++i) {
      double& result = values[i] = value(0, block, i);
      for (int other = 1; other < nranks_; ++other)
        accumulate(operation_.op, result, value(other, block, i));
      if (operation_.op == ncclAvg) result /= nranks_;
    }
    return encode(operation_.type, values);
  }
  Bytes all;
  for (size_t block = 0; block < blocks_out(rank); ++block) {
    Bytes bytes;
    switch (operation_.kind) {
      case Kind::AllGather:
      case Kind::Gather:
        bytes = contribution(static_cast<int>(block), 0);
        break;
      case Kind::AllToAll:
        bytes = contribution(static_cast<int>(block), own);
        break;
      case Kind::Scatter:
        bytes = contribution(operation_.root, own);
        break;
      default:
        bytes = contribution(operation_.root, 0);
    }
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

testing::AssertionResult Trial::is_right() const {
  for (int rank = 0; rank < nranks_; ++rank)
    if (testing::AssertionResult result = is_right(rank); !result) return result;
  return testing::AssertionSuccess();
}

testing::AssertionResult Trial::is_right(int rank) const {
  const Buffers& buffers = buffers_[static_cast<size_t>(rank)];
  const auto failure = [&] {
    return testing::AssertionFailure() << operation_ << ": rank " << rank;
  };
  if (buffers.output) {
    const Bytes want = expected_of(rank);
    Bytes got(want.size());
    if (!want.empty() && blocks_out(rank) > 0) {
      EXPECT_CUDA(cudaMemcpy(got.data(), buffers.receive, got.size(), cudaMemcpyDeviceToHost));
    }
    const auto [at, wanted] = std::mismatch(got.begin(), got.end(), want.begin());
    if (at != got.end())
      return failure() << " has " << int{*at} << " instead of " << int{*wanted} << " at byte "
                       << at - got.begin() << " of " << got.size();
    if (!buffers.output->guards_are_intact()) return failure() << " wrote outside its output";
  }
  if (buffers.input && buffers.input->read() != input_of(rank))
    return failure() << " changed its input";
  return testing::AssertionSuccess();
}

}  // namespace niccolite::test
