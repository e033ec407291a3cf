// All kernels of an operation, compiled for the CPU.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>

// Before the kernels: replaces ptx.cuh.
#include "tests/device/emulated_ptx.h"
//
#include "executor/cuda/interpreter/kernel.cuh"
#include "executor/cuda/interpreter/places_kernel.cuh"
#include "executor/cuda/interpreter/progress.cuh"
#include "executor/cuda/interpreter/team_kernel.cuh"
#include "executor/cuda/patterns/direct_kernels.cuh"
#include "executor/cuda/patterns/phase_kernel.cuh"
#include "tests/device/emulated_gpu.h"

namespace niccolite::emulation {
using executor::DataType;
using executor::Protocol;
using executor::ReduceOp;
using namespace executor::cuda;  // NOLINT(google-build-using-namespace)

template <typename Operation>
void run_with(const KernelId& id, const LaunchArgs& args) {
  switch (id.protocol) {
    case Protocol::LL:
      if (id.counters == Counters::OfProxies)
        return executor::cuda::run_kernel<Operation, Protocol::LL, /*kHasRelays=*/true>(args);
      return executor::cuda::run_kernel<Operation, Protocol::LL>(args);
    case Protocol::LL128:
      return executor::cuda::run_kernel<Operation, Protocol::LL128>(args);
    case Protocol::Simple:
      return executor::cuda::run_kernel<Operation, Protocol::Simple>(args);
  }
}

template <typename Operation, bool kSendsEach>
void run_direct_with(uint32_t most_peers, Counters counters, const LaunchArgs& args) {
  if (counters == Counters::InHost)
    return run_direct<Operation, kFewDirectPeers, kSendsEach, Counters::InHost>(args);
  if (counters == Counters::OfProxies)
    return run_direct<Operation, kFewDirectPeers, kSendsEach, Counters::OfProxies>(args);
  if (most_peers == kFewDirectPeers)
    return run_direct<Operation, kFewDirectPeers, kSendsEach>(args);
  return run_direct<Operation, kMostDirectPeers, kSendsEach>(args);
}

/// `args` begin a ListArgs.
template <typename Operation, bool kSendsEach>
void run_list_with(uint32_t most_peers, const LaunchArgs& args) {
  const auto& list = reinterpret_cast<const ListArgs&>(args);
  if (most_peers == kFewDirectPeers) return run_list<Operation, kFewDirectPeers, kSendsEach>(list);
  return run_list<Operation, kMostDirectPeers, kSendsEach>(list);
}

/// The same.
template <typename Operation>
void run_direct_list_with(uint32_t most_peers, const LaunchArgs& args) {
  const auto& list = reinterpret_cast<const ListArgs&>(args);
  if (most_peers == kFewDirectPeers) return run_direct_list<Operation, kFewDirectPeers>(list);
  return run_direct_list<Operation, kMostDirectPeers>(list);
}

template <typename Operation>
void run_phases(uint32_t most_peers, const LaunchArgs& args) {
  if constexpr (Operation::kReduces) {
    if (most_peers == kFewPhasePeers) return PhaseKernel<Operation, kFewPhasePeers>(args).run();
    PhaseKernel<Operation, kMostPhasePeers>(args).run();
  }
}

[[noreturn]] inline void fail_for_want_of(const KernelId& id) {
  fprintf(stderr, "no kernel reduces type %d by reduction %d\n", static_cast<int>(id.type),
          static_cast<int>(id.op));
  std::abort();
}

template <typename Operation>
void run_by_team_with(const KernelId& id, const LaunchArgs& args) {
  const auto run = [&] {
    if (id.variant == KernelVariant::TeamWords) return run_words_by_team<Operation>(args);
    run_by_team<Operation>(args);
  };
  if constexpr (!Operation::kReduces) {
    run();
  } else if constexpr (executor::switch_reduces(Operation::kDataType, Operation::kReduceOp)) {
    run();
  } else {
    fail_for_want_of(id);
  }
}

template <typename Operation>
void run_form(const KernelId& id, const LaunchArgs& args) {
  switch (id.variant) {
    case KernelVariant::Program:
      return run_with<Operation>(id, args);
    case KernelVariant::Direct:
      return run_direct_with<Operation, /*kSendsEach=*/false>(id.most_peers, id.counters, args);
    case KernelVariant::DirectEach:
      return run_direct_with<Operation, /*kSendsEach=*/true>(id.most_peers, id.counters, args);
    case KernelVariant::List:
      return run_list_with<Operation, /*kSendsEach=*/false>(id.most_peers, args);
    case KernelVariant::ListEach:
      return run_list_with<Operation, /*kSendsEach=*/true>(id.most_peers, args);
    case KernelVariant::DirectList:
      return run_direct_list_with<Operation>(id.most_peers, args);
    case KernelVariant::DirectLines:
      if constexpr (Operation::kReduces) return run_direct_lines<Operation, kFewDirectPeers>(args);
      fail_for_want_of(id);
    case KernelVariant::Phases:
      return run_phases<Operation>(id.most_peers, args);
    case KernelVariant::Team:
    case KernelVariant::TeamWords:
      return run_by_team_with<Operation>(id, args);
    case KernelVariant::Places:
      return run_with_places<Operation>(args);
    case KernelVariant::Messages:
      break;
  }
  if constexpr (!Operation::kReduces) {
    if (id.counters == Counters::InHost) return run_messages<Counters::InHost>(args);
    if (id.counters == Counters::OfProxies) return run_messages<Counters::OfProxies>(args);
    run_messages<Counters::InGpu>(args);
  }
}

template <DataType kType, ReduceOp kOp>
void run_reduction(const KernelId& id, const LaunchArgs& args) {
  if constexpr (reduced_as(kType, kOp) == kType) {
    run_form<ReduceOperation<kType, kOp>>(id, args);
  } else {
    fail_for_want_of(id);
  }
}

/// One thread of a kernel that reduces elements of one type.
template <DataType kType>
void run_type(const KernelId& id, const LaunchArgs& args) {
  switch (id.op) {
    case ReduceOp::Sum:
      return run_reduction<kType, ReduceOp::Sum>(id, args);
    case ReduceOp::Product:
      return run_reduction<kType, ReduceOp::Product>(id, args);
    case ReduceOp::Max:
      return run_reduction<kType, ReduceOp::Max>(id, args);
    case ReduceOp::Min:
      return run_reduction<kType, ReduceOp::Min>(id, args);
  }
}

// Of each type in one of several files, since they take minutes to compile.
#define X(name, bytes, text) \
  extern template void run_type<DataType::name>(const KernelId& id, const LaunchArgs& args);
NICCOLITE_DATA_TYPES(X)
#undef X

/// For those files.
#define NICCOLITE_EMULATE(name) \
  template void run_type<DataType::name>(const KernelId& id, const LaunchArgs& args);

}  // namespace niccolite::emulation
