// The same with MPI, which starts the processes and carries the unique id.
//   mpirun -np 4 02_one_device_per_process_mpi [elements, default 1048576]
#include <mpi.h>

#include "../device_buffers.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int nranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &nranks);
  const size_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : size_t{1} << 20;

  // The number of this process on its machine chooses the device.
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  int local_rank = 0;
  MPI_Comm_rank(node, &local_rank);
  MPI_Comm_free(&node);

  ncclUniqueId id;
  if (rank == 0) CHECK_NCCL(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD);

  CHECK_CUDA(cudaSetDevice(local_rank));
  ncclComm_t comm = nullptr;
  CHECK_NCCL(ncclCommInitRank(&comm, nranks, id, rank));

  size_t wrong = 0;
  {
    const DeviceBuffers buffers(local_rank, rank, count);
    CHECK_NCCL(ncclAllReduce(buffers.input(), buffers.output(), count, ncclFloat, ncclSum, comm,
                             buffers.stream()));
    wrong = buffers.wrong_elements(nranks);
  }
  CHECK_NCCL(ncclCommDestroy(comm));
  std::printf("rank %d of %d: %zu elements, %zu wrong\n", rank, nranks, count, wrong);
  MPI_Finalize();
  return wrong != 0;
}
