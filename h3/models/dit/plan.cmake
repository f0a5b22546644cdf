# What needs no torch: config, names, the packed sequence, geometry, sampling.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
h3_library(
  h3_dit_plan
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/checkpoint.cc
    ${CMAKE_CURRENT_LIST_DIR}/config.cc
    ${CMAKE_CURRENT_LIST_DIR}/geometry.cc
    ${CMAKE_CURRENT_LIST_DIR}/layout.cc
    ${CMAKE_CURRENT_LIST_DIR}/memory.cc
    ${CMAKE_CURRENT_LIST_DIR}/names.cc
    ${CMAKE_CURRENT_LIST_DIR}/positions.cc
    ${CMAKE_CURRENT_LIST_DIR}/sampling.cc
    ${CMAKE_CURRENT_LIST_DIR}/tiny.cc
    ${CMAKE_CURRENT_LIST_DIR}/tiny_examples.cc
  DEPS h3_weights tessera_core tessera_io
  PRIVATE_DEPS fmt::fmt nlohmann_json::nlohmann_json)
# Published values are reproduced bit for bit: a product and a sum are two roundings.
set_source_files_properties(
  ${CMAKE_CURRENT_LIST_DIR}/geometry.cc ${CMAKE_CURRENT_LIST_DIR}/positions.cc
  ${CMAKE_CURRENT_LIST_DIR}/sampling.cc PROPERTIES COMPILE_OPTIONS -ffp-contract=off)

if(H3_DEVELOPER_MODE)
  foreach(name config geometry layout names sampling)
    tessera_test(h3_dit_${name}_test LABEL fast SOURCES
                 ${CMAKE_CURRENT_LIST_DIR}/tests/${name}_test.cc DEPS h3_dit_plan)
  endforeach()
  # The parity tests (h3/tests/parity) drive it.
  add_executable(h3_dit_layout_probe ${CMAKE_CURRENT_LIST_DIR}/tests/layout_probe.cc)
  set_target_properties(h3_dit_layout_probe PROPERTIES CXX_EXTENSIONS OFF)
  target_link_libraries(h3_dit_layout_probe PRIVATE tessera_flags h3_dit_plan)
endif()
