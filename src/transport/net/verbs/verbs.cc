#include "transport/net/verbs/verbs.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/log.h"
#include "base/parameters.h"
#include "gpu/machine.h"
#include "transport/net/verbs/gpu_access.h"
#include "transport/net/verbs/pair.h"
#include "transport/net/verbs/peer_memory.h"

namespace niccolite::transport::net::verbs {
namespace {

constexpr size_t kMostBytes = size_t{1} << 30;  // of a message, as ports have it

Settings settings_of(const Network::Wish& wish) {
  const int64_t traffic_class =
      parameters::ib_tc() >= 0 ? parameters::ib_tc() : std::max(wish.traffic_class, 0);
  return {.queue_pairs = static_cast<size_t>(parameters::ib_queue_pairs()),
          .timeout = static_cast<uint8_t>(parameters::ib_timeout()),
          .retries = static_cast<uint8_t>(parameters::ib_retry_count()),
          .service_level = static_cast<uint8_t>(parameters::ib_sl()),
          .traffic_class = static_cast<uint8_t>(traffic_class),
          .partition = static_cast<uint16_t>(parameters::ib_pkey()),
          .splits = parameters::ib_split_data() != 0,
          .is_inline = parameters::ib_use_inline() != 0,
          .has_relaxed_ordering = parameters::ib_relaxed_ordering() != 0,
          .adaptive_routing = parameters::ib_adaptive_routing(),
          .adaptive_threshold = static_cast<uint64_t>(parameters::ib_ar_threshold())};
}

class Verbs final : public Network {
 public:
  /// `access`: to memory of this rank's GPU, or why there is none.
  Verbs(const Library& library, std::vector<Rail> all, const Settings& settings,
        const Network::Wish& wish, Result<GpuAccess> access)
      : library_(library),
        all_(std::move(all)),
        settings_(settings),
        number_(wish.number),
        is_asked_for_(wish.machine != nullptr && wish.machine->kind() == gpu::Kind::Cuda),
        access_(std::move(access)),
        reads_directly_(parameters::net_gdr_read() != 0) {
    name_ = kName;
    for (const Rail& rail : all_) {
      properties_.device +=
          fmt::format("{}{}", properties_.device.empty() ? "" : ",", rail.port.name());
      properties_.speed += rail.port.speed();
    }
    origin_ = library.file();
    properties_.most_bytes = kMostBytes;
    prefer({});
  }

  std::vector<Network::Port> ports() const override {
    std::vector<Network::Port> ports;
    for (const Rail& rail : all_) ports.push_back(rail.port.in_graph());
    return ports;
  }

  void prefer(const std::vector<std::string>& nearest) override {
    const auto place_of = [&](const Rail& rail) {
      return std::ranges::find(nearest, rail.port.in_graph().name) - nearest.begin();
    };
    const auto is_near = [&](const Rail& rail) { return place_of(rail) < std::ssize(nearest); };
    rails_ = all_;
    // Few ports keep their places: the peer's port of the same place is then the other end, which
    // rails without a way to each other want.
    if (rails_.size() > kMostPorts) {
      // Ranks of a machine begin with different ones.
      const size_t first = number_ * kMostPorts % rails_.size();
      std::rotate(rails_.begin(), rails_.begin() + static_cast<std::ptrdiff_t>(first),
                  rails_.end());
      std::ranges::stable_sort(rails_, {}, place_of);
      rails_.resize(kMostPorts);
    }
    const bool is_any_near = std::ranges::any_of(rails_, is_near);
    for (Rail& rail : rails_) rail.is_spare = is_any_near && !is_near(rail);
  }

  void permit_direct(const std::vector<std::string>& ports) override {
    const auto is_permitted = [&](const Rail& rail) {
      return rail.is_spare || std::ranges::count(ports, rail.port.in_graph().name) > 0;
    };
    is_permitted_ = std::ranges::all_of(rails_, is_permitted);
    if (!is_permitted_) return;
    if (!access_.is_ok()) {
      refuse_direct(access_.status());
    } else if (access_.value().flush == Flush::Impossible) {
      LOG(Warn, Net,
          "NET/IB : GPU {} neither orders nor flushes what NICs write to its memory, so that what "
          "they receive passes through host memory; NCCL_GDR_FLUSH_DISABLE=1 does without a flush, "
          "at the risk of wrong data",
          access_.value().device);
    }
  }

  std::vector<size_t> devices() const override {
    std::vector<size_t> devices;
    for (size_t i = 0; i < rails_.size(); ++i)
      if (!rails_[i].is_spare) devices.push_back(i);
    return devices;
  }

  Result<void*> listen(Handle& handle, const std::string& peer) override {
    tell();
    auto end = std::make_unique<End>();
    Pair::Direct direct;
    if (is_direct(/*is_send=*/true) || is_direct(/*is_send=*/false))
      direct = [this](size_t size, unsigned rights) { return make_direct(size, rights); };
    end->pair = TRY(Pair::create(library_, rails_, settings_, peer, direct));
    handle = end->pair->handle();
    return static_cast<void*>(end.release());
  }
  Status meet(void* listener, const Handle& peer) override { return pair_of(listener).meet(peer); }
  void peer_has_met(void* receiving) override { pair_of(receiving).peer_has_met(); }
  Result<void*> connect(void* listener, Handle& /*handle*/) override {
    return end_of(listener, /*receives=*/false);
  }
  Result<void*> accept(void* listener) override { return end_of(listener, /*receives=*/true); }

  Result<void*> register_memory(void* connection, void* data, size_t bytes) override {
    const End& end = *static_cast<End*>(connection);
    std::unique_ptr<Registered> memory = TRY(end.pair->register_memory(data, bytes, end.receives));
    return static_cast<void*>(memory.release());
  }
  void deregister_memory(void* /*connection*/, void* memory) override {
    delete static_cast<Registered*>(memory);
  }
  Result<void*> send(void* connection, void* data, size_t bytes, int /*tag*/, void* memory,
                     void* /*event*/) override {
    return pair_of(connection).send(data, bytes, *static_cast<Registered*>(memory));
  }
  Result<void*> receive(void* connection, void* data, size_t bytes, int /*tag*/,
                        void* memory) override {
    return pair_of(connection).receive(data, bytes, *static_cast<Registered*>(memory));
  }
  bool is_direct(bool is_send) const override {
    if (!is_permitted_ || !access_.is_ok() || is_refused_.load(std::memory_order_relaxed))
      return false;
    return is_send ? reads_directly_ : access_.value().flush != Flush::Impossible;
  }
  Result<std::shared_ptr<DirectMemory>> allocate_direct(size_t bytes, bool is_send) override {
    std::shared_ptr<DirectMemory> made =
        TRY(make_direct(bytes, is_send ? 0 : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    return made;
  }
  Result<std::shared_ptr<DirectMemory>> register_direct(void* data, size_t bytes,
                                                        bool is_send) override {
    if (!access_.is_ok()) return access_.status().copy();
    std::shared_ptr<DirectMemory> made = TRY(
        GpuMemory::create_of_user(library_, rails_, access_.value(), data, bytes,
                                  is_send ? 0 : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    return made;
  }
  Status flush_direct() override {
    if (!access_.is_ok() || access_.value().flush != Flush::Call) return {};
    return access_.value().machine.flush_nic_writes(access_.value().device);
  }
  size_t gpu_bytes() const override {
    return gpu_bytes_->load(std::memory_order_relaxed);  // publishes nothing
  }
  DirectName name_of(const DirectMemory& memory) const override {
    return static_cast<const GpuMemory&>(memory).name();
  }
  bool writes_directly(void* connection) const override {
    return pair_of(connection).writes_directly();
  }
  Result<void*> send_with(void* connection, void* data, size_t bytes, void* memory,
                          std::span<const DirectWrite> writes) override {
    return pair_of(connection).send(data, bytes, *static_cast<Registered*>(memory), writes);
  }
  void cut(void* connection) override { pair_of(connection).cut(); }
  Result<bool> test(void* request) override { return Pair::test(request); }
  void close_send(void* connection) override { delete static_cast<End*>(connection); }
  void close_receive(void* connection) override { delete static_cast<End*>(connection); }
  void close_listener(void* listener) override { delete static_cast<End*>(listener); }

 private:
  /// A listener, or one direction of a connection.
  struct End {
    std::shared_ptr<Pair> pair;
    bool receives = false;
  };
  static Pair& pair_of(void* end) { return *static_cast<End*>(end)->pair; }
  static Result<void*> end_of(void* listener, bool receives) {
    const std::shared_ptr<Pair>& pair = static_cast<End*>(listener)->pair;
    if (!pair->has_met()) return static_cast<void*>(nullptr);
    return static_cast<void*>(new End{.pair = pair, .receives = receives});
  }

  void tell() {
    if (is_told_.test_and_set()) return;
    std::string used, spare;
    for (size_t i = 0; i < rails_.size(); ++i) {
      const auto& [port, gid, is_spare] = rails_[i];
      (is_spare ? spare : used) +=
          fmt::format(" [{}]{}/{} GID {} ({})", i, port.name(), port.is_roce() ? "RoCE" : "IB",
                      gid.index, text_of(gid.bytes));
    }
    LOG(Info, Net, "NET/IB : Using{}{}{}", used, spare.empty() ? "" : "; in reserve", spare);
  }

  Result<std::shared_ptr<GpuMemory>> make_direct(size_t bytes, unsigned rights) {
    Result<std::shared_ptr<GpuMemory>> made =
        GpuMemory::create(library_, rails_, access_.value(), bytes, rights, gpu_bytes_);
    if (!made.is_ok()) refuse_direct(made.status());
    return made;
  }
  /// From now on host memory does.
  void refuse_direct(const Status& why) {
    if (is_refused_.exchange(true, std::memory_order_relaxed)) return;
    constexpr char kRemedy[] =
        "load nvidia_peermem, or use the open kernel module and Linux 5.12 or later (dma-buf); "
        "NCCL_NET_GDR_LEVEL=LOC does without GPUDirect RDMA";
    if (is_asked_for_)
      LOG(Warn, Net, "NET/IB : data pass through host memory: {}; {}", why.message(), kRemedy);
    else
      LOG(Info, Net, "NET/IB : data pass through host memory: {}; {}", why.message(), kRemedy);
  }

  const Library& library_;
  const std::vector<Rail> all_;
  const Settings settings_;
  const size_t number_;      // of this rank among the ranks of its machine
  const bool is_asked_for_;  // GPUDirect RDMA of real GPUs always is
  std::vector<Rail> rails_;  // in use, by this rank
  std::atomic_flag is_told_;
  const Result<GpuAccess> access_;
  const bool reads_directly_;
  bool is_permitted_ = false;            // GPUDirect RDMA over these rails
  std::atomic<bool> is_refused_{false};  // it was tried; publishes nothing
  const std::shared_ptr<GpuMemory::Sum> gpu_bytes_ = std::make_shared<GpuMemory::Sum>();
};

Result<GpuAccess> find_access(const Library& library, const std::vector<Rail>& rails,
                              const Network::Wish& wish) {
  if (wish.machine == nullptr) return Status::invalid_usage("GPUDirect RDMA is not wanted");
  const bool is_real = wish.machine->kind() == gpu::Kind::Cuda;
  const auto is_virtual = [](const Rail& rail) { return rail.port.device->is_virtual(); };
  if (!is_real && !std::ranges::all_of(rails, is_virtual))
    return Status::invalid_usage("real NICs do not reach memory of virtual GPUs");
  GpuAccess access{
      .machine = *wish.machine,
      .device = wish.device,
      .has_dma_buffers = library.reg_dmabuf_mr != nullptr && parameters::dmabuf_enable() != 0,
      .has_peer_memory = is_real && has_peer_memory()};
  if (!access.has_dma_buffers && !access.has_peer_memory)
    return Status::invalid_usage("{}, and nvidia_peermem is not loaded",
                                 parameters::dmabuf_enable() == 0
                                     ? "NCCL_DMABUF_ENABLE=0"
                                     : library.file() + " has no ibv_reg_dmabuf_mr");
  access.flush =
      choose_flush(TRY(wish.machine->nic_writes(wish.device)), parameters::net_force_flush() != 0,
                   parameters::gdr_flush_disable() != 0);
  return access;
}

}  // namespace

Result<std::shared_ptr<Network>> open(const Network::Wish& wish) {
  if (parameters::ib_disable() != 0)
    return Status::invalid_usage("NCCL_IB_DISABLE=1 forbids InfiniBand and RoCE: unset it");
  const Library& library = *TRY(Library::open());
  std::vector<Port> all = TRY(list_ports(library));
  std::vector<Port> ports = TRY(choose_ports(std::move(all), parameters::ib_hca()));
  const GidRequest request = gid_request();
  std::vector<Rail> rails;
  for (Port& port : ports) {
    const Gid gid = TRY(choose_gid(port.name(), port.is_roce(), port.gids, request));
    rails.push_back({.port = std::move(port), .gid = gid});
  }
  Result<GpuAccess> access = find_access(library, rails, wish);
  return std::shared_ptr<Network>(std::make_shared<Verbs>(
      library, std::move(rails), settings_of(wish), wish, std::move(access)));
}

std::vector<PortState> port_states() {
  std::vector<PortState> states;
  if (parameters::ib_disable() != 0 || Library::is_missing()) return states;
  Result<const Library*> library = Library::open();
  if (!library.is_ok()) return states;
  Result<std::vector<Port>> ports = list_ports(**library);
  if (!ports.is_ok()) return states;
  const PortFilter named(parameters::ib_hca());
  const GidRequest request = gid_request();
  for (const Port& port : *ports) {
    Result<Gid> gid = choose_gid(port.name(), port.is_roce(), port.gids, request);
    states.push_back({.name = port.name(),
                      .in_graph = port.in_graph(),
                      .kind = port.is_roce() ? "RoCE" : "InfiniBand",
                      .is_active = port.is_active(),
                      .state = port.state(),
                      .speed = port.speed(),
                      .gid = gid.is_ok()
                                 ? fmt::format("{} (index {})", text_of(gid->bytes), gid->index)
                                 : gid.status().message(),
                      .is_virtual = port.device->is_virtual(),
                      .is_named = named.accepts(port.device->name(), port.number)});
  }
  return states;
}

}  // namespace niccolite::transport::net::verbs
