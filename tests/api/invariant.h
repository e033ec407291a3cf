// What invariant operations (NICCOLITE_INVARIANT=1) must give, whatever carries them: each element
// is the reduction of all ranks' inputs in ascending order, in float (double of doubles), rounded
// once. For ranks of one process or of several: a run takes those that this process has.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/api/values.h"

namespace niccolite::test::invariant {

/// Types whose sums depend on their order.
inline constexpr ncclDataType_t kTypes[] = {ncclFloat16,  ncclFloat32,    ncclFloat64,
                                            ncclBfloat16, ncclFloat8e4m3, ncclFloat8e5m2};

enum class Call { AllReduce, Reduce, ReduceScatter };
inline constexpr Call kCalls[] = {Call::AllReduce, Call::Reduce, Call::ReduceScatter};

struct Run {
  Call call = Call::AllReduce;
  ncclDataType_t type = ncclFloat32;
  size_t first = 0, count = 1;  // of all elements: what an element holds does not depend on them
  size_t misalignment = 0;      // elements
  bool is_in_place = false;
  bool is_captured = false;  // in a graph, which runs twice
  size_t calls = 1;          // in one group, of a part each: all but ReduceScatter
};

inline std::string describe(const Run& run) {
  return "call " + std::to_string(static_cast<int>(run.call)) + ", type " +
         std::to_string(run.type) + ", " + std::to_string(run.count) + " elements from " +
         std::to_string(run.first) + ", misaligned by " + std::to_string(run.misalignment) +
         (run.is_in_place ? ", in place" : "") + (run.is_captured ? ", captured" : "") + ", in " +
         std::to_string(run.calls) + " calls";
}

struct Rank {
  int number = 0;
  int device = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
};

/// Element `i` of a rank's input, of very different sizes, so that every other order gives another
/// sum; within what the narrowest types hold where `type` is one.
inline double value_of(ncclDataType_t type, int rank, size_t i) {
  const auto mixed =
      (i + 1) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(rank) * 0xbf58476d1ce4e5b9u * (i + 7);
  const double mantissa = static_cast<double>(mixed >> 11) / 9007199254740992.0 - 0.5;
  const bool is_narrow = type == ncclFloat8e4m3;
  const int exponents = is_narrow ? 11 : type == ncclFloat32 || type == ncclFloat64 ? 23 : 15;
  return std::ldexp(mantissa, static_cast<int>(mixed % static_cast<uint64_t>(exponents)) - 4);
}

/// Elements from `first` on of the input of `rank`, or (-1) of the sum of all.
inline Bytes elements(ncclDataType_t type, int rank, int nranks, size_t first, size_t count) {
  return with_type(type, [&](auto element) {
    using E = decltype(element);
    using Accumulator = typename E::Accumulator;
    const auto input = [&](int of, size_t i) {
      return E::narrow(static_cast<Accumulator>(value_of(type, of, i)));
    };
    Bytes bytes(count * bytes_of(type));
    for (size_t i = 0; i < count; ++i) {
      auto stored = input(std::max(rank, 0), first + i);
      if (rank < 0) {
        Accumulator sum = E::widen(stored);
        for (int other = 1; other < nranks; ++other) sum += E::widen(input(other, first + i));
        stored = E::narrow(sum);
      }
      std::memcpy(&bytes[i * sizeof stored], &stored, sizeof stored);
    }
    return bytes;
  });
}

/// The buffers of one rank, in memory of its device.
struct Buffers {
  unsigned char* memory = nullptr;
  unsigned char* input = nullptr;
  unsigned char* output = nullptr;
};

/// Empty, or what went wrong. The root of a reduce is the last rank.
inline std::string perform(std::span<const Rank> ranks, int nranks, const Run& run) {
  std::string wrong;
  const auto cuda = [&](cudaError_t result, const char* what) {
    if (result != cudaSuccess && wrong.empty())
      wrong = std::string(what) + ": " + cudaGetErrorString(result);
    return result == cudaSuccess;
  };
  const auto nccl = [&](ncclResult_t result) {
    if (result != ncclSuccess && wrong.empty()) wrong = ncclGetLastError(nullptr);
  };
  const bool scatters = run.call == Call::ReduceScatter;
  const size_t bytes = run.count * bytes_of(run.type);
  const size_t whole = scatters ? bytes * static_cast<size_t>(nranks) : bytes;
  const size_t shift = run.misalignment * bytes_of(run.type);
  const size_t gap = (whole + shift + 1023) / 1024 * 1024;

  std::vector<Buffers> buffers(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    Buffers& own = buffers[i];
    cuda(cudaSetDevice(ranks[i].device), "cudaSetDevice");
    if (!cuda(cudaMalloc(&own.memory, 2 * gap), "cudaMalloc")) return wrong;
    own.input = own.memory + shift;
    own.output = run.is_in_place
                     ? own.input + (scatters ? bytes * static_cast<size_t>(ranks[i].number) : 0)
                     : own.memory + gap + shift;
  }
  const auto fill = [&] {
    for (size_t i = 0; i < ranks.size(); ++i) {
      const Bytes input =
          elements(run.type, ranks[i].number, nranks, run.first, whole / bytes_of(run.type));
      cuda(cudaMemcpy(buffers[i].input, input.data(), whole, cudaMemcpyHostToDevice), "cudaMemcpy");
    }
  };
  const auto call = [&] {
    nccl(ncclGroupStart());
    for (size_t i = 0; i < ranks.size(); ++i)
      for (size_t part = 0; part < run.calls; ++part) {
        const Rank& rank = ranks[i];
        const size_t start = run.count * part / run.calls;
        const size_t count = run.count * (part + 1) / run.calls - start;
        const unsigned char* const input = buffers[i].input + start * bytes_of(run.type);
        unsigned char* const output = buffers[i].output + start * bytes_of(run.type);
        nccl(run.call == Call::AllReduce
                 ? ncclAllReduce(input, output, count, run.type, ncclSum, rank.comm, rank.stream)
             : run.call == Call::Reduce ? ncclReduce(input, output, count, run.type, ncclSum,
                                                     nranks - 1, rank.comm, rank.stream)
                                        : ncclReduceScatter(input, output, count, run.type, ncclSum,
                                                            rank.comm, rank.stream));
      }
    nccl(ncclGroupEnd());
  };
  const auto for_each = [&](const std::function<void(const Rank&, size_t)>& body) {
    for (size_t i = 0; i < ranks.size(); ++i) {
      cuda(cudaSetDevice(ranks[i].device), "cudaSetDevice");
      body(ranks[i], i);
    }
  };
  const auto check = [&] {
    for_each([&](const Rank& rank, size_t i) {
      cuda(cudaStreamSynchronize(rank.stream), "cudaStreamSynchronize");
      if (!wrong.empty() || (run.call == Call::Reduce && rank.number != nranks - 1)) return;
      Bytes output(bytes);
      cuda(cudaMemcpy(output.data(), buffers[i].output, bytes, cudaMemcpyDeviceToHost),
           "cudaMemcpy");
      const size_t first =
          run.first + (scatters ? run.count * static_cast<size_t>(rank.number) : 0);
      if (output != elements(run.type, -1, nranks, first, run.count))
        wrong = "rank " + std::to_string(rank.number) + " of " + std::to_string(nranks) +
                " has another sum: " + describe(run);
    });
  };

  fill();
  if (!run.is_captured) {
    call();
    check();
  } else {
    std::vector<cudaGraphExec_t> graphs(ranks.size());
    for_each([&](const Rank& rank, size_t) {
      cuda(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal), "begin");
    });
    call();
    for_each([&](const Rank& rank, size_t i) {
      cudaGraph_t graph = nullptr;
      if (!cuda(cudaStreamEndCapture(rank.stream, &graph), "cudaStreamEndCapture")) return;
      cuda(cudaGraphInstantiate(&graphs[i], graph, 0), "cudaGraphInstantiate");
      cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    });
    for (int replay = 0; replay < 2 && wrong.empty(); ++replay) {
      if (replay > 0 && run.is_in_place) fill();
      for_each([&](const Rank& rank, size_t i) {
        cuda(cudaGraphLaunch(graphs[i], rank.stream), "cudaGraphLaunch");
      });
      check();
    }
    for_each([&](const Rank&, size_t i) {
      if (graphs[i] != nullptr) cuda(cudaGraphExecDestroy(graphs[i]), "cudaGraphExecDestroy");
    });
  }
  for_each([&](const Rank&, size_t i) { cuda(cudaFree(buffers[i].memory), "cudaFree"); });
  return wrong;
}

/// Every call and type, at several sizes and places, in place or not, captured or not: each of
/// these with each call and type, though not all with all. `seed` shifts which meet.
inline std::string perform_all(std::span<const Rank> ranks, int nranks, size_t seed) {
  constexpr size_t kSizes[] = {1, 1000, 8'000};
  size_t turn = seed;
  for (const Call call : kCalls)
    for (const ncclDataType_t type : kTypes)
      for (const size_t count : kSizes) {
        const Run run{.call = call,
                      .type = type,
                      .first = turn % 5 * 17,
                      .count = count,
                      .misalignment = turn % 3,
                      .is_in_place = turn % 2 == 1,
                      .is_captured = turn / 2 % 2 == 1,
                      .calls = turn / 4 % 2 == 1 && call != Call::ReduceScatter ? 3u : 1u};
        if (std::string wrong = perform(ranks, nranks, run); !wrong.empty()) return wrong;
        ++turn;
      }
  return {};
}

}  // namespace niccolite::test::invariant
