// ReachHistory: remembers for launches whether the buffers that they offer to peers were reached,
// and which plans are therefore worth while. Thread safety: one thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <cstdint>

namespace niccolite::operations {

class ReachHistory {
 public:
  /// `wishes_reach`: the wish before anything is known.
  explicit ReachHistory(bool wishes_reach = false) : wishes_reach_(wishes_reach) {}

  /// The use of a buffer that was offered to peers; the greatest one if a launch has several.
  struct Use {
    enum Kind : uint8_t { Reached, Awaited, Missed } kind = Reached;
    uint64_t memory = 0;  // of Awaited, which: peers have been asked to map it
    auto operator<=>(const Use&) const = default;
  };
  /// Notes one launch. Memory that is awaited is missed at its first use, and then now and then: it
  /// is used a dozen times before it is mapped, but may also be new each time, or never be mapped.
  void note(const Use& use) {
    if (use.kind == Use::Awaited && !is_news(use.memory)) return;
    const bool is_reached = use.kind == Use::Reached;
    uses_ = uses_ << 1 | (is_reached ? 0 : 1);
    reached_in_row_ = is_reached ? reached_in_row_ + 1 : 0;
    const bool wish =
        wishes_reach_ ? std::popcount(uses_) < kMostMissed : reached_in_row_ >= enough_in_row_;
    if (wishes_reach_ && !wish) enough_in_row_ = std::min(enough_in_row_ * kSurer, kMostInRow);
    if (!wishes_reach_ && wish) uses_ = 0;  // earlier uses say nothing against the wish
    wishes_reach_ = wish;
  }
  /// Would plans for buffers that peers reach be better than those for slots?
  bool wishes_reach() const { return wishes_reach_; }

 private:
  // So when that many launches in a row found all buffers reached, and no more when this many of
  // the last ones did not. Who has changed back must be surer the next time: programs whose buffers
  // come and go shall not change for ever.
  static constexpr uint32_t kEnoughInRow = 8;
  static constexpr uint32_t kMostInRow = 256;
  static constexpr uint32_t kSurer = 4;
  static constexpr int kMostMissed = 8;

  bool is_news(uint64_t memory) {
    constexpr uint32_t kPatience = 64;
    const auto known = std::ranges::find(awaited_, memory, &Awaited::memory);
    if (known != awaited_.end()) return ++known->uses % kPatience == 0;
    awaited_[oldest_++ % awaited_.size()] = {.memory = memory, .uses = 0};
    return true;
  }
  struct Awaited {
    uint64_t memory = 0;
    uint32_t uses = 0;
  };

  bool wishes_reach_;
  uint32_t uses_ = 0;  // the last 32, the newest in bit 0: missed
  uint32_t reached_in_row_ = 0;
  uint32_t enough_in_row_ = kEnoughInRow;
  std::array<Awaited, 8> awaited_{};
  size_t oldest_ = 0;
};

}  // namespace niccolite::operations
