// The name that somebody meant. Pure: any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace niccolite {

/// The one of `names` that takes the fewest letters inserted, left out, replaced or swapped with
/// their neighbour to get from `word`; the first of equals. Empty where none is near: where more
/// than half of the word would have to change.
std::string nearest(std::string_view word, std::span<const std::string> names);

}  // namespace niccolite
