#include "wire/frames.h"

#include "tests/bootstrap/ranks.h"

namespace niccolite::wire {

using bootstrap::to_bytes;
using bootstrap::to_text;
namespace {

using testing::HasSubstr;

authentication::Secret key(int salt) {
  authentication::Secret secret;
  secret.fill(static_cast<std::byte>(salt));
  return secret;
}

Bytes stream(FrameSealer& sealer, std::initializer_list<std::string_view> texts) {
  Bytes bytes;
  for (std::string_view text : texts) sealer.seal(to_bytes(text), bytes);
  return bytes;
}

std::string next_text(FrameOpener& opener) {
  auto frame = opener.next();
  if (!frame.is_ok()) return "(" + frame.status().message() + ")";
  return frame->has_value() ? to_text(**frame) : "(more)";
}

TEST(Frames, ArriveWholeHoweverTheBytesAreCut) {
  for (size_t piece : {1u, 2u, 7u, 1000u}) {
    FrameSealer sealer(key(1));
    FrameOpener opener(key(1), 1000);
    const Bytes bytes = stream(sealer, {"one", "", "three"});
    std::vector<std::string> got;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      opener.feed(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
      for (std::string text = next_text(opener); text != "(more)"; text = next_text(opener))
        got.push_back(text);
    }
    EXPECT_THAT(got, testing::ElementsAre("one", "", "three"));
  }
}

TEST(Frames, AreRefusedWithAnyByteChanged) {
  FrameSealer sealer(key(1));
  const Bytes bytes = stream(sealer, {"payload"});
  for (size_t i = 0; i < bytes.size(); ++i) {
    Bytes damaged = bytes;
    damaged[i] ^= std::byte{1};
    FrameOpener opener(key(1), 100);
    opener.feed(damaged);
    EXPECT_NE(next_text(opener), "payload") << "byte " << i;
  }
}

TEST(Frames, AreRefusedWhenRepeatedLeftOutOrOfAnotherDirection) {
  FrameSealer sealer(key(1));
  const Bytes first = stream(sealer, {"first"}), second = stream(sealer, {"second"});
  FrameOpener repeated(key(1), 100);
  repeated.feed(first);
  EXPECT_EQ(next_text(repeated), "first");
  repeated.feed(first);
  EXPECT_THAT(next_text(repeated), HasSubstr("not authentic"));
  FrameOpener left_out(key(1), 100);
  left_out.feed(second);
  EXPECT_THAT(next_text(left_out), HasSubstr("not authentic"));
  FrameOpener other(key(2), 100);
  other.feed(first);
  EXPECT_THAT(next_text(other), HasSubstr("not authentic"));
}

TEST(Frames, AreRefusedByLengthBeforeTheyArrive) {
  FrameOpener opener(key(1), 100);
  Writer writer;
  writer.u32(101);
  opener.feed(writer.bytes());
  EXPECT_THAT(next_text(opener), HasSubstr("101 bytes"));
}

}  // namespace
}  // namespace niccolite::wire
