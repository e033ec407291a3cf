#include "wire/frames.h"

namespace niccolite::wire {
namespace {
constexpr size_t kLengthBytes = 4;
}

void FrameSealer::seal(std::span<const std::byte> payload, Bytes& out) {
  const size_t begin = out.size();
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<std::byte>(payload.size() >> (8 * i)));
  out.insert(out.end(), payload.begin(), payload.end());
  const auto mac = authentication::authenticate(key_, counter_++, std::span(out).subspan(begin));
  out.insert(out.end(), mac.begin(), mac.end());
}

void FrameOpener::feed(std::span<const std::byte> bytes) {
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(start_));
  start_ = 0;
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

Result<std::optional<std::span<const std::byte>>> FrameOpener::next() {
  using Payload = std::optional<std::span<const std::byte>>;
  const auto left = std::span<const std::byte>(buffer_).subspan(start_);
  if (left.size() < kLengthBytes) return Payload();
  const size_t length = Reader(left.first(kLengthBytes), "frame").u32();
  if (length > most_)
    return Status::remote_error("a frame of {} bytes is announced, at most {} are allowed", length,
                                most_);
  const size_t signed_bytes = kLengthBytes + length;
  if (left.size() < signed_bytes + authentication::kMacBytes) return Payload();
  const auto mac = authentication::authenticate(key_, counter_, left.first(signed_bytes));
  if (!authentication::equal(mac, left.subspan(signed_bytes, authentication::kMacBytes)))
    return Status::remote_error("frame {} is not authentic", counter_);
  ++counter_;
  start_ += signed_bytes + authentication::kMacBytes;
  return Payload(left.subspan(kLengthBytes, length));
}

}  // namespace niccolite::wire
