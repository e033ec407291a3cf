// One rank's device, stream and buffers in the examples. Inputs depend on rank and index and are
// small integers, so that the sum is exact and every element can be compared for equality.
#pragma once

#include <cstddef>
#include <vector>

#include "check.h"

class DeviceBuffers {
 public:
  /// Allocates `count` floats twice on `device` and fills the input of `rank`.
  DeviceBuffers(int device, int rank, size_t count) : device_(device), count_(count) {
    CHECK_CUDA(cudaSetDevice(device_));
    CHECK_CUDA(cudaStreamCreate(&stream_));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&input_), count_ * sizeof(float)));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&output_), count_ * sizeof(float)));
    std::vector<float> host(count_);
    for (size_t i = 0; i < count_; ++i) host[i] = element(rank, i);
    CHECK_CUDA(cudaMemcpyAsync(input_, host.data(), count_ * sizeof(float), cudaMemcpyHostToDevice,
                               stream_));
    CHECK_CUDA(cudaStreamSynchronize(stream_));  // `host` ends here
  }
  DeviceBuffers(const DeviceBuffers&) = delete;
  DeviceBuffers& operator=(const DeviceBuffers&) = delete;
  ~DeviceBuffers() {
    CHECK_CUDA(cudaSetDevice(device_));
    CHECK_CUDA(cudaFree(input_));
    CHECK_CUDA(cudaFree(output_));
    CHECK_CUDA(cudaStreamDestroy(stream_));
  }

  int device() const { return device_; }
  size_t count() const { return count_; }
  const float* input() const { return input_; }
  float* output() const { return output_; }
  cudaStream_t stream() const { return stream_; }

  /// Waits for the stream and counts the elements of the output that are not the sum over `nranks`
  /// ranks.
  size_t wrong_elements(int nranks) const {
    std::vector<float> host(count_);
    CHECK_CUDA(cudaSetDevice(device_));
    CHECK_CUDA(cudaMemcpyAsync(host.data(), output_, count_ * sizeof(float), cudaMemcpyDeviceToHost,
                               stream_));
    CHECK_CUDA(cudaStreamSynchronize(stream_));
    size_t wrong = 0;
    for (size_t i = 0; i < count_; ++i) {
      float expected = 0;
      for (int rank = 0; rank < nranks; ++rank) expected += element(rank, i);
      wrong += host[i] != expected;
    }
    return wrong;
  }

 private:
  static float element(int rank, size_t index) {
    return static_cast<float>(rank * 3 + static_cast<int>(index % 251));
  }

  int device_;
  size_t count_;
  cudaStream_t stream_ = nullptr;
  float* input_ = nullptr;
  float* output_ = nullptr;
};
