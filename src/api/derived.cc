// Communicators made from communicators.

#include <algorithm>
#include <cstring>

#include "api/call.h"
#include "api/configuration.h"
#include "api/making.h"
#include "comm/invitation.h"
#include "comm/live_communicators.h"
#include "gpu/machine.h"

namespace niccolite::api {
namespace {

using comm::Communicator;
using comm::Completion;
using comm::Group;
using comm::LiveCommunicators;

using Made = std::shared_ptr<Communicator>;

/// Has `derive` make a communicator as a job of its parent, and stores the handle once it is made.
/// Outside of a group this is before the call returns, in a group it is at the group's end. With a
/// nonblocking parent it is while the parent is still in progress.
Result<Completion> derive(const std::shared_ptr<Communicator>& parent, ncclComm_t* handle,
                          std::function<Result<Made>()> derive) {
  *handle = nullptr;
  const auto made = std::make_shared<Made>();
  return Group::current().add_job(
      parent, parent->configuration().blocking,
      [handle, made, derive = std::move(derive)]() -> Status {
        *made = TRY(derive());
        if (*made == nullptr) return {};
        LiveCommunicators::instance().add(*made);
        // [release] The communicator is complete before another thread can see the handle.
        std::atomic_ref<ncclComm_t>(*handle).store(reinterpret_cast<ncclComm_t>(made->get()),
                                                   std::memory_order_release);
        made->reset();
        return {};
      },
      [handle] {
        if (*handle == nullptr) return;
        const Made unwanted = LiveCommunicators::instance().find(*handle);
        if (unwanted != nullptr) give_up(handle, unwanted);
      });
}

/// The parent's settings, or `config`'s.
Result<comm::Configuration> resolve_child(const Communicator& parent, const ncclConfig_t* config) {
  if (config == nullptr) return parent.configuration();
  return resolve(config);
}

Result<Completion> split(ncclComm_t handle, int color, int key, ncclComm_t* newcomm,
                         const ncclConfig_t* config) {
  const auto parent = TRY(find(handle));
  TRY(parent->lifetime().check_ready());
  if (newcomm == nullptr)
    return Status::invalid_argument("ncclCommSplit : newcomm argument is NULL");
  comm::SplitWish wish{.color = color, .key = key, .configuration = {}, .refusal = {}};
  static_assert(comm::SplitWish::kNoColor == NCCL_SPLIT_NOCOLOR);
  if (color != NCCL_SPLIT_NOCOLOR) {
    auto configuration = resolve_child(*parent, config);
    wish.refusal = configuration.status().copy();
    if (configuration.is_ok()) wish.configuration = std::move(configuration.value());
  }
  const auto shared_wish = std::make_shared<const comm::SplitWish>(std::move(wish));
  return derive(parent, newcomm, [parent, shared_wish] { return parent->split(*shared_wish); });
}

struct Excluded {
  std::vector<int> ranks;  // ascending, each once; only ranks that can be left out
  Status refusal;          // an error in the caller's list
};

/// Sorts the caller's array, too. Errors: a list that names no rank to leave out. Ranks that pass
/// other lists cannot be told of this error, while all ranks get `refusal`.
Result<Excluded> excluded_ranks(const Communicator& parent, int* list, int count) {
  if (list == nullptr)
    return Status::invalid_argument("ncclCommShrink : excludeRanksList argument is NULL");
  if (count <= 0)
    return Status::invalid_argument(
        "ncclCommShrink : excludeRanksCount is {}: at least 1 is needed", count);
  Excluded excluded;
  std::sort(list, list + count);
  for (const int rank : std::span(list, static_cast<size_t>(count))) {
    if (rank < 0 || rank >= parent.nranks()) {
      excluded.refusal = Status::invalid_argument(
          "ncclCommShrink : excludeRanksList has rank {}, the communicator has {} ranks", rank,
          parent.nranks());
    } else if (rank == parent.rank()) {
      excluded.refusal = Status::invalid_argument(
          "ncclCommShrink : excludeRanksList has rank {}, which is the caller", rank);
    } else if (excluded.ranks.empty() || excluded.ranks.back() != rank) {
      excluded.ranks.push_back(rank);
    }
  }
  if (excluded.ranks.empty()) return std::move(excluded.refusal);
  return excluded;
}

Result<Completion> shrink(ncclComm_t handle, int* list, int count, ncclComm_t* newcomm,
                          const ncclConfig_t* config, int flags) {
  const auto parent = TRY(find(handle));
  if (newcomm == nullptr)
    return Status::invalid_argument("ncclCommShrink : newcomm argument is NULL");
  if ((flags & ~NCCL_SHRINK_ABORT) != 0)
    return Status::invalid_argument("ncclCommShrink : unknown flags 0x{:x}", flags);
  // Shrinking is meant for communicators that have failed.
  if (parent->lifetime().state() != comm::State::Failed) TRY(parent->lifetime().check_ready());
  // An error in one rank's list or configuration travels as a refusal to all ranks that shrink.
  Excluded excluded = TRY(excluded_ranks(*parent, list, count));
  comm::SplitWish wish{
      .color = 0, .key = 0, .configuration = {}, .refusal = std::move(excluded.refusal)};
  auto configuration = resolve_child(*parent, config);
  if (!configuration.is_ok()) {
    wish.refusal = configuration.status().copy();
  } else {
    wish.configuration = std::move(configuration.value());
  }
  const auto shared_wish = std::make_shared<const comm::SplitWish>(std::move(wish));
  const bool interrupts = (flags & NCCL_SHRINK_ABORT) != 0;
  return derive(parent, newcomm,
                [parent, ranks = std::move(excluded.ranks), interrupts, shared_wish] {
                  return parent->shrink(ranks, interrupts, *shared_wish);
                });
}

Status get_unique_id(ncclComm_t handle, ncclUniqueId* answer) {
  const auto parent = TRY(find(handle));
  TRY(parent->lifetime().check_ready());
  if (answer == nullptr)
    return Status::invalid_argument("ncclCommGetUniqueId : uniqueId argument is NULL");
  const bootstrap::UniqueId id = TRY(parent->invite());
  const auto bytes = id.bytes();
  std::memcpy(answer->internal, bytes.data(), sizeof answer->internal);
  return {};
}

// Checks the arguments of a rank that belongs to the growing communicator already.
Result<comm::Configuration> check_member(const comm::Communicator& parent, int nranks, int rank,
                                         const ncclConfig_t* config) {
  TRY(parent.lifetime().check_ready());
  if (nranks <= parent.nranks())
    return Status::invalid_argument(
        "ncclCommGrow : nRanks is {}, the communicator has {} ranks already: it must be larger",
        nranks, parent.nranks());
  if (rank != -1)
    return Status::invalid_argument(
        "ncclCommGrow : rank is {}; a member of the communicator passes -1, and keeps its rank {}",
        rank, parent.rank());
  return resolve_child(parent, config);
}

Result<Completion> grow(ncclComm_t handle, int nranks, const ncclUniqueId* id_bytes, int rank,
                        ncclComm_t* newcomm, const ncclConfig_t* config) {
  constexpr const char* kFunction = "ncclCommGrow";
  if (newcomm == nullptr)
    return Status::invalid_argument("{} : newcomm argument is NULL", kFunction);
  *newcomm = nullptr;
  if (nranks < 1)
    return Status::invalid_argument("{} : nRanks is {}, it must be positive", kFunction, nranks);
  std::optional<bootstrap::UniqueId> id;
  if (id_bytes != nullptr)
    id = TRY(bootstrap::UniqueId::parse(std::as_bytes(std::span(id_bytes->internal))));
  comm::Identity identity{.nranks = nranks, .rank = rank, .function = kFunction};
  comm::Meeting meeting;
  if (handle != nullptr) {
    const auto parent = TRY(find(handle));
    Result<comm::Configuration> resolved = check_member(*parent, nranks, rank, config);
    if (!resolved.is_ok()) {  // the others wait for this rank
      parent->invitation().refuse(nranks, parent->rank(), id, resolved.status());
      return std::move(resolved).status();
    }
    identity.rank = parent->rank();
    identity.device = parent->device();
    meeting = {.find_id =
                   [parent = parent.get(), nranks, id](const Deadline& deadline, Abort& abort) {
                     return parent->invitation().accept(nranks, parent->rank(), id, deadline,
                                                        abort);
                   },
               .parent = parent};
    return make(newcomm, identity, std::move(meeting), std::move(resolved).take());
  }
  if (!id) return Status::invalid_argument("{} : uniqueId argument is NULL", kFunction);
  if (rank < 0 || rank >= nranks)
    return Status::invalid_argument("{} : invalid rank requested : rank {} of {} ranks", kFunction,
                                    rank, nranks);
  gpu::Machine* machine = TRY(gpu::machine());
  identity.device = TRY(machine->current_device());
  meeting.find_id = [id = *id](const Deadline&, Abort&) { return id; };
  Result<comm::Configuration> resolved = resolve(config);
  if (!resolved.is_ok()) {
    comm::decline(*id, nranks, rank, resolved.status());
    return std::move(resolved).status();
  }
  return make(newcomm, identity, std::move(meeting), std::move(resolved).take());
}

Result<Completion> revoke(ncclComm_t handle, int flags) {
  if (handle == nullptr) return Completion::Done;
  const auto communicator = TRY(find(handle));
  if (flags != NCCL_REVOKE_DEFAULT)
    return Status::invalid_argument("ncclCommRevoke : unknown flags 0x{:x}", flags);
  if (communicator->lifetime().state() != comm::State::Failed)
    TRY(communicator->lifetime().check_ready());
  if (communicator->lifetime().is_revoked())
    return Status::invalid_argument(
        "ncclCommRevoke : the communicator of rank {} was revoked before", communicator->rank());
  return Group::current().add_job(communicator, communicator->configuration().blocking,
                                  [communicator] { return communicator->revoke(); });
}

}  // namespace
}  // namespace niccolite::api

using namespace niccolite;

extern "C" {

ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                            ncclConfig_t* config) {
  return api::call("ncclCommSplit", [&] { return api::split(comm, color, key, newcomm, config); });
}

ncclResult_t pncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                             ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags) {
  return api::call("ncclCommShrink", [&] {
    return api::shrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags);
  });
}

ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* uniqueId) {
  return api::call("ncclCommGetUniqueId", [&] { return api::get_unique_id(comm, uniqueId); });
}

ncclResult_t pncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank,
                           ncclComm_t* newcomm, ncclConfig_t* config) {
  return api::call("ncclCommGrow",
                   [&] { return api::grow(comm, nRanks, uniqueId, rank, newcomm, config); });
}

ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags) {
  return api::call("ncclCommRevoke", [&] { return api::revoke(comm, revokeFlags); });
}

}  // extern "C"

NICCOLITE_EXPORT(ncclCommSplit);
NICCOLITE_EXPORT(ncclCommShrink);
NICCOLITE_EXPORT(ncclCommGetUniqueId);
NICCOLITE_EXPORT(ncclCommGrow);
NICCOLITE_EXPORT(ncclCommRevoke);
