# The request, without torch.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
h3_library(
  h3_request
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/request.cc ${CMAKE_CURRENT_LIST_DIR}/request_fields.cc
          ${CMAKE_CURRENT_LIST_DIR}/strict_json.cc
  DEPS h3_attention_plan h3_dit_plan tessera_io
  PRIVATE_DEPS fmt::fmt nlohmann_json::nlohmann_json)

if(H3_DEVELOPER_MODE)
  tessera_test(h3_request_test LABEL fast SOURCES ${CMAKE_CURRENT_LIST_DIR}/tests/request_test.cc DEPS
               h3_request nlohmann_json::nlohmann_json)
endif()

# How far two runs are apart, without torch.
h3_library(
  h3_quality
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/quality.cc
  DEPS nlohmann_json::nlohmann_json Threads::Threads
  PRIVATE_DEPS fmt::fmt)
if(H3_DEVELOPER_MODE)
  tessera_test(h3_quality_test LABEL fast SOURCES ${CMAKE_CURRENT_LIST_DIR}/tests/quality_test.cc DEPS
               h3_quality)
endif()
