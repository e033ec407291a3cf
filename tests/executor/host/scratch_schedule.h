// A schedule that needs scratch memory: a chain of ranks, each of which keeps in scratch blocks
// what comes, and copies it to its output and sends it on from there.
#pragma once

#include "schedule/builder.h"

namespace niccolite::executor::host {

/// A broadcast from rank 0 of two blocks, whose places in scratch are exchanged.
inline schedule::Schedule by_way_of_scratch(int nranks) {
  using schedule::scratch;
  constexpr int kBlocks = 2;
  schedule::Builder builder({.collective = schedule::Collective::Broadcast,
                             .algorithm = "by_way_of_scratch",
                             .nranks = nranks,
                             .nblocks = kBlocks,
                             .scratch_blocks = kBlocks});
  for (int rank = 0; rank < nranks; ++rank) {
    schedule::WorkerBuilder worker = builder.add_worker(rank);
    for (int block = 0; block < kBlocks; ++block) {
      schedule::Instruction keep{.target = scratch(kBlocks - 1 - block), .chunk_of = block};
      if (rank == 0) {
        keep.source = schedule::input(block);
      } else {
        keep.receive_from = worker.from(rank - 1);
      }
      worker.add(std::move(keep));
    }
    for (int block = 0; block < kBlocks; ++block) {
      schedule::Instruction pass{.source = scratch(kBlocks - 1 - block),
                                 .target = schedule::output(block),
                                 .chunk_of = block};
      if (rank + 1 < nranks) pass.send_to = worker.to(rank + 1);
      worker.add(std::move(pass));
    }
  }
  return std::move(builder).take();
}

/// The same by one scratch block, which each block leaves before the next one comes.
inline schedule::Schedule by_way_of_one_scratch_block(int nranks) {
  using schedule::scratch;
  constexpr int kBlocks = 3;
  schedule::Builder builder({.collective = schedule::Collective::Broadcast,
                             .algorithm = "by_way_of_one_scratch_block",
                             .nranks = nranks,
                             .nblocks = kBlocks,
                             .scratch_blocks = 1});
  for (int rank = 0; rank < nranks; ++rank) {
    schedule::WorkerBuilder worker = builder.add_worker(rank);
    for (int block = 0; block < kBlocks; ++block) {
      schedule::Instruction keep{.target = scratch(0), .chunk_of = block};
      if (rank == 0) {
        keep.source = schedule::input(block);
      } else {
        keep.receive_from = worker.from(rank - 1);
      }
      worker.add(std::move(keep));
      worker.add({.source = scratch(0), .target = schedule::output(block), .chunk_of = block});
      if (rank + 1 < nranks)
        worker.add({.source = scratch(0), .send_to = worker.to(rank + 1), .chunk_of = block});
    }
  }
  return std::move(builder).take();
}

}  // namespace niccolite::executor::host
