// How messages of the library write the bytes of a buffer.
#pragma once

#include <sstream>
#include <string>

namespace niccolite::test {

inline std::string range_of(const void* start, size_t bytes) {
  std::ostringstream text;
  text << start << " to " << static_cast<const void*>(static_cast<const char*>(start) + bytes)
       << " (" << bytes << " bytes)";
  return text.str();
}

}  // namespace niccolite::test
