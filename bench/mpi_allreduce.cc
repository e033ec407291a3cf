// Times MPI_Allreduce of floats between the ranks of one machine, for bench/versus_openmpi: mean
// time of an operation, out of place and in place, from 8 B up, every result verified. Rank 0
// prints JSON.
//   mpirun -n 2 mpi_allreduce [largest bytes]
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

float input(int rank, size_t index) {
  return static_cast<float>((index * 7 + static_cast<size_t>(rank) * 3) % 1021);
}

int iterations_for(size_t bytes) {
  return std::clamp(static_cast<int>((size_t{256} << 20) / (bytes + 1)), 10, 2000);
}

// Mean microseconds per operation, averaged over the ranks.
double time(const void* send, std::vector<float>& receive, size_t count, int nranks) {
  const int iterations = iterations_for(count * sizeof(float));
  const auto run = [&](int times) {
    for (int i = 0; i < times; ++i)
      MPI_Allreduce(send, receive.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
  };
  run(iterations / 10 + 1);
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  run(iterations);
  double microseconds = (MPI_Wtime() - begin) * 1e6 / iterations;
  double sum = 0;
  MPI_Allreduce(&microseconds, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return sum / nranks;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int nranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &nranks);
  const size_t largest = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : size_t{64} << 20;
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(version, &length);
  for (char* c = version; *c != '\0'; ++c)
    if (*c == ',' || *c == '\n' || *c == '"') *c = '\0';  // "Open MPI v4.1.4" of a long line

  if (rank == 0) std::printf("{\"version\": \"%s\", \"nranks\": %d, \"rows\": [", version, nranks);
  long long wrong = 0;
  for (size_t bytes = 8; bytes <= largest; bytes *= 2) {
    const size_t count = bytes / sizeof(float);
    std::vector<float> send(count);
    std::vector<float> receive(count, -1);
    for (size_t i = 0; i < count; ++i) send[i] = input(rank, i);
    MPI_Allreduce(send.data(), receive.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
    for (size_t i = 0; i < count; ++i) {
      float expected = 0;
      for (int each = 0; each < nranks; ++each) expected += input(each, i);
      wrong += receive[i] != expected;
    }
    const double out_of_place = time(send.data(), receive, count, nranks);
    std::fill(receive.begin(), receive.end(), 0.f);
    const double in_place = time(MPI_IN_PLACE, receive, count, nranks);
    if (rank == 0)
      std::printf("%s\n{\"bytes\": %zu, \"out_of_place_us\": %.3f, \"in_place_us\": %.3f}",
                  bytes == 8 ? "" : ",", bytes, out_of_place, in_place);
  }
  long long all_wrong = 0;
  MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) std::printf("\n], \"wrong\": %lld}\n", all_wrong);
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
