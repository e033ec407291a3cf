// What a launch costs the caller's thread, by the size of its parameters and by its attributes:
// microseconds of the driver's cuLaunchKernelEx() in bursts, none of which fills the stream's
// queue. The kernels do nothing.
//
//   nvcc -std=c++20 -O2 -arch=sm_90 bench/launch_cost.cu -o launch_cost -lcuda && ./launch_cost
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

template <int kBytes>
struct Block {
  char bytes[kBytes];
};
template <int kBytes>
__global__ void __launch_bounds__(512) nothing(const __grid_constant__ Block<kBytes> block) {
  if (block.bytes[0] == 77 && clock64() == 0) asm volatile("trap;");
}

void check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  cuGetErrorString(result, &text);
  std::fprintf(stderr, "%s: %s\n", call, text);
  std::exit(1);
}

struct Variant {
  const char* name;
  unsigned grid = 1;
  unsigned threads = 512;
  bool remote_domain = false;
  bool beside = false;
  bool completion_event = false;
  bool event_after = false;
  bool push_context = false;
  bool by_pointers = false;
  bool asks_capture = false;
  bool asks_id = false;
  bool launches = true;
};

constexpr int kBurst = 50, kBursts = 60;

double microseconds(CUfunction function, CUcontext context, CUstream stream, CUevent event,
                    size_t bytes, const Variant& variant) {
  static char parameters[4096];
  CUlaunchAttribute attributes[3] = {};
  unsigned count = 0;
  if (variant.remote_domain) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN;
    attributes[count++].value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
  }
  if (variant.beside) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[count++].value.programmaticStreamSerializationAllowed = 1;
  }
  if (variant.completion_event) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
    attributes[count++].value.launchCompletionEvent = {event, 0};
  }
  CUlaunchConfig config = {};
  config.gridDimX = variant.grid;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = variant.threads;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  void* pointers[] = {parameters};
  std::vector<double> times;
  for (int burst = 0; burst < kBursts; ++burst) {
    check(cuStreamSynchronize(stream), "cuStreamSynchronize");
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kBurst; ++i) {
      CUcontext last = nullptr;
      if (variant.asks_capture) {
        CUstreamCaptureStatus status;
        cuuint64_t id = 0;
#if CUDA_VERSION >= 13000
        check(cuStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr),
              "cuStreamGetCaptureInfo");
#else
        check(cuStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr),
              "cuStreamGetCaptureInfo");
#endif
      }
      unsigned long long id = 0;
      if (variant.asks_id) check(cuStreamGetId(stream, &id), "cuStreamGetId");
      if (variant.push_context) check(cuCtxPushCurrent(context), "cuCtxPushCurrent");
      parameters[8] = static_cast<char>(i);
      if (variant.launches)
        check(variant.by_pointers ? cuLaunchKernelEx(&config, function, pointers, nullptr)
                                  : cuLaunchKernelEx(&config, function, nullptr, extra),
              "cuLaunchKernelEx");
      if (variant.event_after) check(cuEventRecord(event, stream), "cuEventRecord");
      if (variant.push_context) check(cuCtxPopCurrent(&last), "cuCtxPopCurrent");
    }
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    times.push_back(took.count() / kBurst);
  }
  check(cuStreamSynchronize(stream), "cuStreamSynchronize");
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

template <int kBytes>
CUfunction function_of() {
  cudaFunction_t function = nullptr;
  if (cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(&nothing<kBytes>)) !=
      cudaSuccess)
    std::exit(1);
  return function;
}

}  // namespace

int main() {
  if (cudaSetDevice(0) != cudaSuccess || cudaFree(nullptr) != cudaSuccess) return 1;
  CUcontext context = nullptr;
  check(cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  CUstream stream = nullptr;
  check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  CUevent event = nullptr;
  check(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  const struct {
    size_t bytes;
    CUfunction function;
  } sizes[] = {{16, function_of<16>()},     {128, function_of<128>()},  {256, function_of<256>()},
               {512, function_of<512>()},   {768, function_of<768>()},  {1024, function_of<1024>()},
               {2048, function_of<2048>()}, {4096, function_of<4096>()}};
  Variant plain{.name = "plain"};
  std::vector<Variant> variants = {plain};
  const auto add = [&](const char* name, auto change) {
    Variant variant{.name = name};
    change(variant);
    variants.push_back(variant);
  };
  add("by pointers", [](Variant& v) { v.by_pointers = true; });
  add("8 CTAs", [](Variant& v) { v.grid = 8; });
  add("48 CTAs", [](Variant& v) { v.grid = 48; });
  add("128 threads", [](Variant& v) { v.threads = 128; });
  add("remote domain", [](Variant& v) { v.remote_domain = true; });
  add("beside the last", [](Variant& v) { v.beside = true; });
  add("both", [](Variant& v) { v.remote_domain = v.beside = true; });
  add("completion event", [](Variant& v) { v.completion_event = true; });
  add("event after", [](Variant& v) { v.event_after = true; });
  add("context pushed", [](Variant& v) { v.push_context = true; });
  add("capture asked", [](Variant& v) { v.asks_capture = true; });
  add("stream id", [](Variant& v) { v.asks_id = true; });
  add("all of these", [](Variant& v) {
    v.asks_capture = v.asks_id = v.push_context = v.event_after = v.remote_domain = true;
  });
  add("only asked",
      [](Variant& v) { v.asks_capture = v.asks_id = v.push_context = true, v.launches = false; });
  add("only the event", [](Variant& v) { v.event_after = true, v.launches = false; });
  std::printf("%-18s", "bytes of parameters");
  for (const auto& size : sizes) std::printf("%8zu", size.bytes);
  std::printf("\n");
  for (const Variant& variant : variants) {
    std::printf("%-19s", variant.name);
    for (const auto& size : sizes) {
      microseconds(size.function, context, stream, event, size.bytes, variant);  // warm
      std::printf("%8.2f",
                  microseconds(size.function, context, stream, event, size.bytes, variant));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}
