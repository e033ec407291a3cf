#include "api/encryption.h"

#include <atomic>
#include <cstring>

#include "api/arguments.h"
#include "api/call.h"

namespace niccolite::api {
namespace {

std::atomic<bool> is_wanted{false};

// The checks are NCCL's. Source: reference c-api-2.32, section 5.
Status set_encryption(const ncclEncryptionConfig_t* config) {
  constexpr size_t kLeastKey = 32;
  if (config == nullptr) {
    is_wanted = false;
    return {};
  }
  const ncclEncryptionConfig_t copy =
      copy_versioned<ncclEncryptionConfig_t>(config, NCCL_ENCRYPTION_CONFIG_INITIALIZER);
  if (copy.magic != NCCL_API_MAGIC)
    return Status::invalid_argument(
        "ncclSetEncryption : config not initialized via NCCL_ENCRYPTION_CONFIG_INITIALIZER");
  const int mode = number_of(copy.mode);
  if (mode != NCCL_ENCRYPTION_MODE_NONE && mode != NCCL_ENCRYPTION_MODE_PSK)
    return Status::invalid_argument(
        "ncclSetEncryption : invalid mode {}: 0 (none) and 1 (a pre-shared key) are modes", mode);
  const size_t key =
      copy.psk == nullptr ? 0 : strnlen(copy.psk, kLeastKey);  // no more of it is looked at
  if (mode == NCCL_ENCRYPTION_MODE_PSK && key < kLeastKey)
    return Status::invalid_argument(
        "ncclSetEncryption : psk {}: a key has at least {} characters",
        copy.psk == nullptr ? "is NULL" : fmt::format("has {} characters", key), kLeastKey);
  is_wanted = mode == NCCL_ENCRYPTION_MODE_PSK;
  return {};
}

}  // namespace

Status check_encryption(const char* function) {
  if (!is_wanted) return {};
  return Status::invalid_usage(
      "{} : ncclSetEncryption has configured a pre-shared key, and this library does not encrypt "
      "connections: nothing is sent. Processes prove to each other that they know the unique id, "
      "and their data then travel as they are; use a network that encrypts (WireGuard, IPsec), and "
      "do not ask for a key here",
      function);
}

}  // namespace niccolite::api

extern "C" {

ncclResult_t pncclSetEncryption(const ncclEncryptionConfig_t* config) {
  return niccolite::api::call("ncclSetEncryption",
                              [&] { return niccolite::api::set_encryption(config); });
}

}  // extern "C"

NICCOLITE_EXPORT(ncclSetEncryption);
