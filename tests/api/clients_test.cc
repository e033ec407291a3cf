// What released programs want of libnccl.so.2: every name that one binds, at load or by dlsym. A
// program whose names are not all there does not load, or switches itself off.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <string>
#include <vector>

namespace niccolite::test {
namespace {

struct Client {
  const char* name;
  std::vector<const char*> functions;  // without "nccl"
};

const std::vector<const char*> kCommon = {"GetVersion",
                                          "GetErrorString",
                                          "GetLastError",
                                          "GetUniqueId",
                                          "CommInitRank",
                                          "CommInitAll",
                                          "CommDestroy",
                                          "CommAbort",
                                          "CommCount",
                                          "CommCuDevice",
                                          "CommUserRank",
                                          "AllReduce",
                                          "Reduce",
                                          "Broadcast",
                                          "Bcast",
                                          "AllGather",
                                          "ReduceScatter",
                                          "Send",
                                          "Recv",
                                          "GroupStart",
                                          "GroupEnd",
                                          "CommFinalize",
                                          "AlltoAll",
                                          "Gather",
                                          "Scatter",
                                          "CommGetAsyncError",
                                          "CommInitRankConfig",
                                          "RedOpCreatePreMulSum",
                                          "RedOpDestroy"};

const Client kClients[] = {
    {"PyTorch 2.11 to 2.15",
     {"CommSplit",
      "CommShrink",
      "CommGrow",
      "CommGetUniqueId",
      "CommRevoke",
      "CommInitRankScalable",
      "CommRegister",
      "CommDeregister",
      "CommSuspend",
      "CommResume",
      "CommMemStats",
      "MemAlloc",
      "MemFree",
      "CommWindowRegister",
      "CommWindowDeregister",
      "WinGetUserPtr",
      "PutSignal",
      "Signal",
      "WaitSignal",
      "DevCommCreate",
      "DevCommDestroy",
      "GetPeerDevicePointer",
      "GetLsaMultimemDevicePointer"}},
    {"JAX 0.11, 0.12",
     {"CommSplit",
      "CommInitRankScalable",
      "CommQueryProperties",
      "CommRegister",
      "CommDeregister",
      "CommWindowRegister",
      "CommWindowDeregister",
      "DevCommCreate",
      "DevCommDestroy",
      "GetPeerDevicePointer",
      "GetLsaDevicePointer",
      "GetLsaMultimemDevicePointer",
      "PutSignal",
      "Signal",
      "WaitSignal",
      "GroupSimulateEnd",
      "CommShrink",
      "ResetDebugInit",
      "MemAlloc",
      "MemFree"}},
    {"CuPy 14", {"CommSplit"}},
    {"vLLM", {"CommWindowRegister", "CommWindowDeregister", "CommQueryProperties"}},
    {"SGLang", {"CommWindowRegister", "CommWindowDeregister", "MemAlloc", "MemFree"}},
    {"nccl-tests 2.19",
     {"MemAlloc", "MemFree", "CommRegister", "CommDeregister", "TeamLsa", "CommWindowRegister",
      "CommWindowDeregister", "DevCommCreate", "DevCommDestroy", "CommQueryProperties"}},
    {"Transformer Engine",
     {"CommQueryProperties", "CommWindowRegister", "CommWindowDeregister", "DevCommCreate",
      "DevCommDestroy", "GetPeerDevicePointer", "MemAlloc", "MemFree", "TeamLsa", "TeamRail",
      "TeamRankToWorld", "WinGetUserPtr"}},
    {"cuBLASMp 0.10",
     {"CommQueryProperties", "CommSplit", "CommWindowRegister", "CommWindowDeregister",
      "DevCommCreate", "DevCommDestroy", "GetLsaDevicePointer", "GetLsaMultimemDevicePointer",
      "MemAlloc", "MemFree", "PutSignal", "WaitSignal"}},
    {"cuDSS 1.0", {"CommSplit"}},
    {"Megatron", {"MemAlloc", "MemFree"}},
    {"nccl4py 0.3 to 0.6",
     {"ParamBind",
      "ParamGetI8",
      "ParamGetI16",
      "ParamGetI32",
      "ParamGetI64",
      "ParamGetU8",
      "ParamGetU16",
      "ParamGetU32",
      "ParamGetU64",
      "ParamGetStr",
      "ParamGet",
      "ParamGetParameter",
      "ParamGetAllParameterKeys",
      "ParamDumpAll",
      "TeamWorld",
      "TeamRankToLsa",
      "LsaBarrierCreateRequirement",
      "GinBarrierCreateRequirement",
      "LLA2ACalcSlots",
      "LLA2ACreateRequirement",
      "GetMultimemDevicePointer"}},
};

bool is_exported(const std::string& name) {
  // The library that this program is linked with.
  return dlsym(RTLD_DEFAULT, name.c_str()) != nullptr;
}

TEST(Clients, FindEveryNameAndItsTwin) {
  ASSERT_FALSE(is_exported("ncclNoSuchFunction"));
  for (const Client& client : kClients) {
    SCOPED_TRACE(client.name);
    for (const auto* names : {&kCommon, &client.functions})
      for (const char* name : *names)
        for (const char* prefix : {"nccl", "pnccl"})
          EXPECT_TRUE(is_exported(std::string(prefix) + name)) << prefix << name;
  }
}

// nccl4py looks for the version in the file of the library.
TEST(Clients, FindTheVersionInTheFile) {
  Dl_info info{};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&ncclGetVersion), &info), 0);
  FILE* file = fopen(info.dli_fname, "rb");
  ASSERT_NE(file, nullptr) << info.dli_fname;
  std::string content;
  std::vector<char> part(1 << 20);
  while (const size_t got = fread(part.data(), 1, part.size(), file))
    content.append(part.data(), got);
  fclose(file);
  EXPECT_NE(content.find("NCCL version 2.30.7+cuda"), std::string::npos);
}

}  // namespace
}  // namespace niccolite::test
