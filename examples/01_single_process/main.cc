// One process, one thread, several devices: ncclCommInitAll makes the communicator, and the calls
// for all devices stand in one group, because a collective waits for all of its ranks and one
// thread speaks for them all.
//   01_single_process [devices, default: all] [elements, default 1048576]
#include <memory>

#include "../device_buffers.h"

int main(int argc, char** argv) {
  int ndevices = 0;
  CHECK_CUDA(cudaGetDeviceCount(&ndevices));
  if (argc > 1) ndevices = std::atoi(argv[1]);
  const size_t count = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : size_t{1} << 20;

  std::vector<ncclComm_t> comms(static_cast<size_t>(ndevices));
  CHECK_NCCL(ncclCommInitAll(comms.data(), ndevices, nullptr));  // rank i on device i

  std::vector<std::unique_ptr<DeviceBuffers>> ranks;
  for (int rank = 0; rank < ndevices; ++rank)
    ranks.push_back(std::make_unique<DeviceBuffers>(rank, rank, count));

  CHECK_NCCL(ncclGroupStart());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const DeviceBuffers& buffers = *ranks[rank];
    CHECK_NCCL(ncclAllReduce(buffers.input(), buffers.output(), count, ncclFloat, ncclSum,
                             comms[rank], buffers.stream()));
  }
  CHECK_NCCL(ncclGroupEnd());  // now every device has its part queued

  size_t wrong = 0;
  for (const auto& buffers : ranks) wrong += buffers->wrong_elements(ndevices);

  for (ncclComm_t comm : comms) CHECK_NCCL(ncclCommDestroy(comm));
  std::printf("%d devices, %zu elements each, %zu wrong\n", ndevices, count, wrong);
  return wrong != 0;
}
