#include "base/wire.h"

namespace niccolite {

void Writer::little_endian(uint64_t value, int width) {
  for (int i = 0; i < width; ++i) bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
}

void Writer::blob(std::span<const std::byte> bytes) {
  u32(static_cast<uint32_t>(bytes.size()));
  raw(bytes);
}

std::span<const std::byte> Reader::raw(size_t length) {
  if (failed()) return {};
  if (length > bytes_.size() - position_) {
    reject(fmt::format("{} bytes expected at offset {}, {} left", length, position_,
                       bytes_.size() - position_));
    return {};
  }
  const auto bytes = bytes_.subspan(position_, length);
  position_ += length;
  return bytes;
}

uint64_t Reader::little_endian(int width) {
  uint64_t value = 0;
  int shift = 0;
  for (std::byte byte : raw(static_cast<size_t>(width))) {
    value |= static_cast<uint64_t>(byte) << shift;
    shift += 8;
  }
  return value;
}

std::span<const std::byte> Reader::blob(size_t most) {
  const uint32_t length = u32();
  if (length > most) {
    reject(fmt::format("a field of {} bytes, at most {} are allowed", length, most));
    return {};
  }
  return raw(length);
}

std::string Reader::text(size_t most) {
  const auto bytes = blob(most);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

uint32_t Reader::count(uint32_t most, size_t bytes_each) {
  const uint32_t count = u32();
  if (failed()) return 0;
  if (count > most || count * bytes_each > bytes_.size() - position_) {
    reject(fmt::format("{} elements announced, at most {} are allowed and {} bytes are left", count,
                       most, bytes_.size() - position_));
    return 0;
  }
  return count;
}

void Reader::reject(std::string_view why) {
  if (!failed()) why_ = why;
}

Status Reader::finish() {
  if (!failed() && position_ != bytes_.size())
    reject(fmt::format("{} bytes too many", bytes_.size() - position_));
  if (failed()) return Status::remote_error("malformed message from {}: {}", origin_, why_);
  return {};
}

}  // namespace niccolite
