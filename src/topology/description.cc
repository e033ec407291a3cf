#include "topology/description.h"

#include <algorithm>

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

Status merge_gpu(const std::string& bus_id, std::optional<Gpu>& into,
                 const std::optional<Gpu>& other) {
  if (!other) return {};
  if (!into) {
    into = other;
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
  complete(into->rank, other->rank, -1);
  complete(into->device, other->device, -1);
  complete(into->compute_capability, other->compute_capability, 0);
  into->is_direct |= other->is_direct;
  if (into->nvlinks.empty()) into->nvlinks = other->nvlinks;
  if (!into->c2c) into->c2c = other->c2c;
  return {};
}

Status merge_devices(std::vector<Pci>& into, const std::vector<Pci>& other) {
  for (const Pci& pci : other) {
    const auto at = std::ranges::lower_bound(into, pci.bus_id, {}, &Pci::bus_id);
    if (at == into.end() || at->bus_id != pci.bus_id) {
      into.insert(at, pci);
      continue;
    }
    complete(at->device_class, pci.device_class);
    complete(at->vendor, pci.vendor);
    complete(at->device, pci.device);
    complete(at->subsystem_vendor, pci.subsystem_vendor);
    complete(at->subsystem_device, pci.subsystem_device);
    complete(at->link_speed, pci.link_speed);
    complete(at->link_width, pci.link_width, 0);
    TRY(merge_gpu(pci.bus_id, at->gpu, pci.gpu));
    merge_nets(at->nets, pci.nets);
    TRY(merge_devices(at->below, pci.below));
  }
  return {};
}

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
      complete(same->affinity, cpu.affinity);
      complete(same->arch, cpu.arch);
      complete(same->vendor, cpu.vendor);
      complete(same->family, cpu.family, -1);
      complete(same->model, cpu.model, -1);
      TRY(merge_devices(same->below, cpu.below));
      merge_nets(same->nets, cpu.nets);
      continue;
    }
    // Behind those of its host with smaller numbers; a new host's last.
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

void trim(Description& description) {
  for (Cpu& cpu : description.cpus) trim_devices(cpu.below);
}

}  // namespace niccolite::topology
