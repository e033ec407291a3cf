// Ports: the InfiniBand and RoCE ports of this machine, the choice among them by NCCL_IB_HCA, and
// the choice of a GID for each. Thread safety: any thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "transport/net/network.h"
#include "transport/net/verbs/library.h"

namespace niccolite::transport::net::verbs {

inline constexpr size_t kMostPorts = 4;  // that carry data of two ranks

/// An open device. Communicators of a process share it.
class Device {
 public:
  /// `of_list`: an entry of the library's list, which is still held.
  static Result<std::shared_ptr<Device>> open(const Library& library, ibv_device* of_list);
  ~Device();
  Device(const Device&) = delete;

  const std::string& name() const { return name_; }
  ibv_context* context() const { return context_; }
  ibv_pd* domain() const { return domain_; }
  const ibv_device_attr& limits() const { return limits_; }
  /// Made of software (docs/virtual-nics.md): the system knows no such device.
  bool is_virtual() const { return is_virtual_; }
  /// Has it failed for good, or been removed? Reads the device's events: a system call.
  bool is_gone();

 private:
  explicit Device(const Library& library);

  const pid_t process_;
  const Library& library_;
  std::string name_;
  bool is_virtual_ = false;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_device_attr limits_{};
  std::mutex mutex_;  // of the events
  std::atomic<bool> is_gone_{false};
};

struct Gid {
  ibv_gid bytes{};
  int index = 0;
  int roce_version = 0;  // 0: of InfiniBand, or unknown
};
/// "10.77.1.1", "fe80::1".
std::string text_of(const ibv_gid& gid);
bool is_ipv4(const ibv_gid& gid);

struct Port {
  std::shared_ptr<Device> device;
  uint8_t number = 1;
  ibv_port_attr attributes{};
  std::vector<Gid> gids;  // of its table, without empty entries

  bool is_roce() const { return attributes.link_layer == IBV_LINK_LAYER_ETHERNET; }
  bool is_active() const { return attributes.state == IBV_PORT_ACTIVE; }
  std::string name() const;  // "mlx5_0:1"
  Network::Port in_graph() const;
  const char* state() const;  // "active", "down"
  int speed() const;          // Mbit/s; 0: unknown
};

/// The name of this machine, for messages.
std::string host();

/// Returns all ports of the devices that open. No device is an empty list. Error: none of them
/// opens.
Result<std::vector<Port>> list_ports(const Library& library);

/// NCCL_IB_HCA: `[^][=]name[:port],...`. Rails and planes behind the port are passed over.
class PortFilter {
 public:
  explicit PortFilter(std::string_view text);
  bool accepts(std::string_view device, int port) const;

 private:
  struct Entry {
    std::string name;
    int port = -1;  // all
  };
  bool excludes_ = false;
  bool is_exact_ = false;
  std::vector<Entry> entries_;
};

struct GidRequest {
  int64_t index = -1;    // NCCL_IB_GID_INDEX
  int64_t version = 2;   // NCCL_IB_ROCE_VERSION_NUM
  std::string family{};  // NCCL_IB_ADDR_FAMILY
  std::string range{};   // NCCL_IB_ADDR_RANGE
};
GidRequest gid_request();  // of the variables

/// Returns the GID that a port with these uses. InvalidUsage: none is such; names them all.
Result<Gid> choose_gid(const std::string& port, bool is_roce, std::span<const Gid> gids,
                       const GidRequest& request);

/// Returns the active ports that `filter` (NCCL_IB_HCA) accepts. InvalidUsage: there is none; says
/// which ports there are.
Result<std::vector<Port>> choose_ports(std::vector<Port> all, const std::string& filter);

}  // namespace niccolite::transport::net::verbs
