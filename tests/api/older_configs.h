/* ncclConfig_t as older headers had it, with what their initializers stored, for tests that play an
 * older caller. Each is a prefix of the present struct; where an older struct ended in padding, a
 * field of today begins in those bytes. */
#pragma once

#include <nccl.h>

/* Fields by the release that added them; each macro lists those up to its release. */
#define OLDER_CONFIG_HEAD \
  size_t size;            \
  unsigned int magic;     \
  unsigned int version;   \
  int blocking;
#define OLDER_CONFIG_2_17 \
  OLDER_CONFIG_HEAD       \
  int cgaClusterSize;     \
  int minCTAs;            \
  int maxCTAs;            \
  const char* netName;
#define OLDER_CONFIG_2_18 \
  OLDER_CONFIG_2_17       \
  int splitShare;
#define OLDER_CONFIG_2_26 \
  OLDER_CONFIG_2_18       \
  int trafficClass;
#define OLDER_CONFIG_2_27 \
  OLDER_CONFIG_2_26       \
  const char* commName;   \
  int collnetEnable;      \
  int CTAPolicy;          \
  int shrinkShare;        \
  int nvlsCTAs;
#define OLDER_CONFIG_2_28  \
  OLDER_CONFIG_2_27        \
  int nChannelsPerNetPeer; \
  int nvlinkCentricSched;
#define OLDER_CONFIG_2_29 \
  OLDER_CONFIG_2_28       \
  int graphUsageMode;     \
  int numRmaCtx;
#define OLDER_CONFIG_2_30_3 \
  OLDER_CONFIG_2_29         \
  int maxP2pPeers;

typedef struct {
  OLDER_CONFIG_HEAD
} Config_2_14; /* 2.14.3 to 2.16.5 */
typedef struct {
  OLDER_CONFIG_2_17
} Config_2_17; /* 2.17.1 */
typedef struct {
  OLDER_CONFIG_2_18
} Config_2_18; /* 2.18.1 to 2.25.1, 4 bytes of padding at 44 */
typedef struct {
  OLDER_CONFIG_2_26
} Config_2_26; /* 2.26.2 to 2.26.6 */
typedef struct {
  OLDER_CONFIG_2_27
} Config_2_27; /* 2.27.3 to 2.27.7 */
typedef struct {
  OLDER_CONFIG_2_28
} Config_2_28; /* 2.28.3 to 2.28.9 */
typedef struct {
  OLDER_CONFIG_2_29
} Config_2_29; /* 2.29.2 to 2.29.7 */
typedef struct {
  OLDER_CONFIG_2_30_3
} Config_2_30_3; /* 2.30.3 and 2.30.4, 4 bytes of padding at 92 */
