#include "executor/worker_shapes.h"

namespace niccolite::executor {
namespace {

lowering::WorkerShape shape_of(const Launch& launch, const CompactWorker& worker) {
  const Program& program = *launch.program;
  lowering::WorkerShape shape{
      .instructions = worker.count,
      .is_only_work = program.works.size() == 1,
      .pattern_channels = static_cast<uint32_t>(program.works[worker.work].nchannels)};
  if (worker.count == 0) return shape;
  const CompactInstruction& first = program.instructions[worker.first];
  shape.has_source = first.source != OperandBuffer::None;
  shape.reads_input = first.source == OperandBuffer::Input;
  shape.reduces = (first.flags & kReduce) != 0;
  shape.finishes = (first.flags & kFinish) != 0;
  const auto routes_of = [&](uint32_t at, uint32_t count) {
    std::vector<lowering::Route> routes;
    for (uint32_t i = at; i < at + count; ++i)
      routes.push_back(route_in(launch, program.indices[i]));
    return routes;
  };
  shape.receives = routes_of(first.receive, first.receive_count);
  shape.sends = routes_of(first.send, first.send_count);
  return shape;
}

}  // namespace

std::vector<lowering::WorkerShape> worker_shapes(const Launch& launch) {
  std::vector<lowering::WorkerShape> shapes;
  for (const CompactWorker& worker : launch.program->workers)
    shapes.push_back(shape_of(launch, worker));
  return shapes;
}

}  // namespace niccolite::executor
