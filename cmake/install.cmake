# cmake --install: the tree that programs are compiled against.
#   include/nccl.h          the API; include/nccl_device.h, what kernels that communicate need of the host;
#                           include/niccolite.h, what is Niccolite's own
#   include/niccolite/      niccolite/device.h, and libniccolite_device.bc (bitcode/) where it was built
#   include/vcuda/          CUDA headers for machines without the toolkit: pkg-config vcuda, Niccolite::vcuda
#   lib/libnccl.so.2        and its links
#   lib/vcuda/              libcudart.so.13, libcuda.so.1 and libnvidia-ml.so.1 of the virtual GPUs; a folder of its own, so that they never shadow CUDA's
#   lib/vverbs/             libibverbs.so.1 and librdmacm.so.1 of the virtual NICs, where rdma-core's headers were at build time; not in wheels
#   lib/cmake/Niccolite     find_package(Niccolite): Niccolite::nccl, Niccolite::vcuda
#   lib/pkgconfig           nccl.pc, vcuda.pc
#   bin/niccolite
#   share/man, share/bash-completion, share/zsh, share/fish   its manual pages and completions
include(CMakePackageConfigHelpers)

set(vcuda_libdir ${CMAKE_INSTALL_LIBDIR}/vcuda)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Niccolite)
file(RELATIVE_PATH bin_to_lib /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
file(RELATIVE_PATH pkgconfig_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)

install(FILES include/nccl.h include/nccl_device.h include/niccolite.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/niccolite DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(DIRECTORY vcuda/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/vcuda FILES_MATCHING PATTERN "*.h")
install(TARGETS niccolite EXPORT NiccoliteTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS vcuda EXPORT NiccoliteTargets LIBRARY DESTINATION ${vcuda_libdir})
install(TARGETS vcuda_driver vcuda_nvml LIBRARY DESTINATION ${vcuda_libdir})
if(TARGET vverbs AND NOT SKBUILD)
  install(TARGETS vverbs LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/vverbs)
  if(TARGET vrdmacm)
    install(TARGETS vrdmacm LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/vverbs)
  endif()
endif()
set_target_properties(niccolite_cli PROPERTIES
  INSTALL_RPATH "$ORIGIN/${bin_to_lib};$ORIGIN/${bin_to_lib}/vcuda")
install(TARGETS niccolite_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS niccolite_which_audit niccolite_perf_virtual LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET niccolite_perf_cuda)
  install(FILES ${PROJECT_BINARY_DIR}/lib/libniccolite_perf_cuda.so DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

install(EXPORT NiccoliteTargets NAMESPACE Niccolite:: DESTINATION ${package_dir})
configure_package_config_file(cmake/NiccoliteConfig.cmake.in ${PROJECT_BINARY_DIR}/NiccoliteConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# The package has Niccolite's own version; NCCL's is its variable Niccolite_NCCL_VERSION.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/NiccoliteConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/NiccoliteConfig.cmake ${PROJECT_BINARY_DIR}/NiccoliteConfigVersion.cmake
  DESTINATION ${package_dir})

foreach(package nccl vcuda)
  configure_file(cmake/${package}.pc.in ${PROJECT_BINARY_DIR}/${package}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${package}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
# Manual pages and completions, made by running the command.
set(help ${PROJECT_BINARY_DIR}/help)
add_custom_command(OUTPUT ${help}/man/man1/niccolite.1
  COMMAND ${PROJECT_SOURCE_DIR}/scripts/help-files $<TARGET_FILE:niccolite_cli> ${help}
  DEPENDS niccolite_cli scripts/help-files
  COMMENT "Writing the manual pages and completions of the command" VERBATIM)
add_custom_target(niccolite_help ALL DEPENDS ${help}/man/man1/niccolite.1)
install(DIRECTORY ${help}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR})
foreach(shell_folder bash:bash-completion/completions zsh:zsh/site-functions fish:fish/vendor_completions.d)
  string(REPLACE ":" ";" pair ${shell_folder})
  list(GET pair 0 shell)
  list(GET pair 1 folder)
  install(DIRECTORY ${help}/completions/${shell}/ DESTINATION ${CMAKE_INSTALL_DATADIR}/${folder})
endforeach()
# All that an installation needs, for builds of some targets alone.
add_custom_target(niccolite_installed DEPENDS niccolite vcuda vcuda_driver vcuda_nvml niccolite_cli niccolite_which_audit niccolite_help)
if(TARGET vverbs AND NOT SKBUILD)
  add_dependencies(niccolite_installed vverbs)
  if(TARGET vrdmacm)
    add_dependencies(niccolite_installed vrdmacm)
  endif()
endif()
if(TARGET niccolite_device_bitcode)
  add_dependencies(niccolite_installed niccolite_device_bitcode)
endif()
install(FILES LICENSE NOTICE THIRD-PARTY-LICENSES DESTINATION ${CMAKE_INSTALL_DOCDIR})
