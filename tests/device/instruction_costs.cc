#include "tests/device/instruction_costs.h"

#include <fmt/core.h>

#include <algorithm>

#include "tests/device/timing.h"

namespace niccolite::device_test {
namespace {

using executor::Protocol;
using executor::cuda::PreparedLaunch;

/// What one instruction costs: the slope of the time over programs of more and more instructions,
/// copies of 8 bytes within a GPU, and hops to the other GPU and back.
class Steps {
 public:
  explicit Steps(gpu::Machine& machine) : machine_(machine) {}

  Result<nlohmann::json> run() {
    nlohmann::json rows = nlohmann::json::array();
    for (const Protocol protocol : {Protocol::LL, Protocol::LL128, Protocol::Simple}) {
      for (const bool hops : {false, true}) {
        if (hops && machine_.device_count() < 2) continue;
        const double few = TRY(time(protocol, hops, kFew));
        const double many = TRY(time(protocol, hops, kMany));
        const double slope = (many - few) / (kMany - kFew);
        const char* what = hops ? "hop to the other GPU" : "local copy";
        fmt::print(
            "one instruction, {:<6} {:<22} {:>7.3f} us ({} of them {:.2f} us, {} {:.2f} us)\n",
            executor::name_of(protocol), what, slope, kFew, few, kMany, many);
        rows.push_back({{"protocol", executor::name_of(protocol)},
                        {"instruction", what},
                        {"microseconds", slope},
                        {"launch_microseconds", few - slope * kFew}});
      }
    }
    return rows;
  }

 private:
  static constexpr int kFew = 4;
  static constexpr int kMany = 36;

  // The part of `rank` of `count` instructions: copies, or hops 0 -> 1 -> 0 -> ... in which each
  // rank makes every other one.
  static executor::Program program(int rank, bool hops, int count) {
    executor::Program program;
    program.rank = rank;
    program.nranks = 2;
    program.works = {{.nblocks = 1, .input_blocks = 1, .output_blocks = 1}};
    program.nchannels = 1;
    const auto add = [&](uint8_t receives, uint8_t sends, executor::OperandBuffer source,
                         executor::OperandBuffer target) {
      executor::CompactInstruction instruction{};
      instruction.send = 0;
      instruction.receive = 1;
      instruction.send_count = sends;
      instruction.receive_count = receives;
      instruction.source = source;
      instruction.target = target;
      program.instructions.push_back(instruction);
      if (sends > 0) ++program.ports[0].steps;
      if (receives > 0) ++program.ports[1].steps;
    };
    if (hops) {
      program.indices = {0, 1};
      program.ports = {{1 - rank, 0, 0, /*is_send=*/true, 0, 0},
                       {1 - rank, 0, 0, /*is_send=*/false, 0, 0}};
      for (int hop = rank; hop <= count; hop += 2) {
        const bool first = hop == 0;
        const bool last = hop == count;
        add(first ? 0 : 1, last ? 0 : 1,
            first ? executor::OperandBuffer::Input : executor::OperandBuffer::None,
            last ? executor::OperandBuffer::Output : executor::OperandBuffer::None);
      }
    } else {
      for (int i = 0; i < count; ++i)
        add(0, 0, executor::OperandBuffer::Input, executor::OperandBuffer::Output);
    }
    program.workers = {{0, static_cast<uint16_t>(program.instructions.size()), 0, 1, 0}};
    lowering::WorkerShape& shape = program.worker_shapes.emplace_back();
    shape.instructions = static_cast<uint32_t>(program.instructions.size());
    shape.has_source = shape.reads_input =
        program.instructions[0].source == executor::OperandBuffer::Input;
    for (int port = 0; port < static_cast<int>(program.ports.size()); ++port)
      (port == 0 ? shape.sends : shape.receives).push_back(port);
    return program;
  }

  Result<double> time(Protocol protocol, bool hops, int count) {
    Operation operation{.nranks = 2, .protocol = protocol, .count = 2};
    operation.depth = 64;
    Programs programs;
    for (int rank = 0; rank < 2; ++rank) {
      programs.push_back(std::make_shared<const executor::Program>(program(rank, hops, count)));
    }
    const int ngpus = std::min(machine_.device_count(), 2);
    GpuRanks ranks = TRY(GpuRanks::create(machine_, ngpus, operation, std::move(programs), 64));
    std::vector<PreparedLaunch> launches;
    for (int r = 0; r < 2; ++r) {
      launches.push_back(TRY(ranks.prepare(r, operation, ranks.input(r), ranks.output(r))));
    }
    const Timing timing = TRY(Bench(machine_, ranks, launches).graph(10));
    return timing.microseconds;
  }

  gpu::Machine& machine_;
};

}  // namespace

Result<nlohmann::json> time_instructions(gpu::Machine& machine) { return Steps(machine).run(); }

}  // namespace niccolite::device_test
