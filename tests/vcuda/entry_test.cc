// Names by which programs find the driver, and names that CUDA's compiler calls for programs
// with kernels of their own.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#ifndef __CUDA_BF16_TYPES_EXIST__
#error "programs leave out bfloat16 without this macro"
#endif
#ifndef __CUDA_FP16_TYPES_EXIST__
#error "programs leave out half without this macro"
#endif
#ifndef __CUDA_FP8_TYPES_EXIST__
#error "programs leave out fp8 without this macro"
#endif

extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's own
void** __cudaRegisterFatBinary(void* binary);
void __cudaRegisterFatBinaryEnd(void** handle);
void __cudaUnregisterFatBinary(void** handle);
void __cudaRegisterFunction(void** handle, const char* function, char* on_device, const char* name,
                            int limit, void*, void*, void*, void*, int*);
cudaError_t __cudaGetKernel(const void** kernel, const void* function);
unsigned int __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream);
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream);
cudaError_t __cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared, cudaStream_t stream);
// NOLINTEND(bugprone-reserved-identifier)
cudaError_t cudaFuncGetAttributes();
}

namespace {

using testing::AllOf;
using testing::HasSubstr;

using Get = int (*)(int*, int);
using Current = int (*)(void**);
using Device = int (*)(int*);
using Set = int (*)(void*);

template <typename Function>
Function driver(const char* name) {
  void* found = nullptr;
  // CUDA 12's: later versions of some functions have more arguments.
  EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault), cudaSuccess)
      << name;
  return reinterpret_cast<Function>(found);
}

TEST(EntryPoint, FindsFunctionsOfTheDriver) {
  EXPECT_NE(driver<Get>("cuDeviceGet"), nullptr);
  EXPECT_NE(driver<Get>("cuFlushGPUDirectRDMAWrites"), nullptr);
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  ASSERT_EQ(cudaGetDriverEntryPoint("cuMemCreate", &found, cudaEnableDefault, &status),
            cudaSuccess);
  EXPECT_EQ(status, cudaDriverEntryPointSuccess);
  ASSERT_EQ(cudaGetDriverEntryPoint("cuNothing", &found, cudaEnableDefault, &status), cudaSuccess);
  EXPECT_EQ(status, cudaDriverEntryPointSymbolNotFound);
  EXPECT_EQ(found, nullptr);
  EXPECT_NE(cudaGetDriverEntryPoint("cuNothing", &found, cudaEnableDefault), cudaSuccess);
  ASSERT_EQ(
      cudaGetDriverEntryPointByVersion("cuCtxCreate_v4", &found, 11000, cudaEnableDefault, &status),
      cudaSuccess);
  EXPECT_NE(status, cudaDriverEntryPointSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorSymbolNotFound);
}

TEST(EntryPoint, RuntimeInitialisesTheDriver) {
  const auto get = driver<Get>("cuDeviceGet");
  const auto current = driver<Current>("cuCtxGetCurrent");
  const auto device_of_context = driver<Device>("cuCtxGetDevice");
  const auto set_current = driver<Set>("cuCtxSetCurrent");
  std::thread([&] {  // a thread begins without a context
    int count = 0;
    ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
    int device = -1;
    EXPECT_EQ(get(&device, 1), cudaSuccess) << "without cuInit";
    EXPECT_EQ(device, 1);
    void* context = &count;
    ASSERT_EQ(current(&context), cudaSuccess);
    EXPECT_EQ(context, nullptr) << "to count devices takes no context";
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    ASSERT_EQ(current(&context), cudaSuccess);
    EXPECT_NE(context, nullptr);
    EXPECT_EQ(device_of_context(&device), cudaSuccess);
    EXPECT_EQ(device, 1);
    ASSERT_EQ(set_current(nullptr), cudaSuccess);
    ASSERT_EQ(current(&context), cudaSuccess);
    EXPECT_EQ(context, nullptr) << "the driver has taken it away";
    void* memory = nullptr;
    ASSERT_EQ(cudaMalloc(&memory, 100), cudaSuccess);
    EXPECT_EQ(device_of_context(&device), cudaSuccess) << "the runtime has it again";
    EXPECT_EQ(device, 1);
    ASSERT_EQ(cudaFree(memory), cudaSuccess);
  })
      .join();
}

TEST(EntryPoint, ForeignRuntimeIsToldThatItIs) {
  const auto table = driver<int (*)(const void**, const void*)>("cuGetExportTable");
  const void* found = nullptr;
  testing::internal::CaptureStderr();
  EXPECT_EQ(table(&found, "0123456789abcde"), cudaErrorNotSupported);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("NVIDIA's CUDA runtime"), HasSubstr("-cudart shared")));
}

// As CUDA's compiler does it for kernel<<<2, 64, 5, stream>>>().
TEST(Kernels, AreRegisteredAndRefusedByName) {
  static const char kernel = 0;
  void** const binary = __cudaRegisterFatBinary(nullptr);
  ASSERT_NE(binary, nullptr);
  char on_device[] = "";
  __cudaRegisterFunction(binary, &kernel, on_device, "_Z4fillPfi", -1, nullptr, nullptr, nullptr,
                         nullptr, nullptr);
  __cudaRegisterFatBinaryEnd(binary);
  ASSERT_EQ(__cudaPushCallConfiguration(dim3(2), dim3(64), 5, cudaStreamPerThread), 0u);
  dim3 grid, block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
  ASSERT_EQ(__cudaPopCallConfiguration(&grid, &block, &shared, &stream), cudaSuccess);
  EXPECT_EQ(grid.x, 2u);
  EXPECT_EQ(block.x, 64u);
  EXPECT_EQ(shared, 5u);
  EXPECT_EQ(stream, cudaStreamPerThread);
  const void* handle = nullptr;
  ASSERT_EQ(__cudaGetKernel(&handle, &kernel), cudaSuccess);
  testing::internal::CaptureStderr();
  EXPECT_EQ(__cudaLaunchKernel(handle, grid, block, nullptr, shared, stream),
            cudaErrorNotSupported);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("fill(float*, int)"));
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
  testing::internal::CaptureStderr();
  EXPECT_EQ(cudaFuncGetAttributes(), cudaErrorNotSupported);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("cudaFuncGetAttributes"));
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
  __cudaUnregisterFatBinary(binary);
}

TEST(Runtime, FlushesWhatNetworkDevicesHaveWritten) {
  EXPECT_EQ(cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                               cudaFlushGPUDirectRDMAWritesToOwner),
            cudaSuccess);
}

TEST(Vectors, AreMadeOfTheirParts) {
  const float4 made = make_float4(1, 2, 3, 4);
  EXPECT_EQ(made.x + 10 * made.y + 100 * made.z + 1000 * made.w, 4321);
  EXPECT_EQ(make_uchar2(1, 255).y, 255);
}

TEST(Integers, BecomeTheNearestHalfAndBfloat16) {
  EXPECT_EQ(float(__ull2half_rn(1)), 1);
  EXPECT_EQ(float(__int2half_rn(-2049)), -2048) << "a tie goes to the even one";
  EXPECT_EQ(float(__int2half_rn(2051)), 2052);
  // Half way between two numbers, and one more, which a float would lose.
  constexpr unsigned long long kTie = (1ull << 40) + (1ull << 32);
  EXPECT_EQ(float(__ull2bfloat16_rn(kTie)), float(1ull << 40));
  EXPECT_EQ(float(__ull2bfloat16_rn(kTie + 1)), float((1ull << 40) + (1ull << 33)));
  EXPECT_EQ(float(__ll2bfloat16_rn(-(1ll << 40))), -float(1ull << 40));
  EXPECT_EQ(float(__nv_bfloat16(1.00390625 + 1e-12)), 1.0078125f);
}

}  // namespace
