# cmake -DNVCC=... -DSOURCE=<root> -DFILE=<file.cu> -DFUNCTIONS=<n> -DINSTRUCTION=<regex> -DOUTPUT=<file.ptx> -P architectures.cmake
# An architecture that lacks the instruction traps in every function of the file; nothing compiles to nothing. Where there is such an
# instruction, each function has it.
foreach(architecture_traps "80:${FUNCTIONS}" "90:0")
  string(REPLACE ":" ";" pair ${architecture_traps})
  list(GET pair 0 architecture)
  list(GET pair 1 expected)
  execute_process(
    COMMAND ${NVCC} -std=c++20 -I${SOURCE}/src --expt-relaxed-constexpr -arch=compute_${architecture} -ptx
      -o ${OUTPUT} ${SOURCE}/tests/device/${FILE}
    COMMAND_ERROR_IS_FATAL ANY)
  file(STRINGS ${OUTPUT} traps REGEX "^[ \t]*trap;")
  list(LENGTH traps count)
  if(NOT count EQUAL expected)
    message(FATAL_ERROR "architecture ${architecture}: ${count} functions trap, not ${expected}")
  endif()
  file(STRINGS ${OUTPUT} lines REGEX "${INSTRUCTION}")
  list(LENGTH lines count)
  if(architecture EQUAL 90 AND count LESS FUNCTIONS)
    message(FATAL_ERROR "${count} instructions fit ${INSTRUCTION}, in ${FUNCTIONS} functions")
  endif()
endforeach()
