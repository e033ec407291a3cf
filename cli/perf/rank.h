// Rank: one GPU's part of a run: its stream, buffers, communicators and reduction operations.
// Thread safety: a rank belongs to the thread that drives it.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "cli/perf/buffers.h"
#include "cli/perf/device.h"
#include "cli/perf/library.h"
#include "cli/perf/matrix_product.h"
#include "cli/perf/options.h"
#include "gpu/machine.h"

namespace niccolite::perf {

constexpr size_t kBufferAlignment = 256;  // of the operations of one timed run
constexpr size_t kGuardBytes = 256;       // behind each result; nobody may write there

/// `bytes` or the next multiple of kBufferAlignment.
constexpr size_t aligned(size_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

/// Returns the part of a buffer that one communicator uses: room for the operations of a group.
size_t slot_bytes(const Options& options);

struct Rank {
  /// Returns the size of the memory that create() takes.
  static size_t bytes(const Options& options);
  /// The rank's communicators belong to `libraries`, which outlive the rank.
  static Result<Rank> create(gpu::Machine& machine, const Options& options,
                             std::span<const Library> libraries, int rank, int device);

  /// Makes `operation` for `type` on every communicator; with the rank's scalar if it has one.
  Status set_operation(gpu::Machine& machine, const ElementType& type, const Operation& operation);

  /// Returns the stream of the communicator that has this number in its library.
  gpu::StreamHandle stream_of(size_t communicator) const {
    return communicator == 0 ? stream.handle() : side_streams[communicator - 1].handle();
  }

  int rank = 0;
  int device = 0;
  gpu::Stream stream;
  std::vector<gpu::Stream> side_streams;  // of the communicators behind the first
  gpu::Event fork;                        // of `stream`: side streams begin
  std::vector<gpu::Event> joins;          // of side streams
  gpu::Stream product_stream;             // of `product`
  gpu::Event product_end;
  std::unique_ptr<MatrixProduct> product;  // --beside
  Buffers buffers;
  gpu::Memory scalar;                          // of an operation that reads it from the device
  gpu::Memory staging;                         // page-locked; results on their way to verification
  std::vector<gpu::Event> events;              // between graph replays
  std::vector<std::vector<void*>> registered;  // by communicator: handles of buffers
  // Options::communicators of each library, side by side; they end while the streams still exist.
  std::deque<Communicator> comms;
  std::deque<DeviceComm> device_comms;         // of --device, one per communicator
  std::vector<ReductionOperation> operations;  // one per communicator; end before them
};

}  // namespace niccolite::perf
