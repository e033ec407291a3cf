// Budget: the work that an operation's workers may still do before its task has to return to the
// scheduler.
#pragma once

#include <cstdint>

namespace niccolite::executor::host {

struct Budget {
  int64_t bytes;
  int instructions;
  bool is_spent() const { return bytes <= 0 || instructions <= 0; }
};

}  // namespace niccolite::executor::host
