#include "transport/network_connector.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "base/log.h"
#include "base/parameters.h"

namespace niccolite::transport {
namespace {

int streams_from_environment() {
  const int64_t asked = parameters::socket_nthreads() * parameters::nsocks_perthread();
  return static_cast<int>(std::min<int64_t>(asked, net::kMostStreams));
}

// A thread for each direction carries more than one for both, but small messages are slower where
// threads share cores: of virtual GPUs whose kernels take them, and of processes bound to few.
bool has_cores_to_spare() {
  constexpr int kEnough = 4;
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) >= kEnough;
}

// Of what kernels of virtual GPUs send themselves: more of it they leave to the proxy's thread, if
// it has a core, and go on meanwhile.
constexpr uint64_t kMostByKernels = 16 << 10;

bool sends_any(std::span<const ShapedEnd> ends) {
  return std::ranges::any_of(ends, [](const ShapedEnd& shaped) { return shaped.end.is_send; });
}

}  // namespace

std::string NetworkConnector::name() const { return devices().front(); }

std::vector<std::string> NetworkConnector::devices() const {
  const auto& network = carrier_.network;
  if (network != nullptr) return {fmt::format("NET/{}/0", network->name())};
  std::lock_guard lock(mutex_);
  const size_t count = std::max<size_t>(rails_.interfaces.size(), 1);
  std::vector<std::string> devices;
  for (size_t k = 0; k < count; ++k)
    devices.push_back(fmt::format("NET/Socket/{}", (rails_.preferred + k) % count));
  return devices;
}

Result<net::Rails> NetworkConnector::find_rails() const {
  net::Rails rails{.interfaces = TRY(net::find_rails(member_.interface()))};
  const auto nearest =
      std::ranges::find(rails.interfaces, carrier_.nearest_interface, &Interface::name);
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

Result<net::Proxy*> NetworkConnector::proxy() {
  std::lock_guard lock(mutex_);
  if (proxy_ != nullptr) return proxy_.get();
  if (carrier_.network == nullptr) rails_ = TRY(find_rails());
  proxy_ = TRY(net::Proxy::start(
      {.machine = machine_,
       .member = member_,
       .fail = fail_,
       .streams = streams_from_environment(),
       .rails = rails_,
       .network = carrier_.network,
       .has_two_threads = machine_.kind() == gpu::Kind::Cuda && has_cores_to_spare(),
       .most_by_kernels = has_cores_to_spare() ? kMostByKernels : UINT64_MAX,
       .direct_bytes = static_cast<uint64_t>(parameters::net_direct_bytes()),
       .observer = observer_.get()}));
  return proxy_.get();
}

Result<executor::PortAddress> NetworkConnector::open(net::Proxy& proxy, const ShapedEnd& shaped) {
  const auto& [end, shape] = shaped;
  return proxy.open(
      {.peer = end.peer, .key = {.tag = end.tag, .protocol = end.protocol}, .is_send = end.is_send},
      shape);
}

template <typename Message>
Status NetworkConnector::describe(int peer, Message& message) {
  net::Proxy* const own = TRY(proxy());
  message.proxy = own->addresses();
  if (carrier_.network == nullptr) return {};
  const net::Network::Handle handle = TRY(own->listen_for(peer));
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
        "NCCL_NET alike on all machines, and install the plug-in on all",
        member_.rank(), spoken(own_name), peer, spoken(message.network));
  }
  if (message.proxy.empty())
    return Status::remote_error("rank {} does not say where it listens", peer);
  net::Proxy* const own = TRY(proxy());
  if (carrier_.network == nullptr) {
    if (sends_any(ends)) own->reach(peer, message.proxy);
    return {};
  }
  net::Network::Handle handle;
  std::ranges::copy(message.handle, handle.begin());
  own->reach(peer, handle);  // credit comes back by this way
  return {};
}

// Ends are made when the peer is asked for its own: each has memory of its own in any case.
Status NetworkConnector::reserve(std::span<const ShapedEnd> /*ends*/) { return {}; }

Status NetworkConnector::ask(int peer, ConnectRequest& request) { return describe(peer, request); }

Status NetworkConnector::answer(int asker, std::span<const ShapedEnd> ends,
                                const ConnectRequest& request, ConnectReply& reply) {
  net::Proxy* const own = TRY(proxy());
  for (const ShapedEnd& shaped : ends) TRY(open(*own, shaped).status());
  TRY(describe(asker, reply));
  return reach(asker, request, ends);
}

Status NetworkConnector::adopt(int peer, std::span<const ShapedEnd> ends, const ConnectReply& reply,
                               const Deadline& /*deadline*/) {
  net::Proxy* const own = TRY(proxy());
  for (const ShapedEnd& shaped : ends) {
    const executor::PortAddress port = TRY(open(*own, shaped));
    ports_.emplace(shaped.end, port);
  }
  return reach(peer, reply, ends);
}

// What this rank has sent is with the peer's proxy when it leaves.
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
  const net::Proxy* proxy = nullptr;  // it lives as long as this does
  {
    std::lock_guard lock(mutex_);
    proxy = proxy_.get();
  }
  // At the end of a communicator, and mostly true at once: not worth a signal of the proxy's.
  while (proxy != nullptr && !proxy->is_flushed()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

void NetworkConnector::set_farewell(Farewell farewell) {
  std::lock_guard lock(mutex_);
  if (proxy_ != nullptr) proxy_->set_farewell(farewell);
}

std::optional<NetworkState> NetworkConnector::network_state() const {
  net::Proxy* proxy = nullptr;  // as in await_flush()
  {
    std::lock_guard lock(mutex_);
    proxy = proxy_.get();
  }
  if (proxy == nullptr) return std::nullopt;
  return proxy->state();
}

}  // namespace niccolite::transport
