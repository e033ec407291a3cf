// Derives communicators from communicators. In a split each rank tells its wish in one all-gather
// of the parent, and knows from the answers which child it is in. It makes its end of the child
// over the links that the parent has. A second all-gather tells it that all ranks have done so;
// where the parent has a multicast team, the child's ranks make theirs after one more. In a shrink
// the survivors tell each other, without the excluded ranks, that their ends are made. The members
// of a growing communicator meet the newcomers as in an init.
#include <algorithm>
#include <chrono>

#include "base/authentication.h"
#include "base/log.h"
#include "base/parameters.h"
#include "comm/communicator.h"
#include "gpu/machine.h"
#include "transport/endpoint.h"
#include "transport/team.h"

namespace niccolite::comm {
namespace {

constexpr size_t kMostRefusal = 4096;  // of a refusal

/// Returns the hash of a child: equal on all its ranks, and different from every other
/// communicator's.
uint64_t hash_of_child(uint64_t parent, uint64_t number, int color) {
  Writer writer;
  writer.u64(parent);
  writer.u64(number);
  writer.i32(color);
  return authentication::fingerprint(writer.bytes()) | 1;  // 0 names all ranks in bootstrap
}

/// The wish that a rank sends to all others of its parent; points into the received bytes.
struct Wish {
  Status refusal;
  int color = 0;
  int key = 0;
  uint64_t children = 0;  // that the parent has had
  // 0 or 1 for each of the parent's ranks, or one value for all ranks of the child, where they are
  // known. Empty: 1 for all.
  std::span<const std::byte> reaches{};
  std::span<const std::byte> settings{};  // encoded; a child reads its first rank's

  Bytes encode() const {
    Writer writer;
    writer.u8(static_cast<uint8_t>(refusal.code()));
    if (!refusal.is_ok()) {
      writer.text(refusal.message().substr(0, kMostRefusal));
      return std::move(writer).take();
    }
    writer.i32(color);
    writer.i32(key);
    writer.u64(children);
    writer.blob(reaches);
    writer.raw(settings);
    return std::move(writer).take();
  }

  /// Decodes the wish of a rank whose parent has `nranks`.
  static Result<Wish> decode(std::span<const std::byte> bytes, int nranks) {
    Reader reader(bytes, "the wish of a rank");
    Wish wish;
    const uint8_t code = reader.u8();
    if (code > static_cast<uint8_t>(Code::RemoteError)) reader.reject("an unknown code");
    if (code != static_cast<uint8_t>(Code::Ok)) {
      wish.refusal = Status::error(static_cast<Code>(code), "{}", reader.text(kMostRefusal));
      TRY(reader.finish());
      return wish;
    }
    wish.color = reader.i32();
    wish.key = reader.i32();
    wish.children = reader.u64();
    wish.reaches = reader.blob(static_cast<size_t>(nranks));
    wish.settings = reader.rest();
    TRY(reader.finish());
    return wish;
  }
};

}  // namespace

/// A child as its members know it before they make it.
struct Child {
  uint64_t hash = 0;
  std::vector<int> ranks;  // by the child's rank: the parent's
  int rank = -1;           // this one's
  planner::Settings settings;
  bool reaches_all = true;  // every member's kernels the buffers of all others' users
  const char* function = "";
  Configuration configuration;

  /// `of_members`: by the child's rank; of a parent of `nranks` with such GPUs.
  Status adopt(const std::vector<const Wish*>& of_members, gpu::Kind machine, int nranks) {
    Reader reader(of_members[0]->settings, "the settings of a rank");
    settings = planner::read_settings(reader, machine, nranks);
    TRY(reader.finish());
    for (size_t from = 0; from < ranks.size() && reaches_all; ++from) {
      const std::span<const std::byte> reaches = of_members[from]->reaches;
      if (reaches.size() < static_cast<size_t>(nranks)) {
        reaches_all = reaches.empty() || reaches[0] != std::byte{0};
        continue;
      }
      reaches_all = std::ranges::all_of(ranks, [&](int to) {
        return ranks[from] == to || reaches[static_cast<size_t>(to)] != std::byte{0};
      });
    }
    return {};
  }
};

namespace {

std::shared_ptr<Communicator> make(const Child& child, const Communicator& parent) {
  return std::make_shared<Communicator>(parent.machine(),
                                        Identity{.hash = child.hash,
                                                 .nranks = static_cast<int>(child.ranks.size()),
                                                 .rank = child.rank,
                                                 .device = parent.device(),
                                                 .function = child.function},
                                        child.configuration);
}

void end_unborn(Communicator& child, const Status& why) {
  child.abort(why.copy());
  child.end().ignore("nobody has seen it");
}

}  // namespace

// `refusal`: why this rank makes no child. `members`: the child's ranks, if they are known. A
// thousand ranks hear from a thousand, so that it is worth being brief.
Bytes Communicator::encode_wish(const SplitWish& wish, const Status& refusal,
                                const std::vector<int>* members) const {
  Wish mine{.refusal = refusal.copy(), .color = wish.color, .key = wish.key, .children = children_};
  Writer settings;
  if (mine.refusal.is_ok()) {
    auto made = make_own_settings(machine_.kind(), nranks(), wish.configuration.limits);
    if (made.is_ok()) write(settings, made.value());
    mine.refusal = made.status().copy();
  }
  mine.settings = settings.bytes();
  Bytes reaches;
  const auto reaches_peer = [&](int peer) {
    return peer == rank() || ways_.reach().out[static_cast<size_t>(peer)];
  };
  if (!ways_.reach().is_whole && members != nullptr) {
    if (!std::ranges::all_of(*members, reaches_peer)) reaches.push_back(std::byte{0});
  } else if (!ways_.reach().is_whole) {
    for (int peer = 0; peer < nranks(); ++peer) reaches.push_back(std::byte{reaches_peer(peer)});
  }
  mine.reaches = reaches;
  return mine.encode();
}

Result<std::shared_ptr<Communicator>> Communicator::split(const SplitWish& wish) {
  const InUse in_use = use("ncclCommSplit");
  if (is_over()) return lifetime_.gone();
  const Bytes mine = encode_wish(wish, wish.refusal, nullptr);
  const calls::CallLog::HostCallScope in_call(log_.get(), "ncclCommSplit");
  bootstrap::Gathered of_all;  // the wishes point into it
  if (member_ != nullptr) of_all = TRY(member_->all_gather(mine, Deadline::never()));
  std::vector<Wish> wishes;
  wishes.reserve(static_cast<size_t>(nranks()));
  for (int peer = 0; peer < nranks(); ++peer) {
    Wish of_peer = TRY(Wish::decode(member_ != nullptr ? of_all[peer] : mine, nranks()));
    if (!of_peer.refusal.is_ok() && peer == rank()) return std::move(of_peer.refusal);
    TRY(std::move(of_peer.refusal).with_context("rank {}", peer));
    wishes.push_back(std::move(of_peer));
  }
  for (const Wish& of_peer : wishes) children_ = std::max(children_, of_peer.children);
  const uint64_t number = children_++;

  std::shared_ptr<Communicator> made;
  Status status;
  Child child{.hash = hash_of_child(id_hash(), number, wish.color),
              .ranks = {},
              .rank = -1,
              .settings = {},
              .reaches_all = true,
              .function = "ncclCommSplit",
              .configuration = wish.configuration};
  std::unique_ptr<bootstrap::Member> member;  // of the child
  if (wish.color != SplitWish::kNoColor) {
    const auto wish_of = [&](int rank) -> const Wish& { return wishes[static_cast<size_t>(rank)]; };
    for (int peer = 0; peer < nranks(); ++peer)
      if (wish_of(peer).color == wish.color) child.ranks.push_back(peer);
    std::stable_sort(child.ranks.begin(), child.ranks.end(),
                     [&](int a, int b) { return wish_of(a).key < wish_of(b).key; });
    child.rank = static_cast<int>(std::find(child.ranks.begin(), child.ranks.end(), rank()) -
                                  child.ranks.begin());
    std::vector<const Wish*> of_members;
    for (const int peer : child.ranks) of_members.push_back(&wish_of(peer));
    status = guarded([&]() -> Status {
      TRY(child.adopt(of_members, machine_.kind(), nranks()));
      made = make(child, *this);
      if (child.ranks.size() > 1)
        member = member_->derive({.id = child.hash,
                                  .ranks = child.ranks,
                                  .rank = child.rank,
                                  .abort = &made->lifetime_.waits()});
      return {};
    });
  }
  // A child's ranks meet for their team once all of them have the child.
  if (has_team_) status = peers_.agree(status);
  if (made != nullptr && status.is_ok())
    status = guarded([&] { return made->start_as_child(child, *this, std::move(member)); });
  // A child that one rank cannot make is nobody's.
  status = peers_.agree(status);
  if (made == nullptr || !status.is_ok()) {
    if (made != nullptr) end_unborn(*made, status);
    TRY(std::move(status));
    return made;
  }
  // A rank that was lost meanwhile is the child's failure: others may have theirs already.
  made->lifetime_.change(State::InProgress, State::Ready);
  return made;
}

Result<std::shared_ptr<Communicator>> Communicator::shrink(const std::vector<int>& excluded,
                                                           bool interrupts, const SplitWish& wish) {
  // The others hear of operations that do not end, as of bad arguments: they wait for this rank.
  Status refusal = interrupts ? interrupt() : Status();
  if (!wish.refusal.is_ok()) refusal = wish.refusal.copy();
  const InUse in_use = use("ncclCommShrink");
  if (member_ == nullptr || is_over())
    return refusal.is_ok() ? lifetime_.gone() : std::move(refusal);
  const Deadline deadline = time_for_all_ranks();
  Child child{.hash = 0,
              .ranks = {},
              .rank = -1,
              .settings = {},
              .reaches_all = true,
              .function = "ncclCommShrink",
              .configuration = wish.configuration};
  for (int peer = 0; peer < nranks(); ++peer) {
    if (std::binary_search(excluded.begin(), excluded.end(), peer)) continue;
    if (peer == rank()) child.rank = static_cast<int>(child.ranks.size());
    child.ranks.push_back(peer);
  }
  const calls::CallLog::HostCallScope in_call(log_.get(), "ncclCommShrink", excluded);
  const std::shared_ptr<Communicator> made = make(child, *this);
  Abort& by_user = lifetime_.aborted_by_user();
  if (by_user.raised()) return lifetime_.gone();
  const int listener = by_user.listen([&] { made->abort(by_user.reason()); });
  Status status = guarded([&]() -> Status {
    const Bytes mine = encode_wish(wish, refusal, &child.ranks);
    bootstrap::Member::Shrunk shrunk = TRY(member_->shrink({.excluded = excluded,
                                                            .seed = id_hash(),
                                                            .mine = mine,
                                                            .deadline = deadline,
                                                            .abort = &made->lifetime_.waits()}));
    std::vector<Wish> wishes;
    wishes.reserve(child.ranks.size());
    std::vector<const Wish*> of_members;
    for (size_t i = 0; i < child.ranks.size(); ++i) {
      Wish of_peer = TRY(Wish::decode(shrunk.contributions[static_cast<int>(i)], nranks()));
      if (!of_peer.refusal.is_ok() && child.ranks[i] == rank()) return std::move(of_peer.refusal);
      TRY(std::move(of_peer.refusal).with_context("rank {}", child.ranks[i]));
      wishes.push_back(std::move(of_peer));
    }
    for (const Wish& of_peer : wishes) of_members.push_back(&of_peer);
    TRY(child.adopt(of_members, machine_.kind(), nranks()));
    made->membership_.set_hash(shrunk.member->id());
    if (child.ranks.size() == 1) shrunk.member.reset();
    TRY(made->start_as_child(child, *this, std::move(shrunk.member)));
    // A child that one rank cannot make is nobody's.
    return made->member_ == nullptr ? Status() : made->member_->barrier(deadline);
  });
  by_user.forget(listener);
  if (!status.is_ok()) {
    end_unborn(*made, status);
    return refusal.is_ok() ? std::move(status) : std::move(refusal);
  }
  lifetime_.leave_out(excluded);
  made->lifetime_.change(State::InProgress, State::Ready);
  return made;
}

Status Communicator::start_as_child(const Child& child, Communicator& parent,
                                    std::unique_ptr<bootstrap::Member> member) {
  const InUse in_use = use(child.function);
  member_ = std::move(member);
  LOG(Info, Init, "{} {} parent {} commId 0x{:x} - Init START", child.function, describe(),
      static_cast<const void*>(&parent), id_hash());
  planner::Settings settings = child.settings;
  settings.nranks = nranks();
  membership_.derive(parent.membership_, child.ranks);
  settings.gpu = membership_.gpu();
  // The parent may have a reducer; this communicator's ranks have no place in its collective.
  settings.reducible = {};
  settings.least_of_reducer = 0;
  planner::set_reach(settings, child.reaches_all);
  std::unique_ptr<transport::Team> team;
  if (member_ != nullptr) {
    ways_ = Ways::derive(parent.ways_, membership_, child.ranks, child.reaches_all);
    TRY(ways_.apply(settings, membership_));
    // Whatever fails before it fails on all ranks: they wait for each other here.
    if (parent.has_team_) {
      // The switch's loads and stores are of all members, so that a team is of use to the ranks of
      // whole machines alone.
      const bool has_same_teams = membership_.has_whole_machines_of(parent.membership_);
      team = TRY(make_team(settings, time_for_all_ranks(),
                           has_same_teams ? parent.endpoint_->team_range() : nullptr));
    }
  }
  TRY(control_.allocate(machine_));
  if (member_ != nullptr) {
    TRY(choose_own_network());
    TRY(serve_peers(settings, std::move(team)));
  }
  make_operations(settings);
  supervision_.show(member_.get());
  LOG(Info, Init, "{} {} parent {} commId 0x{:x} - Init COMPLETE", child.function, describe(),
      static_cast<const void*>(&parent), id_hash());
  return {};
}

Status Communicator::revoke() { return interrupt(); }

// Ends the operations under way. Links and requests of peers go on, so that communicators can be
// made from this one.
Status Communicator::interrupt() {
  lifetime_.revoke();
  control_.tell(executor::Command::End);
  const InUse in_use = use("ncclCommRevoke");
  return end_work();
}

Result<bootstrap::UniqueId> Communicator::invite() {
  if (parameters::read_now("NCCL_COMM_ID"))
    return Status::invalid_usage(
        "NCCL_COMM_ID is set, which names one meeting point for all communicators: newcomers need "
        "one "
        "of their own");
  const InUse in_use = use("ncclCommGrow");
  if (is_over()) return lifetime_.gone();
  const bootstrap::UniqueId id = TRY(bootstrap::create_unique_id());
  Writer writer;
  writer.u8(static_cast<uint8_t>(Question::Invite));
  writer.raw(id.bytes());
  for (int peer = 0; peer < nranks(); ++peer)
    if (peer != rank()) TRY(member_->notify(peer, writer.bytes()));
  invitation_.put(id);
  return id;
}

}  // namespace niccolite::comm
