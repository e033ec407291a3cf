// One process per device: each is one rank, joins with ncclCommInitRank, and needs no groups.
//   02_one_device_per_process [processes, default 4] [elements, default 1048576]
#include "../device_buffers.h"
#include "../processes.h"

int main(int argc, char** argv) {
  const int nranks = argc > 1 ? std::atoi(argv[1]) : 4;
  const size_t count = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : size_t{1} << 20;

  Processes processes(nranks);
  return processes.run([&](int rank) {
    const ncclUniqueId id = processes.share_unique_id(rank);

    CHECK_CUDA(cudaSetDevice(rank));  // the communicator binds to the device that is current
    ncclComm_t comm = nullptr;
    CHECK_NCCL(ncclCommInitRank(&comm, nranks, id, rank));

    size_t wrong = 0;
    {
      const DeviceBuffers buffers(rank, rank, count);
      CHECK_NCCL(ncclAllReduce(buffers.input(), buffers.output(), count, ncclFloat, ncclSum, comm,
                               buffers.stream()));
      wrong = buffers.wrong_elements(nranks);
    }
    CHECK_NCCL(ncclCommDestroy(comm));
    std::printf("rank %d of %d: %zu elements, %zu wrong\n", rank, nranks, count, wrong);
    return wrong != 0 ? 1 : 0;
  });
}
