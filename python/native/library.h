// The loaded libnccl.so.2: its functions by name, looked up at their first use. So any library with
// NCCL's interface will do, whatever it lacks.
//
// The library is chosen once, at the first use:
//   1. NICCOLITE_LIBRARY, a path;
//   2. one whose symbols the whole process sees (LD_PRELOAD);
//   3. ours, beside the package.
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <string>

#include "nccl.h"
#include "nccl_device.h"

namespace niccolite::python {

// name, with the type that nccl.h gives it
// clang-format off
#define NICCOLITE_PYTHON_FUNCTIONS(X)                                                             \
  X(GetVersion) X(GetErrorString) X(GetLastError) X(GetUniqueId) X(CommInitRankScalable)          \
  X(CommInitAll) X(CommFinalize) X(CommDestroy) X(CommAbort) X(CommRevoke) X(CommSplit)           \
  X(CommShrink) X(CommGrow) X(CommGetUniqueId) X(CommSuspend) X(CommResume)                       \
  X(CommGetAsyncError) X(CommCount) X(CommCuDevice) X(CommUserRank) X(CommQueryProperties)        \
  X(CommMemStats) X(CommRegister) X(CommDeregister) X(CommWindowRegister)                         \
  X(CommWindowDeregister) X(WinGetUserPtr) X(GetLsaMultimemDevicePointer)                         \
  X(GetLsaDevicePointer) X(GetPeerDevicePointer) X(RedOpCreatePreMulSum) X(RedOpDestroy)          \
  X(DevCommCreate) X(DevCommDestroy) X(MemAlloc) X(MemFree) X(GroupStart) X(GroupEnd)             \
  X(GroupSimulateEnd) X(AllReduce) X(Reduce) X(Broadcast) X(AllGather) X(Gather) X(Scatter)       \
  X(ReduceScatter) X(AlltoAll) X(AllReduceConfig) X(ReduceConfig) X(BroadcastConfig)              \
  X(AllGatherConfig) X(GatherConfig) X(ScatterConfig) X(ReduceScatterConfig) X(AlltoAllConfig)    \
  X(Send) X(Recv) X(PutSignal) X(Signal) X(WaitSignal) X(TeamWorld) X(TeamLsa) X(TeamRail)        \
  X(TeamCft) X(TeamCftMultimem) X(TeamRankToWorld) X(TeamRankToLsa)                               \
  X(LsaBarrierCreateRequirement) X(GinBarrierCreateRequirement) X(LLA2ACalcSlots)                 \
  X(LLA2ACreateRequirement) X(GetMultimemDevicePointer) X(GetMultimemDeviceLeInfo)                \
  X(GetCftDeviceLeInfo) X(GetPeerDeviceLeInfo) X(ParamGetParameter) X(ParamGetAllParameterKeys)   \
  X(ParamDumpAll)
// clang-format on

class Library {
 public:
  /// A function of the library. Calling it throws FunctionNotFoundError when the library lacks it.
  template <typename Type>
  class Function;
  template <typename Result, typename... Arguments>
  class Function<Result (*)(Arguments...)> {
   public:
    Function(const Library& library, const char* name) : library_(library), name_(name) {}
    Result operator()(Arguments... arguments) const { return get()(arguments...); }
    /// For callers that give up the GIL: throws if the function is missing, while the GIL is held.
    const Function& loaded() const {
      get();
      return *this;
    }

   private:
    using Pointer = Result (*)(Arguments...);
    Pointer get() const {
      // relaxed: looking the name up again gives the same address.
      Pointer pointer = pointer_.load(std::memory_order_relaxed);
      if (pointer == nullptr) [[unlikely]]
        pointer_.store(pointer = reinterpret_cast<Pointer>(library_.find(name_)),
                       std::memory_order_relaxed);
      return pointer;
    }
    const Library& library_;
    const char* const name_;
    mutable std::atomic<Pointer> pointer_{nullptr};
  };

  /// ImportError: no library can be loaded; the message says which files were tried.
  Library();

  /// The file that the functions come from; "" when the loader does not tell.
  std::string path() const;
  /// Is it Niccolite's? Only Niccolite has virtual GPUs.
  bool is_ours() const;

#define NICCOLITE_PYTHON_MEMBER(name) \
  const Function<decltype(&nccl##name)> name{*this, "nccl" #name};
  NICCOLITE_PYTHON_FUNCTIONS(NICCOLITE_PYTHON_MEMBER)
#undef NICCOLITE_PYTHON_MEMBER

 private:
  void* find(const char* name) const;

  void* handle_ = nullptr;  // RTLD_DEFAULT, which is null, when the process has one
};

/// The process's library, loaded by the first call. Never unloaded. The GIL must be held at the
/// first call.
const Library& library();

/// The folder that the extension lies in.
std::string package_folder();

}  // namespace niccolite::python
