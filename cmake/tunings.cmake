# Writes OUTPUT, C++ that defines niccolite::planner::built_in_tunings(): the files tuning/*.json as they are, with the class of
# machines and the GPUs that each is for, so that only those which a process needs are parsed there. Run at build time,
# whenever one of them has changed:
#   cmake -DTUNING=tuning -DOUTPUT=built_in_tunings.cc -P tunings.cmake
cmake_policy(VERSION 3.22)
file(GLOB files ${TUNING}/*.json)
list(SORT files)
set(rows "")
foreach(file IN LISTS files)
  file(READ ${file} text)
  get_filename_component(name ${file} NAME)
  foreach(field class gpu)
    string(JSON ${field} ERROR_VARIABLE problem GET "${text}" ${field})
    if(problem AND field STREQUAL "gpu")
      set(gpu "")
    elseif(problem)
      message(FATAL_ERROR "${file}: ${problem}")
    endif()
  endforeach()
  string(APPEND rows "    {\"${name}\", \"${class}\", \"${gpu}\", R\"json(${text})json\"},\n")
endforeach()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
// Made by cmake/tunings.cmake.
#include "planner/prices/tunings.h"

namespace niccolite::planner {
namespace {

constexpr BuiltInTuning kTunings[] = {
@rows@};

}  // namespace

std::span<const BuiltInTuning> built_in_tunings() { return kTunings; }

}  // namespace niccolite::planner
]])
