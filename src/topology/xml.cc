#include "topology/xml.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <pugixml.hpp>
#include <set>
#include <sstream>

namespace niccolite::topology {
namespace {

constexpr int kDeepest = 32;          // PCI devices below each other
constexpr int kMostDevices = 65'536;  // of a file

class XmlReader {
 public:
  XmlReader(std::string_view text, const std::string& origin) : text_(text), origin_(origin) {}

  Result<Description> read() {
    pugi::xml_document document;
    const pugi::xml_parse_result parsed = document.load_buffer(text_.data(), text_.size());
    if (!parsed)
      return Status::invalid_usage("{} is no XML: {} in {}", origin_, parsed.description(),
                                   place(parsed.offset));
    const pugi::xml_node system = document.child("system");
    if (!system) return Status::invalid_usage("{} has no element <system>", origin_);
    if (system.attribute("version").as_int(-1) != 1)
      return Status::invalid_usage("{} has version \"{}\" of <system>; version 1 is known", origin_,
                                   system.attribute("version").as_string());
    Description description;
    for (const pugi::xml_node node : system.children("cpu")) {
      Cpu cpu = TRY(read_cpu(node));
      description.cpus.push_back(std::move(cpu));
    }
    if (description.cpus.empty())
      return Status::invalid_usage("{} has no element <cpu> in <system>", origin_);
    std::ranges::stable_sort(description.cpus, {}, &Cpu::numa);
    return description;
  }

 private:
  std::string place(ptrdiff_t offset) const {
    const std::string_view before =
        text_.substr(0, static_cast<size_t>(std::max<ptrdiff_t>(offset, 0)));
    const auto line = std::ranges::count(before, '\n') + 1;
    const size_t last = before.rfind('\n');
    return fmt::format("line {}, column {}", line,
                       before.size() - (last == std::string_view::npos ? 0 : last + 1) + 1);
  }

  Status refuse(const pugi::xml_node& node, const std::string& why) const {
    return Status::invalid_usage("{}, {}: <{}> {}", origin_, place(node.offset_debug()),
                                 node.name(), why);
  }

  // Decimal, or hexadecimal behind 0x.
  template <typename Number>
  Status number(const pugi::xml_node& node, const char* name, Number& value) const {
    const pugi::xml_attribute attribute = node.attribute(name);
    if (!attribute) return {};
    const char* const text = attribute.as_string();
    char* end = nullptr;
    if constexpr (std::is_floating_point_v<Number>)
      value = std::strtod(text, &end);
    else if constexpr (std::is_same_v<Number, uint64_t>)
      value = std::strtoull(text, &end, 0);
    else
      value =
          static_cast<Number>(std::clamp<long>(std::strtol(text, &end, 0), INT32_MIN, INT32_MAX));
    if (end == text || *end != '\0')
      return refuse(node, fmt::format("has {}=\"{}\", which is no number", name, text));
    return {};
  }
  Status flag(const pugi::xml_node& node, const char* name, bool& value) const {
    int as_number = value ? 1 : 0;
    TRY(number(node, name, as_number));
    value = as_number != 0;
    return {};
  }
  static std::string text(const pugi::xml_node& node, const char* name) {
    return node.attribute(name).as_string();
  }

  Result<Cpu> read_cpu(const pugi::xml_node& node) {
    Cpu cpu;
    TRY(number(node, "numaid", cpu.numa));
    TRY(number(node, "familyid", cpu.family));
    TRY(number(node, "modelid", cpu.model));
    cpu.host = text(node, "host_hash");
    cpu.affinity = text(node, "affinity");
    cpu.arch = text(node, "arch");
    cpu.vendor = text(node, "vendor");
    cpu.below = TRY(read_devices(node, cpu.host, 0));
    for (const pugi::xml_node nic : node.children("nic")) TRY(read_nets(nic, cpu.nets));
    return cpu;
  }

  Result<std::vector<Pci>> read_devices(const pugi::xml_node& above, const std::string& host,
                                        int depth) {
    if (depth > kDeepest) return refuse(above, fmt::format("is nested over {} deep", kDeepest));
    std::vector<Pci> devices;
    for (const pugi::xml_node node : above.children("pci")) {
      Pci pci;
      pci.bus_id = text(node, "busid");
      std::ranges::transform(pci.bus_id, pci.bus_id.begin(),
                             [](unsigned char letter) { return std::tolower(letter); });
      if (pci.bus_id.empty()) return refuse(node, "has no busid");
      if (!seen_.emplace(host, pci.bus_id).second)
        return refuse(node, fmt::format("has the bus id {}, which another has, too", pci.bus_id));
      if (seen_.size() > kMostDevices)
        return refuse(node, fmt::format("is one of over {} devices", kMostDevices));
      pci.device_class = text(node, "class");
      pci.vendor = text(node, "vendor");
      pci.device = text(node, "device");
      pci.subsystem_vendor = text(node, "subsystem_vendor");
      pci.subsystem_device = text(node, "subsystem_device");
      pci.link_speed = text(node, "link_speed");
      TRY(number(node, "link_width", pci.link_width));
      if (const pugi::xml_node gpu = node.child("gpu")) pci.gpu = TRY(read_gpu(gpu));
      for (const pugi::xml_node nic : node.children("nic")) TRY(read_nets(nic, pci.nets));
      pci.below = TRY(read_devices(node, host, depth + 1));
      devices.push_back(std::move(pci));
    }
    std::ranges::sort(devices, {}, &Pci::bus_id);
    return devices;
  }

  Result<Gpu> read_gpu(const pugi::xml_node& node) {
    Gpu gpu;
    TRY(number(node, "dev", gpu.device));
    TRY(number(node, "sm", gpu.compute_capability));
    TRY(number(node, "rank", gpu.rank));
    TRY(flag(node, "gdr", gpu.is_direct));
    for (const pugi::xml_node child : node.children("nvlink")) {
      NvLink link{
          .target = text(child, "target"), .count = 1, .target_class = text(child, "tclass")};
      if (link.target.empty()) return refuse(child, "has no target");
      std::ranges::transform(link.target, link.target.begin(),
                             [](unsigned char letter) { return std::tolower(letter); });
      TRY(number(child, "count", link.count));
      gpu.nvlinks.push_back(std::move(link));
    }
    std::ranges::sort(gpu.nvlinks, {}, &NvLink::target);
    if (const pugi::xml_node child = node.child("c2c")) {
      C2c c2c;
      TRY(number(child, "bw", c2c.megabytes));
      TRY(number(child, "count", c2c.count));
      gpu.c2c = c2c;
    }
    return gpu;
  }

  Status read_nets(const pugi::xml_node& nic, std::vector<Net>& nets) const {
    for (const pugi::xml_node node : nic.children("net")) {
      if (!node.attribute("dev")) continue;  // not one that a network knows
      Net net;
      bool is_for_messages = true;
      TRY(flag(node, "net", is_for_messages));
      if (!is_for_messages) continue;
      net.name = text(node, "name");
      TRY(number(node, "dev", net.device));
      TRY(number(node, "speed", net.speed));
      TRY(number(node, "port", net.port));
      TRY(number(node, "guid", net.guid));
      TRY(number(node, "latency", net.latency));
      TRY(number(node, "maxconn", net.most_connections));
      TRY(flag(node, "gdr", net.is_direct));
      nets.push_back(std::move(net));
    }
    return {};
  }

  const std::string_view text_;
  const std::string& origin_;
  std::set<std::pair<std::string, std::string>> seen_;  // hosts and bus ids
};

void put(pugi::xml_node& node, const char* name, const std::string& value) {
  if (!value.empty()) node.append_attribute(name).set_value(value.c_str());
}

void write_nets(pugi::xml_node& above, const std::vector<Net>& nets) {
  if (nets.empty()) return;
  pugi::xml_node nic = above.append_child("nic");
  for (const Net& net : nets) {
    pugi::xml_node node = nic.append_child("net");
    node.append_attribute("name").set_value(net.name.c_str());
    node.append_attribute("dev").set_value(net.device);
    put(node, "latency", fmt::format("{:f}", net.latency));
    node.append_attribute("speed").set_value(net.speed);
    node.append_attribute("port").set_value(net.port);
    put(node, "guid", fmt::format("0x{:x}", net.guid));
    node.append_attribute("maxconn").set_value(net.most_connections);
    node.append_attribute("gdr").set_value(net.is_direct ? 1 : 0);
  }
}

void write_devices(pugi::xml_node& above, const std::vector<Pci>& devices) {
  for (const Pci& pci : devices) {
    pugi::xml_node node = above.append_child("pci");
    node.append_attribute("busid").set_value(pci.bus_id.c_str());
    put(node, "class", pci.device_class);
    put(node, "vendor", pci.vendor);
    put(node, "device", pci.device);
    put(node, "subsystem_vendor", pci.subsystem_vendor);
    put(node, "subsystem_device", pci.subsystem_device);
    node.append_attribute("link_speed").set_value(pci.link_speed.c_str());
    node.append_attribute("link_width").set_value(pci.link_width);
    if (pci.gpu) {
      pugi::xml_node gpu = node.append_child("gpu");
      gpu.append_attribute("dev").set_value(pci.gpu->device);
      gpu.append_attribute("sm").set_value(pci.gpu->compute_capability);
      if (pci.gpu->rank >= 0) gpu.append_attribute("rank").set_value(pci.gpu->rank);
      gpu.append_attribute("gdr").set_value(pci.gpu->is_direct ? 1 : 0);
      for (const NvLink& link : pci.gpu->nvlinks) {
        pugi::xml_node child = gpu.append_child("nvlink");
        child.append_attribute("target").set_value(link.target.c_str());
        child.append_attribute("count").set_value(link.count);
        put(child, "tclass", link.target_class);
      }
      if (pci.gpu->c2c) {
        pugi::xml_node child = gpu.append_child("c2c");
        child.append_attribute("bw").set_value(pci.gpu->c2c->megabytes);
        child.append_attribute("count").set_value(pci.gpu->c2c->count);
      }
    }
    write_nets(node, pci.nets);
    write_devices(node, pci.below);
  }
}

}  // namespace

Result<Description> read_xml(std::string_view text, const std::string& origin) {
  return XmlReader(text, origin).read();
}

Result<Description> load_xml(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return Status::invalid_usage("{} cannot be read", path);
  return read_xml(text.view(), path);
}

std::string write_xml(const Description& description) {
  pugi::xml_document document;
  pugi::xml_node system = document.append_child("system");
  system.append_attribute("version").set_value(1);
  for (const Cpu& cpu : description.cpus) {
    pugi::xml_node node = system.append_child("cpu");
    node.append_attribute("numaid").set_value(cpu.numa);
    put(node, "host_hash", cpu.host);
    put(node, "affinity", cpu.affinity);
    put(node, "arch", cpu.arch);
    put(node, "vendor", cpu.vendor);
    if (cpu.family >= 0) node.append_attribute("familyid").set_value(cpu.family);
    if (cpu.model >= 0) node.append_attribute("modelid").set_value(cpu.model);
    write_devices(node, cpu.below);
    write_nets(node, cpu.nets);
  }
  std::ostringstream text;
  document.save(text, "  ", pugi::format_indent | pugi::format_no_declaration);
  return text.str();
}

}  // namespace niccolite::topology
