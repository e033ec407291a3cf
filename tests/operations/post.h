// Post: what the ranks of an agreement tell each other, as letters in a box until they are
// delivered, in any order.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/wait.h"
#include "base/wire.h"
#include "operations/reach_history.h"

namespace niccolite::operations {

inline ReachHistory::Use use_if(bool is_reached) {
  return {is_reached ? ReachHistory::Use::Reached : ReachHistory::Use::Missed};
}

/// `Agreement` has note(from, message), and is made with a function that tells a peer something.
/// Thread safety: ranks by a thread each, letters by any.
template <typename Agreement>
class Post {
 public:
  /// `make(rank, abort, tell)`: the agreement of a rank.
  template <typename Make>
  Post(int nranks, Make&& make) {
    for (int rank = 0; rank < nranks; ++rank)
      ranks_.push_back(make(rank, abort_, [this, rank](int peer, std::span<const std::byte> text) {
        std::lock_guard lock(mutex_);
        letters_.push_back({rank, peer, Bytes(text.begin(), text.end())});
      }));
  }

  Agreement& rank(int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(ranks_.size()); }
  Abort& abort() { return abort_; }

  /// False when there is none.
  bool deliver_one(std::mt19937& random) {
    Letter letter;
    {
      std::lock_guard lock(mutex_);
      if (letters_.empty()) return false;
      std::swap(letters_[random() % letters_.size()], letters_.back());
      letter = std::move(letters_.back());
      letters_.pop_back();
    }
    EXPECT_TRUE(rank(letter.to).note(letter.from, letter.message).is_ok());
    return true;
  }
  void deliver_all() {
    std::mt19937 random(1);
    while (deliver_one(random)) {
    }
  }

 private:
  struct Letter {
    int from;
    int to;
    Bytes message;
  };

  Abort abort_;
  std::vector<std::unique_ptr<Agreement>> ranks_;
  std::mutex mutex_;
  std::vector<Letter> letters_;
};

}  // namespace niccolite::operations
