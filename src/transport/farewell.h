// Farewell: how the streams to ranks of other machines end with their rank.
#pragma once

#include <cstdint>

namespace niccolite::transport {

enum class Farewell : uint8_t {
  // In order where peers have acknowledged all that was sent, then waits seconds for them to end
  // theirs; else they break.
  Acknowledged,
  // Ends the streams in order and waits, as Acknowledged does, but whatever peers have
  // acknowledged: their systems have the bytes, and a stopped peer reads them when it goes on.
  Unread,
  // Waits as Acknowledged does, but for milliseconds: after an abort or a failure.
  Hurried,
};

}  // namespace niccolite::transport
