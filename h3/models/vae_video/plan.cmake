# What needs no torch: config, names, how videos are cut.
find_package(nlohmann_json REQUIRED)
h3_library(
  h3_vae_video_plan
  SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/checkpoint.cc
    ${CMAKE_CURRENT_LIST_DIR}/config.cc
    ${CMAKE_CURRENT_LIST_DIR}/config_values.cc
    ${CMAKE_CURRENT_LIST_DIR}/names.cc
    ${CMAKE_CURRENT_LIST_DIR}/tiling.cc
    ${CMAKE_CURRENT_LIST_DIR}/tiny.cc
  DEPS h3_dit_plan h3_weights tessera_core tessera_io
  PRIVATE_DEPS nlohmann_json::nlohmann_json)

if(H3_DEVELOPER_MODE)
  foreach(name config names tiling)
    tessera_test(h3_vae_video_${name}_test LABEL fast SOURCES
                 ${CMAKE_CURRENT_LIST_DIR}/tests/${name}_test.cc DEPS h3_vae_video_plan)
  endforeach()
endif()
