# What decides, without torch: names, devices, selection, schedule, per-request overrides. A list of
# its own, so that a build without libtorch (sanitizers) can include it.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
h3_library(
  h3_attention_plan
  SOURCES
    counters.cc
    devices.cc
    h3_layers.cc
    layers.cc
    names.cc
    options.cc
    override.cc
    registry.cc
    report.cc
    requests.cc
    schedule.cc
    selection.cc
    switch.cc
  DEPS tessera_core tessera_io
  PRIVATE_DEPS fmt::fmt nlohmann_json::nlohmann_json)

if(H3_DEVELOPER_MODE)
  foreach(name names options override schedule selection report switch counters)
    tessera_test(h3_${name}_test LABEL fast SOURCES tests/${name}_test.cc DEPS h3_attention_plan
                 nlohmann_json::nlohmann_json)
  endforeach()
endif()
