// All kernels, compiled for the CPU.
#include <cmath>

// Before the kernels: replaces ptx.cuh.
#include "tests/device/emulated_ptx.h"
//
#include "executor/cuda/kernel.cuh"
#include "executor/cuda/one_shot.cuh"
#include "tests/device/emulated_gpu.h"

namespace niccolite::emulation {
namespace {

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

template <typename Operation>
void run_reduction(const KernelId& id, const LaunchArgs& args) {
  if (id.one_shot_peers == kFewOneShotPeers) {
    OneShot<Operation, kFewOneShotPeers>(args).run();
  } else if (id.one_shot_peers == kMostOneShotPeers) {
    OneShot<Operation, kMostOneShotPeers>(args).run();
  } else {
    run_with<Operation>(id.protocol, args);
  }
}

template <DataType kType>
void run_type(const KernelId& id, const LaunchArgs& args) {
  switch (id.fold) {
    case Fold::Sum:
      return run_reduction<ReduceOperation<kType, Fold::Sum>>(id, args);
    case Fold::Product:
      return run_reduction<ReduceOperation<kType, Fold::Product>>(id, args);
    case Fold::Max:
      return run_reduction<ReduceOperation<kType, Fold::Max>>(id, args);
    case Fold::Min:
      return run_reduction<ReduceOperation<kType, Fold::Min>>(id, args);
  }
}

}  // namespace

void run_thread(const KernelId& id, const LaunchArgs& args) {
  if (!id.reduces) return run_with<CopyOperation>(id.protocol, args);
  switch (id.type) {
#define X(name, bytes, text) \
  case DataType::name:       \
    return run_type<DataType::name>(id, args);
    NICCOLITE_DATA_TYPES(X)
#undef X
  }
}

}  // namespace niccolite::emulation
