# cmake -DNVCC=... -DSOURCE=<root> -DOUTPUT=<file.ptx> -P bulk_copies.cmake
# What an architecture does not have traps there, in every function that needs it; it does not compile to nothing.
set(functions 5)
foreach(architecture_traps "80:${functions}" "90:0")
  string(REPLACE ":" ";" pair ${architecture_traps})
  list(GET pair 0 architecture)
  list(GET pair 1 expected)
  execute_process(
    COMMAND ${NVCC} -std=c++20 -I${SOURCE}/src --expt-relaxed-constexpr -arch=compute_${architecture} -ptx
      -o ${OUTPUT} ${SOURCE}/tests/device/bulk_copies.cu
    COMMAND_ERROR_IS_FATAL ANY)
  file(STRINGS ${OUTPUT} traps REGEX "^[ \t]*trap;")
  list(LENGTH traps count)
  if(NOT count EQUAL expected)
    message(FATAL_ERROR "architecture ${architecture}: ${count} functions trap, not ${expected}")
  endif()
endforeach()
