// Sizes, counts and lists of them on command lines. Pure: any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/status.h"

namespace niccolite::grammar {

/// The parts of a comma-separated list. An empty list has one part, which is empty.
std::vector<std::string> split_list(const std::string& list);

/// Parses "8", "4K", "1.5M", "1MiB" or "1G" (powers of 1024) into bytes.
Result<size_t> parse_bytes(const std::string& text);

/// Parses the value of the option `flag`, which errors name.
Result<size_t> parse_size(const char* flag, const std::string& text);

/// The sizes of a comma-separated list.
Result<std::vector<size_t>> parse_sizes(const char* flag, const std::string& list);

/// The whole numbers of a comma-separated list, each from `least` to `most`.
Result<std::vector<int>> parse_numbers(const char* flag, const std::string& list, int least,
                                       int most);

}  // namespace niccolite::grammar
