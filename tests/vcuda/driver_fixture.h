// Tests of libcuda.so.1 of virtual GPUs, which see it as a program does that was compiled with
// NVIDIA's header: a primary context of device 0 is current.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>

#include <cstddef>

#define ASSERT_CU(...) ASSERT_EQ((__VA_ARGS__), CUDA_SUCCESS)

/// Memory of virtual memory management is of whole units.
inline constexpr size_t kUnit = size_t{2} << 20;

class Driver : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_CU(cuInit(0));
    ASSERT_CU(cuDeviceGet(&device_, 0));
    ASSERT_CU(cuDevicePrimaryCtxRetain(&context_, device_));
    ASSERT_CU(cuCtxSetCurrent(context_));
  }
  void TearDown() override {
    EXPECT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRelease(device_), CUDA_SUCCESS);
  }
  CUdevice device_ = -1;
  CUcontext context_ = nullptr;
};
