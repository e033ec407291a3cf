/* The header compiled as C, and the library linked from C: every declared function is there under
 * both of its names, the weak one an alias of the strong one. */
#define NCCL_OS_LINUX /* declares ncclResetDebugInit, as programs built with older headers see it \
                       */
#include <stdio.h>

#include "abi_layout.h"
#include "older_configs.h"

HAS_SIZE(Config_2_14, 24);
HAS_SIZE(Config_2_17, 40);
HAS_SIZE(Config_2_18, 48);
HAS_SIZE(Config_2_26, 48);
HAS_SIZE(Config_2_27, 72);
HAS_SIZE(Config_2_28, 80);
HAS_SIZE(Config_2_29, 88);
HAS_SIZE(Config_2_30_3, 96);

/* The last field of each older struct stands where it stands today, hence so do those before it. */
#define IS_PREFIX(older, field)                                            \
  static_assert(offsetof(older, field) == offsetof(ncclConfig_t, field) && \
                    sizeof(older) <= sizeof(ncclConfig_t),                 \
                #older " is no prefix of ncclConfig_t")
IS_PREFIX(Config_2_14, blocking);
IS_PREFIX(Config_2_17, netName);
IS_PREFIX(Config_2_18, splitShare);
IS_PREFIX(Config_2_26, trafficClass);
IS_PREFIX(Config_2_27, nvlsCTAs);
IS_PREFIX(Config_2_28, nvlinkCentricSched);
IS_PREFIX(Config_2_29, numRmaCtx);
IS_PREFIX(Config_2_30_3, maxP2pPeers);

typedef void (*Function)(void);
typedef struct {
  const char* name;
  Function weak;
  Function strong;
} Pair;
#define PAIR(name) \
  { #name, (Function)name, (Function)p##name }

int main(void) {
  const Pair pairs[] = {
      PAIR(ncclGetVersion),     PAIR(ncclGetUniqueId),        PAIR(ncclCommInitRank),
      PAIR(ncclCommInitAll),    PAIR(ncclCommInitRankConfig), PAIR(ncclCommFinalize),
      PAIR(ncclCommDestroy),    PAIR(ncclCommAbort),          PAIR(ncclCommCount),
      PAIR(ncclCommCuDevice),   PAIR(ncclCommUserRank),       PAIR(ncclCommGetAsyncError),
      PAIR(ncclGetErrorString), PAIR(ncclGetLastError),       PAIR(ncclResetDebugInit),
      PAIR(ncclGroupStart),     PAIR(ncclGroupEnd),           PAIR(ncclAllReduce),
  };
  int failures = 0;
  for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); ++i) {
    if (pairs[i].weak != pairs[i].strong) {
      printf("%s is not an alias of p%s\n", pairs[i].name, pairs[i].name);
      ++failures;
    }
  }

  const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (config.size != 96 || config.magic != 0xcafebeefu || config.version != 23007 ||
      config.blocking != INT_MIN || config.netName || config.commName ||
      config.graphStreamOrdering != INT_MIN) {
    printf("NCCL_CONFIG_INITIALIZER stores something else\n");
    ++failures;
  }
  const ncclSimInfo_t sim = NCCL_SIM_INFO_INITIALIZER;
  if (sim.size != 24 || sim.magic != 0x74685283u || sim.version != 23007 ||
      sim.estimatedTime != -1.0f) {
    printf("NCCL_SIM_INFO_INITIALIZER stores something else\n");
    ++failures;
  }
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess || version != NCCL_VERSION_CODE) {
    printf("ncclGetVersion says %d, the header %d\n", version, NCCL_VERSION_CODE);
    ++failures;
  }
  return failures != 0;
}
