# Writes OUTPUT, C++ that defines niccolite::planner::source_id(): a hash of all that is compiled from src/ and tuning/ under
# SOURCE, by which two builds of one version tell each other apart. Run at build time, whenever one of them has changed:
#   cmake -DSOURCE=. -DOUTPUT=source_id.cc -P source_id.cmake
file(GLOB_RECURSE files RELATIVE ${SOURCE} 
  ${SOURCE}/src/*.h ${SOURCE}/src/*.cc ${SOURCE}/src/*.def ${SOURCE}/src/*.cuh ${SOURCE}/src/*.cu ${SOURCE}/tuning/*.json)
list(SORT files)
set(all "")
foreach(file IN LISTS files)
  file(SHA256 ${SOURCE}/${file} hash)
  string(APPEND all "${file} ${hash}\n")
endforeach()
string(SHA256 id "${all}")
string(SUBSTRING ${id} 0 16 id)
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
// Made by cmake/source_id.cmake.
#include "planner/fingerprint.h"

namespace niccolite::planner {

uint64_t source_id() { return 0x@id@; }

}  // namespace niccolite::planner
]])
