// All kernels of an operation, compiled for the CPU.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>

// Before the kernels: replaces ptx.cuh.
#include "tests/device/emulated_ptx.h"
//
#include "executor/cuda/direct_kernels.cuh"
#include "executor/cuda/kernel.cuh"
#include "executor/cuda/phase_kernel.cuh"
#include "tests/device/emulated_gpu.h"

namespace niccolite::emulation {
using executor::DataType;
using executor::Fold;
using executor::Protocol;
using namespace executor::cuda;  // NOLINT(google-build-using-namespace)

template <typename Operation>
void run_with(Protocol protocol, const LaunchArgs& args) {
  switch (protocol) {
    case Protocol::LL:
      return executor::cuda::run_kernel<Operation, Protocol::LL>(args);
    case Protocol::LL128:
      return executor::cuda::run_kernel<Operation, Protocol::LL128>(args);
    case Protocol::Simple:
      return executor::cuda::run_kernel<Operation, Protocol::Simple>(args);
  }
}

template <typename Operation, bool kSendsEach>
void run_direct_with(uint32_t most_peers, const LaunchArgs& args) {
  if (most_peers == kFewDirectPeers)
    return run_direct<Operation, kFewDirectPeers, kSendsEach>(args);
  return run_direct<Operation, kMostDirectPeers, kSendsEach>(args);
}

template <typename Operation>
void run_list_with(uint32_t most_peers, const LaunchArgs& args) {
  if (most_peers == kFewDirectPeers) return run_list<Operation, kFewDirectPeers>(args);
  return run_list<Operation, kMostDirectPeers>(args);
}

/// `args` begin a ListArgs.
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

template <typename Operation>
void run_form(const KernelId& id, const LaunchArgs& args) {
  switch (id.form) {
    case Form::Program:
      return run_with<Operation>(id.protocol, args);
    case Form::Direct:
      return run_direct_with<Operation, /*kSendsEach=*/false>(id.most_peers, args);
    case Form::DirectEach:
      return run_direct_with<Operation, /*kSendsEach=*/true>(id.most_peers, args);
    case Form::List:
      return run_list_with<Operation>(id.most_peers, args);
    case Form::DirectList:
      return run_direct_list_with<Operation>(id.most_peers, args);
    case Form::Phases:
      return run_phases<Operation>(id.most_peers, args);
    case Form::Messages:
      break;
  }
  if constexpr (!Operation::kReduces) run_messages(args);
}

[[noreturn]] inline void fail_for_want_of(const KernelId& id) {
  fprintf(stderr, "no kernel folds type %d by fold %d\n", static_cast<int>(id.type),
          static_cast<int>(id.fold));
  std::abort();
}

template <DataType kType, Fold kFold>
void run_fold(const KernelId& id, const LaunchArgs& args) {
  if constexpr (folded_as(kType, kFold) == kType) {
    run_form<ReduceOperation<kType, kFold>>(id, args);
  } else {
    fail_for_want_of(id);
  }
}

/// One thread of a kernel that reduces elements of one type.
template <DataType kType>
void run_type(const KernelId& id, const LaunchArgs& args) {
  switch (id.fold) {
    case Fold::Sum:
      return run_fold<kType, Fold::Sum>(id, args);
    case Fold::Product:
      return run_fold<kType, Fold::Product>(id, args);
    case Fold::Max:
      return run_fold<kType, Fold::Max>(id, args);
    case Fold::Min:
      return run_fold<kType, Fold::Min>(id, args);
  }
}

/// The same of the types that are floating, or of those that are not.
template <bool kFloating>
void run_types(const KernelId& id, const LaunchArgs& args) {
  switch (id.type) {
#define X(name, bytes, text)                                          \
  case DataType::name:                                                \
    if constexpr (executor::is_floating(DataType::name) == kFloating) \
      return run_type<DataType::name>(id, args);                      \
    break;
    NICCOLITE_DATA_TYPES(X)
#undef X
  }
  fail_for_want_of(id);
}

// In files of their own, since they take minutes to compile.
extern template void run_types<true>(const KernelId& id, const LaunchArgs& args);
extern template void run_types<false>(const KernelId& id, const LaunchArgs& args);

}  // namespace niccolite::emulation
