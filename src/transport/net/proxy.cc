#include "transport/net/proxy.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/parameters.h"
#include "gpu/machine.h"

namespace niccolite::transport::net {

using std::chrono::seconds;
using wire::Link;

namespace {

// A peer's process that ends is told better by bootstrap/, which hears of it at about the same
// time.
constexpr auto kBetterNews = seconds(1);
// The longest time that a peer may spend on replacing a connection (Outbound::retry), and a bit
// more. `rails`: the number of its rails, which equals this rank's.
std::chrono::milliseconds replacement_time(size_t rails) {
  constexpr std::chrono::milliseconds kMost = std::chrono::hours(1);
  constexpr std::chrono::milliseconds kBit = seconds(10);
  const int64_t rounds = std::min<int64_t>(parameters::socket_retry_count(), 10'000);
  const std::chrono::milliseconds waits(parameters::socket_retry_sleep() * rounds * (rounds + 1) /
                                        2);
  // Each is at the end of its patience twice at most: with connecting and with the handshake.
  const auto paths = static_cast<int64_t>(rails + std::min(rails * (rails - 1), kMaxInterfaces));
  const seconds attempts =
      2 * std::chrono::ceil<seconds>(Link::Options{}.patience) * paths * (rounds + 1);
  return std::min(waits + attempts + kBit, kMost);
}

constexpr auto kLinger = seconds(2);  // time for peers to read the bytes that were sent to them
constexpr auto kShortLinger = std::chrono::milliseconds(10);

// Kernels of virtual GPUs say when they want credit (docs/design/network.md).
bool keeps_back(gpu::Kind machine) { return machine == gpu::Kind::Virtual; }

uint64_t number_of(int rank) { return static_cast<uint64_t>(rank) + 1; }

}  // namespace

Result<std::unique_ptr<Proxy>> Proxy::start(Options options) {
  std::unique_ptr<Proxy> proxy(new Proxy(std::move(options)));
  Proxy* const self = proxy.get();
  const Options& of = self->options_;
  const gpu::Kind machine = of.machine.kind();
  // Messengers carry both directions.
  const bool is_split = of.network == nullptr && of.has_two_threads;
  const bool is_shared = of.network == nullptr && !is_split;
  std::function<void()> tell;
  if (keeps_back(machine)) tell = [self] { self->tell_soon(); };
  self->sending_ = TRY(Engine::create(
      {.machine = machine,
       .workers = is_shared ? of.machine.event_workers() : nullptr,
       .most_by_kernels = of.most_by_kernels,
       .name = "nccl-proxy",
       .has_plugin = of.network != nullptr,
       .observer = of.observer,
       .progress =
           [self, is_split] {
             const bool sent = self->send();
             return (!is_split && self->receive()) || sent;
           },
       .tell = is_split ? std::function<void()>() : tell,
       .settle =
           [self, is_split] {
             if (!is_split) self->settle();
           },
       .is_finished = [self] { return self->is_finishing_ && self->has_finished(); }}));
  if (is_split)
    self->receiving_ = TRY(Engine::create({.machine = machine,
                                           .name = "nccl-proxy-in",
                                           .observer = of.observer,
                                           .progress = [self] { return self->receive(); },
                                           .tell = tell,
                                           .settle = [self] { self->settle(); },
                                           .is_finished = [] { return false; }}));
  TRY(self->listen());
  if (is_split) TRY(self->receiving_->start());
  TRY(self->sending_->start());
  return proxy;
}

Proxy::Proxy(Options options)
    : options_(std::move(options)),
      rails_(!options_.rails.interfaces.empty()
                 ? options_.rails
                 : Rails{.interfaces = {{.name = "",
                                         .address = options_.member.interface(),
                                         .netmask = {}}}}),
      process_(getpid()),
      link_{.self = {.key = options_.member.secret("proxy"),
                     .number = number_of(options_.member.rank())},
            .identity_of = {}} {}

Status Proxy::listen() {
  for (const Interface& rail : rails_.interfaces) {
    Socket listener = TRY(Socket::listen(rail.address));
    acceptors_.push_back(TRY(wire::Acceptor::create(
        receiver().loop(), std::move(listener), link_,
        [this](std::unique_ptr<Link> link) { welcome(std::move(link)); },
        [this](const Status& why) { warn_of_shortage(why); })));
    acceptors_.back()->turn_away_when_short();
    addresses_.push_back(acceptors_.back()->address());
  }
  return {};
}

// Peers that are not let in fail, and say so; this rank waits for them.
void Proxy::warn_of_shortage(const Status& why) {
  if (std::exchange(told_shortage_, true)) return;
  LOG(Warn, Net, "descriptors are too few for the connections from other ranks: {}", why.message());
}

Proxy::~Proxy() {
  if (process_ != getpid()) {
    // In a child made by fork() the threads do not exist, and sockets, epoll and the plug-ins'
    // objects are the parent's, too: touches nothing.
    static_cast<void>(new (std::nothrow) auto(std::move(outbound_)));
    static_cast<void>(new (std::nothrow) auto(std::move(inbound_)));
    static_cast<void>(new (std::nothrow) auto(std::move(acceptors_)));
    static_cast<void>(new (std::nothrow) auto(std::move(made_messengers_)));
    for (Engine* engine : {sending_.get(), receiving_.get()})
      if (engine != nullptr) engine->abandon();
    return;
  }
  leave();
  if (sending_ != nullptr && sending_->is_running()) sending_->join();
  // Until then peers hear the outcome of their sends.
  is_leaving_.store(true, std::memory_order_relaxed);  // at worst a leaving rank hears a report
  if (receiving_ != nullptr && receiving_->is_running()) {
    receiving_->loop().post([this] { receiving_->loop().stop(); });
    receiving_->join();
  }
  outbound_.clear();  // before the loops
  inbound_.clear();
  acceptors_.clear();
}

void Proxy::leave() {
  if (has_left_ || process_ != getpid() || sending_ == nullptr) return;
  has_left_ = true;
  sending_->withdraw();
  if (!sending_->is_running()) return;
  const bool is_orderly =
      is_flushed() || farewell_.load(std::memory_order_relaxed) == Farewell::Unread;
  sending_->loop().post([this, is_orderly] { finish(is_orderly); });
}

void Proxy::welcome(std::unique_ptr<Link> link) {
  const uint64_t number = link->peer_number();
  const auto nranks = static_cast<uint64_t>(options_.member.nranks());
  if (number >= 1 && number <= nranks && number != link->number())
    inbound(static_cast<int>(number - 1)).welcome(link->release());
  Link::bury(receiver().loop(), std::move(link));
}

void Proxy::report(Engine& from, int peer, Status why) {
  if (is_leaving_.load(std::memory_order_relaxed)) return;
  auto kept = std::make_shared<Status>(std::move(why).with_peer(peer));
  {
    std::lock_guard lock(mutex_);
    broken_.insert(peer);
    causes_.emplace(peer, kept->message());
  }
  from.loop().after(kBetterNews, [this, peer, kept] {
    // A peer that leaves without reading unneeded bytes resets the connection.
    if (!options_.member.has_left(peer)) return options_.fail(kept->copy());
    {
      std::lock_guard lock(mutex_);
      broken_.erase(peer);
    }
    // No failure ends the waits for this peer, so they must end in another way.
    sending_->loop().post([this, peer] {
      if (const auto to = outbound_.find(peer); to != outbound_.end()) to->second->abandon();
    });
  });
}

Outbound& Proxy::outbound(int peer) {
  std::unique_ptr<Outbound>& found = outbound_[peer];
  if (found == nullptr)
    found = std::make_unique<Outbound>(
        sending_->loop(),
        Outbound::Options{
            .link = link_,
            .number = number_of(peer),
            .peer = fmt::format("rank {} ({})", peer, options_.member.describe(peer)),
            .streams = options_.streams,
            .rails = rails_,
            .has_left = [this, peer] { return options_.member.has_left(peer); },
            .fail = [this, peer](Status why) { report(*sending_, peer, std::move(why)); },
            .pulse = &pulse(peer),
            .give_news = news_travel_behind_parts() ? give_news_of(peer) : nullptr,
            .lose_news = news_travel_behind_parts() ? lose_news_of(peer) : nullptr});
  return *found;
}

Inbound& Proxy::inbound(int peer) {
  std::unique_ptr<Inbound>& found = inbound_[peer];
  if (found == nullptr)
    found = std::make_unique<Inbound>(
        receiver().loop(),
        Inbound::Options{
            .peer = fmt::format("rank {} ({})", peer, options_.member.describe(peer)),
            .fail = [this, peer](Status why) { report(receiver(), peer, std::move(why)); },
            .patience = options_.patience.count() > 0 ? options_.patience
                                                      : replacement_time(rails_.interfaces.size()),
            .pulse = &pulse(peer),
            .keeps_back = keeps_back(options_.machine.kind()),
            .take_news = news_travel_behind_parts() ? take_news_of(peer) : nullptr});
  return *found;
}

// One thread at a time has both directions.
bool Proxy::news_travel_behind_parts() const {
  return keeps_back(options_.machine.kind()) && receiving_ == nullptr;
}

std::function<void(const Proxy::Queue&)> Proxy::give_news_of(int peer) {
  return [this, peer](const Queue& queue) {
    if (const auto from = inbound_.find(peer); from != inbound_.end())
      from->second->give_news(queue);
  };
}

std::function<void()> Proxy::lose_news_of(int peer) {
  return [this, peer] {
    if (const auto from = inbound_.find(peer); from != inbound_.end()) from->second->tell_again();
  };
}

std::function<Status(const Frame&)> Proxy::take_news_of(int peer) {
  return [this, peer](const Frame& frame) { return outbound(peer).take_news(frame); };
}

Pulse& Proxy::pulse(int peer) {
  std::lock_guard lock(pulses_mutex_);
  std::unique_ptr<Pulse>& found = pulses_[peer];
  if (found == nullptr) found = std::make_unique<Pulse>();
  return *found;
}

NetworkState Proxy::state() {
  NetworkState state;
  for (Engine* const engine : {sending_.get(), receiving_.get()})
    if (engine != nullptr) state.threads.push_back(engine->probe());
  // Before the acknowledgements are read, so that an acknowledgement in between counts as a recent
  // one.
  std::set<int> under_way;
  std::map<int, std::string> causes;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [name, end] : outgoing_)
      if (!end->is_flushed()) under_way.insert(name.peer);
    under_way.insert(broken_.begin(), broken_.end());
    causes = causes_;
  }
  constexpr std::chrono::seconds kLately{60};
  const auto is_lately = [&](const std::optional<std::chrono::milliseconds>& age) {
    return age && *age < kLately;
  };
  std::lock_guard lock(pulses_mutex_);
  for (const auto& [peer, pulse] : pulses_) {
    Traffic traffic = pulse->traffic(peer);
    traffic.is_under_way = under_way.erase(peer) > 0;
    if (const auto cause = causes.find(peer); cause != causes.end()) traffic.broken = cause->second;
    if (traffic.is_under_way || !traffic.broken.empty() || traffic.unacknowledged ||
        is_lately(traffic.heard) || is_lately(traffic.acknowledged))
      state.peers.push_back(traffic);
  }
  for (const int peer : under_way) {  // whose connection has not been thought of yet
    Traffic& traffic = state.peers.emplace_back();
    traffic.peer = peer;
    traffic.is_under_way = true;
  }
  state.sort_out_peers();
  return state;
}

Result<Messenger*> Proxy::messenger(int peer) {
  std::unique_ptr<Messenger>& found = made_messengers_[peer];
  if (found == nullptr) {
    Result<std::unique_ptr<Messenger>> made = Messenger::create(
        {.network = options_.network,
         .peer = fmt::format("rank {} ({})", peer, options_.member.describe(peer)),
         .own_rank = options_.member.rank(),
         .peer_rank = peer,
         .observer = options_.observer,
         .has_left = [this, peer] { return options_.member.has_left(peer); },
         .fail = [this, peer](Status why) { report(*sending_, peer, std::move(why)); },
         .pulse = &pulse(peer)});
    if (!made.is_ok())
      return std::move(made).status().with_context("rank {}: preparing to reach rank {}",
                                                   options_.member.rank(), peer);
    found = std::move(made).take();
    sending_->loop().post(
        [this, peer, messenger = found.get()] { messengers_.emplace(peer, messenger); });
  }
  return found.get();
}

// The engine's thread serves the end from now on.
template <typename End>
Status Proxy::attach(const Name& name, End* end) {
  if (options_.network != nullptr) {
    Messenger* const with = TRY(messenger(name.peer));
    sending_->loop().post(
        [this, with, key = name.key, end] { sending_->append([&] { with->add(key, *end); }); });
    return {};
  }
  Engine& engine = std::is_same_v<End, Outgoing> ? *sending_ : receiver();
  engine.loop().post([this, &engine, name, end] {
    engine.append([&] {
      if constexpr (std::is_same_v<End, Outgoing>)
        outbound(name.peer).add(name.key, *end);
      else
        inbound(name.peer).add(name.key, *end);
    });
  });
  return {};
}

Result<Network::Handle> Proxy::listen_for(int peer) {
  std::lock_guard lock(mutex_);
  const Messenger* const with = TRY(messenger(peer));
  return with->handle();
}

Status Proxy::reach(int peer, const Network::Handle& handle, bool is_answer) {
  std::lock_guard lock(mutex_);
  Messenger* const with = TRY(messenger(peer));
  TRY(with->meet(handle));
  sending_->loop().post([with, handle, is_answer] { with->reach(handle, is_answer); });
  return {};
}

Result<executor::PortAddress> Proxy::open(const Name& name, EndShare share) {
  // Cores reach no memory of real GPUs; kernels know one proxy that reaches it; words have no place
  // but a slot; and where the network's device reads and writes slots, it reaches no buffers but
  // registered ones.
  const bool is_alone = share.shape().channels == share.memory().shape().channels;
  const auto user_memory = [&](Engine& engine) {
    const bool is_direct = share.memory().direct() != nullptr;
    const bool reaches = is_direct ? options_.user_buffers != nullptr
                                   : options_.machine.kind() == gpu::Kind::Virtual;
    return reaches && is_alone && name.key.protocol == executor::Protocol::Simple
               ? UserMemoryOptions{.loop = &engine.loop(),
                                   .least_bytes = options_.direct_bytes,
                                   .buffers = options_.user_buffers.get()}
               : UserMemoryOptions{};
  };
  std::lock_guard lock(mutex_);
  if (name.is_send) {
    if (const auto found = outgoing_.find(name); found != outgoing_.end())
      return found->second->port();
    auto made = std::make_unique<Outgoing>(name.key, std::move(share), sending_->bell(),
                                           user_memory(*sending_));
    made->observe(options_.observer, name.peer);
    TRY(attach(name, made.get()));
    return outgoing_.emplace(name, std::move(made)).first->second->port();
  }
  if (const auto found = incoming_.find(name); found != incoming_.end())
    return found->second->port();
  auto made = std::make_unique<Incoming>(name.key, std::move(share), receiver().bell(),
                                         user_memory(receiver()));
  made->observe(options_.observer, name.peer);
  if (name.key.tag == kPutTag) made->pour_into(options_.sinks.puts);
  if (name.key.tag == kGinTag) made->pour_into(options_.sinks.gin);
  TRY(attach(name, made.get()));
  return incoming_.emplace(name, std::move(made)).first->second->port();
}

void Proxy::reach(int peer, const std::vector<Address>& addresses) {
  sending_->loop().post([this, peer, addresses] { outbound(peer).reach(addresses); });
}

bool Proxy::is_flushed() const {
  std::lock_guard lock(mutex_);
  return broken_.empty() &&
         std::ranges::all_of(outgoing_, [](const auto& end) { return end.second->is_flushed(); });
}

bool Proxy::has_finished() const {
  return std::ranges::none_of(outbound_, [](const auto& to) { return to.second->has_streams(); }) &&
         std::ranges::all_of(messengers_,
                             [](const auto& with) { return with.second->has_finished(); });
}

bool Proxy::send() {
  bool moved = false;
  for (const auto& [peer, with] : messengers_) moved |= with->progress();
  for (const auto& [peer, to] : outbound_) moved |= to->progress();
  return moved;
}

bool Proxy::receive() {
  bool moved = false;
  for (const auto& [peer, from] : inbound_) moved |= from->progress();
  return moved;
}

void Proxy::tell_soon() {
  for (const auto& [peer, from] : inbound_) from->tell_soon();
}

void Proxy::settle() {
  for (const auto& [peer, from] : inbound_) from->settle();
}

void Proxy::finish(bool is_orderly) {
  is_finishing_ = true;
  is_leaving_.store(true, std::memory_order_relaxed);
  if (!is_orderly) return sending_->loop().stop();
  for (const auto& [peer, to] : outbound_) to->finish();
  receiver().loop().post([this] {
    for (const auto& [peer, from] : inbound_) from->finish();
  });
  for (const auto& [peer, with] : messengers_) with->finish();
  const std::chrono::milliseconds linger =
      farewell_.load(std::memory_order_relaxed) == Farewell::Hurried ? kShortLinger : kLinger;
  sending_->loop().after(linger, [this] { sending_->loop().stop(); });
}

}  // namespace niccolite::transport::net
