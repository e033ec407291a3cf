#include "bootstrap/unique_id.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/interfaces.h"
#include "base/log.h"
#include "base/parameters.h"
#include "bootstrap/root.h"

namespace niccolite::bootstrap {
namespace {

constexpr std::array<char, 8> kMagic = {'n', 'i', 'c', 'c', 'i', 'd', 0, 1};  // last: version
constexpr size_t kChecksumAt = UniqueId::kBytes - 8;

// Where another interface could have been meant: an id made before the network is up serves ranks
// of its machine alone.
void warn_of_loopback(const Interface& chosen, const std::vector<Interface>& present) {
  if (!chosen.address.is_loopback() || !parameters::socket_ifname().empty()) return;
  std::vector<Interface> down;
  for (const Interface& interface : present)
    if (!interface.running && !interface.address.is_link_local() &&
        !interface.name.starts_with("docker") && !interface.name.starts_with("virbr"))
      down.push_back(interface);
  if (down.empty()) return;
  LOG(Warn, Bootstrap,
      "the unique id holds {}, by which only ranks of this machine can join: {} has no carrier. "
      "Make the id once it has, or choose an interface by NCCL_SOCKET_IFNAME",
      chosen.address.host(), describe(down));
}

}  // namespace

UniqueId UniqueId::random(const Address& root) {
  UniqueId id;
  id.root_ = root;
  authentication::fill_random(id.secret_);
  return id;
}

Result<UniqueId> UniqueId::from_environment(std::string_view text, int family) {
  UniqueId id;
  id.origin_ = Origin::Environment;
  Result<Address> address = Address::parse(text, family);
  if (!address.is_ok()) return std::move(address).status().with_context("NCCL_COMM_ID");
  id.root_ = address.value();
  // Derived from the address, not from the text: hosts may spell one address differently.
  Writer writer;
  id.root_.with_scope(0).encode(writer);
  // Everybody can know the address, so the user's id at least keeps other users of the machine out.
  if (parameters::comm_id_any_user() == 0) writer.u32(geteuid());
  id.secret_ = authentication::derive({}, "NCCL_COMM_ID", writer.bytes());
  return id;
}

Result<UniqueId> UniqueId::parse(std::span<const std::byte, kBytes> bytes) {
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size() - 1) != 0)
    return Status::invalid_argument(
        "the unique id was not made by ncclGetUniqueId of this library; has every rank received "
        "all 128 bytes?");
  if (bytes[kMagic.size() - 1] != std::byte{kMagic.back()})
    return Status::invalid_argument("the unique id has format {}, this library knows format {}",
                                    static_cast<int>(bytes[kMagic.size() - 1]), int{kMagic.back()});
  Reader reader(bytes.subspan<kMagic.size()>(), "unique id");
  UniqueId id;
  const uint8_t origin = reader.u8();
  id.origin_ = static_cast<Origin>(origin);
  id.root_ = Address::decode(reader);
  const auto secret = reader.raw(id.secret_.size());
  if (secret.size() == id.secret_.size())
    std::copy(secret.begin(), secret.end(), id.secret_.begin());
  // Comparing with the whole encoding checks the unused bytes and the checksum too.
  const auto expected = id.bytes();
  if (reader.failed() || (origin != 1 && origin != 2) ||
      !std::equal(expected.begin(), expected.end(), bytes.begin()))
    return Status::invalid_argument(
        "the unique id is damaged; has every rank received all 128 bytes?");
  return id;
}

std::array<std::byte, UniqueId::kBytes> UniqueId::bytes() const {
  Writer writer;
  writer.raw(std::as_bytes(std::span(kMagic)));
  writer.u8(static_cast<uint8_t>(origin_));
  root_.encode(writer);
  writer.raw(secret_);
  std::array<std::byte, kBytes> bytes{};
  std::copy(writer.bytes().begin(), writer.bytes().end(), bytes.begin());
  Writer checksum;
  checksum.u64(authentication::fingerprint(std::span(bytes).first<kChecksumAt>()));
  std::copy(checksum.bytes().begin(), checksum.bytes().end(), bytes.begin() + kChecksumAt);
  return bytes;
}

authentication::Secret UniqueId::key(std::string_view purpose) const {
  return authentication::derive(secret_, purpose);
}

uint64_t UniqueId::number() const { return authentication::fingerprint(key("number")) | 1; }

uint64_t UniqueId::hash() const { return authentication::fingerprint(key("name")); }

Result<UniqueId> create_unique_id() {
  TRY(authentication::initialize());
  const int family = family_from(parameters::socket_family());
  if (const auto text = parameters::read_now("NCCL_COMM_ID"))
    return UniqueId::from_environment(*text, family);
  const std::vector<Interface> present = TRY(list_interfaces());
  const Interface chosen = TRY(choose_interface(present, {.filter = parameters::socket_ifname(),
                                                          .family = parameters::socket_family(),
                                                          .reaches = {}}));
  LOG(Info, Bootstrap, "Bootstrap: Using {}:{}<0>", chosen.name, chosen.address.host());
  warn_of_loopback(chosen, present);
  return Root::start(chosen.address);
}

}  // namespace niccolite::bootstrap
