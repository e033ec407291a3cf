// Excerpt: the shown part of a schedule that is too large for a picture: some ranks, workers and
// steps, where one stands for its neighbours if they are alike. Pure: any thread.
#pragma once

#include <string>
#include <vector>

#include "schedule/schedule.h"
#include "schedule/timeline.h"

namespace niccolite::schedule {

/// Things in a row: the shown ones, and the gaps between them.
class Axis {
 public:
  struct Entry {
    int first, last;  // one thing, or all that a gap leaves out
    bool is_gap = false;
    bool is_alike = false;  // all of the gap are as the thing before it
  };

  /// Shows all.
  static Axis whole(int count);
  /// `alike[i]`: thing i is like thing i - 1. Shows the first `head` and the last thing of each run
  /// of alike things. If that is still more than `most`, shows as many from the beginning, and the
  /// last.
  static Axis of(const std::vector<bool>& alike, int head, int most);

  bool shows(int thing) const { return shows_[static_cast<size_t>(thing)]; }
  const std::vector<Entry>& entries() const { return entries_; }
  int shown() const;

 private:
  explicit Axis(std::vector<bool> shows) : shows_(std::move(shows)) {}
  std::vector<bool> shows_;
  std::vector<Entry> entries_;
};

struct Excerpt {
  Axis ranks, workers, steps;
  // omitted parts, and the parts that they are like; empty: all is shown
  std::vector<std::string> notes;

  bool shows(const Event& event) const {
    return ranks.shows(event.position.rank) && workers.shows(event.position.worker) &&
           steps.shows(event.step);
  }
};

/// All of a schedule of up to 8 ranks, else as much as a page can hold.
Excerpt excerpt_of(const Schedule& schedule, const Timeline& timeline);

}  // namespace niccolite::schedule
