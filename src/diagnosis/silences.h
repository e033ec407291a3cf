// Silences: which ranks have not answered this process, and since when. One thread looks after all
// ranks of a process and asks for them in turn, so that each rank asks rarely. An answer about a
// communicator's rank therefore counts for all ranks of the process.
// Thread safety: the watchdog's thread alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <utility>

#include "base/wait.h"

namespace niccolite::diagnosis {

class Silences {
 public:
  using Time = Deadline::Clock::time_point;

  /// A rank has answered nothing between these times; the rank `asker` has found so last.
  struct Silence {
    Time begin{}, end{};
    int asker = -1;
  };

  /// Null: `rank` has answered.
  const Silence* find(uint64_t communicator, int rank) const {
    const auto found = silences_.find({communicator, rank});
    return found == silences_.end() ? nullptr : &found->second;
  }

  /// The rank `asker` asked at `asked` and had no answer by `now`.
  void add(uint64_t communicator, int rank, int asker, Time asked, Time now) {
    std::erase_if(silences_, [&](const auto& known) { return asked - known.second.end > kGap; });
    Silence& silence =
        silences_.try_emplace({communicator, rank}, Silence{.begin = asked}).first->second;
    silence.end = now;
    silence.asker = asker;
  }

  void end(uint64_t communicator, int rank) { silences_.erase({communicator, rank}); }

 private:
  static constexpr std::chrono::seconds kGap{4};  // after which the next silence is another one

  std::map<std::pair<uint64_t, int>, Silence> silences_;
};

}  // namespace niccolite::diagnosis
