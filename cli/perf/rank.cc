#include "cli/perf/rank.h"

#include <algorithm>

namespace niccolite::perf {
namespace {

constexpr size_t kStagingBytes = size_t{4} << 20;
// A slot has room for the operations of a group side by side. A larger group goes round in it.
constexpr size_t kMostGroupBytes = size_t{64} << 20;

}  // namespace

size_t slot_bytes(const Options& options) {
  constexpr size_t kMostElementBytes = 8;
  const size_t more = options.most_start() +
                      options.most_extra() * static_cast<size_t>(std::max(options.nranks(), 1));
  const size_t place = aligned(options.max_bytes + more * kMostElementBytes) + kGuardBytes;
  const auto operations = static_cast<size_t>(options.aggregated);
  return place * std::clamp<size_t>(kMostGroupBytes / place, 1, operations);
}

size_t Rank::bytes(const Options& options) {
  const size_t buffer = static_cast<size_t>(options.communicators) * slot_bytes(options);
  return Buffers::bytes(options, buffer) + std::min(kStagingBytes, buffer);
}

Result<Rank> Rank::create(gpu::Machine& machine, const Options& options,
                          std::span<const Library> libraries, int rank, int device) {
  Rank made;
  made.rank = rank;
  made.device = device;
  made.stream = TRY(machine.create_stream(device));
  made.fork = TRY(machine.create_event(device, false));
  for (int i = 1; i < options.communicators; ++i) {
    made.side_streams.push_back(TRY(machine.create_stream(device)));
    made.joins.push_back(TRY(machine.create_event(device, false)));
  }
  if (options.beside > 0) {
    made.product_stream = TRY(machine.create_stream(device));
    made.product_end = TRY(machine.create_event(device, false));
    made.product = TRY(MatrixProduct::create(machine, device, options.beside,
                                             made.product_stream.handle(), options.cublas));
  }
  const size_t bytes = static_cast<size_t>(options.communicators) * slot_bytes(options);
  made.buffers =
      TRY(Buffers::create(machine, options, libraries, device, made.stream.handle(), bytes));
  made.scalar = TRY(machine.allocate(device, kBufferAlignment, false));
  made.staging = TRY(machine.allocate_host(std::min(kStagingBytes, bytes)));
  for (int i = 0; i <= options.graph_launches && options.graph_launches > 0; ++i)
    made.events.push_back(TRY(machine.create_event(device, true)));
  TRY(machine.synchronize_stream(device, made.stream.handle()));
  return made;
}

Status Rank::set_operation(gpu::Machine& machine, const ElementType& type,
                           const Operation& operation) {
  operations.clear();
  void* value = nullptr;
  if (operation.scalar != Scalar::None) {
    store_bits(type, staging.data(), 0, encode_integer(type, scalar_of(rank)));
    value = staging.data();
  }
  if (operation.scalar == Scalar::Device) {
    TRY(machine.copy_async(scalar.data(), value, type.bytes, device, stream.handle()));
    TRY(machine.synchronize_stream(device, stream.handle()));
    value = scalar.data();
  }
  for (const Communicator& comm : comms)
    operations.push_back(TRY(ReductionOperation::create(comm, type, operation, value)));
  return {};
}

}  // namespace niccolite::perf
