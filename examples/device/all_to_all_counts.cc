// All-to-all whose counts only the GPU knows, as a router of experts computes them: the host never
// waits for them. Each rank has a room for every peer in its window; a sender puts its tokens and
// their number there.
//
// On GPUs: nvcc -x cu -std=c++17; on virtual GPUs any C++ compiler (README.md).
#include "job.h"

using namespace niccolite::device;  // NOLINT(google-build-using-namespace)
using niccolite::launch;

constexpr int kThreads = 64;

// ---- device code

/// A block for each peer. `room`: tokens that a peer may send at most, of `width` numbers each.
__global__ void dispatch(Comm comm, Buffer<int> rooms, Buffer<int> numbers, ChannelsHandle channels,
                         const int* tokens, const int* counts, int* received, int room, int width) {
  const int peer = (comm.rank() + static_cast<int>(blockIdx.x)) % comm.nranks();
  Channel arrived(ThisBlock(), comm, channels, 0), read(ThisBlock(), comm, channels, 1);
  int before = 0;  // tokens for lower peers: they are sorted by peer
  for (int p = 0; p < peer; ++p) before += counts[p];
  const size_t whole = static_cast<size_t>(room) * static_cast<size_t>(width);
  put(ThisBlock(), comm, rooms, static_cast<size_t>(comm.rank()) * whole, peer,
      tokens + before * width, static_cast<size_t>(counts[peer]) * static_cast<size_t>(width));
  put(ThisBlock(), comm, numbers, static_cast<size_t>(comm.rank()), peer, counts + peer, 1);
  arrived.signal(peer);
  if (!arrived.wait(peer)) return;
  const int count = numbers.own()[peer];
  const int* const from = rooms.own() + static_cast<size_t>(peer) * whole;
  // The expert would work here: this one adds up the numbers of its tokens.
  for (int i = static_cast<int>(threadIdx.x); i < count * width; i += kThreads)
    atomicAdd(received, from[i]);
  read.signal(peer);  // its room may be filled again
  (void)read.wait(peer);
}

// ---- host

int main() {
  constexpr int kRoom = 50, kWidth = 6;
  int gpus = 0;
  CHECK_CUDA(cudaGetDeviceCount(&gpus));
  const auto count_of = [](int from, int to) { return (from * 7 + to * 11) % (kRoom + 1); };
  const size_t all = static_cast<size_t>(gpus) * kRoom * kWidth;
  const size_t of_rooms = all * sizeof(int);
  const size_t of_numbers = (static_cast<size_t>(gpus) * sizeof(int) + 127) / 128 * 128;
  const size_t tokens_at = of_rooms + of_numbers;
  const size_t counts_at = tokens_at + of_rooms;
  const size_t received_at = counts_at + of_numbers;
  Job job(received_at + sizeof(int), 0, 2);
  for (int r = 0; r < gpus; ++r) {
    std::vector<int> tokens, counts;
    for (int to = 0; to < gpus; ++to) {
      counts.push_back(count_of(r, to));
      tokens.insert(tokens.end(), static_cast<size_t>(count_of(r, to) * kWidth), r + 1);
    }
    job.write(r, tokens_at, tokens);
    job.write(r, counts_at, counts);
    job.write(r, received_at, std::vector<int>{0});
  }
  const auto run = [&](Rank& rank, int) {
    const auto at = [&](size_t offset) { return reinterpret_cast<int*>(rank.memory + offset); };
    CHECK_CUDA(launch(dispatch, gpus, kThreads, 0, rank.stream, rank.device_comm(),
                      rank.buffer<int>(all), rank.buffer<int>(static_cast<size_t>(gpus), of_rooms),
                      rank.channels, at(tokens_at), at(counts_at), at(received_at), kRoom, kWidth));
  };
  job.each(run);
  job.wait();
  size_t wrong = 0;
  for (int r = 0; r < gpus; ++r) {
    int expected = 0;
    for (int from = 0; from < gpus; ++from) expected += count_of(from, r) * kWidth * (from + 1);
    wrong += job.read<int>(r, received_at, 1)[0] != expected ? 1 : 0;
  }
  if (!kMeasures) return finish("all_to_all_counts", wrong);
  const double one = job.time(20, run);
  // Without counts on the GPU: all rooms travel whole.
  const double two = job.time(20, [&](Rank& rank, int r) {
    if (r == 0) CHECK_NCCL(ncclGroupStart());
    CHECK_NCCL(ncclAlltoAll(rank.memory + tokens_at, rank.memory, size_t{kRoom} * kWidth, ncclInt32,
                            rank.comm, rank.stream));
    if (r == gpus - 1) CHECK_NCCL(ncclGroupEnd());
  });
  std::printf("with counts %.1f us, ncclAlltoAll of whole rooms %.1f us\n", one, two);
  return finish("all_to_all_counts", wrong);
}
