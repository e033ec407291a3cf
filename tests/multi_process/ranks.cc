#include "tests/multi_process/ranks.h"

#include <chrono>
#include <cstring>
#include <thread>

namespace niccolite::test {
namespace {

float value(int rank, size_t index) {
  return static_cast<float>((index * 7 + static_cast<size_t>(rank) * 13) % 16);
}

}  // namespace

std::string to_text(const ncclUniqueId& id) {
  std::string text;
  for (char byte : id.internal) {
    char hex[3];
    std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(byte));
    text += hex;
  }
  return text;
}

ncclUniqueId to_id(const std::string& text) {
  ncclUniqueId id{};
  for (size_t i = 0; i < sizeof id.internal && 2 * i + 1 < text.size(); ++i)
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

LocalRanks::LocalRanks(const ncclUniqueId& id, int nranks, int first, int count, int stride)
    : comms(static_cast<size_t>(count)),
      streams(static_cast<size_t>(count)),
      nranks_(nranks),
      first_(first),
      stride_(stride) {
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < comms.size(); ++i) {
    REQUIRE_CUDA(cudaSetDevice(rank_at(i)));
    REQUIRE_CUDA(cudaStreamCreate(&streams[i]));
    REQUIRE_NCCL(ncclCommInitRank(&comms[i], nranks, id, rank_at(i)));
  }
  REQUIRE_NCCL(ncclGroupEnd());
}

ncclResult_t LocalRanks::start(size_t count) {
  if (count > capacity_) {
    for (float* buffer : buffers_) REQUIRE_CUDA(cudaFree(buffer));
    buffers_.assign(comms.size(), nullptr);
    for (size_t i = 0; i < comms.size(); ++i) {
      REQUIRE_CUDA(cudaSetDevice(rank_at(i)));
      REQUIRE_CUDA(cudaMalloc(&buffers_[i], count * sizeof(float)));
    }
    capacity_ = count;
  }
  std::vector<float> input(count);
  for (size_t i = 0; i < comms.size(); ++i) {
    for (size_t k = 0; k < count; ++k) input[k] = value(rank_at(i), k);
    REQUIRE_CUDA(
        cudaMemcpy(buffers_[i], input.data(), count * sizeof(float), cudaMemcpyHostToDevice));
  }
  return queue(count);
}

ncclResult_t LocalRanks::queue(size_t count) {
  ncclGroupStart();
  for (size_t i = 0; i < comms.size(); ++i)
    ncclAllReduce(buffers_[i], buffers_[i], count, ncclFloat, ncclSum, comms[i], streams[i]);
  return ncclGroupEnd();
}

ncclResult_t LocalRanks::finish() {
  for (size_t i = 0; i < comms.size();) {
    // Before the state: an operation that a failure ends has ended after it.
    const bool waits = is_waiting(i);
    ncclResult_t state = ncclSuccess;
    REQUIRE_NCCL(ncclCommGetAsyncError(comms[i], &state));
    if (state != ncclSuccess) return state;
    if (waits) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    } else {
      ++i;
    }
  }
  return ncclSuccess;
}

bool LocalRanks::is_waiting(size_t i) const {
  const cudaError_t state = cudaStreamQuery(streams[i]);
  if (state != cudaErrorNotReady) REQUIRE_CUDA(state);
  return state == cudaErrorNotReady;
}

bool LocalRanks::all_reduce(size_t count) {
  REQUIRE_NCCL(start(count));
  REQUIRE_NCCL(finish());
  std::vector<float> output(count);
  for (size_t i = 0; i < comms.size(); ++i) {
    REQUIRE_CUDA(
        cudaMemcpy(output.data(), buffers_[i], count * sizeof(float), cudaMemcpyDeviceToHost));
    for (size_t k = 0; k < count; ++k) {
      float want = 0;
      for (int rank = 0; rank < nranks_; ++rank) want += value(rank, k);
      if (output[k] == want) continue;
      std::printf("WRONG rank %d index %zu: expected %g, got %g\n", rank_at(i), k,
                  static_cast<double>(want), static_cast<double>(output[k]));
      return false;
    }
  }
  return true;
}

void LocalRanks::destroy() { end(ncclCommDestroy); }
void LocalRanks::abort() { end(ncclCommAbort); }

void LocalRanks::end(ncclResult_t (*end_one)(ncclComm_t)) {
  for (ncclComm_t comm : comms) REQUIRE_NCCL(end_one(comm));
  free_all();
}

void LocalRanks::free_all() {
  for (float* buffer : buffers_) REQUIRE_CUDA(cudaFree(buffer));
  for (cudaStream_t stream : streams) REQUIRE_CUDA(cudaStreamDestroy(stream));
}

}  // namespace niccolite::test
