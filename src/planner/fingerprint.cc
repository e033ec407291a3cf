#include "planner/fingerprint.h"

#include <bit>
#include <string_view>

#include "algorithms/lanes.h"
#include "executor/program.h"
#include "planner/model.h"

namespace niccolite::planner {
namespace {

/// FNV-1a over 64-bit words.
class Hash {
 public:
  void add(uint64_t value) { value_ = (value_ ^ value) * 0x100000001b3u; }
  void add(int value) { add(static_cast<uint64_t>(value)); }
  void add(double value) { add(std::bit_cast<uint64_t>(value)); }
  void add(std::string_view text) {
    add(uint64_t{text.size()});
    for (const char c : text) add(uint64_t{static_cast<unsigned char>(c)});
  }
  template <typename Enum>
  requires std::is_enum_v<Enum>
  void add(Enum value) { add(static_cast<uint64_t>(value)); }
  uint64_t value() const { return value_ ^ value_ >> 32; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

constexpr MachineClass kClasses[] = {MachineClass::Virtual,        MachineClass::Cuda,
                                     MachineClass::CudaSlotsOfTwo, MachineClass::CudaSlots,
                                     MachineClass::CudaHostMemory, MachineClass::CudaSockets,
                                     MachineClass::Sockets};

void add(Hash& hash, const CostLine& line) {
  hash.add(line.algorithm->collective);
  hash.add(std::string_view(line.algorithm->name));
  hash.add(line.protocol);
  const Cost& c = line.cost;
  for (const double constant : {c.fixed, c.step, c.channel, c.link_two_ranks, c.link_more_ranks,
                                c.channel_gigabytes, c.round, c.fill, c.overlap, c.crowd})
    hash.add(constant);
}

/// The same constants may come to other times where a compiler contracts operations.
void add_times(Hash& hash, gpu::Kind machine, const CostLine& line) {
  const Variant variant{.algorithm = line.algorithm, .protocol = line.protocol, .channels = 7};
  for (const size_t bytes : {size_t{1000}, size_t{1} << 20, size_t{77} << 20})
    hash.add(predict(machine, line.cost, {line.algorithm->collective, 5, bytes}, variant, 48'000));
}

uint64_t hash_constants() {
  Hash hash;
  for (const MachineClass machine : kClasses) {
    const gpu::Kind kind = machine == MachineClass::Virtual || machine == MachineClass::Sockets
                               ? gpu::Kind::Virtual
                               : gpu::Kind::Cuda;
    for (const CostLine& line : costs_of(machine)) {
      hash.add(machine);
      add(hash, line);
      add_times(hash, kind, line);
    }
  }
  return hash.value();
}

/// Of default settings: the shapes of connections.
void add_shapes(Hash& hash, gpu::Kind machine, int nranks, bool reaches_users, bool by_network) {
  Settings settings;
  settings.spans_machines = by_network;
  settings.machine = machine;
  settings.nranks = nranks;
  settings.max_channels = 64;
  set_reach(settings, reaches_users);
  for (const Shapes& shapes : {settings.shapes, settings.message_shapes}) {
    for (const executor::FifoShape& shape : shapes) {
      hash.add(uint64_t{shape.channels});
      hash.add(uint64_t{shape.depth});
      hash.add(uint64_t{shape.slot_bytes});
    }
  }
}

uint64_t hash_limits() {
  Hash hash;
  for (const int limit : {executor::kMaxWorks, executor::kMaxLanes, algorithms::kMaxDirectRanks,
                          algorithms::kMaxForwardingRanks, algorithms::kMaxRingRanks,
                          algorithms::kMaxLanesRanks, schedule::kCollectives, executor::kProtocols})
    hash.add(limit);
  hash.add(uint64_t{sizeof(executor::ControlBlock)});
  hash.add(uint64_t{executor::kMostRequests});
  hash.add(uint64_t{executor::kMostListWorks});
  for (const algorithms::Algorithm& algorithm : algorithms::all()) {
    hash.add(std::string_view(algorithm.name));
    hash.add(algorithm.collective);
    hash.add(algorithm.min_ranks);
    hash.add(algorithm.max_ranks);
    hash.add(algorithm.family());
    hash.add(algorithm.traits.suits);
    hash.add(int{algorithm.traits.connects_all});
    hash.add(int{algorithm.traits.is_one_step});
  }
  for (const gpu::Kind machine : {gpu::Kind::Cuda, gpu::Kind::Virtual}) {
    hash.add(most_direct_ranks(machine));
    for (const int nranks : {2, 4, 1000})
      for (const bool reaches_users : {false, true})
        for (const bool by_network : {false, true})
          add_shapes(hash, machine, nranks, reaches_users, by_network);
  }
  return hash.value();
}

}  // namespace

const Fingerprint& fingerprint() {
  static const Fingerprint known{
      .build = source_id(), .constants = hash_constants(), .limits = hash_limits()};
  return known;
}

}  // namespace niccolite::planner
