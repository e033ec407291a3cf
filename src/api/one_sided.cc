// One-sided operations: puts into the windows of peers, and signals.

#include "api/arguments.h"
#include "api/call.h"
#include "registry/windows.h"

namespace niccolite::api {
namespace {

using comm::Communicator;
using comm::Completion;
using comm::Group;
using operations::OneSidedCall;
using registry::Window;

// Reserved: 0 until there are several signals, contexts or kinds of calls.
Status check_reserved(const char* function, const char* name, long value) {
  if (value == 0) return {};
  return Status::invalid_argument("{} : {} argument {} has to be 0", function, name, value);
}

Status check_peer(const char* function, const Communicator& communicator, int peer) {
  if (peer >= 0 && peer < communicator.nranks()) return {};
  return Status::invalid_argument("{} : rank {}: peer argument {} is not one of {} ranks", function,
                                  communicator.rank(), peer, communicator.nranks());
}

/// The communicator, if it takes operations and has puts and signals.
Result<std::shared_ptr<Communicator>> find_capable(const char* function, ncclComm_t handle) {
  auto communicator = TRY(find(handle));
  TRY(communicator->lifetime().check_takes_operations());
  if (!communicator->configuration().one_sided)
    return Status::invalid_argument(
        "{} : the communicator of rank {} has no puts and signals (config.numRmaCtx or "
        "NCCL_NUM_RMA_CTX is 0, or NCCL_RMA_DISABLE is 1)",
        function, communicator->rank());
  return communicator;
}

Result<std::shared_ptr<Communicator>> begin(const char* function, ncclComm_t handle, int peer,
                                            int signal, int context, unsigned flags) {
  auto communicator = TRY(find_capable(function, handle));
  TRY(check_reserved(function, "sigIdx", signal));
  TRY(check_reserved(function, "ctx", context));
  TRY(check_reserved(function, "flags", flags));
  TRY(check_peer(function, *communicator, peer));
  return communicator;
}

struct PutArguments {
  const void* source;
  size_t count;
  ncclDataType_t datatype;
  int peer;
  ncclWindow_t window;
  size_t offset;
};

/// Source and target of a put; the target is in the peer's copy.
Status locate(Communicator& communicator, const PutArguments& arguments, OneSidedCall& call) {
  constexpr const char* kFunction = "ncclPutSignal";
  const executor::DataType type = TRY(data_type(kFunction, number_of(arguments.datatype)));
  if (arguments.count > SIZE_MAX / executor::size_of(type))
    return Status::invalid_argument("{} : count {} does not fit the address space", kFunction,
                                    arguments.count);
  call.bytes = arguments.count * executor::size_of(type);
  if (call.bytes == 0) return {};
  const auto window = communicator.buffers().find_window(arguments.window);
  if (window == nullptr || !window->is_symmetric())
    return Status::invalid_argument(
        "{} : rank {}: peerWin argument {} is not a live window of this communicator, registered "
        "with NCCL_WIN_COLL_SYMMETRIC",
        kFunction, communicator.rank(), static_cast<const void*>(arguments.window));
  const size_t bytes = window->bytes_of(arguments.peer);
  if (arguments.offset > bytes || call.bytes > bytes - arguments.offset)
    return Status::invalid_argument(
        "{} : rank {}: count {} at peerWinOffset {} reaches beyond the {} bytes of rank {}'s "
        "window",
        kFunction, communicator.rank(), arguments.count, arguments.offset, bytes, arguments.peer);
  const auto source = communicator.buffers().find_window_of(arguments.source, call.bytes);
  if (source == nullptr || !source->is_symmetric())
    return Status::invalid_argument(
        "{} : rank {}: localbuff argument {} and the {} bytes from there on are not in a window of "
        "this communicator, registered with NCCL_WIN_COLL_SYMMETRIC",
        kFunction, communicator.rank(), arguments.source, call.bytes);
  call.source = arguments.source;
  std::byte* const copy = window->copy_of(arguments.peer);
  call.target = copy == nullptr ? nullptr : copy + arguments.offset;
  call.window = window->number();
  call.offset = arguments.offset;
  return {};
}

Result<Completion> put(const PutArguments& arguments, int signal, int context, unsigned flags,
                       ncclComm_t handle, cudaStream_t stream) {
  const auto communicator =
      TRY(begin("ncclPutSignal", handle, arguments.peer, signal, context, flags));
  OneSidedCall call;
  call.peer = arguments.peer;
  call.stream = stream;
  TRY(locate(*communicator, arguments, call));
  return Group::current().add_one_sided(communicator, std::move(call));
}

Result<Completion> signal(int peer, int number, int context, unsigned flags, ncclComm_t handle,
                          cudaStream_t stream) {
  constexpr const char* kFunction = "ncclSignal";
  const auto communicator = TRY(begin(kFunction, handle, peer, number, context, flags));
  OneSidedCall call;
  call.function = kFunction;
  call.peer = peer;
  call.stream = stream;
  return Group::current().add_one_sided(communicator, std::move(call));
}

Result<Completion> wait(int count, const ncclWaitSignalDesc_t* descriptors, ncclComm_t handle,
                        cudaStream_t stream) {
  constexpr const char* kFunction = "ncclWaitSignal";
  const auto communicator = TRY(find_capable(kFunction, handle));
  if (count <= 0 || descriptors == nullptr)
    return Status::invalid_argument("{} : nDesc argument {}, signalDescs argument {}", kFunction,
                                    count, static_cast<const void*>(descriptors));
  OneSidedCall call;
  call.function = kFunction;
  call.stream = stream;
  for (int i = 0; i < count; ++i) {
    const ncclWaitSignalDesc_t& descriptor = descriptors[i];
    const auto check = [&]() -> Status {
      TRY(check_peer(kFunction, *communicator, descriptor.peer));
      TRY(check_reserved(kFunction, "sigIdx", descriptor.sigIdx));
      TRY(check_reserved(kFunction, "ctx", descriptor.ctx));
      if (descriptor.opCnt > 0) return {};
      return Status::invalid_argument("{} : opCnt {} is not above 0", kFunction, descriptor.opCnt);
    };
    TRY(check().with_context("signalDescs[{}]", i));
    call.waits.push_back({descriptor.peer, descriptor.opCnt});
  }
  return Group::current().add_one_sided(communicator, std::move(call));
}

}  // namespace
}  // namespace niccolite::api

using namespace niccolite;

extern "C" {

ncclResult_t pncclPutSignal(const void* localbuff, size_t count, ncclDataType_t datatype, int peer,
                            ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                            unsigned int flags, ncclComm_t comm, cudaStream_t stream) {
  return api::call("ncclPutSignal", [&] {
    return api::put({localbuff, count, datatype, peer, peerWin, peerWinOffset}, sigIdx, ctx, flags,
                    comm, stream);
  });
}

ncclResult_t pncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                         cudaStream_t stream) {
  return api::call("ncclSignal",
                   [&] { return api::signal(peer, sigIdx, ctx, flags, comm, stream); });
}

ncclResult_t pncclWaitSignal(int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm,
                             cudaStream_t stream) {
  return api::call("ncclWaitSignal", [&] { return api::wait(nDesc, signalDescs, comm, stream); });
}

}  // extern "C"

NICCOLITE_EXPORT(ncclPutSignal);
NICCOLITE_EXPORT(ncclSignal);
NICCOLITE_EXPORT(ncclWaitSignal);
