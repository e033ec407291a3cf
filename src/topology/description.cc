#include "topology/description.h"

#include <algorithm>
#include <set>

namespace niccolite::topology {
namespace {

// The text that is known, where at most one of them is, or they are equal.
void complete(std::string& known, const std::string& other) {
  if (known.empty()) known = other;
}
void complete(int& known, int other, int unknown) {
  if (known == unknown) known = other;
}

void merge_nets(std::vector<Net>& into, const std::vector<Net>& other) {
  for (const Net& net : other) {
    const auto is_same = [&](const Net& known) {
      return known.name == net.name && known.port == net.port;
    };
    if (std::ranges::none_of(into, is_same)) into.push_back(net);
  }
  std::ranges::sort(into, {}, [](const Net& net) { return std::pair(net.device, net.name); });
}

void complete_gpu(std::optional<Gpu>& into, const std::optional<Gpu>& other) {
  if (!other) return;
  if (!into) {
    into = other;
    return;
  }
  complete(into->rank, other->rank, -1);
  complete(into->device, other->device, -1);
  complete(into->compute_capability, other->compute_capability, 0);
  into->is_direct |= other->is_direct;
  if (into->nvlinks.empty()) into->nvlinks = other->nvlinks;
  if (!into->c2c) into->c2c = other->c2c;
}

void complete_attributes(Pci& into, const Pci& other) {
  complete(into.device_class, other.device_class);
  complete(into.vendor, other.vendor);
  complete(into.device, other.device);
  complete(into.subsystem_vendor, other.subsystem_vendor);
  complete(into.subsystem_device, other.subsystem_device);
  complete(into.link_speed, other.link_speed);
  complete(into.link_width, other.link_width, 0);
}

void complete_attributes(Cpu& into, const Cpu& other) {
  complete(into.affinity, other.affinity);
  complete(into.arch, other.arch);
  complete(into.vendor, other.vendor);
  complete(into.family, other.family, -1);
  complete(into.model, other.model, -1);
}

Status merge_gpu(const std::string& bus_id, std::optional<Gpu>& into,
                 const std::optional<Gpu>& other) {
  if (!other || !into) {
    complete_gpu(into, other);
    return {};
  }
  if (into->rank >= 0 && other->rank >= 0 && into->rank != other->rank) {
    // Several ranks of one GPU: it is drawn and found as the first one's.
    into->rank = std::min(into->rank, other->rank);
  }
  if (into->compute_capability != 0 && other->compute_capability != 0 &&
      into->compute_capability != other->compute_capability)
    return Status::invalid_usage(
        "the GPU at {} is described with compute capability {} and {}: is NCCL_TOPO_FILE that of "
        "this machine?",
        bus_id, into->compute_capability, other->compute_capability);
  complete_gpu(into, other);
  return {};
}

Status merge_devices(std::vector<Pci>& into, const std::vector<Pci>& other) {
  for (const Pci& pci : other) {
    const auto at = std::ranges::lower_bound(into, pci.bus_id, {}, &Pci::bus_id);
    if (at == into.end() || at->bus_id != pci.bus_id) {
      into.insert(at, pci);
      continue;
    }
    complete_attributes(*at, pci);
    TRY(merge_gpu(pci.bus_id, at->gpu, pci.gpu));
    merge_nets(at->nets, pci.nets);
    TRY(merge_devices(at->below, pci.below));
  }
  return {};
}

// Completes one description by another. A device may have different places in the two.
class Completion {
 public:
  explicit Completion(Description& description) : description_(description) {}

  void add(const Cpu& found) {
    if (Cpu* const known = find(found)) complete_attributes(*known, found);
    if (const std::vector<Net> nets = lacking(found.nets); !nets.empty())
      merge_nets(cpu_like(found).nets, nets);
    for (const Pci& pci : found.below) add(pci, found, "");
  }

 private:
  Cpu* find(const Cpu& found) {
    for (Cpu& cpu : description_.cpus)
      if (cpu.host == found.host && cpu.numa == found.numa) return &cpu;
    return nullptr;
  }
  Cpu& cpu_like(const Cpu& found) {
    if (Cpu* const known = find(found)) return *known;
    Cpu cpu = found;
    cpu.below.clear();
    cpu.nets.clear();
    return description_.cpus.emplace_back(std::move(cpu));
  }

  // Looks anew for each device, because an added device moves its neighbours in memory.
  Pci* find(const std::string& bus_id) {
    Pci* result = nullptr;
    auto look = [&](Pci& pci) {
      if (pci.bus_id == bus_id) result = &pci;
    };
    for (Cpu& cpu : description_.cpus) visit_pci(cpu.below, look);
    return result;
  }

  template <typename Visit>
  void for_each_net(Visit visit) {
    auto visit_nets_of = [&](auto& owner) {
      for (const Net& net : owner.nets) visit(net);
    };
    for (Cpu& cpu : description_.cpus) {
      visit_nets_of(cpu);
      visit_pci(cpu.below, visit_nets_of);
    }
  }

  // Returns the devices that the description lacks, with numbers that no other device has. Networks
  // know devices by name, so the name decides.
  std::vector<Net> lacking(const std::vector<Net>& nets) {
    std::vector<Net> result;
    for (Net net : nets) {
      bool is_known = false;
      std::set<int> numbers;
      for_each_net([&](const Net& known) {
        is_known |= known.name == net.name;
        numbers.insert(known.device);
      });
      if (is_known) continue;
      for (const Net& other : result) numbers.insert(other.device);
      if (numbers.contains(net.device)) net.device = *numbers.rbegin() + 1;
      result.push_back(std::move(net));
    }
    return result;
  }

  // `above`: the bus id of the device above it, which the description has; empty: the NUMA node.
  void add(const Pci& found, const Cpu& cpu, const std::string& above) {
    Pci* known = find(found.bus_id);
    if (known == nullptr) {
      Pci* const parent = above.empty() ? nullptr : find(above);
      std::vector<Pci>& level = parent == nullptr ? cpu_like(cpu).below : parent->below;
      Pci bare = found;
      bare.gpu.reset();
      bare.nets.clear();
      bare.below.clear();
      const auto place = std::ranges::lower_bound(level, found.bus_id, {}, &Pci::bus_id);
      known = &*level.insert(place, std::move(bare));
    }
    complete_attributes(*known, found);
    complete_gpu(known->gpu, found.gpu);
    merge_nets(known->nets, lacking(found.nets));
    for (const Pci& pci : found.below) add(pci, cpu, found.bus_id);
  }

  Description& description_;
};

bool is_needed(const Pci& pci) {
  return (pci.gpu && pci.gpu->rank >= 0) || !pci.nets.empty() ||
         std::ranges::any_of(pci.below, is_needed);
}

void trim_devices(std::vector<Pci>& devices) {
  std::erase_if(devices, [](const Pci& pci) { return !is_needed(pci); });
  for (Pci& pci : devices) trim_devices(pci.below);
}

}  // namespace

Status merge(Description& whole, const Description& other) {
  for (const Cpu& cpu : other.cpus) {
    const auto same = std::ranges::find_if(whole.cpus, [&](const Cpu& known) {
      return known.host == cpu.host && known.numa == cpu.numa;
    });
    if (same != whole.cpus.end()) {
      complete_attributes(*same, cpu);
      TRY(merge_devices(same->below, cpu.below));
      merge_nets(same->nets, cpu.nets);
      continue;
    }
    // The node comes after nodes of its host with smaller numbers; a new host comes last.
    auto at = whole.cpus.end();
    for (auto known = whole.cpus.begin(); known != whole.cpus.end(); ++known)
      if (known->host == cpu.host) {
        at = known;
        while (at != whole.cpus.end() && at->host == cpu.host && at->numa < cpu.numa) ++at;
        break;
      }
    whole.cpus.insert(at, cpu);
  }
  return {};
}

void complete(Description& description, const Description& found) {
  Completion completion(description);
  for (const Cpu& cpu : found.cpus) completion.add(cpu);
  std::ranges::stable_sort(description.cpus, {}, &Cpu::numa);
}

void trim(Description& description) {
  for (Cpu& cpu : description.cpus) trim_devices(cpu.below);
}

}  // namespace niccolite::topology
