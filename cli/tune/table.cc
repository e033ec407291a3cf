#include "cli/tune/table.h"

#include <cctype>
#include <utility>

namespace niccolite::tune {
namespace {

/// "all_reduce" as the enumerator is spelled: "AllReduce".
std::string enumerator(const char* name) {
  std::string result;
  bool starts = true;
  for (; *name != '\0'; ++name) {
    if (*name == '_') {
      starts = true;
      continue;
    }
    const auto letter = static_cast<unsigned char>(*name);
    result += static_cast<char>(starts ? std::toupper(letter) : letter);
    starts = false;
  }
  return result;
}

/// What a table is of, and the function that returns it.
std::pair<const char*, const char*> names_of(planner::MachineClass machine) {
  switch (machine) {
    case planner::MachineClass::Cuda:
      return {"CUDA GPUs", "cuda_costs"};
    case planner::MachineClass::CudaSlotsOfTwo:
      return {"two CUDA GPUs through slots", "cuda_slot_costs_of_two"};
    case planner::MachineClass::CudaSlots:
      return {"CUDA GPUs through slots", "cuda_slot_costs"};
    case planner::MachineClass::CudaHostMemory:
      return {"CUDA GPUs joined by host memory", "cuda_host_memory_costs"};
    case planner::MachineClass::CudaSockets:
      return {"CUDA GPUs joined by sockets", "cuda_socket_costs"};
    case planner::MachineClass::Sockets:
      return {"machines joined by sockets", "socket_costs"};
    case planner::MachineClass::Virtual:
      break;
  }
  return {"virtual GPUs", "virtual_costs"};
}

}  // namespace

std::string source_lines(std::span<const planner::CostLine> lines) {
  std::string text;
  for (const planner::CostLine& line : lines) {
    const planner::Cost& c = line.cost;
    text += fmt::format(
        "    {{{}, \"{}\", {}, {{{:.4g}, {:.3g}, {:.3g}, {:.4g}, {:.4g}, {:.4g}, "
        "{:.3g}, {:.3g}, {:.3g}, {:.3g}}}}},\n",
        enumerator(name_of(line.algorithm->collective)), line.algorithm->name,
        executor::name_of(line.protocol), c.fixed, c.step, c.channel, c.link_two_ranks,
        c.link_more_ranks, c.channel_gigabytes, c.round, c.fill, c.overlap, c.crowd);
  }
  return text;
}

std::string source_file(const Measurements& measurements,
                        std::span<const planner::CostLine> lines) {
  const auto [of, function] = names_of(measurements.machine_class());
  return fmt::format(
      R"(// Costs on {}, made by `niccolite tune` (docs/tune.md): {}, {}.
//
// Columns: fixed, step, channel (us); link of two ranks, link of more, channel (GB/s); round (us);
// fill; overlap; crowd. cost.h says what they mean.
#include "planner/cost.h"

namespace niccolite::planner {{
namespace {{

using enum Collective;
using enum executor::Protocol;

// clang-format off
constexpr NamedCost kCosts[] = {{
{}}};
// clang-format on

}}  // namespace

std::span<const NamedCost> {}() {{ return kCosts; }}

}}  // namespace niccolite::planner
)",
      of, measurements.devices, measurements.date.substr(0, 10), source_lines(lines), function);
}

}  // namespace niccolite::tune
