# cmake --install: headers, library, find_package(strata) and pkg-config.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# What a static libstrata needs at link time it needs for every user, also for those who do not ask pkg-config for --static. A C program needs the
# C++ runtime.
set(libs "-lpthread -lstdc++ -lm")
if(STRATA_HAVE_ONEDNN)
  string(APPEND libs " -ldnnl -lgomp")
endif()
if(STRATA_WITH_CUDA)
  string(APPEND libs " -L${CUDAToolkit_LIBRARY_DIR} -lcublasLt -lcudart_static -ldl -lpthread -lrt")
endif()
if(BUILD_SHARED_LIBS)
  set(STRATA_PC_NEEDS "Libs: -L\${libdir} -lstrata")
else()
  set(STRATA_PC_NEEDS "Requires: fmt libhwy\nLibs: -L\${libdir} -lstrata ${libs}")
endif()
# Relative to the .pc file, so that `cmake --install --prefix` may put the tree anywhere.
file(RELATIVE_PATH STRATA_PC_TO_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/strata.pc.in strata.pc @ONLY)
configure_package_config_file(cmake/strataConfig.cmake.in strataConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/strata)
write_basic_package_version_file(strataConfigVersion.cmake COMPATIBILITY SameMinorVersion)

install(TARGETS strata EXPORT strataTargets)
install(EXPORT strataTargets NAMESPACE strata:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/strata)
install(DIRECTORY include/strata DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/strataConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/strataConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/strata)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/strata.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
# README.md and everything that it and these documents point to (tests/install/documents).
install(FILES LICENSE LICENSES.md README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples LICENSES DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN CMakeLists.txt EXCLUDE)
install(FILES testkit/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/testkit)
