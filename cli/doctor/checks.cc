#include "cli/doctor/checks.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/timex.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <system_error>

#include "base/interfaces.h"
#include "base/parameters.h"
#include "gpu/machine.h"
#include "transport/net/verbs/peer_memory.h"

namespace niccolite::doctor {
namespace {

constexpr uint64_t kMega = uint64_t{1} << 20;

Finding fine(std::string check, std::string text) {
  return {State::Fine, std::move(check), std::move(text), ""};
}
Finding note(std::string check, std::string text, std::string remedy = "") {
  return {State::Note, std::move(check), std::move(text), std::move(remedy)};
}
Finding warning(std::string check, std::string text, std::string remedy) {
  return {State::Warning, std::move(check), std::move(text), std::move(remedy)};
}
Finding fault(std::string check, std::string text, std::string remedy) {
  return {State::Fault, std::move(check), std::move(text), std::move(remedy)};
}

/// "eth0, eth1 and 3 others".
std::string some_of(std::vector<std::string> names) {
  constexpr size_t kMost = 6;
  if (names.size() <= kMost) return fmt::format("{}", fmt::join(names, ", "));
  const size_t others = names.size() - kMost + 1;
  names.resize(kMost - 1);
  return fmt::format("{} and {} others", fmt::join(names, ", "), others);
}

}  // namespace

const char* name_of(State state) {
  switch (state) {
    case State::Fine:
      return "fine";
    case State::Note:
      return "note";
    case State::Warning:
      return "warning";
    case State::Fault:
      return "fault";
  }
  return "?";
}

std::optional<std::string> Files::read(const std::string& path) const {
  std::ifstream file(root_ / path.substr(1), std::ios::binary);
  if (!file) return std::nullopt;
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) return std::nullopt;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::vector<std::string> Files::list(const std::string& folder) const {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator each(root_ / folder.substr(1), error), end;
       !error && each != end; each.increment(error))
    names.push_back(each->path().filename());
  std::ranges::sort(names);
  return names;
}

bool Files::has(const std::string& path) const {
  std::error_code error;
  return std::filesystem::exists(root_ / path.substr(1), error);
}

std::vector<Finding> check_gpus() {
  constexpr const char* kCheck = "gpus";
  Result<gpu::Machine*> found = gpu::machine();
  if (!found.is_ok())
    return {fault(kCheck, std::string(found.status().message()),
                  "install NVIDIA's driver, or choose virtual GPUs: NICCOLITE_DEVICES=virtual:4")};
  gpu::Machine& machine = **found;
  const int count = machine.device_count();
  if (count == 0)
    return {fault(kCheck, "the driver shows no GPU",
                  "look at CUDA_VISIBLE_DEVICES, and at the container's devices (--gpus all)")};
  std::map<std::string, int> names;
  for (int device = 0; device < count; ++device) {
    Result<gpu::DeviceInfo> info = machine.device_info(device);
    ++names[info.is_ok() ? info->name : "a GPU that does not answer"];
  }
  std::vector<std::string> counted;
  for (const auto& [name, number] : names) counted.push_back(fmt::format("{} x {}", number, name));
  if (machine.kind() == gpu::Kind::Virtual)
    return {note(kCheck, fmt::format("{}: there are no real ones, or NICCOLITE_DEVICES says so",
                                     fmt::join(counted, ", ")))};
  const int version = machine.driver_version();
  std::vector<Finding> findings{
      fine(kCheck, fmt::format("{}, driver for CUDA {}.{}", fmt::join(counted, ", "),
                               version / 1000, version % 1000 / 10))};
  std::vector<std::string> apart;
  for (int device = 0; device < count; ++device)
    for (int peer = device + 1; peer < count; ++peer)
      if (!machine.can_access_peer(device, peer))
        apart.push_back(fmt::format("{}-{}", device, peer));
  if (apart.empty() && count > 1)
    findings.push_back(
        fine("peer access", "between all GPUs, as the driver says; the library tries it"));
  else if (!apart.empty())
    findings.push_back(warning(
        "peer access",
        fmt::format("not between GPUs {}: data go through the host's memory", some_of(apart)),
        "niccolite topology draws the paths; in a virtual machine let the host pass GPUs with "
        "their switches"));
  return findings;
}

std::vector<Finding> check_nvidia(const Files& files) {
  std::vector<Finding> findings;
  if (files.has("/proc/driver/nvidia/version")) {
    const std::string version = files.read("/proc/driver/nvidia/version").value_or("");
    const bool is_open = version.find("Open Kernel Module") != std::string::npos;
    const bool has_peer_memory = std::ranges::any_of(
        transport::net::verbs::kPeerMemoryFiles, [&](const char* file) { return files.has(file); });
    const bool has_rdma = !files.list("/sys/class/infiniband").empty();
    if (has_rdma && !is_open && !has_peer_memory)
      findings.push_back(warning(
          "gpudirect",
          "neither the open kernel module (dma-buf) nor nvidia_peermem is loaded: network adapters "
          "cannot reach the memory of GPUs",
          "modprobe nvidia_peermem, or install the open kernel module"));
    else if (has_rdma)
      findings.push_back(
          fine("gpudirect",
               fmt::format("{}; NCCL_NET=IB with NCCL_NET_GDR_LEVEL=PXB (or PHB, SYS) asks for it "
                           "(not tried on real adapters yet)",
                           !is_open          ? "by nvidia_peermem"
                           : has_peer_memory ? "by dma-buf (the open kernel module), and by "
                                               "nvidia_peermem"
                                             : "by dma-buf (the open kernel module)")));
  }
  const std::vector<std::string> switches = files.list("/proc/driver/nvidia-nvswitch/devices");
  if (!switches.empty()) {
    bool has_manager = false;
    for (const std::string& process : files.list("/proc")) {
      if (process.find_first_not_of("0123456789") != std::string::npos) continue;
      // The kernel keeps 15 characters.
      has_manager |=
          files.read("/proc/" + process + "/comm").value_or("").starts_with("nv-fabricmanage");
    }
    if (has_manager)
      findings.push_back(
          fine("fabric manager", fmt::format("it runs, for {} NVSwitches", switches.size())));
    else
      findings.push_back(fault(
          "fabric manager",
          fmt::format("there are {} NVSwitches, and no nv-fabricmanager runs (in a container it "
                      "may run outside)",
                      switches.size()),
          "systemctl start nvidia-fabricmanager"));
  }
  return findings;
}

std::vector<Finding> check_pci(const Files& files) {
  std::vector<Finding> findings;
  const bool has_iommu = !files.list("/sys/kernel/iommu_groups").empty();
  const std::string command_line = files.read("/proc/cmdline").value_or("");
  const bool passes_through = command_line.find("iommu=pt") != std::string::npos ||
                              command_line.find("iommu.passthrough=1") != std::string::npos;
  if (!has_iommu)
    findings.push_back(fine("iommu", "off"));
  else if (passes_through)
    findings.push_back(fine("iommu", "on, passing addresses through"));
  else
    findings.push_back(warning(
        "iommu", "on, and it translates: peer access between GPUs may be slow, or lose data",
        "kernel parameter iommu=pt; in a virtual machine the host decides"));
  // ACS makes switches send what GPUs send each other up to the root. Only root reads that far.
  constexpr size_t kExtended = 256;
  std::vector<std::string> redirecting;
  bool is_readable = false, has_bridges = false;
  for (const std::string& device : files.list("/sys/bus/pci/devices")) {
    const std::string folder = "/sys/bus/pci/devices/" + device;
    if (!files.read(folder + "/class").value_or("").starts_with("0x0604")) continue;  // bridges
    has_bridges = true;
    const std::string space = files.read(folder + "/config").value_or("");
    if (space.size() <= kExtended) continue;
    is_readable = true;
    const auto word = [&](size_t at, int bytes) {
      uint32_t value = 0;
      for (int i = 0; i < bytes && at + static_cast<size_t>(i) < space.size(); ++i)
        value |=
            static_cast<uint32_t>(static_cast<unsigned char>(space[at + static_cast<size_t>(i)]))
            << (8 * i);
      return value;
    };
    constexpr uint32_t kAcs = 0x0d;
    constexpr uint32_t kRedirects = 0x04 | 0x08;  // requests, completions
    int hops = 0;
    for (size_t at = kExtended; at >= kExtended && at + 8 <= space.size() && hops < 64; ++hops) {
      const uint32_t header = word(at, 4);
      if ((header & 0xffff) == kAcs && (word(at + 6, 2) & kRedirects) != 0)
        redirecting.push_back(device);
      at = header >> 20;
    }
  }
  if (!redirecting.empty())
    findings.push_back(
        warning("acs",
                fmt::format("on at PCI bridges {}: what GPUs send each other goes by the root, "
                            "slower or not at all",
                            some_of(redirecting)),
                "switch it off at these bridges (setpci), or in the firmware"));
  else if (is_readable || !has_bridges)
    findings.push_back(
        fine("acs", has_bridges ? "off at all PCI bridges" : "there are no PCI bridges"));
  else
    findings.push_back(
        note("acs", "not known: only root may read it", "run niccolite doctor as root once"));
  return findings;
}

std::vector<Finding> check_rdma(const Files& files) {
  constexpr const char* kCheck = "rdma ports";
  std::vector<Finding> findings;
  std::vector<std::string> active, down;
  for (const std::string& device : files.list("/sys/class/infiniband")) {
    const std::string ports = "/sys/class/infiniband/" + device + "/ports";
    for (const std::string& port : files.list(ports)) {
      const std::string folder = ports + "/" + port;
      const std::string name = device + ":" + port;
      const std::string state = files.read(folder + "/state").value_or("");
      if (state.find("ACTIVE") == std::string::npos) {
        down.push_back(name + " (" + (state.empty() ? "state unknown" : state) + ")");
        continue;
      }
      const bool is_ethernet = files.read(folder + "/link_layer").value_or("") == "Ethernet";
      active.push_back(fmt::format("{} ({}, {})", name, is_ethernet ? "RoCE" : "InfiniBand",
                                   files.read(folder + "/rate").value_or("rate unknown")));
      if (!is_ethernet) continue;
      bool has_version_2 = false;
      for (const std::string& index : files.list(folder + "/gid_attrs/types"))
        has_version_2 |=
            files.read(folder + "/gid_attrs/types/" + index).value_or("").find("RoCE v2") !=
            std::string::npos;
      if (!has_version_2)
        findings.push_back(fault("rdma gids", fmt::format("{} has no GID of RoCE v2", name),
                                 "give its interface an address (ip addr); look at show_gids"));
    }
  }
  if (active.empty() && down.empty()) return {note(kCheck, "none: machines are joined by TCP")};
  if (!active.empty()) {
    findings.push_back(fine(kCheck, "active: " + some_of(active)));
    if (parameters::net().empty() && parameters::net_plugin().empty())
      findings.push_back(
          note("rdma use", "not used: data go to other machines by TCP",
               "NCCL_NET=IB uses the ports (not tried on real adapters yet), or NCCL_NET_PLUGIN "
               "names a plug-in"));
  }
  if (!down.empty())
    findings.push_back(warning(
        kCheck, "not active: " + some_of(down),
        "look at the cable, the switch port and, for InfiniBand, the subnet manager (ibstat)"));
  return findings;
}

std::vector<Finding> check_host(const Files& files) {
  std::vector<Finding> findings;
  if (const auto balancing = files.read("/proc/sys/kernel/numa_balancing")) {
    if (*balancing != "0")
      findings.push_back(warning("numa balancing",
                                 "on: the kernel moves pages that GPUs and adapters use",
                                 "sysctl kernel.numa_balancing=0"));
    else
      findings.push_back(fine("numa balancing", "off"));
  }
  if (const auto governor = files.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")) {
    if (*governor == "powersave" && !files.has("/sys/devices/system/cpu/intel_pstate"))
      findings.push_back(warning("cpu governor",
                                 "powersave: cores are slow to launch kernels and to carry data",
                                 "cpupower frequency-set -g performance"));
    else
      findings.push_back(fine("cpu governor", *governor));
  }
  for (const char* const file :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    const auto limit = files.read(file);
    if (!limit || limit->empty() || limit->find_first_not_of("0123456789") != std::string::npos)
      continue;
    const uint64_t bytes = std::strtoull(limit->c_str(), nullptr, 10);
    if (bytes >= uint64_t{1} << 60) continue;  // as good as none
    constexpr uint64_t kLittle = 1024 * kMega;
    if (bytes < kLittle)
      findings.push_back(warning("memory limit",
                                 fmt::format("this control group may have {} MiB", bytes / kMega),
                                 "give the container more memory (docker run --memory)"));
    else
      findings.push_back(
          fine("memory limit", fmt::format("{} MiB, of this control group", bytes / kMega)));
    break;
  }
  if (const auto limit = files.read("/sys/fs/cgroup/pids.max");
      limit && limit->find_first_not_of("0123456789") == std::string::npos && !limit->empty()) {
    const uint64_t threads = std::strtoull(limit->c_str(), nullptr, 10);
    if (threads < 1024)
      findings.push_back(warning(
          "threads", fmt::format("this control group may have {}; a rank has up to 10", threads),
          "docker run --pids-limit=-1"));
  }
  return findings;
}

std::vector<Finding> check_interfaces() {
  constexpr const char* kCheck = "interfaces";
  Result<std::vector<Interface>> present = list_interfaces();
  if (!present.is_ok()) return {fault(kCheck, std::string(present.status().message()), "")};
  const InterfaceRequest request{
      .filter = parameters::socket_ifname(), .family = parameters::socket_family(), .reaches = {}};
  const std::vector<Interface> rails = select_rails(*present, request);
  std::vector<std::string> all;
  for (const Interface& each : *present)
    if (std::ranges::count(all, each.name) == 0) all.push_back(each.name);
  if (rails.empty())
    return {fault(kCheck,
                  request.filter.empty()
                      ? "none is up"
                      : fmt::format("NCCL_SOCKET_IFNAME={} fits none that is up", request.filter),
                  fmt::format("there are {}", all.empty() ? "none" : some_of(all)))};
  std::vector<std::string> names;
  for (const Interface& each : rails) {
    const int speed = link_speed(each.name);
    names.push_back(speed > 0 ? fmt::format("{} ({:g} Gbit/s)", each.name, speed / 1000.0)
                              : each.name + " (speed unknown)");
  }
  const bool is_loopback = rails[0].name.starts_with("lo");
  const bool is_bridge = rails[0].name.starts_with("docker") || rails[0].name.starts_with("virbr");
  if (is_loopback)
    return {warning(kCheck, fmt::format("only {}: no other machine can be reached", some_of(names)),
                    "bring an interface up, or run the container with --network host")};
  if (is_bridge)
    return {warning(kCheck,
                    fmt::format("data would go over {}, a bridge of this machine", some_of(names)),
                    "name the right one: NCCL_SOCKET_IFNAME")};
  return {fine(kCheck, "data go over " + some_of(names))};
}

std::vector<Finding> check_limits(const Files& files_of_machine) {
  std::vector<Finding> findings;
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    constexpr rlim_t kFew = 4096;
    const std::string text =
        fmt::format("{} open files (hard limit {})", files.rlim_cur,
                    files.rlim_max == RLIM_INFINITY ? "none" : fmt::format("{}", files.rlim_max));
    if (files.rlim_cur < kFew)
      findings.push_back(
          warning("open files", text + ": jobs of many ranks need more", "ulimit -n 1048576"));
    else
      findings.push_back(fine("open files", text));
  }
  rlimit locked{};
  if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0) {
    const std::string text = fmt::format("{} KiB", locked.rlim_cur / 1024);
    if (locked.rlim_cur == RLIM_INFINITY)
      findings.push_back(fine("locked memory", "no limit"));
    else if (files_of_machine.list("/sys/class/infiniband").empty())
      findings.push_back(fine("locked memory", text + ": enough without InfiniBand and RoCE"));
    else
      findings.push_back(warning(
          "locked memory", text + ": InfiniBand and RoCE adapters register memory, which is locked",
          "ulimit -l unlimited; docker run --ulimit memlock=-1"));
  }
  rlimit core{};
  if (getrlimit(RLIMIT_STACK, &core) == 0 && core.rlim_cur == RLIM_INFINITY)
    findings.push_back(
        warning("stacks", "no limit: each thread gets one of 2 MiB or more, whatever it asks for",
                "ulimit -s 8192"));
  return findings;
}

std::vector<Finding> check_clock() {
  timex time{};
  const int state = adjtimex(&time);
  if (state < 0) return {note("clock", "not known: the kernel does not tell")};
  if (state == TIME_ERROR || (time.status & STA_UNSYNC) != 0)
    return {note("clock",
                 "not synchronized: traces and logs of several machines do not fit together",
                 "start chronyd or systemd-timesyncd")};
  return {fine("clock", fmt::format("synchronized, to {:.3g} ms",
                                    static_cast<double>(time.maxerror) / 1000))};
}

}  // namespace niccolite::doctor
