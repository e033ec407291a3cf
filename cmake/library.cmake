# The product: libnccl.so.2, a shared library that lives inside other people's processes.

# For whoever includes nccl.h inside the project: the header itself, and vcuda's headers for the CUDA types it names (equal
# in layout to the toolkit's, which is therefore needed to build kernels only).
add_library(niccolite_nccl_header INTERFACE)
target_include_directories(niccolite_nccl_header INTERFACE
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/vcuda/include)

# niccolite_shared_library(target SOURCES api files ... DEPENDS static libraries)
# Builds <build>/lib/libnccl.so.2.30.7 and its links. The entry points are among SOURCES; everything else comes from the
# modules' static libraries and stays hidden, third-party code included.
function(niccolite_shared_library target)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  set(map ${PROJECT_SOURCE_DIR}/cmake/libnccl.map)
  add_library(${target} SHARED ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE niccolite_flags niccolite_nccl_header ${ARG_DEPENDS})
  # The exported target: where an installed tree has nccl.h. CUDA's headers are the user's choice (Niccolite::vcuda or the
  # toolkit).
  target_include_directories(${target} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_options(${target} PRIVATE
    -Wl,--version-script=${map}
    -Wl,-Bsymbolic            # calls inside the library reach its own pnccl*, whatever else is loaded
    -Wl,-z,nodelete           # its threads may still run when somebody calls dlclose
    -Wl,-O1 -Wl,--as-needed)
  if(NOT (NICCOLITE_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang"))
    # Every symbol is resolved when we link, not when a user loads. (Clang leaves its sanitizers' runtime to the executable.)
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
  set_target_properties(${target} PROPERTIES
    # The entry points are declared by nccl.h, which says nothing of visibility; the version script hides the rest.
    CXX_VISIBILITY_PRESET default
    OUTPUT_NAME nccl
    EXPORT_NAME nccl
    VERSION ${NICCOLITE_NCCL_VERSION}
    SOVERSION ${NICCOLITE_NCCL_MAJOR}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
    LINK_DEPENDS ${map})
endfunction()
