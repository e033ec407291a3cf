#include "base/authentication.h"

#include <sodium.h>

#include <cstring>

namespace niccolite::authentication {
namespace {

// The last byte is the version of the handshake and of everything that follows it on the
// connection.
constexpr std::array<unsigned char, 8> kMagic = {'n', 'i', 'c', 'b', 'o', 'o', 't', 1};
constexpr size_t kNonceBytes = 32;

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
unsigned char* raw(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

}  // namespace

Status initialize() {
  static const int result = sodium_init();
  if (result < 0)
    return Status::system_error("libsodium cannot start: is there no source of randomness?");
  return {};
}

void fill_random(std::span<std::byte> bytes) { randombytes_buf(bytes.data(), bytes.size()); }

Secret derive(const Secret& secret, std::string_view purpose, std::span<const std::byte> context) {
  Secret key;
  crypto_generichash_state state;
  crypto_generichash_init(&state, raw(std::span<const std::byte>(secret)), secret.size(),
                          key.size());
  // The length separates purpose and context, so that no two pairs hash the same bytes.
  const auto length = static_cast<unsigned char>(purpose.size());
  crypto_generichash_update(&state, &length, 1);
  crypto_generichash_update(&state, raw(std::as_bytes(std::span(purpose))), purpose.size());
  crypto_generichash_update(&state, raw(context), context.size());
  crypto_generichash_final(&state, raw(std::span<std::byte>(key)), key.size());
  return key;
}

uint64_t fingerprint(std::span<const std::byte> bytes) {
  std::array<std::byte, 16> hash;  // the shortest BLAKE2b there is
  crypto_generichash(raw(std::span<std::byte>(hash)), hash.size(), raw(bytes), bytes.size(),
                     nullptr, 0);
  return Reader(hash, "hash").u64();
}

bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

Mac authenticate(const Secret& key, uint64_t counter, std::span<const std::byte> message) {
  Mac mac;
  crypto_generichash_state state;
  crypto_generichash_init(&state, raw(std::span<const std::byte>(key)), key.size(), mac.size());
  Writer number;
  number.u64(counter);
  crypto_generichash_update(&state, raw(number.bytes()), number.bytes().size());
  crypto_generichash_update(&state, raw(message), message.size());
  crypto_generichash_final(&state, raw(std::span<std::byte>(mac)), mac.size());
  return mac;
}

Secret Handshake::proof(std::string_view side) const {
  return derive(self_.key, side, transcript_);
}

Bytes Handshake::make_hello(uint64_t to) {
  initiator_ = true;
  peer_ = to;
  std::array<std::byte, kNonceBytes> nonce;
  fill_random(nonce);
  Writer writer;
  writer.raw(std::as_bytes(std::span(kMagic)));
  writer.u64(self_.number);
  writer.u64(to);
  writer.raw(nonce);
  transcript_ = std::move(writer).take();
  return transcript_;
}

namespace {

struct Parties {
  uint64_t from = 0;
  uint64_t to = 0;
};

Result<Parties> parties_of(std::span<const std::byte, kHelloBytes> hello) {
  constexpr size_t kName = kMagic.size() - 1;
  if (std::memcmp(hello.data(), kMagic.data(), kName) != 0)
    return Status::remote_error("it does not speak the bootstrap protocol");
  if (hello[kName] != std::byte{kMagic[kName]})
    return Status::remote_error(
        "it speaks version {} of the bootstrap protocol, this library version {}",
        static_cast<int>(hello[kName]), static_cast<int>(kMagic[kName]));
  Reader reader(hello.subspan<kMagic.size()>(), "hello");
  const uint64_t from = reader.u64();
  return Parties{.from = from, .to = reader.u64()};
}

}  // namespace

Result<uint64_t> Handshake::addressee(std::span<const std::byte, kHelloBytes> hello) {
  return TRY(parties_of(hello)).to;
}

Result<Bytes> Handshake::answer_hello(std::span<const std::byte, kHelloBytes> hello) {
  const Parties parties = TRY(parties_of(hello));
  if (parties.to != self_.number)
    return Status::remote_error("it looks for another process or communicator");
  peer_ = parties.from;
  transcript_.assign(hello.begin(), hello.end());
  std::array<std::byte, kNonceBytes> nonce;
  fill_random(nonce);
  transcript_.insert(transcript_.end(), nonce.begin(), nonce.end());
  Writer writer;
  writer.raw(nonce);
  writer.raw(proof("acceptor"));
  return std::move(writer).take();
}

Result<Bytes> Handshake::check_reply(std::span<const std::byte, kReplyBytes> reply) {
  const auto nonce = reply.first<kNonceBytes>();
  transcript_.insert(transcript_.end(), nonce.begin(), nonce.end());
  if (!equal(proof("acceptor"), reply.subspan<kNonceBytes>()))
    return Status::remote_error("authentication failed: it belongs to another unique id");
  const Secret mine = proof("initiator");
  return Bytes(mine.begin(), mine.end());
}

Status Handshake::check_proof(std::span<const std::byte, kProofBytes> their_proof) const {
  if (!equal(proof("initiator"), their_proof))
    return Status::remote_error("authentication failed: it does not know the unique id");
  return {};
}

Secret Handshake::sending_key() const { return proof(initiator_ ? "frames i" : "frames a"); }
Secret Handshake::receiving_key() const { return proof(initiator_ ? "frames a" : "frames i"); }

}  // namespace niccolite::authentication
