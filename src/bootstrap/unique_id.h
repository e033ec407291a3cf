// UniqueId: the content of an ncclUniqueId. 128 bytes: the address at which the root of the
// rendezvous listens, and the secret that every connection of the communicator must prove to know.
// Callers treat it as opaque and copy it to every rank.
//
//     0  "niccid", 0, version
//     8  origin u8
//     9  root address: family u8, port u16, scope u32, 16 bytes
//    32  secret, 32 bytes; zeros
//   120  checksum
//
// Thread safety: as for any value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/address.h"
#include "base/authentication.h"
#include "base/status.h"

namespace niccolite::bootstrap {

class UniqueId {
 public:
  static constexpr size_t kBytes = 128;
  enum class Origin : uint8_t {
    Root = 1,         // made beside a root that already listens
    Environment = 2,  // computed from NCCL_COMM_ID; the process with rank 0 starts the root
  };

  /// A fresh secret for a root that listens on `root`.
  static UniqueId random(const Address& root);
  /// Returns the same id in every process of this user for the same text (in every process of every
  /// user with NICCOLITE_COMM_ID_ANY_USER=1). The id is as secret as the text. InvalidArgument:
  /// malformed.
  static Result<UniqueId> from_environment(std::string_view text, int family);
  /// InvalidArgument: not made by this library, damaged, or made by an incompatible version.
  static Result<UniqueId> parse(std::span<const std::byte, kBytes> bytes);

  std::array<std::byte, kBytes> bytes() const;
  Origin origin() const { return origin_; }
  const Address& root() const { return root_; }
  /// The key of one kind of connection.
  authentication::Secret key(std::string_view purpose) const;
  /// Under which its root knows it among the ids of a process; not 0. Tells nothing of the secret.
  uint64_t number() const;
  /// A name for logs (commId); tells nothing of the secret.
  uint64_t hash() const;
  bool operator==(const UniqueId&) const = default;

 private:
  Origin origin_ = Origin::Root;
  Address root_;
  authentication::Secret secret_{};
};

/// ncclGetUniqueId: starts a root in this process, on the interface that NCCL_SOCKET_IFNAME and
/// NCCL_SOCKET_FAMILY select, and returns its id. With NCCL_COMM_ID the id is computed from it and
/// nothing is started.
/// @return InvalidArgument: NCCL_COMM_ID is malformed. InvalidUsage: no usable interface.
Result<UniqueId> create_unique_id();

}  // namespace niccolite::bootstrap
