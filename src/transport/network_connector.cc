#include "transport/network_connector.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <thread>

#include "base/log.h"
#include "base/parameters.h"
#include "gpu/machine.h"

namespace niccolite::transport {
namespace {

/// That this process may use.
int cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

// Two threads, one for each direction, carry more than one. But small messages are slower if
// threads share cores: with virtual GPUs the kernels use the cores, and a process may be bound to a
// few.
constexpr int kCoresToSpare = 4;

// Two threads copy about 4 GB/s, less than most wires carry. Small messages use the first proxy
// alone, so that the other proxies cost nothing then.
constexpr int kCoresOfTwoProxies = 8;
// A rank's share of the cores that this process may use: other ranks of the machine may use them,
// too.
constexpr int kCoresOfFourProxies = 16;

size_t number_of_proxies(bool is_gpu, const Carrier& carrier) {
  if (carrier.network != nullptr) return 1;
  const auto asked = static_cast<uint32_t>(parameters::net_proxies());
  if (asked > 0) return std::min(std::bit_floor(asked), executor::kMostProxies);
  if (!is_gpu) return 1;
  if (cores() / carrier.ranks_of_machine >= kCoresOfFourProxies) return 4;
  return cores() >= kCoresOfTwoProxies ? 2 : 1;
}

// The most bytes that kernels of virtual GPUs send themselves. They leave larger chunks to the
// proxy's thread, if it has a core, and go on meanwhile.
constexpr uint64_t kMostByKernels = 16 << 10;

bool sends_any(std::span<const ShapedEnd> ends) {
  return std::ranges::any_of(ends, [](const ShapedEnd& shaped) { return shaped.end.is_send; });
}

}  // namespace

NetworkConnector::~NetworkConnector() { NetworkConnector::close(); }

void NetworkConnector::close() {
  for (net::Proxy* const proxy : started()) proxy->leave();
}

std::string NetworkConnector::name() const { return devices({}).front(); }

std::vector<std::string> NetworkConnector::devices(std::span<const ShapedEnd> ends) const {
  const auto& network = carrier_.network;
  std::lock_guard lock(mutex_);
  if (network != nullptr) {
    const bool is_direct = std::ranges::any_of(ends, [&](const ShapedEnd& shaped) {
      const auto found = memories_.find(shaped.end);
      return found != memories_.end() && found->second->direct() != nullptr;
    });
    std::vector<std::string> devices;
    for (const size_t device : network->devices())
      devices.push_back(
          fmt::format("NET/{}/{}{}", network->name(), device, is_direct ? "/GDRDMA" : ""));
    return devices;
  }
  const size_t count = std::max<size_t>(rails_.interfaces.size(), 1);
  std::vector<std::string> devices;
  for (size_t k = 0; k < count; ++k)
    devices.push_back(fmt::format("NET/Socket/{}", (rails_.preferred + k) % count));
  return devices;
}

Result<net::Rails> NetworkConnector::find_rails() const {
  net::Rails rails{.interfaces = TRY(net::find_rails(member_.interface()))};
  const auto nearest =
      carrier_.nearest.empty()
          ? rails.interfaces.end()
          : std::ranges::find(rails.interfaces, carrier_.nearest.front(), &Interface::name);
  rails.preferred = nearest != rails.interfaces.end()
                        ? static_cast<size_t>(nearest - rails.interfaces.begin())
                        : carrier_.number % rails.interfaces.size();
  std::string all;
  for (size_t i = 0; i < rails.interfaces.size(); ++i)
    all += fmt::format(" [{}]{}:{}<0>", i, rails.interfaces[i].name,
                       rails.interfaces[i].address.host());
  LOG(Info, Net, "NET/Socket : Using{}; rank {} begins with {}", all, member_.rank(),
      rails.preferred);
  return rails;
}

int NetworkConnector::streams_per_rail() const {
  const std::vector<Interface>& rails = rails_.interfaces;  // none where a plug-in carries
  const uint32_t vendor = rails.empty() ? 0 : adapter_vendor(rails[rails_.preferred].name);
  return net::sockets_of_rail(parameters::socket_nthreads(), parameters::nsocks_perthread(), vendor,
                              machine_.kind());
}

Result<NetworkConnector::Proxies> NetworkConnector::proxies() {
  {
    std::lock_guard lock(mutex_);
    const bool is_gpu = machine_.kind() == gpu::Kind::Cuda;
    if (proxies_.empty() && carrier_.network == nullptr) rails_ = TRY(find_rails());
    while (proxies_.size() < number_of_proxies(is_gpu, carrier_))
      proxies_.push_back(TRY(net::Proxy::start(
          {.machine = machine_,
           .member = member_,
           .fail = fail_,
           .streams = streams_per_rail(),
           .rails = rails_,
           .network = carrier_.network,
           .has_two_threads = is_gpu && cores() >= kCoresToSpare,
           .most_by_kernels = cores() >= kCoresToSpare ? kMostByKernels : UINT64_MAX,
           .direct_bytes = static_cast<uint64_t>(parameters::net_direct_bytes()),
           .user_buffers = carrier_.user_buffers,
           .observer = observer_.get(),
           .sinks = sinks_})));
  }
  return started();
}

Result<NetworkConnector::Proxies> NetworkConnector::proxies_with(size_t of_peer) {
  Proxies own = TRY(proxies());
  own.resize(std::min(own.size(), std::max<size_t>(of_peer, 1)));
  return own;
}

NetworkConnector::Proxies NetworkConnector::started() const {
  std::lock_guard lock(mutex_);
  Proxies proxies;
  for (const auto& proxy : proxies_) proxies.push_back(proxy.get());
  return proxies;
}

std::shared_ptr<net::DirectMemory> NetworkConnector::allocate_direct(
    const ShapedEnd& shaped) const {
  net::Network* const network = carrier_.network.get();
  if (network == nullptr || shaped.end.protocol != executor::Protocol::Simple ||
      !network->is_direct(shaped.end.is_send))
    return nullptr;
  // A core takes these chunks, and reaches no memory of real GPUs.
  if (has_sink(shaped.end.tag) && machine_.kind() == gpu::Kind::Cuda) return nullptr;
  Result<std::shared_ptr<net::DirectMemory>> made =
      network->allocate_direct(shaped.shape.slots_bytes(), shaped.end.is_send);
  if (made.is_ok()) return std::move(made).take();
  LOG(Info, Net, "NET/{} : {}; data {} rank {} pass through host memory", network->name(),
      made.status().message(), shaped.end.is_send ? "to" : "from", shaped.end.peer);
  return nullptr;
}

Result<executor::PortAddress> NetworkConnector::open(const Proxies& proxies,
                                                     const ShapedEnd& shaped) {
  const auto& [end, shape] = shaped;
  std::shared_ptr<const net::EndMemory> memory;
  {
    std::lock_guard lock(mutex_);
    auto& found = memories_[end];
    if (found == nullptr)
      found = TRY(net::EndMemory::allocate(machine_, shape, end.is_send, allocate_direct(shaped)));
    memory = found;
  }
  const net::Proxy::Name name{
      .peer = end.peer, .key = {.tag = end.tag, .protocol = end.protocol}, .is_send = end.is_send};
  const auto count = static_cast<uint32_t>(proxies.size());
  executor::PortAddress port;
  for (uint32_t p = 0; p < std::min(count, shape.channels); ++p) {
    const executor::PortAddress share =
        TRY(proxies[p]->open(name, net::EndShare(memory, p, count)));
    if (p == 0) port = share;
    for (uint32_t b = p; b < executor::kMostProxies; b += count) port.bells[b] = share.bells[0];
  }
  return port;
}

template <typename Message>
Status NetworkConnector::describe(int peer, Message& message) {
  for (const net::Proxy* own : TRY(proxies())) message.proxies.push_back(own->addresses());
  if (carrier_.network == nullptr) return {};
  const net::Network::Handle handle = TRY(started().front()->listen_for(peer));
  message.network = carrier_.network->name();
  message.handle.assign(handle.begin(), handle.end());
  return {};
}

template <typename Message>
Status NetworkConnector::reach(int peer, const Message& message, std::span<const ShapedEnd> ends) {
  const std::string own_name = carrier_.network == nullptr ? "" : carrier_.network->name();
  if (message.network != own_name) {
    const auto spoken = [](const std::string& name) { return name.empty() ? "Socket" : name; };
    return Status::invalid_usage(
        "rank {} reaches other machines by network {} and rank {} by {}: set NCCL_NET_PLUGIN and "
        "NCCL_NET alike on all machines, and install the plug-in or the NICs' library on all",
        member_.rank(), spoken(own_name), peer, spoken(message.network));
  }
  if (message.proxies.empty() || message.proxies.front().empty())
    return Status::remote_error("rank {} does not say where it listens", peer);
  const Proxies own = TRY(proxies_with(message.proxies.size()));
  if (carrier_.network == nullptr) {
    for (size_t p = 0; p < own.size() && sends_any(ends); ++p)
      own[p]->reach(peer, message.proxies[p]);
    return {};
  }
  net::Network::Handle handle;
  std::ranges::copy(message.handle, handle.begin());
  // Credit comes back by this way.
  return own.front()->reach(peer, handle, std::is_same_v<Message, ConnectReply>);
}

// Ends are made when this rank requests the peer's ends, because each end has memory of its own.
Status NetworkConnector::reserve(std::span<const ShapedEnd> /*ends*/) { return {}; }

Status NetworkConnector::ask(int peer, ConnectRequest& request) { return describe(peer, request); }

Status NetworkConnector::answer(int asker, std::span<const ShapedEnd> ends,
                                const ConnectRequest& request, ConnectReply& reply) {
  const Proxies own = TRY(proxies_with(request.proxies.size()));
  for (const ShapedEnd& shaped : ends) TRY(open(own, shaped).status());
  TRY(describe(asker, reply));
  return reach(asker, request, ends);
}

Status NetworkConnector::adopt(int peer, std::span<const ShapedEnd> ends, const ConnectReply& reply,
                               const Deadline& /*deadline*/) {
  const Proxies own = TRY(proxies_with(reply.proxies.size()));
  for (const ShapedEnd& shaped : ends) {
    const executor::PortAddress port = TRY(open(own, shaped));
    ports_.emplace(shaped.end, port);
  }
  return reach(peer, reply, ends);
}

// The peer's proxy has all data that this rank has sent when this rank leaves.
Status NetworkConnector::hand_over(int peer, bool /*same_process*/,
                                   std::span<const ShapedEnd> /*ends*/, ConnectReply& reply) {
  return describe(peer, reply);
}

std::optional<executor::PortAddress> NetworkConnector::port(const End& end) const {
  const auto found = ports_.find(end);
  if (found == ports_.end()) return std::nullopt;
  return found->second;
}

bool NetworkConnector::await_flush(const Deadline& deadline) const {
  const auto are_flushed = [proxies = started()] {
    return std::ranges::all_of(proxies, [](const auto* proxy) { return proxy->is_flushed(); });
  };
  // Only polls, at the end of a communicator: mostly all is flushed already, so that a signal of
  // the proxy is not worth it.
  while (!are_flushed()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

void NetworkConnector::set_farewell(Farewell farewell) {
  for (net::Proxy* const proxy : started()) proxy->set_farewell(farewell);
}

// NICs have the slots registered: they cannot go and come back.
size_t NetworkConnector::lasting_bytes() const {
  return carrier_.network != nullptr ? carrier_.network->gpu_bytes() : 0;
}

std::optional<NetworkState> NetworkConnector::network_state() const {
  std::optional<NetworkState> state;
  for (net::Proxy* const proxy : started()) {
    if (!state) state.emplace();
    state->join(proxy->state());
  }
  return state;
}

}  // namespace niccolite::transport
