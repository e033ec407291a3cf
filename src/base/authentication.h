// Authentication of connections: two processes that hold the same secret prove it to each other,
// and every frame after that carries a code that nobody else can make. The only file that knows
// libsodium.
//
//   initiator                                              acceptor
//   hello:  magic, from, to, nonce_i              ---->
//                                                 <----    reply: nonce_a, proof_a
//   proof_i                                       ---->
//
// proof_x = keyed hash (BLAKE2b) of (side, magic, from, to, nonce_i, nonce_a): bound to both nonces
// (no replay), to the side (no reflection) and to the identities of both ends (no redirection).
// Each direction then has a key of its own, hashed from the same values. The bytes are authentic
// but not secret: addresses, counts and handles travel here, no user data. Thread safety: free
// functions from any thread; a Handshake belongs to one connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "base/wire.h"

namespace niccolite::authentication {

using Secret = std::array<std::byte, 32>;
inline constexpr size_t kMacBytes = 16;
using Mac = std::array<std::byte, kMacBytes>;

/// Must have succeeded once before anything else here is used; cheap when repeated.
Status initialize();

void fill_random(std::span<std::byte> bytes);
/// A key for one purpose; knowing it tells nothing of `secret` or of other purposes' keys.
Secret derive(const Secret& secret, std::string_view purpose,
              std::span<const std::byte> context = {});
/// Unkeyed hash of 1 to 8 bytes' width, for checksums and names.
uint64_t fingerprint(std::span<const std::byte> bytes);
/// Takes the same time wherever the first difference is.
bool equal(std::span<const std::byte> a, std::span<const std::byte> b);
/// The code of message number `counter` of one direction.
Mac authenticate(const Secret& key, uint64_t counter, std::span<const std::byte> message);

/// One side's input to a handshake.
struct Identity {
  Secret key;           // of the communicator and purpose: both sides must have it
  uint64_t number = 0;  // of this end, unique among the ends that hold `key`
};

inline constexpr size_t kHelloBytes = 56;
inline constexpr size_t kReplyBytes = 64;
inline constexpr size_t kProofBytes = 32;

class Handshake {
 public:
  Handshake(const Identity& self) : self_(self) {}  // NOLINT(google-explicit-constructor)

  /// Initiator: first message, for the end with number `to`.
  Bytes make_hello(uint64_t to);
  /// Acceptor: the number that a hello asks for; checks its form and version.
  static Result<uint64_t> addressee(std::span<const std::byte, kHelloBytes> hello);
  /// Acceptor: checks form, version and addressee of the hello, and answers.
  Result<Bytes> answer_hello(std::span<const std::byte, kHelloBytes> hello);
  /// Initiator: checks the acceptor's proof; the result is the last message.
  Result<Bytes> check_reply(std::span<const std::byte, kReplyBytes> reply);
  /// Acceptor: checks the initiator's proof.
  Status check_proof(std::span<const std::byte, kProofBytes> proof) const;

  uint64_t number() const { return self_.number; }
  uint64_t peer_number() const { return peer_; }
  /// Keys of the two directions; only after check_reply() or check_proof() succeeded.
  Secret sending_key() const;
  Secret receiving_key() const;

 private:
  Secret proof(std::string_view side) const;

  Identity self_;
  uint64_t peer_ = 0;
  bool initiator_ = false;
  Bytes transcript_;  // hello, then nonce_a
};

}  // namespace niccolite::authentication
