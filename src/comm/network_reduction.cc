#include "comm/network_reduction.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/parameters.h"
#include "base/thread.h"
#include "bootstrap/member.h"

namespace niccolite::comm {
namespace {

using executor::DataType;
using executor::ReduceOp;
using transport::net::CollectiveNetwork;
using transport::net::Reducer;

// A plug-in that hangs while it connects, or while it is tried, takes no longer.
std::chrono::seconds set_up_time() { return std::chrono::seconds(parameters::collnet_seconds()); }

constexpr size_t kMostText = 4096;

/// A rank's message to all others before the members connect, and after it.
struct Offer {
  std::string name;  // of the network
  std::string why_not;
  CollectiveNetwork::Handle handle{};
  planner::Reductions reducible;

  Bytes encode() const {
    Writer writer;
    writer.text(std::string_view(name).substr(0, kMostText));
    writer.text(std::string_view(why_not).substr(0, kMostText));
    writer.raw(handle);
    writer.u64(reducible.bits);
    writer.u8(reducible.gathers ? 1 : 0);
    return std::move(writer).take();
  }
  static Result<Offer> decode(std::span<const std::byte> bytes) {
    Reader reader(bytes, "an offer of a reducer");
    Offer offer;
    offer.name = reader.text(kMostText);
    offer.why_not = reader.text(kMostText);
    std::ranges::copy(reader.raw(offer.handle.size()), offer.handle.begin());
    offer.reducible.bits = reader.u64();
    offer.reducible.gathers = reader.u8() != 0;
    TRY(reader.finish());
    return offer;
  }
};

/// The ranks of this rank's rail, the members of its group; empty: it is a member of none.
struct Place {
  std::vector<int> ranks;
  int number = -1;  // of this rank among them
};
Place place_of(std::span<const int> machines, int rank) {
  Place place{.ranks = planner::members_of_rail(machines, rank)};
  if (!place.ranks.empty())
    place.number = static_cast<int>(std::ranges::find(place.ranks, rank) - place.ranks.begin());
  return place;
}

Result<planner::Reductions> reducible_by(CollectiveNetwork& network) {
  planner::Reductions reductions{.gathers = network.gathers()};
  for (int type = 0; type < executor::kDataTypes; ++type)
    for (int operation = 0; operation < executor::kReduceOps; ++operation)
      if (TRY(network.can_reduce(static_cast<DataType>(type), static_cast<ReduceOp>(operation))))
        reductions.bits |=
            planner::Reductions::bit(static_cast<DataType>(type), static_cast<ReduceOp>(operation));
  if (reductions.bits == 0)
    return Status::system_error(
        "CollNet plug-in {} ({}): reduceSupport knows no type and operation", network.name(),
        network.origin());
  return reductions;
}

/// Connects and tries a reduction, on a thread that may hang in the plug-in: whoever waits gives it
/// up then, and it ends whenever the plug-in returns.
class Connecting : public std::enable_shared_from_this<Connecting> {
 public:
  Connecting(std::shared_ptr<CollectiveNetwork> network,
             std::vector<CollectiveNetwork::Handle> handles, int place, void* listener,
             planner::Reductions reducible)
      : network_(std::move(network)),
        handles_(std::move(handles)),
        place_(place),
        listener_(listener),
        reducible_(reducible) {}

  /// The connected collective.
  Result<void*> wait() {
    const std::optional<Status> status = run_within(
        "nccl collnet", set_up_time(), [self = shared_from_this()] { return self->connect(); });
    std::lock_guard lock(mutex_);
    if (status) TRY(status->copy());
    if (collective_ != nullptr) return collective_;
    is_given_up_ = true;
    return Status::remote_error(
        "CollNet plug-in {} ({}), device {}: {} takes longer than {} s: does its reducer run? "
        "(NICCOLITE_COLLNET_SECONDS)",
        network_->name(), network_->origin(), network_->device(), step_.load(),
        set_up_time().count());
  }

 private:
  Status connect() {
    Result<void*> connected = network_->connect(handles_, place_, listener_);
    network_->close_listener(listener_);
    void* const collective = TRY(std::move(connected));
    step_ = "its first iallreduce";
    Status status = try_it(collective);
    if (status.is_ok() && keep(collective)) return {};
    network_->close(collective);  // without the mutex: it may hang, too
    return status;
  }

  /// A sum of known numbers, which shows who takes part.
  Status try_it(void* collective) {
    if (reducible_.has(DataType::Int32, ReduceOp::Sum))
      return try_sum<int32_t>(collective, DataType::Int32);
    if (reducible_.has(DataType::Float32, ReduceOp::Sum))
      return try_sum<float>(collective, DataType::Float32);
    return {};
  }
  template <typename T>
  Status try_sum(void* collective, DataType type) {
    constexpr size_t kCount = 64;
    alignas(64) std::array<T, kCount> sent, received;
    sent.fill(static_cast<T>(place_ + 1));
    received.fill(T{});
    transport::net::CollectivePiece from{reinterpret_cast<std::byte*>(sent.data())};
    transport::net::CollectivePiece to{reinterpret_cast<std::byte*>(received.data())};
    from.memory = TRY(network_->register_memory(collective, sent.data(), sizeof sent));
    to.memory = TRY(network_->register_memory(collective, received.data(), sizeof received));
    const Status status = sum(collective, from, to, kCount, type);
    network_->deregister_memory(collective, from.memory);
    network_->deregister_memory(collective, to.memory);
    TRY(status.copy());
    const auto members = static_cast<int>(handles_.size());
    const int sum_of_numbers = members * (members + 1) / 2;
    const auto expected = static_cast<T>(sum_of_numbers);
    for (const T value : received)
      if (value != expected)
        return Status::remote_error(
            "CollNet plug-in {} ({}), device {}: iallreduce of {} members' numbers 1 to {} gave "
            "{}, "
            "not {}: its group is another one, or it does not reduce",
            network_->name(), network_->origin(), network_->device(), members, members, value,
            expected);
    return {};
  }
  Status sum(void* collective, const transport::net::CollectivePiece& from,
             const transport::net::CollectivePiece& to, size_t count, DataType type) {
    constexpr std::chrono::microseconds kMoment{50};
    void* request = nullptr;
    while (request == nullptr) {
      request = TRY(network_->all_reduce(collective, from, to, count, type, ReduceOp::Sum));
      if (request == nullptr) std::this_thread::sleep_for(kMoment);
      if (is_given_up()) return Status::remote_error("given up");
    }
    while (!TRY(network_->test(request))) {
      std::this_thread::sleep_for(kMoment);
      if (is_given_up()) return Status::remote_error("given up");
    }
    return {};
  }
  bool keep(void* collective) {
    std::lock_guard lock(mutex_);
    if (!is_given_up_) collective_ = collective;
    return !is_given_up_;
  }
  bool is_given_up() {
    std::lock_guard lock(mutex_);
    return is_given_up_;
  }

  const std::shared_ptr<CollectiveNetwork> network_;
  std::vector<CollectiveNetwork::Handle> handles_;
  const int place_;
  void* const listener_;
  const planner::Reductions reducible_;
  std::atomic<const char*> step_{"connect"};
  std::mutex mutex_;
  bool is_given_up_ = false;
  void* collective_ = nullptr;  // tried, and not given up
};

class Search {
 public:
  explicit Search(const ReducerSearch& search)
      : search_(search), place_(place_of(search.machines, search.member.rank())) {}

  Result<FoundReducer> run() {
    Offer offer;
    if (const Status status = open(offer); !status.is_ok()) offer.why_not = status.message();
    const std::optional<std::vector<Offer>> offers = TRY(exchange(offer));
    if (!offers) {
      if (listener_ != nullptr) network_->close_listener(listener_);
      return FoundReducer();
    }
    FoundReducer found;
    Offer result = std::move(offer);
    if (const Status status = join(*offers, found); !status.is_ok())
      result.why_not = status.message();
    const std::optional<std::vector<Offer>> results = TRY(exchange(result));
    if (!results) return FoundReducer();
    found.reducible = results->front().reducible;
    for (const Offer& of : *results) {
      found.reducible.bits &= of.reducible.bits;
      found.reducible.gathers &= of.reducible.gathers;
    }
    if (search_.member.rank() == 0)
      LOG(Info, Net, "the network reduces: CollNet {} ({}, device {}), {} machines{}",
          network_->name(), network_->origin(), network_->device(), place_.ranks.size(),
          found.reducible.gathers ? "" : "; it neither gathers nor scatters");
    return found;
  }

 private:
  Status open(Offer& offer) {
    if (search_.network == nullptr || search_.network->library() == nullptr)
      return Status::invalid_usage(
          "the network is {}, which does not reduce: set NCCL_NET_PLUGIN to a plug-in that does",
          search_.network == nullptr ? "Socket" : search_.network->name());
    network_ = TRY(CollectiveNetwork::open(search_.network->library(), search_.communicator));
    offer.name = network_->name();
    offer.reducible = TRY(reducible_by(*network_));
    if (place_.number >= 0) listener_ = TRY(network_->listen(offer.handle));
    return {};
  }

  Status join(std::span<const Offer> offers, FoundReducer& found) {
    if (place_.number < 0) return {};
    std::vector<CollectiveNetwork::Handle> handles;
    for (const int rank : place_.ranks) handles.push_back(offers[static_cast<size_t>(rank)].handle);
    const auto connecting =
        std::make_shared<Connecting>(network_, std::move(handles), place_.number, listener_,
                                     offers[static_cast<size_t>(search_.member.rank())].reducible);
    void* const collective = TRY(connecting->wait());
    found.reducer = TRY(
        Reducer::start({.network = network_,
                        .collective = collective,
                        .members = static_cast<int>(place_.ranks.size()),
                        .place = place_.number,
                        .kernels_ring = search_.kernels_ring,
                        .fail = search_.fail,
                        .is_registered = search_.is_registered,
                        .export_memory = search_.export_memory,
                        .direct_bytes = static_cast<uint64_t>(parameters::net_direct_bytes())}));
    return {};
  }

  /// None: some rank cannot, which rank 0 says.
  Result<std::optional<std::vector<Offer>>> exchange(const Offer& own) {
    const bootstrap::Gathered gathered =
        TRY(search_.member.all_gather(own.encode(), search_.deadline));
    std::vector<Offer> offers;
    for (int rank = 0; rank < search_.member.nranks(); ++rank)
      offers.push_back(TRY(Offer::decode(gathered[rank])));
    // One rank's failure often has others wait in vain: the cause may be at any of them.
    constexpr int kMostNamed = 3;
    std::string reasons;
    int obstacles = 0;
    for (size_t rank = 0; rank < offers.size(); ++rank) {
      const Offer& of = offers[rank];
      std::string why = of.why_not;
      if (why.empty() && of.name != offers.front().name)
        why = fmt::format("its CollNet plug-in is {}, and rank 0's is {}", of.name,
                          offers.front().name);
      if (why.empty() || ++obstacles > kMostNamed) continue;
      reasons += fmt::format("{}rank {}: {}", reasons.empty() ? "" : "; ", rank, why);
    }
    if (obstacles > kMostNamed)
      reasons += fmt::format("; and {} ranks more", obstacles - kMostNamed);
    if (obstacles > 0) {
      if (search_.member.rank() == 0)
        LOG(Warn, Net,
            "the network does not reduce here (CollNet): {}. The communicator runs without; "
            "NCCL_COLLNET_ENABLE=0 does so silently",
            reasons);
      return std::optional<std::vector<Offer>>();
    }
    return std::optional(std::move(offers));
  }

  const ReducerSearch& search_;
  const Place place_;
  std::shared_ptr<CollectiveNetwork> network_;
  void* listener_ = nullptr;
};

}  // namespace

Result<FoundReducer> find_reducer(const ReducerSearch& search) { return Search(search).run(); }

}  // namespace niccolite::comm
