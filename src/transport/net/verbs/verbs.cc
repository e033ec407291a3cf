#include "transport/net/verbs/verbs.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/parameters.h"
#include "transport/net/verbs/pair.h"

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
  Verbs(const Library& library, std::vector<Rail> rails, const Settings& settings)
      : library_(library), rails_(std::move(rails)), settings_(settings) {
    name_ = kName;
    std::string all;
    for (size_t i = 0; i < rails_.size(); ++i) {
      const Port& port = rails_[i].port;
      all += fmt::format(" [{}]{}/{} GID {} ({})", i, port.name(), port.is_roce() ? "RoCE" : "IB",
                         rails_[i].gid.index, text_of(rails_[i].gid.bytes));
      properties_.device += fmt::format("{}{}", i > 0 ? "," : "", port.name());
      properties_.speed += port.speed();
    }
    origin_ = library.file();
    properties_.most_bytes = kMostBytes;
    LOG(Info, Net, "NET/IB : Using{}", all);
  }

  size_t devices() const override { return rails_.size(); }

  Result<void*> listen(Handle& handle, const std::string& peer) override {
    auto end = std::make_unique<End>();
    end->pair = TRY(Pair::create(library_, rails_, settings_, peer));
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

  const Library& library_;
  const std::vector<Rail> rails_;
  const Settings settings_;
};

}  // namespace

Result<std::shared_ptr<Network>> open(const Network::Wish& wish) {
  if (parameters::ib_disable() != 0)
    return Status::invalid_usage("NCCL_IB_DISABLE=1 forbids InfiniBand and RoCE: unset it");
  const Library& library = *TRY(Library::open());
  std::vector<Port> all = TRY(list_ports(library));
  std::vector<Port> ports = TRY(choose_ports(std::move(all), parameters::ib_hca()));
  // Ranks of a machine that has many ports begin with different ones.
  if (ports.size() > kMostPorts) {
    const size_t first = wish.number * kMostPorts % ports.size();
    std::rotate(ports.begin(), ports.begin() + static_cast<std::ptrdiff_t>(first), ports.end());
    ports.resize(kMostPorts);
  }
  const GidRequest request = gid_request();
  std::vector<Rail> rails;
  for (Port& port : ports) {
    const Gid gid = TRY(choose_gid(port.name(), port.is_roce(), port.gids, request));
    rails.push_back({.port = std::move(port), .gid = gid});
  }
  return std::shared_ptr<Network>(
      std::make_shared<Verbs>(library, std::move(rails), settings_of(wish)));
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
