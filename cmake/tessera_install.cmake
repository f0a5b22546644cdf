# Install rules: headers, the static libraries, a package file for find_package(tessera), and the
# command line when it is built. Included once, after all targets exist.
include(CMakePackageConfigHelpers)

set_target_properties(tessera_core PROPERTIES EXPORT_NAME core)
set_target_properties(tessera_io PROPERTIES EXPORT_NAME io)
install(
  TARGETS tessera_core tessera_io
  EXPORT tessera-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET tessera)
  install(TARGETS tessera RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/tessera/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(TESSERA_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
install(
  EXPORT tessera-targets
  NAMESPACE tessera::
  DESTINATION ${TESSERA_PACKAGE_DIR})
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/tessera-config.cmake.in ${PROJECT_BINARY_DIR}/tessera-config.cmake
  INSTALL_DESTINATION ${TESSERA_PACKAGE_DIR})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/tessera-config-version.cmake
  VERSION ${PROJECT_VERSION}
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tessera-config.cmake
              ${PROJECT_BINARY_DIR}/tessera-config-version.cmake
        DESTINATION ${TESSERA_PACKAGE_DIR})
