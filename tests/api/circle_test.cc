// Several communicators that ranks use in different orders on one stream: the ranks wait for each
// other in a circle, which every communicator of it is told, with ranks, calls and communicators.

#include <gmock/gmock.h>

#include <chrono>
#include <string>
#include <thread>

#include "tests/api/cluster.h"

namespace niccolite::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr size_t kBytes = 4 << 20;        // more than connections hold
constexpr size_t kMostElements = 50'000;  // of an all-reduce

/// GPUs with a stream each, and communicators over some of them.
class Machine {
 public:
  explicit Machine(int devices) : streams_(static_cast<size_t>(devices)) {
    for (int device = 0; device < devices; ++device) {
      EXPECT_CUDA(cudaSetDevice(device));
      EXPECT_CUDA(cudaStreamCreateWithFlags(&stream(device), cudaStreamNonBlocking));
      buffers_.emplace_back(device, kBytes);
    }
  }
  ~Machine() {
    for (std::vector<ncclComm_t>& comms : communicators_)
      for (ncclComm_t comm : comms) EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
    synchronize();
    for (cudaStream_t stream : streams_) EXPECT_CUDA(cudaStreamDestroy(stream));
  }
  Machine(const Machine&) = delete;

  /// The rank r is on devices[r].
  size_t make(const std::vector<int>& devices) {
    std::vector<ncclComm_t>& comms = communicators_.emplace_back(devices.size());
    EXPECT_NCCL(ncclCommInitAll(comms.data(), static_cast<int>(devices.size()), devices.data()));
    return communicators_.size() - 1;
  }
  cudaStream_t& stream(int device) { return streams_[static_cast<size_t>(device)]; }
  ncclComm_t comm(size_t communicator, int rank) {
    return communicators_[communicator][static_cast<size_t>(rank)];
  }
  void* buffer(int device) { return buffers_[static_cast<size_t>(device)].data(); }

  void all_reduce(size_t communicator, int rank, size_t count, cudaStream_t other = nullptr) {
    const ncclComm_t own = comm(communicator, rank);
    int device = -1;
    const ncclResult_t known = ncclCommCuDevice(own, &device);
    // The circle may have been noticed already.
    if (known == ncclInvalidUsage) return;
    EXPECT_EQ(known, ncclSuccess);
    EXPECT_CUDA(cudaSetDevice(device));
    // On several streams, too.
    float* const data = static_cast<float*>(buffer(device)) + communicator * kMostElements;
    const ncclResult_t result = ncclAllReduce(data, data, count, ncclFloat, ncclSum, own,
                                              other != nullptr ? other : stream(device));
    EXPECT_TRUE(result == ncclSuccess || result == ncclInvalidUsage) << ncclGetLastError(nullptr);
  }
  void synchronize() {
    for (cudaStream_t stream : streams_) EXPECT_CUDA(cudaStreamSynchronize(stream));
  }

  /// Waits until every rank of the communicator knows, and gives what it says then.
  std::string await(size_t communicator) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (ncclComm_t comm : communicators_[communicator]) {
      ncclResult_t state = ncclSuccess;
      while (state == ncclSuccess && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
      }
      EXPECT_EQ(state, ncclInvalidUsage)
          << "a rank of communicator " << communicator << " was not told";
      int count = 0;  // any call
      EXPECT_EQ(ncclCommCount(comm, &count), state);
    }
    return ncclGetLastError(nullptr);
  }
  void expect_no_failure() {
    for (const std::vector<ncclComm_t>& comms : communicators_) {
      for (ncclComm_t comm : comms) {
        ncclResult_t state = ncclInternalError;
        EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
        EXPECT_EQ(state, ncclSuccess) << ncclGetLastError(nullptr);
      }
    }
  }

 private:
  std::vector<cudaStream_t> streams_;
  std::vector<DeviceBuffer> buffers_;
  std::vector<std::vector<ncclComm_t>> communicators_;
};

/// The rank that says it, and one that comes after it.
std::string wait_of(const std::string& rank, const std::string& call, const std::string& peer) {
  const std::string in = " waits in " + call + " of communicator 0x[0-9a-f]+";
  return "(rank " + rank + in + "|stream" + in + " as rank " + rank + ") for rank " + peer;
}
std::string all_reduce_of(size_t count) {
  return "ncclAllReduce\\(count " + std::to_string(count) + ", float, sum\\)";
}

TEST(CircleOfCommunicators, OfTwoInOppositeOrderIsToldToBoth) {
  Machine machine(2);
  const size_t first = machine.make({0, 1}), second = machine.make({0, 1});
  machine.all_reduce(first, 0, 1000);
  machine.all_reduce(second, 0, 2000);
  machine.all_reduce(second, 1, 2000);
  machine.all_reduce(first, 1, 1000);
  for (const size_t communicator : {first, second})
    EXPECT_THAT(machine.await(communicator),
                AllOf(ContainsRegex(wait_of("0", all_reduce_of(1000), "1")),
                      ContainsRegex(wait_of("1", all_reduce_of(2000), "0")),
                      HasSubstr("none can go on"), HasSubstr("in the same order on all ranks"),
                      ContainsRegex("\\(communicator 0x[0-9a-f]+\\)")));
}

// Which of equal calls waits is not told by the call.
TEST(CircleOfCommunicators, IsFoundBehindEqualCallsThatWentWell) {
  for (const int ranks : {2, 3, 5}) {
    SCOPED_TRACE(ranks);
    Machine machine(ranks);
    std::vector<int> devices;
    for (int rank = 0; rank < ranks; ++rank) devices.push_back(rank);
    const size_t first = machine.make(devices), second = machine.make(devices);
    for (int round = 0; round < 3; ++round) {
      for (const size_t communicator : {first, second})
        for (int rank = 0; rank < ranks; ++rank)
          machine.all_reduce(communicator, rank, kMostElements);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const bool is_odd = rank == ranks - 1;
      for (const size_t communicator : {is_odd ? second : first, is_odd ? first : second})
        machine.all_reduce(communicator, rank, kMostElements);
    }
    for (const size_t communicator : {first, second})
      EXPECT_THAT(machine.await(communicator),
                  AllOf(ContainsRegex(wait_of("[0-9]", all_reduce_of(kMostElements),
                                              std::to_string(ranks - 1))),
                        ContainsRegex(wait_of(std::to_string(ranks - 1),
                                              all_reduce_of(kMostElements), "[0-9]")),
                        HasSubstr("none can go on")));
  }
}

TEST(CircleOfCommunicators, OfThreeInARingIsToldToAll) {
  // Each GPU is rank 0 of one communicator and rank 1 of another.
  Machine machine(3);
  std::vector<size_t> communicators;
  for (int device = 0; device < 3; ++device)
    communicators.push_back(machine.make({device, (device + 1) % 3}));
  for (const bool is_first : {true, false}) {
    for (size_t device = 0; device < 3; ++device) {
      if (is_first) machine.all_reduce(communicators[device], 0, 100 + device);
      if (!is_first) machine.all_reduce(communicators[(device + 2) % 3], 1, 100 + (device + 2) % 3);
    }
  }
  for (const size_t communicator : communicators) {
    const std::string text = machine.await(communicator);
    for (size_t device = 0; device < 3; ++device)
      EXPECT_THAT(text, ContainsRegex(wait_of("0", all_reduce_of(100 + device), "1")));
  }
}

TEST(CircleOfCommunicators, OfMessagesAndCollectivesIsTold) {
  Machine machine(2);
  const size_t first = machine.make({0, 1}), second = machine.make({0, 1});
  constexpr size_t kCount = kBytes / sizeof(float);
  ASSERT_CUDA(cudaSetDevice(0));
  ASSERT_NCCL(
      ncclSend(machine.buffer(0), kCount, ncclFloat, 1, machine.comm(first, 0), machine.stream(0)));
  machine.all_reduce(second, 0, 10);
  machine.all_reduce(second, 1, 10);
  ASSERT_CUDA(cudaSetDevice(1));
  const ncclResult_t result =
      ncclRecv(machine.buffer(1), kCount, ncclFloat, 0, machine.comm(first, 1), machine.stream(1));
  ASSERT_TRUE(result == ncclSuccess || result == ncclInvalidUsage);
  for (const size_t communicator : {first, second})
    EXPECT_THAT(
        machine.await(communicator),
        AllOf(ContainsRegex(wait_of("0", "ncclSend\\(count 1048576, float, peer 1\\)", "1")),
              ContainsRegex(wait_of("1", all_reduce_of(10), "0"))));
}

TEST(CircleOfCommunicators, IsNoneOnDifferentStreams) {
  Machine machine(2);
  const size_t first = machine.make({0, 1}), second = machine.make({0, 1});
  cudaStream_t other = nullptr;
  ASSERT_CUDA(cudaSetDevice(1));
  ASSERT_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  for (int round = 0; round < 20; ++round) {
    machine.all_reduce(first, 0, 1000);
    machine.all_reduce(second, 0, 2000);
    machine.all_reduce(second, 1, 2000);
    machine.all_reduce(first, 1, 1000, other);
  }
  machine.synchronize();
  ASSERT_CUDA(cudaStreamSynchronize(other));
  machine.expect_no_failure();
  ASSERT_CUDA(cudaStreamDestroy(other));
}

}  // namespace
}  // namespace niccolite::test
