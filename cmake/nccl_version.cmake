# Sets NICCOLITE_NCCL_VERSION, "2.30.7", and NICCOLITE_NCCL_MAJOR: the version of NCCL's API and ABI, as include/nccl.h has it.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS include/nccl.h)
foreach(part MAJOR MINOR PATCH)
  # The first of each is the API's; a second is for programs that do without the device API.
  file(STRINGS include/nccl.h lines REGEX "^#define NCCL_${part} [0-9]+")
  list(GET lines 0 line)
  string(REGEX REPLACE ".* " "" NICCOLITE_NCCL_${part} "${line}")
endforeach()
set(NICCOLITE_NCCL_VERSION ${NICCOLITE_NCCL_MAJOR}.${NICCOLITE_NCCL_MINOR}.${NICCOLITE_NCCL_PATCH})
