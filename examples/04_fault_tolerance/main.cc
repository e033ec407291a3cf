// Survives kill -9: four processes all-reduce again and again, one of them is killed, the other
// three go on without it, and a new process takes its place.
//
// The parent stands for whatever starts the processes of a job: it sees that one has ended, tells
// the others which rank it was, and starts another. docs/fault-tolerance.md explains the steps.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "../device_buffers.h"

namespace {

constexpr int kRanks = 4;
constexpr int kVictim = 2;  // kills itself in step 3
constexpr size_t kCount = 1 << 16;

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

// Either end of a line between the parent and one worker.
template <typename Value>
void tell(int line, const Value& value) {
  if (send(line, &value, sizeof value, MSG_NOSIGNAL) != sizeof value) fail("send");
}
template <typename Value>
Value hear(int line) {
  Value value;
  if (recv(line, &value, sizeof value, MSG_WAITALL) != sizeof value) fail("recv");
  return value;
}

// All-reduces once. False when a peer is lost; the stream then goes on waiting until the
// communicator is shrunk or aborted, so nobody can take half a sum for a result.
bool all_reduce(ncclComm_t comm, const DeviceBuffers& buffers) {
  const ncclResult_t queued = ncclAllReduce(buffers.input(), buffers.output(), kCount, ncclFloat,
                                            ncclSum, comm, buffers.stream());
  if (queued != ncclSuccess) return false;
  while (cudaStreamQuery(buffers.stream()) == cudaErrorNotReady) {
    ncclResult_t error = ncclSuccess;
    CHECK_NCCL(ncclCommGetAsyncError(comm, &error));
    if (error != ncclSuccess) return false;
    usleep(1000);
  }
  return true;
}

void step(ncclComm_t comm, int device, const char* when) {
  int rank = 0, nranks = 0;
  CHECK_NCCL(ncclCommUserRank(comm, &rank));
  CHECK_NCCL(ncclCommCount(comm, &nranks));
  const DeviceBuffers buffers(device, rank, kCount);
  const bool is_done = all_reduce(comm, buffers);
  const size_t wrong = is_done ? buffers.wrong_elements(nranks) : kCount;
  if (rank == 0) std::printf("%s: %d ranks, %zu elements wrong\n", when, nranks, wrong);
  if (wrong != 0) std::exit(1);
}

// All ranks, the new one too: the last all-reduce and the end.
int finish(ncclComm_t whole, int device) {
  step(whole, device, "with a new rank");
  CHECK_NCCL(ncclCommDestroy(whole));
  return 0;
}

int work(int rank, int line, const ncclUniqueId& id) {
  CHECK_CUDA(cudaSetDevice(rank));
  ncclComm_t comm = nullptr;
  CHECK_NCCL(ncclCommInitRank(&comm, kRanks, id, rank));
  ncclComm_t smaller = nullptr;
  {
    const DeviceBuffers buffers(rank, rank, kCount);
    for (int number = 1; all_reduce(comm, buffers); ++number)
      if (rank == kVictim && number == 3) kill(getpid(), SIGKILL);
    if (rank == 0) std::printf("rank 0 sees: %s\n", ncclGetLastError(comm));
    // Ends what waits on the stream, with undefined data, and makes a communicator of the others.
    int lost = hear<int>(line);
    CHECK_NCCL(ncclCommShrink(comm, &lost, 1, &smaller, nullptr, NCCL_SHRINK_ABORT));
    CHECK_CUDA(cudaStreamSynchronize(buffers.stream()));
    CHECK_NCCL(ncclCommAbort(comm));
  }
  step(smaller, rank, "without the lost rank");

  // The survivors invite a newcomer; its process learns the id as it learns its rank.
  if (rank == 0) {
    ncclUniqueId meeting;
    CHECK_NCCL(ncclCommGetUniqueId(smaller, &meeting));
    tell(line, meeting);
  }
  ncclComm_t whole = nullptr;
  CHECK_NCCL(ncclCommGrow(smaller, kRanks, nullptr, -1, &whole, nullptr));
  CHECK_NCCL(ncclCommDestroy(smaller));
  return finish(whole, rank);
}

int replace(int device, const ncclUniqueId& meeting) {
  CHECK_CUDA(cudaSetDevice(device));
  ncclComm_t whole = nullptr;
  CHECK_NCCL(ncclCommGrow(nullptr, kRanks, &meeting, kRanks - 1, &whole, nullptr));
  return finish(whole, device);
}

// The parent's side of a process that it has started.
struct Worker {
  pid_t process = 0;
  int line = -1;
};

template <typename Body>
Worker start(Body body) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) fail("socketpair");
  const pid_t process = fork();
  if (process < 0) fail("fork");
  if (process == 0) {
    close(ends[0]);
    std::exit(body(ends[1]));
  }
  close(ends[1]);
  return {process, ends[0]};
}

}  // namespace

int main() {
  // The parent calls neither CUDA nor NCCL, which do not survive a fork: rank 0 makes the id.
  std::vector<Worker> workers;
  workers.push_back(start([](int line) {
    ncclUniqueId id;
    CHECK_NCCL(ncclGetUniqueId(&id));
    tell(line, id);
    return work(0, line, id);
  }));
  const auto id = hear<ncclUniqueId>(workers[0].line);
  for (int rank = 1; rank < kRanks; ++rank)
    workers.push_back(start([&](int line) { return work(rank, line, id); }));

  int status = 0;
  if (waitpid(workers[kVictim].process, &status, 0) < 0) fail("waitpid");
  std::printf("the process of rank %d was ended by signal %d\n", kVictim, WTERMSIG(status));
  std::fflush(stdout);
  for (int rank = 0; rank < kRanks; ++rank)
    if (rank != kVictim) tell(workers[static_cast<size_t>(rank)].line, kVictim);
  const auto meeting = hear<ncclUniqueId>(workers[0].line);
  workers[kVictim] = start([&](int) { return replace(kVictim, meeting); });

  int failed = 0;
  for (const Worker& worker : workers) {
    if (waitpid(worker.process, &status, 0) < 0) fail("waitpid");
    failed += !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  if (failed == 0) std::printf("all ranks survived, but for the one that was killed\n");
  return failed == 0 ? 0 : 1;
}
