// The host's side of the examples: a rank on each GPU of this process, each with a window and a
// device communicator. Nothing in it is specific to one example.
#pragma once

#include <niccolite/device.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK_CUDA(call)                                                  \
  do {                                                                    \
    const cudaError_t error = (call);                                     \
    if (error != cudaSuccess) {                                           \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (0)
#define CHECK_NCCL(call)                                                  \
  do {                                                                    \
    if ((call) != ncclSuccess) {                                          \
      std::fprintf(stderr, "%s: %s\n", #call, ncclGetLastError(nullptr)); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (0)

#ifdef __CUDACC__
constexpr bool kMeasures = true;
#else
constexpr bool kMeasures = false;  // the time of a virtual GPU says nothing
#endif

struct Rank {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  char* memory = nullptr;  // of the window
  ncclWindow_t window = nullptr;
  ncclDevComm_t device = {};
  niccolite::device::ChannelsHandle channels = {};

  niccolite::device::Comm device_comm() const { return niccolite::device::Comm(device); }
  /// `count` elements from byte `offset` of the window on.
  template <typename T>
  niccolite::device::Buffer<T> buffer(size_t count, size_t offset = 0) const {
    return niccolite::device::Buffer<T>(window, count, offset);
  }
};

class Job {
 public:
  /// A window of `bytes` on each GPU, and so many barriers and channels.
  Job(size_t bytes, int barriers, int channels) {
    int gpus = 0;
    CHECK_CUDA(cudaGetDeviceCount(&gpus));
    ranks_.resize(static_cast<size_t>(gpus));
    std::vector<ncclComm_t> comms(ranks_.size());
    CHECK_NCCL(ncclCommInitAll(comms.data(), gpus, nullptr));
    std::vector<ncclDevResourceRequirements_t> lists(ranks_.size());
    for (int r = 0; r < gpus; ++r) {
      Rank& rank = at(r);
      rank.comm = comms[static_cast<size_t>(r)];
      CHECK_CUDA(cudaSetDevice(r));
      CHECK_CUDA(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
      CHECK_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&rank.memory), bytes));
    }
    CHECK_NCCL(ncclGroupStart());
    for (Rank& rank : ranks_)
      CHECK_NCCL(ncclCommWindowRegister(rank.comm, rank.memory, bytes, &rank.window,
                                        NCCL_WIN_COLL_SYMMETRIC));
    CHECK_NCCL(ncclGroupEnd());
    CHECK_NCCL(ncclGroupStart());
    for (int r = 0; r < gpus; ++r) {
      lists[static_cast<size_t>(r)] =
          niccolite::device::require_channels(channels, gpus, &at(r).channels);
      ncclDevCommRequirements_t needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
      needs.lsaBarrierCount = barriers;
      ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
      CHECK_NCCL(ncclCommQueryProperties(at(r).comm, &properties));
      needs.lsaMultimem = properties.multimemSupport;  // the switch's, if there is one
      needs.resourceRequirementsList = &lists[static_cast<size_t>(r)];
      CHECK_NCCL(ncclDevCommCreate(at(r).comm, &needs, &at(r).device));
    }
    CHECK_NCCL(ncclGroupEnd());
  }
  ~Job() {
    for (Rank& rank : ranks_) {
      CHECK_NCCL(ncclDevCommDestroy(rank.comm, &rank.device));
      CHECK_NCCL(ncclCommWindowDeregister(rank.comm, rank.window));
      CHECK_NCCL(ncclMemFree(rank.memory));
      CHECK_CUDA(cudaStreamDestroy(rank.stream));
    }
    for (Rank& rank : ranks_) CHECK_NCCL(ncclCommDestroy(rank.comm));
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }
  Rank& at(int r) { return ranks_[static_cast<size_t>(r)]; }

  /// Calls `work(rank, r)` for all ranks, which queues work on their streams.
  template <typename Work>
  void each(Work&& work) {
    for (int r = 0; r < size(); ++r) {
      CHECK_CUDA(cudaSetDevice(r));
      work(at(r), r);
    }
  }
  void wait() {
    each([](Rank& rank, int) { CHECK_CUDA(cudaStreamSynchronize(rank.stream)); });
  }
  /// Microseconds of one call of `work` on all ranks, the mean of `times`.
  template <typename Work>
  double time(int times, Work&& work) {
    each(work);
    wait();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) each(work);
    wait();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
               .count() /
           times;
  }

  template <typename T>
  void write(int r, size_t offset, const std::vector<T>& values) {
    CHECK_CUDA(cudaSetDevice(r));
    CHECK_CUDA(cudaMemcpy(at(r).memory + offset, values.data(), values.size() * sizeof(T),
                          cudaMemcpyHostToDevice));
  }
  template <typename T>
  std::vector<T> read(int r, size_t offset, size_t count) {
    std::vector<T> values(count);
    CHECK_CUDA(cudaSetDevice(r));
    CHECK_CUDA(cudaMemcpy(values.data(), at(r).memory + offset, count * sizeof(T),
                          cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  std::vector<Rank> ranks_;
};

inline int finish(const char* example, size_t wrong) {
  std::printf("%s: %s\n", example, wrong == 0 ? "right on all ranks" : "WRONG");
  return wrong == 0 ? 0 : 1;
}
