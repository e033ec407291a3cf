// Communicators made from communicators.

#include "api/call.h"
#include "api/configuration.h"
#include "api/making.h"
#include "comm/live_communicators.h"

namespace niccolite::api {
namespace {

using comm::Communicator;
using comm::Completion;
using comm::Group;
using comm::LiveCommunicators;

using Made = std::shared_ptr<Communicator>;

/// Has `derive` make a communicator as a job of its parent, and stores the handle once it is made:
/// outside of a group before the call returns, else at the end of the group, and with a nonblocking
/// parent before the parent is no longer in progress.
Result<Completion> derive(std::shared_ptr<Communicator> parent, ncclComm_t* handle,
                          std::function<Result<Made>()> derive) {
  *handle = nullptr;
  const auto made = std::make_shared<Made>();
  return Group::current().add_job(
      parent, parent->configuration().blocking,
      [handle, made, derive = std::move(derive)]() -> Status {
        *made = TRY(derive());
        if (*made == nullptr) return {};
        LiveCommunicators::instance().add(*made);
        // [release] what was made, to a thread that waits for the handle to be other than null.
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
  TRY(parent->check_ready());
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

}  // namespace
}  // namespace niccolite::api

using namespace niccolite;

extern "C" {

ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                            ncclConfig_t* config) {
  return api::call("ncclCommSplit", [&] { return api::split(comm, color, key, newcomm, config); });
}

}  // extern "C"

NICCOLITE_EXPORT(ncclCommSplit);
