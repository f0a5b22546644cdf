# What needs no torch: config and names.
find_package(nlohmann_json REQUIRED)
h3_library(
  h3_vae_audio_plan
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/config.cc ${CMAKE_CURRENT_LIST_DIR}/names.cc
          ${CMAKE_CURRENT_LIST_DIR}/tiny.cc
  DEPS h3_attention_plan h3_dit_plan h3_weights tessera_core tessera_io
  PRIVATE_DEPS nlohmann_json::nlohmann_json)

if(H3_DEVELOPER_MODE)
  foreach(name config names)
    tessera_test(h3_vae_audio_${name}_test LABEL fast SOURCES
                 ${CMAKE_CURRENT_LIST_DIR}/tests/${name}_test.cc DEPS h3_vae_audio_plan)
  endforeach()
endif()
