/* With NICCOLITE_WITHOUT_DEVICE_API a program sees NCCL 2.27, which has no device API. */
#include <assert.h>
#include <nccl.h>

static_assert(NCCL_VERSION_CODE == 22707, "the last version without the device API");
static_assert(NCCL_VERSION_CODE < NCCL_VERSION(2, 28, 0), "what programs ask");
static_assert(NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH) == NCCL_VERSION_CODE, "one version");
ncclConfig_t a_config(void);
ncclConfig_t a_config(void) {
  const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  return config;
}
