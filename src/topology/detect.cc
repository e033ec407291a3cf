#include "topology/detect.h"

#include <sys/utsname.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace niccolite::topology {
namespace {

namespace fs = std::filesystem;

std::string line_of(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

// dddd:bb:dd.f
bool is_bus_id(const std::string& name) {
  constexpr std::string_view kForm = "0000:00:00.0";
  if (name.size() != kForm.size()) return false;
  for (size_t i = 0; i < name.size(); ++i)
    if (kForm[i] == '0' ? std::isxdigit(static_cast<unsigned char>(name[i])) == 0
                        : name[i] != kForm[i])
      return false;
  return true;
}

class Detector {
 public:
  Detector(std::string root, std::string host) : root_(std::move(root)), host_(std::move(host)) {}

  Cpu& cpu(int numa) {
    for (Cpu& known : found_.cpus)
      if (known.numa == numa) return known;
    Cpu cpu{.numa = numa, .host = host_};
    cpu.affinity =
        line_of(root_ + "/sys/devices/system/node/node" + std::to_string(numa) + "/cpumap");
    utsname names{};
    if (uname(&names) == 0) cpu.arch = names.machine;
    if (cpu.arch == "aarch64") cpu.arch = "arm64";
    if (cpu.arch == "x86_64") describe_x86(cpu);
    found_.cpus.push_back(std::move(cpu));
    return found_.cpus.back();
  }

  std::string attribute(const std::string& bus_id, const char* name) const {
    return line_of(root_ + "/sys/bus/pci/devices/" + bus_id + "/" + name);
  }

  // The device's entry, below the switches above it; null: the system has no such device.
  Pci* device(const std::string& bus_id) {
    std::error_code error;
    const fs::path path = fs::canonical(root_ + "/sys/bus/pci/devices/" + bus_id, error);
    if (error) return nullptr;
    std::vector<std::string> ids;  // from the root port down to the device
    for (const fs::path& part : path)
      if (is_bus_id(part.string())) ids.push_back(part.string());
    // A switch is two devices below each other: the port above, and one of the ports below. The
    // port above stands for the switch. The device that has no partner is the root port.
    std::vector<std::string> kept;
    for (size_t from_end = 0; from_end < ids.size(); from_end += 2)
      kept.insert(kept.begin(), ids[ids.size() - 1 - from_end]);
    if (kept.size() > 1 && ids.size() % 2 == 1) kept.erase(kept.begin());
    const std::string numa = attribute(bus_id, "numa_node");
    std::vector<Pci>* level = &cpu(numa.empty() ? 0 : std::max(0, std::atoi(numa.c_str()))).below;
    Pci* last = nullptr;
    for (const std::string& id : kept) {
      auto at = std::ranges::lower_bound(*level, id, {}, &Pci::bus_id);
      if (at == level->end() || at->bus_id != id) at = level->insert(at, describe(id));
      last = &*at;
      level = &at->below;
    }
    return last;
  }

  void add_gpu(const RankGpu& gpu) {
    Pci* pci = gpu.kind == gpu::Kind::Cuda ? device(gpu.bus_id) : nullptr;
    if (pci == nullptr) {  // a virtual one, or in a container that hides it
      std::vector<Pci>& level = cpu(0).below;
      pci = &*level.insert(level.end(), Pci{.bus_id = gpu.bus_id, .device_class = "0x030200"});
    }
    pci->gpu =
        Gpu{.device = gpu.device, .compute_capability = gpu.compute_capability, .rank = gpu.rank};
    if (gpu.kind == gpu::Kind::Cuda)
      pci->gpu->nvlinks =
          find_nvlinks(gpu.bus_id, gpu.compute_capability,
                       [this](const std::string& id) { return attribute(id, "class"); });
  }

  void add_net(const Port& port, int number) {
    Net net{.name = port.name, .device = number, .speed = port.speed};
    net.most_connections = 65'536;
    std::error_code error;
    std::string bus_id;
    const std::string known_as = port.device.empty() ? "/sys/class/net/" + port.name
                                                     : "/sys/class/infiniband/" + port.device;
    for (const fs::path& part : fs::canonical(root_ + known_as + "/device", error))
      if (is_bus_id(part.string())) bus_id = part.string();
    Pci* const pci = bus_id.empty() ? nullptr : device(bus_id);
    (pci != nullptr ? pci->nets : cpu(0).nets).push_back(std::move(net));
  }

  Description take() {
    std::ranges::sort(found_.cpus, {}, &Cpu::numa);
    return std::move(found_);
  }

 private:
  void describe_x86(Cpu& cpu) const {
    std::ifstream file(root_ + "/proc/cpuinfo");
    for (std::string line; std::getline(file, line) && !line.empty();) {
      const size_t colon = line.find(':');
      if (colon == std::string::npos || colon + 2 > line.size()) continue;
      const std::string value = line.substr(colon + 2);
      if (line.starts_with("vendor_id")) cpu.vendor = value;
      if (line.starts_with("cpu family")) cpu.family = std::atoi(value.c_str());
      if (line.starts_with("model\t")) cpu.model = std::atoi(value.c_str());
    }
  }

  Pci describe(const std::string& bus_id) const {
    Pci pci{.bus_id = bus_id};
    pci.device_class = attribute(bus_id, "class");
    pci.vendor = attribute(bus_id, "vendor");
    pci.device = attribute(bus_id, "device");
    pci.subsystem_vendor = attribute(bus_id, "subsystem_vendor");
    pci.subsystem_device = attribute(bus_id, "subsystem_device");
    pci.link_speed = attribute(bus_id, "max_link_speed");
    pci.link_width = std::atoi(attribute(bus_id, "max_link_width").c_str());
    return pci;
  }

  const std::string root_;
  const std::string host_;
  Description found_;
};

}  // namespace

Description detect(const std::string& root, const std::string& host, const RankGpu& gpu,
                   std::span<const Port> ports) {
  Detector detector(root == "/" ? "" : root, host);
  detector.add_gpu(gpu);
  int number = 0;
  for (const Port& port : ports) detector.add_net(port, number++);
  return detector.take();
}

PathType pci_distance(const std::string& root, const std::string& bus_id,
                      const std::string& other) {
  Detector detector(root == "/" ? "" : root, "");
  int rank = 0;
  for (const std::string& id : {bus_id, other}) {
    Pci* const pci = detector.device(id);
    if (pci == nullptr) return PathType::SYS;
    if (pci->gpu) return PathType::LOC;  // the first one
    pci->gpu = Gpu{.rank = rank++};
  }
  Result<Graph> graph = Graph::make(detector.take());
  return graph.is_ok() ? graph->distance(0, 1) : PathType::SYS;
}

namespace {

// How much speaks for the rank's GPU being on the host that is called `name` in the file; 0:
// nothing.
int fit_of(const Description& description, const std::string& name, const std::string& host,
           const RankGpu& gpu) {
  int fit = 0;
  for (const Cpu& cpu : description.cpus) {
    if (cpu.host != name) continue;
    auto look = [&](const Pci& pci) {
      if (pci.bus_id == gpu.bus_id && (pci.gpu || gpu.kind == gpu::Kind::Cuda))
        fit = std::max(fit, 2);
      if (pci.gpu && pci.gpu->device == gpu.device && gpu.kind == gpu::Kind::Virtual)
        fit = std::max(fit, 1);
    };
    visit_pci(cpu.below, look);
  }
  const bool may_be_here = fit > 0 || gpu.kind == gpu::Kind::Cuda;
  return name == host && may_be_here ? fit + 3 : fit;
}

// Devices of several hosts may have the same bus ids.
void keep_one_host(Description& description, const std::string& host, const RankGpu& gpu) {
  std::string best = description.cpus.front().host;
  int best_fit = 0;
  for (const Cpu& cpu : description.cpus) {
    const int fit = fit_of(description, cpu.host, host, gpu);
    if (fit <= best_fit) continue;
    best = cpu.host;
    best_fit = fit;
  }
  std::erase_if(description.cpus, [&](const Cpu& cpu) { return cpu.host != best; });
  for (Cpu& cpu : description.cpus) cpu.host = host;
}

}  // namespace

std::string providers_file(const std::string& root) {
  const std::string file = root + "/var/run/nvidia-topologyd/virtualTopology.xml";
  return std::ifstream(file).is_open() ? file : std::string();
}

Status place_rank(Description& description, const Description& found, const std::string& host,
                  const RankGpu& gpu, const std::string& origin) {
  std::string present;
  for_each_gpu(description, [&](Cpu&, Pci& pci, Gpu& of_file) {
    of_file.rank = -1;
    present += fmt::format("{}{}", present.empty() ? "" : ", ", pci.bus_id);
  });
  keep_one_host(description, host, gpu);
  if (gpu.kind == gpu::Kind::Cuda) {
    complete(description, found);
    return {};
  }
  Gpu* chosen = nullptr;
  bool has_its_bus_id = false;
  for_each_gpu(description, [&](Cpu&, Pci& pci, Gpu& of_file) {
    if (has_its_bus_id || (pci.bus_id != gpu.bus_id && of_file.device != gpu.device)) return;
    has_its_bus_id = pci.bus_id == gpu.bus_id;
    chosen = &of_file;
  });
  if (chosen == nullptr)
    return Status::invalid_usage(
        "NCCL_TOPO_FILE={} does not fit this machine: rank {} uses GPU {} at {}, and the file has "
        "{}. Unset it, or write one with NCCL_TOPO_DUMP_FILE here",
        origin, gpu.rank, gpu.device, gpu.bus_id,
        present.empty() ? "no GPU" : "GPUs at " + present + " only");
  chosen->rank = gpu.rank;
  return {};
}

}  // namespace niccolite::topology
