# The project's build rules: compile flags, one static library per module, one test binary per module.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")
# Line tables are enough for the traces of sanitizers, and build much faster than full debug information. GCC takes half as long with
# -Og as with -O1 for what UndefinedBehaviorSanitizer adds.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-Og -g1 -fno-omit-frame-pointer")

# A compiler cache, for ./run, ./test and pip alike: what one has compiled the others take, since names are relative to the build
# folder. Nothing is kept outside the checkout. The cache asks the compiler which headers there were, instead of preprocessing each
# source before compiling it, a sixth of a build from scratch, and looks into precompiled headers. What the user has set, holds.
find_program(NICCOLITE_CCACHE ccache)
if(NICCOLITE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(compiler_launcher ${CMAKE_COMMAND} -E env)
  foreach(setting DIR=${PROJECT_SOURCE_DIR}/build/.ccache BASEDIR=${PROJECT_SOURCE_DIR} DEPEND=1 SLOPPINESS=pch_defines,time_macros)
    string(REGEX REPLACE "=.*" "" name ${setting})
    if(NOT DEFINED ENV{CCACHE_${name}})
      list(APPEND compiler_launcher CCACHE_${setting})
    endif()
  endforeach()
  set(CMAKE_C_COMPILER_LAUNCHER ${compiler_launcher} ${NICCOLITE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${compiler_launcher} ${NICCOLITE_CCACHE})
endif()

find_package(Threads REQUIRED)

set(NICCOLITE_STRICT $<$<BOOL:${NICCOLITE_WARNINGS_ARE_ERRORS}>:-Werror>)
add_library(niccolite_flags INTERFACE)
target_compile_options(niccolite_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion ${NICCOLITE_STRICT})
# No note in a user's build that GCC before 4.6 passed aligned values otherwise: it compiles no C++20.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(niccolite_flags INTERFACE -Wno-psabi)
endif()
target_include_directories(niccolite_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(niccolite_flags INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
# For our own mutexes, whose users are annotated. New libc++ marks std::mutex, too, whose users are not.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND NICCOLITE_WARNINGS_ARE_ERRORS)
  target_compile_options(niccolite_flags INTERFACE -Wthread-safety)
endif()
# GCC collects its garbage from 128 MB on, which is a sixth of the time that it takes. Where each of as many compilers as there are
# processors can have 3 GB, it need not; its largest takes 1.0 GB instead of 0.8.
cmake_host_system_information(RESULT memory QUERY TOTAL_PHYSICAL_MEMORY)  # MiB
cmake_host_system_information(RESULT processors QUERY NUMBER_OF_LOGICAL_CORES)
math(EXPR memory_of_compiler "${memory} / ${processors}")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND memory_of_compiler GREATER 3000)
  target_compile_options(niccolite_flags INTERFACE "SHELL:--param ggc-min-heapsize=1500000")
endif()
if(NICCOLITE_SANITIZE)
  target_compile_options(niccolite_flags INTERFACE -fsanitize=${NICCOLITE_SANITIZE}
    $<$<BOOL:$<TARGET_PROPERTY:NICCOLITE_IS_TEST>>:-fno-sanitize=undefined>
    $<$<BOOL:$<TARGET_PROPERTY:NICCOLITE_IS_TEST_DATA>>:-fno-sanitize=thread> -fno-sanitize-recover=all)
  if(NICCOLITE_SANITIZE MATCHES "address.*undefined" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # UndefinedBehaviorSanitizer would check each access to memory for null pointers and for the object's size and type, for a tenth of
    # the time to compile. AddressSanitizer sees the harmful ones. libFuzzer's targets keep all checks.
    target_compile_options(niccolite_flags INTERFACE
      -fno-sanitize=null,object-size,vptr,pointer-overflow,nonnull-attribute,returns-nonnull-attribute)
  endif()
  target_link_options(niccolite_flags INTERFACE -fsanitize=${NICCOLITE_SANITIZE})
endif()
if(NICCOLITE_FUZZ)
  # All code reports what it has reached, else libFuzzer searches blindly.
  target_compile_options(niccolite_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# What nearly every source includes, compiled once: saves a quarter of a build from scratch. Off by default, since a source that
# lacks an #include compiles with it. (GoogleTest's headers, which bring most of the standard library to every test anyway, are
# compiled once in every build.)
option(NICCOLITE_PRECOMPILE "Compile the headers of the standard library once" OFF)
set(NICCOLITE_COMMON_HEADERS <algorithm> <array> <atomic> <chrono> <condition_variable> <cstdint> <cstring> <filesystem>
  <functional> <map> <memory> <mutex> <optional> <set> <span> <string> <thread> <unordered_map> <vector> <fmt/core.h>)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/precompiled.cc CONTENT "int main() {}\n")
if(NICCOLITE_PRECOMPILE)
  add_library(niccolite_precompiled STATIC ${PROJECT_BINARY_DIR}/precompiled.cc)
  target_link_libraries(niccolite_precompiled PRIVATE niccolite_flags)
  target_precompile_headers(niccolite_precompiled PRIVATE ${NICCOLITE_COMMON_HEADERS})
endif()

# Unity builds (CMAKE_UNITY_BUILD): a dozen sources of a target are compiled as one, which takes a third of the time, since most
# of it goes to headers and to templates that several of them use. What would share a name in the unnamed namespace is listed as ALONE.
# A source that lacks an #include fails where sources are compiled one by one: by clang-tidy in .ci/run, and by the preset debug.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)
# What shadows a constant of another source is no fault.
if(CMAKE_UNITY_BUILD)
  target_compile_options(niccolite_flags INTERFACE -Wno-shadow)
endif()
function(niccolite_compile_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# niccolite_module(name SOURCES a.cc ... DEPENDS other modules and libraries [ALONE b.cc ...] [PRECOMPILE c.h ...])
# A static library `niccolite_<name>`; DEPENDS must follow the order of modules in src/README.md
# (scripts/check-layers reads the includes and holds the same table).
function(niccolite_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;ALONE;PRECOMPILE" ${ARGN})
  add_library(niccolite_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(niccolite_${name} PUBLIC niccolite_flags ${ARG_DEPENDS})
  niccolite_compile_alone(${ARG_ALONE})
  if(ARG_PRECOMPILE)
    target_precompile_headers(niccolite_${name} PRIVATE ${ARG_PRECOMPILE})
  elseif(NICCOLITE_PRECOMPILE)
    target_precompile_headers(niccolite_${name} REUSE_FROM niccolite_precompiled)
  endif()
endfunction()

# niccolite_compile_test(name): most tests take longer to build than to run, and what they run is mostly the library: they are
# optimised less, and are without UndefinedBehaviorSanitizer.
function(niccolite_compile_test name)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name} PRIVATE -O1)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # GCC 12 is wrong about strings that are put together, where their headers are precompiled.
      target_compile_options(${name} PRIVATE -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow)
    endif()
  endif()
  set_target_properties(${name} PROPERTIES NICCOLITE_IS_TEST ON)
endfunction()

function(niccolite_precompile_tests)
  if(TARGET niccolite_precompiled_test)
    return()
  endif()
  configure_file(${PROJECT_BINARY_DIR}/precompiled.cc ${PROJECT_BINARY_DIR}/precompiled_test.cc COPYONLY)
  add_executable(niccolite_precompiled_test ${PROJECT_BINARY_DIR}/precompiled_test.cc)
  target_link_libraries(niccolite_precompiled_test PRIVATE niccolite_flags GTest::gmock)
  niccolite_compile_test(niccolite_precompiled_test)
  if(NICCOLITE_PRECOMPILE)
    target_precompile_headers(niccolite_precompiled_test PRIVATE ${NICCOLITE_COMMON_HEADERS} <iostream>)
  endif()
  target_precompile_headers(niccolite_precompiled_test PRIVATE <gmock/gmock.h>)
endfunction()

# niccolite_test(name SOURCES a_test.cc ... DEPENDS libraries [ALONE b_test.cc ...] [LABELS l] [TIMEOUT s] [COST s] [SHARDS n])
# One GoogleTest binary, registered with CTest as a single test, or as SHARDS of them (name, name_2 ...) that run side by side. COST is
# roughly how long a long one runs: CTest begins with those, so that none is left alone at the end.
function(niccolite_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;COST;SHARDS" "SOURCES;DEPENDS;ALONE;LABELS" ${ARGN})
  find_package(GTest REQUIRED)
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE niccolite_flags ${ARG_DEPENDS} GTest::gmock GTest::gtest_main)
  niccolite_compile_test(${name})
  niccolite_compile_alone(${ARG_ALONE})
  niccolite_precompile_tests()
  target_precompile_headers(${name} REUSE_FROM niccolite_precompiled_test)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  foreach(shard RANGE 1 ${ARG_SHARDS})
    set(test ${name})
    if(shard GREATER 1)
      set(test ${name}_${shard})
    endif()
    add_test(NAME ${test} COMMAND ${name})
    set_tests_properties(${test} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
    if(ARG_SHARDS GREATER 1)
      math(EXPR index "${shard} - 1")
      set_tests_properties(${test} PROPERTIES ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${index}")
    endif()
    if(ARG_COST)
      set_tests_properties(${test} PROPERTIES COST ${ARG_COST})
    endif()
    if(ARG_LABELS)
      set_tests_properties(${test} PROPERTIES LABELS "${ARG_LABELS}")
    endif()
  endforeach()
endfunction()

# niccolite_fuzz_target(<subject>_fuzz SOURCES <subject>_fuzz.cc DEPENDS libraries)
# A libFuzzer program <build>/fuzz/<subject>_fuzz; .ci/run gives each one 15 s. Nothing unless NICCOLITE_FUZZ.
function(niccolite_fuzz_target name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  if(NOT NICCOLITE_FUZZ)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE niccolite_flags ${ARG_DEPENDS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
endfunction()
