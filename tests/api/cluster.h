// Cluster: N ranks of one process, each on a virtual GPU of its own, as a program with one thread
// and many devices has them. Uses the C API of libnccl.so.2 and of vcuda only, as any program
// would.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstring>
#include <string>
#include <vector>

namespace niccolite::test {

#define ASSERT_CUDA(call) ASSERT_EQ(call, cudaSuccess) << #call
#define EXPECT_CUDA(call) EXPECT_EQ(call, cudaSuccess) << #call
#define ASSERT_NCCL(call) ASSERT_EQ(call, ncclSuccess) << #call << ": " << ncclGetLastError(nullptr)
#define EXPECT_NCCL(call) EXPECT_EQ(call, ncclSuccess) << #call << ": " << ncclGetLastError(nullptr)

/// Device memory that is freed at the end of a test, with guard bytes around what the test uses.
class DeviceBuffer {
 public:
  static constexpr size_t kGuard = 256;
  static constexpr unsigned char kPoison = 0xa5;

  DeviceBuffer(int device, size_t bytes, size_t misalignment = 0)
      : DeviceBuffer(device, bytes, misalignment, nullptr) {
    EXPECT_CUDA(cudaSetDevice(device));
    EXPECT_CUDA(cudaMalloc(&base_, bytes + 2 * kGuard + misalignment));
    is_own_ = true;
    poison();
  }
  /// In memory of somebody else's, needed() bytes.
  DeviceBuffer(int device, size_t bytes, size_t misalignment, void* memory)
      : device_(device), bytes_(bytes), shift_(misalignment), base_(memory) {
    if (memory != nullptr) poison();
  }
  static size_t needed(size_t bytes, size_t misalignment) {
    return bytes + 2 * kGuard + misalignment;
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : device_(other.device_),
        bytes_(other.bytes_),
        shift_(other.shift_),
        base_(std::exchange(other.base_, nullptr)),
        is_own_(std::exchange(other.is_own_, false)) {}
  ~DeviceBuffer() {
    if (is_own_) {
      EXPECT_CUDA(cudaFree(base_));
    }
  }

  unsigned char* data() const { return static_cast<unsigned char*>(base_) + kGuard + shift_; }
  void poison() {
    EXPECT_CUDA(cudaSetDevice(device_));
    EXPECT_CUDA(cudaMemset(base_, kPoison, bytes_ + 2 * kGuard + shift_));
  }
  void write(const std::vector<unsigned char>& bytes) {
    EXPECT_CUDA(cudaMemcpy(data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  }
  std::vector<unsigned char> read() const {
    std::vector<unsigned char> bytes(bytes_);
    EXPECT_CUDA(cudaMemcpy(bytes.data(), data(), bytes_, cudaMemcpyDeviceToHost));
    return bytes;
  }
  bool guards_are_intact() const {
    std::vector<unsigned char> all(bytes_ + 2 * kGuard + shift_);
    EXPECT_CUDA(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < all.size(); ++i)
      if ((i < kGuard + shift_ || i >= kGuard + shift_ + bytes_) && all[i] != kPoison) return false;
    return true;
  }

 private:
  int device_;
  size_t bytes_;
  size_t shift_;
  void* base_ = nullptr;
  bool is_own_ = false;
};

class Cluster {
 public:
  explicit Cluster(int nranks)
      : comms_(static_cast<size_t>(nranks)), streams_(static_cast<size_t>(nranks)) {
    EXPECT_NCCL(ncclCommInitAll(comms_.data(), nranks, nullptr));
    for (int rank = 0; rank < nranks; ++rank) {
      EXPECT_CUDA(cudaSetDevice(rank));
      EXPECT_CUDA(
          cudaStreamCreateWithFlags(&streams_[static_cast<size_t>(rank)], cudaStreamNonBlocking));
    }
  }
  ~Cluster() {
    end(ncclCommDestroy);
    for (cudaStream_t stream : streams_) EXPECT_CUDA(cudaStreamDestroy(stream));
  }
  Cluster(const Cluster&) = delete;

  /// What each rank's ncclCommDestroy returned.
  std::vector<ncclResult_t> destroy() {
    std::vector<ncclResult_t> results;
    for (ncclComm_t comm : comms_) results.push_back(ncclCommDestroy(comm));
    comms_.clear();
    return results;
  }
  /// For communicators that have failed, whose destruction says so.
  void abort() { end(ncclCommAbort); }
  void destroy_failed(ncclResult_t code) { end(ncclCommDestroy, code); }

  int nranks() const { return static_cast<int>(streams_.size()); }
  ncclComm_t comm(int rank) const { return comms_[static_cast<size_t>(rank)]; }
  cudaStream_t stream(int rank) const { return streams_[static_cast<size_t>(rank)]; }
  std::vector<ncclComm_t>& comms() { return comms_; }
  void synchronize() const {
    for (cudaStream_t stream : streams_) EXPECT_CUDA(cudaStreamSynchronize(stream));
  }

 private:
  void end(ncclResult_t (*end_one)(ncclComm_t), ncclResult_t result = ncclSuccess) {
    for (ncclComm_t& comm : comms_) {
      if (comm == nullptr) continue;
      EXPECT_EQ(end_one(std::exchange(comm, nullptr)), result) << ncclGetLastError(nullptr);
    }
  }

  std::vector<ncclComm_t> comms_;
  std::vector<cudaStream_t> streams_;
};

}  // namespace niccolite::test
