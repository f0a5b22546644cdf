# Checkpoints on disk, without torch, so that a build without libtorch (sanitizers) can include it.
find_package(nlohmann_json REQUIRED)
set(h3_weights_dir ${CMAKE_CURRENT_LIST_DIR})
h3_library(
  h3_weights
  SOURCES ${h3_weights_dir}/checkpoint.cc ${h3_weights_dir}/faults.cc
          ${h3_weights_dir}/inventory.cc ${h3_weights_dir}/json_text.cc
          ${h3_weights_dir}/model_index.cc ${h3_weights_dir}/model_paths.cc
          ${h3_weights_dir}/reader.cc ${h3_weights_dir}/recipes.cc
          ${h3_weights_dir}/sharded_writer.cc ${h3_weights_dir}/staged_folder.cc
  # json_text.h shows JSON to the models that read their config.json.
  DEPS tessera_core tessera_io nlohmann_json::nlohmann_json)

if(H3_DEVELOPER_MODE)
  foreach(name checkpoint inventory model_paths reader staged_folder)
    tessera_test(h3_weights_${name}_test LABEL fast SOURCES ${h3_weights_dir}/tests/${name}_test.cc
                 DEPS h3_weights)
  endforeach()
endif()
