// Several processes with several devices each: every process joins with all of its ranks in one
// group, and calls collectives for all of them in one group.
//   03_multiple_devices_per_process [processes, default 2] [devices per process, default 2]
//   [elements, default 1048576]
#include <memory>

#include "../device_buffers.h"
#include "../processes.h"

int main(int argc, char** argv) {
  const int nprocesses = argc > 1 ? std::atoi(argv[1]) : 2;
  const int ndevices = argc > 2 ? std::atoi(argv[2]) : 2;
  const size_t count = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : size_t{1} << 20;
  const int nranks = nprocesses * ndevices;

  Processes processes(nprocesses);
  return processes.run([&](int process) {
    const ncclUniqueId id = processes.share_unique_id(process);
    const int first_rank = process * ndevices;

    std::vector<ncclComm_t> comms(static_cast<size_t>(ndevices));
    CHECK_NCCL(ncclGroupStart());
    for (int i = 0; i < ndevices; ++i) {
      CHECK_CUDA(cudaSetDevice(first_rank + i));
      CHECK_NCCL(ncclCommInitRank(&comms[static_cast<size_t>(i)], nranks, id, first_rank + i));
    }
    CHECK_NCCL(ncclGroupEnd());

    std::vector<std::unique_ptr<DeviceBuffers>> ranks;
    for (int i = 0; i < ndevices; ++i)
      ranks.push_back(std::make_unique<DeviceBuffers>(first_rank + i, first_rank + i, count));

    CHECK_NCCL(ncclGroupStart());
    for (size_t i = 0; i < ranks.size(); ++i) {
      const DeviceBuffers& buffers = *ranks[i];
      CHECK_NCCL(ncclAllReduce(buffers.input(), buffers.output(), count, ncclFloat, ncclSum,
                               comms[i], buffers.stream()));
    }
    CHECK_NCCL(ncclGroupEnd());

    size_t wrong = 0;
    for (const auto& buffers : ranks) wrong += buffers->wrong_elements(nranks);
    ranks.clear();
    for (ncclComm_t comm : comms) CHECK_NCCL(ncclCommDestroy(comm));
    std::printf("process %d of %d, ranks %d to %d: %zu elements each, %zu wrong\n", process,
                nprocesses, first_rank, first_rank + ndevices - 1, count, wrong);
    return wrong != 0 ? 1 : 0;
  });
}
