// Choice: the kind of devices that NICCOLITE_DEVICES selects. Read by the library, which picks a
// machine, and by the virtual driver, which must know how many GPUs to pretend even when no library
// asks.
#pragma once

#include <string_view>

#include "base/status.h"

namespace niccolite::gpu {

struct Choice {
  enum class Kind : unsigned char { Automatic, Cuda, Virtual } kind = Kind::Automatic;
  int virtual_devices = 8;
};

/// Parses "", "cuda", "virtual" or "virtual:N". InvalidUsage, naming the value, for anything else.
Result<Choice> parse_choice(std::string_view text);
/// The process's choice.
Result<Choice> chosen_devices();

}  // namespace niccolite::gpu
