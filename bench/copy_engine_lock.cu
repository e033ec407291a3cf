// Can a thread queue a copy between GPUs while a kernel waits for it, whatever the program calls
// meanwhile? A collective by copy engines whose addresses are known only when
// the kernels of all ranks run would need just that.
//
//   nvcc -O2 -std=c++20 -arch=sm_90 bench/copy_engine_lock.cu -o copy_engine_lock &&
//   ./copy_engine_lock
//
//   kernel     spins ------------------------------------> ends, 0.4 s later
//   caller         calls cudaFree, ...
//   copier            queues a copy, waits for it
//
// "waits" says that the copy was queued only when the kernel had ended: with a kernel that waits
// for the copy, that is a deadlock. Works with one GPU, too. Not built with the library.
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

namespace {

constexpr size_t kBytes = 64 << 20;
constexpr auto kKernel = std::chrono::milliseconds(400);

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

__global__ void spin(volatile int* end) {
  while (*end == 0) {
  }
}
__global__ void write(int* word) { *word = 1; }

}  // namespace

int main() {
  int gpus = 0;
  check(cudaGetDeviceCount(&gpus));
  volatile int* end = nullptr;
  check(cudaHostAlloc(reinterpret_cast<void**>(const_cast<int**>(&end)), sizeof *end,
                      cudaHostAllocMapped));
  char* source = nullptr;
  char* target = nullptr;
  check(cudaSetDevice(gpus > 1 ? 1 : 0));
  check(cudaMalloc(&target, kBytes));
  check(cudaSetDevice(0));
  check(cudaMalloc(&source, kBytes));
  cudaStream_t busy = nullptr, copies = nullptr;
  check(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
  check(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
  check(cudaMemcpyAsync(target, source, kBytes, cudaMemcpyDefault, copies));
  check(cudaDeviceSynchronize());

  void* memory = nullptr;
  void* pinned = nullptr;
  std::vector<char> pageable(kBytes);
  struct Call {
    const char* name;
    std::function<void()> run;
  };
  const Call calls[] = {
      {"cudaMalloc", [&] { check(cudaMalloc(&memory, kBytes)); }},
      {"cudaFree", [&] { check(cudaFree(memory)); }},
      {"cudaMallocHost", [&] { check(cudaMallocHost(&pinned, kBytes)); }},
      {"cudaFreeHost", [&] { check(cudaFreeHost(pinned)); }},
      {"cudaHostRegister",
       [&] { check(cudaHostRegister(pageable.data(), pageable.size(), cudaHostRegisterDefault)); }},
      {"cudaHostUnregister", [&] { check(cudaHostUnregister(pageable.data())); }},
      {"cudaDeviceSynchronize", [&] { check(cudaDeviceSynchronize()); }},
      {"cudaStreamSynchronize", [&] { check(cudaStreamSynchronize(busy)); }},
      {"cudaMemset", [&] { check(cudaMemset(source, 0, kBytes)); }},
      {"cudaMemcpyAsync to pageable memory",
       [&] {
         check(cudaMemcpyAsync(pageable.data(), source, kBytes, cudaMemcpyDefault, busy));
         check(cudaStreamSynchronize(busy));
       }},
      {"first launch of a kernel",
       [&] { write<<<1, 1, 0, copies>>>(reinterpret_cast<int*>(source)); }},
  };
  for (const Call& call : calls) {
    *end = 0;
    spin<<<1, 1, 0, busy>>>(end);
    std::atomic<bool> is_copied = false;
    std::thread caller([&] {
      check(cudaSetDevice(0));
      call.run();
    });
    std::this_thread::sleep_for(kKernel / 10);  // let it come to wait, if it does
    std::thread copier([&] {
      check(cudaSetDevice(0));
      check(cudaMemcpyAsync(target, source, 1 << 20, cudaMemcpyDefault, copies));
      check(cudaStreamSynchronize(copies));
      is_copied = true;
    });
    std::this_thread::sleep_for(kKernel);
    const bool waits = !is_copied;
    *end = 1;
    caller.join();
    copier.join();
    check(cudaDeviceSynchronize());
    std::printf("%-36s the copy %s\n", call.name, waits ? "waits" : "goes on");
  }
}
