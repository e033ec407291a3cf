# Compiling kernels with nvcc, without CMake's CUDA language: the library links nothing of CUDA, so
# that all it needs from the toolkit is the compiler.
#
# Sets NICCOLITE_HAVE_CUDA from NICCOLITE_CUDA (ON, OFF, AUTO: with nvcc and a GPU present).

find_program(NICCOLITE_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
if(NICCOLITE_CUDA STREQUAL "AUTO")
  if(NICCOLITE_NVCC AND EXISTS /dev/nvidiactl)
    set(NICCOLITE_HAVE_CUDA ON)
  else()
    set(NICCOLITE_HAVE_CUDA OFF)
  endif()
elseif(NICCOLITE_CUDA)
  if(NOT NICCOLITE_NVCC)
    message(FATAL_ERROR "NICCOLITE_CUDA is ON, but there is no nvcc (put it on the PATH or set CUDA_HOME)")
  endif()
  set(NICCOLITE_HAVE_CUDA ON)
else()
  set(NICCOLITE_HAVE_CUDA OFF)
endif()

if(NICCOLITE_HAVE_CUDA)
  get_filename_component(NICCOLITE_CUDA_INCLUDE ${NICCOLITE_NVCC} REALPATH)
  get_filename_component(NICCOLITE_CUDA_INCLUDE ${NICCOLITE_CUDA_INCLUDE}/../../include ABSOLUTE)

  # Machine code for each architecture, and PTX of the newest for GPUs to come.
  set(NICCOLITE_GENCODE)
  set(niccolite_newest 0)
  foreach(arch ${NICCOLITE_CUDA_ARCHITECTURES})
    list(APPEND NICCOLITE_GENCODE -gencode arch=compute_${arch},code=sm_${arch})
    if(arch GREATER niccolite_newest)
      set(niccolite_newest ${arch})
    endif()
  endforeach()
  list(APPEND NICCOLITE_GENCODE
       -gencode arch=compute_${niccolite_newest},code=compute_${niccolite_newest})
endif()

# niccolite_fatbin(name SOURCE file.cu [DEFINES A=B ...])
# Compiles one .cu to ${CMAKE_CURRENT_BINARY_DIR}/<name>.fatbin. A kernel that spills registers or
# uses local memory fails the build for the architecture that the kernels are made for, 9.0: each
# access would cost as much as one to a peer's data. For others ptxas warns.
function(niccolite_fatbin name)
  cmake_parse_arguments(ARG "" "SOURCE" "DEFINES" ${ARGN})
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin)
  list(TRANSFORM ARG_DEFINES PREPEND -D)
  set(warnings --warn-on-spills,--warn-on-local-memory-usage)
  if(NICCOLITE_CUDA_ARCHITECTURES STREQUAL "90")
    string(APPEND warnings ,--warning-as-error)
  endif()
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${NICCOLITE_NVCC} -std=c++20 -O3 -fatbin ${NICCOLITE_GENCODE} -compress-mode=size
            -fmad=false --expt-relaxed-constexpr -I${PROJECT_SOURCE_DIR}/src ${ARG_DEFINES}
            -Xptxas=${warnings}
            -MD -MF ${output}.d -MT ${output} -o ${output} ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_SOURCE}
    DEPENDS ${ARG_SOURCE}
    DEPFILE ${output}.d
    COMMENT "Compiling kernels ${name}"
    VERBATIM)
endfunction()
