#include "algorithms/instructions.h"

#include <algorithm>

#include "algorithms/options.h"

namespace niccolite::algorithms {

using namespace schedule;  // the vocabulary of schedules: WorkerBuilder, input, output, ...

Instruction reduction_of(WorkerBuilder& worker, int rank, std::vector<Contribution> others,
                         int block) {
  std::ranges::sort(others, {}, &Contribution::from);
  Instruction reduction{.source = input(block)};
  for (const Contribution& other : others) {
    reduction.receive_from.push_back(worker.from(other.from, other.tag).front());
    reduction.source_position += other.from < rank;
  }
  reduction.reduce = !others.empty();
  return reduction;
}

Instruction reduction_of(WorkerBuilder& worker, int rank, const std::vector<int>& others, int tag,
                         int block) {
  std::vector<Contribution> contributions;
  for (const int other : others) contributions.push_back({other, tag});
  return reduction_of(worker, rank, std::move(contributions), block);
}

Instruction reduction_of_all(WorkerBuilder& worker, int rank, int nranks, int tag, int block) {
  Instruction reduction =
      reduction_of(worker, rank, peers_by_distance(rank, nranks, 1), tag, block);
  reduction.finish = true;
  return reduction;
}

Instruction passed_down(WorkerBuilder& worker, const TreeEdges& edges, BlockReference source,
                        BlockReference target) {
  Instruction instruction{.target = target};
  if (edges.above < 0)
    instruction.source = source;
  else
    instruction.receive_from = worker.from(edges.above, edges.tag);
  instruction.send_to = worker.to(edges.below, edges.tag);
  return instruction;
}

Instruction reduced_up(WorkerBuilder& worker, int rank, const TreeEdges& edges, int block,
                       BlockReference target) {
  Instruction reduction = reduction_of(worker, rank, edges.below, edges.tag, block);
  if (edges.above < 0) {
    reduction.target = target;
    reduction.finish = true;
  } else {
    reduction.send_to = worker.to(edges.above, edges.tag);
  }
  return reduction;
}

Instruction passed_on(WorkerBuilder& worker, const Passage& passage) {
  const bool is_owner = passage.from < 0, is_receiver = passage.to < 0;
  Instruction instruction;
  if (is_owner)
    instruction.source = passage.source;
  else
    instruction.receive_from = worker.from(passage.from);
  if (is_receiver)
    instruction.target = passage.target;
  else
    instruction.send_to = worker.to(passage.to);
  if (!is_owner && !is_receiver) instruction.chunk_of = passage.chunk_of;
  return instruction;
}

}  // namespace niccolite::algorithms
