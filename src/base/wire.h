// Writer and Reader: the encoding of every message on a socket. Little-endian, no padding, no
// alignment; a blob is its length (u32) and its bytes. A Reader never reads past its bytes: the
// first value that does not fit makes it fail, and from then on every value is zero or empty, so
// that a decoder reads all fields and asks once, with finish().
//   Reader reader(bytes, "rank 3");
//   Hello hello{.rank = reader.i32(), .host = reader.text(kMaxHost)};
//   TRY(reader.finish());  // names rank 3 when it sent something else
// Thread safety: as for any value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace niccolite {

using Bytes = std::vector<std::byte>;

class Writer {
 public:
  void u8(uint8_t value) { little_endian(value, 1); }
  void u16(uint16_t value) { little_endian(value, 2); }
  void u32(uint32_t value) { little_endian(value, 4); }
  void u64(uint64_t value) { little_endian(value, 8); }
  void i32(int32_t value) { u32(static_cast<uint32_t>(value)); }
  /// Bytes as they are, for fields of a fixed length.
  void raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  /// Length and bytes. The length must be below 4 GiB.
  void blob(std::span<const std::byte> bytes);
  void text(std::string_view text) { blob(std::as_bytes(std::span(text))); }

  const Bytes& bytes() const { return bytes_; }
  Bytes take() && { return std::move(bytes_); }

 private:
  void little_endian(uint64_t value, int width);
  Bytes bytes_;
};

class Reader {
 public:
  /// `origin` names the sender in errors and outlives the reader, as `bytes` does.
  Reader(std::span<const std::byte> bytes, std::string_view origin)
      : bytes_(bytes), origin_(origin) {}

  uint8_t u8() { return static_cast<uint8_t>(little_endian(1)); }
  uint16_t u16() { return static_cast<uint16_t>(little_endian(2)); }
  uint32_t u32() { return static_cast<uint32_t>(little_endian(4)); }
  uint64_t u64() { return little_endian(8); }
  int32_t i32() { return static_cast<int32_t>(u32()); }
  std::span<const std::byte> raw(size_t length);
  /// A blob of at most `most` bytes.
  std::span<const std::byte> blob(size_t most);
  std::string text(size_t most);
  /// Reads the number of elements that follow: at most `most`, and at most as many as the remaining
  /// bytes can hold.
  uint32_t count(uint32_t most, size_t bytes_each);
  /// All bytes that are left.
  std::span<const std::byte> rest() { return raw(bytes_.size() - position_); }

  /// Marks the message as wrong for a reason that the reader cannot see itself.
  void reject(std::string_view why);
  bool failed() const { return !why_.empty(); }
  /// Fails when anything before did, or when bytes are left over.
  Status finish();

 private:
  uint64_t little_endian(int width);
  std::span<const std::byte> bytes_;
  std::string_view origin_;
  size_t position_ = 0;
  std::string why_;
};

}  // namespace niccolite
