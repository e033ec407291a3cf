// Communicators from communicators: split. Each rank tells what it wants in one all-gather of the
// parent, knows from the answers which child it is in, makes its end of it over the links that the
// parent has, and hears in a second all-gather that everybody has.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/authentication.h"
#include "base/log.h"
#include "base/parameters.h"
#include "comm/communicator.h"

namespace niccolite::comm {
namespace {

constexpr size_t kMostText = 4096;  // of a refusal

Deadline time_for_all_ranks() {
  return Deadline::after(std::chrono::seconds(parameters::init_timeout()));
}

/// The same on all ranks of the child, and no other communicator's.
uint64_t hash_of_child(uint64_t parent, uint64_t number, int color) {
  Writer writer;
  writer.u64(parent);
  writer.u64(number);
  writer.i32(color);
  return authentication::fingerprint(writer.bytes()) | 1;  // 0 names all ranks in bootstrap
}

/// What a rank tells all others of its parent; points into what came.
struct Wish {
  Status refusal;
  int color = 0;
  int key = 0;
  uint64_t children = 0;                  // that the parent has had
  std::span<const std::byte> settings{};  // a planner::Settings
  std::span<const std::byte> reaches{};   // of each of the parent's ranks: 0 or 1; empty: all

  Bytes encode() const {
    Writer writer;
    writer.u8(static_cast<uint8_t>(refusal.code()));
    if (!refusal.is_ok()) {
      writer.text(refusal.message().substr(0, kMostText));
      return std::move(writer).take();
    }
    writer.i32(color);
    writer.i32(key);
    writer.u64(children);
    writer.raw(settings);
    writer.raw(reaches);
    return std::move(writer).take();
  }

  static Result<Wish> decode(std::span<const std::byte> bytes) {
    Reader reader(bytes, "the wish of a rank");
    Wish wish;
    const uint8_t code = reader.u8();
    if (code > static_cast<uint8_t>(Code::RemoteError)) reader.reject("an unknown code");
    if (code != static_cast<uint8_t>(Code::Ok)) {
      wish.refusal = Status::error(static_cast<Code>(code), "{}", reader.text(kMostText));
      TRY(reader.finish());
      return wish;
    }
    wish.color = reader.i32();
    wish.key = reader.i32();
    wish.children = reader.u64();
    wish.settings = reader.raw(sizeof(planner::Settings));
    wish.reaches = reader.rest();
    TRY(reader.finish());
    return wish;
  }
};

}  // namespace

/// A child as its members know it before they make it.
struct Communicator::Child {
  uint64_t hash = 0;
  std::vector<int> ranks;  // by the child's rank: the parent's
  int rank = -1;           // this one's
  planner::Settings settings;
  bool reaches_all = true;  // every member's kernels the buffers of all others' users
  const char* function = "";
  Configuration configuration;
};

Result<std::shared_ptr<Communicator>> Communicator::split(const SplitWish& wish) {
  std::lock_guard in_use(in_use_);
  if (operations_ == nullptr) return gone();
  const Deadline deadline = time_for_all_ranks();
  Wish mine{
      .refusal = wish.refusal.copy(), .color = wish.color, .key = wish.key, .children = children_};
  planner::Settings settings;
  if (mine.refusal.is_ok()) {
    auto made = planner::make_settings(machine_.kind(), nranks(), wish.configuration.limits);
    if (made.is_ok()) settings = made.value();
    mine.refusal = made.status().copy();
  }
  mine.settings = std::as_bytes(std::span(&settings, 1));
  Bytes reaches;
  if (!reach_.is_whole)
    for (const bool reach : reach_.out) reaches.push_back(std::byte{reach});
  mine.reaches = reaches;
  bootstrap::Gathered of_all;  // what the wishes point into
  std::vector<Wish> wishes;
  wishes.reserve(static_cast<size_t>(nranks()));
  if (member_ == nullptr) {
    TRY(mine.refusal.copy());
    wishes.push_back(std::move(mine));
  } else {
    of_all = TRY(member_->all_gather(mine.encode(), deadline));
    for (int peer = 0; peer < nranks(); ++peer) {
      Wish of_peer = TRY(Wish::decode(of_all[peer]));
      if (!of_peer.refusal.is_ok() && peer == rank()) return std::move(of_peer.refusal);
      TRY(std::move(of_peer.refusal).with_context("rank {}", peer));
      wishes.push_back(std::move(of_peer));
    }
  }
  for (const Wish& of_peer : wishes) children_ = std::max(children_, of_peer.children);
  const uint64_t number = children_++;

  std::shared_ptr<Communicator> made;
  Status status;
  if (wish.color != SplitWish::kNoColor) {
    Child child{.hash = hash_of_child(id_hash_, number, wish.color),
                .ranks = {},
                .rank = -1,
                .settings = {},
                .reaches_all = true,
                .function = "ncclCommSplit",
                .configuration = wish.configuration};
    const auto wish_of = [&](int rank) -> const Wish& { return wishes[static_cast<size_t>(rank)]; };
    for (int peer = 0; peer < nranks(); ++peer)
      if (wish_of(peer).color == wish.color) child.ranks.push_back(peer);
    std::stable_sort(child.ranks.begin(), child.ranks.end(),
                     [&](int a, int b) { return wish_of(a).key < wish_of(b).key; });
    child.rank = static_cast<int>(std::find(child.ranks.begin(), child.ranks.end(), rank()) -
                                  child.ranks.begin());
    std::memcpy(static_cast<void*>(&child.settings), wish_of(child.ranks[0]).settings.data(),
                sizeof child.settings);
    for (const int from : child.ranks) {
      const std::span<const std::byte> reach = wish_of(from).reaches;
      for (const int to : child.ranks)
        if (from != to && static_cast<size_t>(to) < reach.size())
          child.reaches_all &= reach[static_cast<size_t>(to)] != std::byte{0};
    }
    status = guarded([&]() -> Status {
      made = TRY(make_child(std::move(child)));
      return {};
    });
  }
  // A child that one rank cannot make is nobody's.
  status = agree(status, deadline);
  if (status.is_ok()) {
    // A rank that was lost meanwhile is the child's failure: others may have theirs already.
    if (made != nullptr) made->change_state(State::InProgress, State::Ready);
    return made;
  }
  if (made != nullptr) {
    made->abort(status.copy());
    made->end().ignore("the split has failed");
  }
  return status;
}

Result<std::shared_ptr<Communicator>> Communicator::make_child(Child child) {
  auto communicator =
      std::make_shared<Communicator>(machine_,
                                     Identity{.find_id = {},
                                              .hash = child.hash,
                                              .nranks = static_cast<int>(child.ranks.size()),
                                              .rank = child.rank,
                                              .device = device(),
                                              .function = child.function},
                                     child.configuration);
  Status status = communicator->start_as_child(child, *this);
  if (status.is_ok()) return communicator;
  communicator->abort(status.copy());
  communicator->end().ignore("it has failed to start");
  return status;
}

Status Communicator::start_as_child(const Child& child, Communicator& parent) {
  std::lock_guard in_use(in_use_);
  LOG(Info, Init, "{} {} parent {} commId 0x{:x} - Init START", child.function, describe(),
      static_cast<const void*>(&parent), id_hash_);
  TRY(control_.allocate(machine_));
  planner::Settings settings = child.settings;
  settings.nranks = nranks();
  planner::set_reach(settings, child.reaches_all);
  if (nranks() > 1) {
    member_ = parent.member_->derive(
        {.id = id_hash_, .ranks = child.ranks, .rank = rank(), .abort = &abort_});
    transport::Endpoint::Reach reach;
    reach.is_whole = child.reaches_all;
    for (const int peer : child.ranks) {
      reach.out.push_back(parent.reach_.out[static_cast<size_t>(peer)]);
      reach.in.push_back(parent.reach_.in[static_cast<size_t>(peer)]);
    }
    TRY(serve_peers(settings, std::move(reach)));
  }
  make_operations(settings);
  LOG(Info, Init, "{} {} parent {} commId 0x{:x} - Init COMPLETE", child.function, describe(),
      static_cast<const void*>(&parent), id_hash_);
  return {};
}

}  // namespace niccolite::comm
