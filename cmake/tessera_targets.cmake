# Helpers that keep every target on the same rules: C++20, no extensions, no global include folders.
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
find_package(Threads REQUIRED)

add_library(tessera_flags INTERFACE)
target_compile_features(tessera_flags INTERFACE cxx_std_20)
# Parameter structs are filled by name; members left out keep their documented defaults.
set(tessera_warnings -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)
# GCC 12 reports an impossible overlap in every `"text" + std::string` at -O2 (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND tessera_warnings -Wno-restrict)
endif()
# Not under sanitizers: their instrumentation makes GCC see uninitialised values inside std::regex.
if((TESSERA_DEVELOPER_MODE OR H3_DEVELOPER_MODE) AND NOT TESSERA_SANITIZE)
  list(APPEND tessera_warnings -Werror)
endif()
target_compile_options(tessera_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${tessera_warnings}>")
if(TESSERA_SANITIZE)
  target_compile_options(
    tessera_flags INTERFACE "SHELL:-fsanitize=${TESSERA_SANITIZE} -fno-omit-frame-pointer"
                            -fno-sanitize-recover=all)
  target_link_options(tessera_flags INTERFACE -fsanitize=${TESSERA_SANITIZE})
endif()

# tessera_library(NAME SOURCES ... DEPS ... PRIVATE_DEPS ...)
function(tessera_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_include_directories(
    ${name}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/tessera/include>
           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(
    ${name}
    PUBLIC ${ARG_DEPS}
    PRIVATE $<BUILD_INTERFACE:tessera_flags> ${ARG_PRIVATE_DEPS})
endfunction()

# tessera_test(NAME LABEL fast|slow SOURCES ... DEPS ...)  One GoogleTest binary, one ctest entry per case.
function(tessera_test name)
  cmake_parse_arguments(ARG "" "LABEL" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE tessera_flags ${ARG_DEPS} GTest::gtest GTest::gtest_main)
  gtest_discover_tests(${name} PROPERTIES LABELS ${ARG_LABEL} DISCOVERY_TIMEOUT 60)
endfunction()
