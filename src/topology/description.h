// Description: the parts of a machine as a tree: NUMA nodes, PCI devices below them, GPUs and
// network devices at the leaves. NCCL's topology files (xml.h), detect() and the messages between
// ranks have this form; graph.h makes paths of it.
//
//   Description ─ Cpu (a NUMA node) ─┬─ Pci (a switch) ─┬─ Pci ─ Gpu
//                                    │                  └─ Pci ─ Net ...
//                                    └─ Net (without a PCI device)
//
// A description of several machines holds the NUMA nodes of all, told apart by their host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace niccolite::topology {

struct NvLink {
  std::string target{};        // bus id of the other end
  int count = 0;               // links to it
  std::string target_class{};  // PCI class of the other end: "0x068000" of a switch
};
struct C2c {          // chip to chip, to the CPU
  int megabytes = 0;  // per second and link
  int count = 0;
};

struct Gpu {
  int device = -1;                // number in its process, or NVML's
  int compute_capability = 0;     // 90 for 9.0
  int rank = -1;                  // -1: of no rank
  bool is_direct = false;         // network devices can reach its memory
  std::vector<NvLink> nvlinks{};  // ascending by target
  std::optional<C2c> c2c{};
};

struct Net {  // a port
  std::string name{};
  int device = 0;  // number in its host
  int speed = 0;   // Mbit/s
  int port = 0;
  uint64_t guid = 0;
  double latency = 0;  // us
  int most_connections = 0;
  bool is_direct = false;  // can reach memory of GPUs
};

struct Pci {
  std::string bus_id{};  // "0000:1b:00.0"
  std::string device_class{};
  std::string vendor{}, device{}, subsystem_vendor{}, subsystem_device{};
  std::string link_speed{};  // of a lane of the link upwards: "16.0 GT/s PCIe"
  int link_width = 0;        // lanes
  std::optional<Gpu> gpu{};
  std::vector<Net> nets{};
  std::vector<Pci> below{};  // ascending by bus id
};

struct Cpu {
  int numa = 0;
  std::string host{};      // of several machines: equal within one
  std::string affinity{};  // cores, in hexadecimal words: "ffff0000,0000ffff"
  std::string arch{};      // "x86_64", "arm64"
  std::string vendor{};    // "GenuineIntel", "AuthenticAMD"
  int family = -1;
  int model = -1;
  std::vector<Pci> below{};  // ascending by bus id
  std::vector<Net> nets{};   // that have no PCI device
};

struct Description {
  std::vector<Cpu> cpus{};  // by host in the order of their first rank, then by number
};

/// Calls `visit(cpu, pci, gpu)` for all GPUs, in the order of the tree.
template <typename Tree, typename Visit>
void for_each_gpu(Tree& description, Visit visit);

/// Merges `other` into `whole`, and completes devices that are there already. The order in which
/// ranks are merged changes only the order of hosts. InvalidUsage when two descriptions of one
/// device contradict each other.
Status merge(Description& whole, const Description& other);

/// Adds the parts of `found` that one of the hosts of `description` lacks. A device goes below the
/// nearest of its ancestors that the description has, or else below its NUMA node. GPUs and network
/// devices go to their PCI devices, and get missing attributes. Existing parts stay unchanged and
/// in their place.
void complete(Description& description, const Description& found);

/// Removes PCI devices that have no rank's GPU and no network device below them.
void trim(Description& description);

template <typename Below, typename Visit>
void visit_pci(Below& devices, Visit& visit) {
  for (auto& pci : devices) {
    visit(pci);
    visit_pci(pci.below, visit);
  }
}
template <typename Tree, typename Visit>
void for_each_gpu(Tree& description, Visit visit) {
  for (auto& cpu : description.cpus) {
    auto each = [&](auto& pci) {
      if (pci.gpu) visit(cpu, pci, *pci.gpu);
    };
    visit_pci(cpu.below, each);
  }
}

}  // namespace niccolite::topology
