// Names on command lines: their spellings, the nearest right one, and messages about wrong ones.
// Pure: any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace niccolite::grammar {

/// `name` in lower case without '_' and '-'. Two names with the same letters are one name.
std::string letters_of(std::string_view name);

/// As letters_of(), for collectives: "all-reduce", "AllReduce" and "ncclAllReduce" give
/// "allreduce"; "point_to_point" gives "sendrecv".
std::string letters_of_collective(std::string_view name);

/// Returns the name that takes the fewest letters inserted, left out, replaced or swapped with
/// their neighbour to get from `word`; the first of equals. Empty if more than half of the word
/// would have to change.
std::string nearest(std::string_view word, const std::vector<std::string>& names);

/// "--allocator: "hoost" is none of malloc, host, did you mean host?" `what` may be empty.
Status unknown_name(std::string_view what, std::string_view word,
                    const std::vector<std::string>& names);

}  // namespace niccolite::grammar
