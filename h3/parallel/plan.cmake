# Degrees, ranks, environment, the silence guard and the launcher: no torch, so that a build without
# libtorch (sanitizers) can include it.
set(h3_parallel_dir ${CMAKE_CURRENT_LIST_DIR})
h3_library(
  h3_parallel_plan
  SOURCES ${h3_parallel_dir}/plan.cc ${h3_parallel_dir}/plan_admission.cc ${h3_parallel_dir}/rows.cc
          ${h3_parallel_dir}/config_record.cc ${h3_parallel_dir}/environment.cc
          ${h3_parallel_dir}/silence_guard.cc
  DEPS h3_attention_plan)
h3_library(h3_launch SOURCES ${h3_parallel_dir}/launch.cc DEPS h3_parallel_plan)

if(H3_DEVELOPER_MODE)
  add_executable(
    h3_parallel_plan_test ${h3_parallel_dir}/tests/plan_test.cc
                          ${h3_parallel_dir}/tests/launch_test.cc
                          ${h3_parallel_dir}/tests/silence_guard_test.cc)
  set_target_properties(h3_parallel_plan_test PROPERTIES CXX_EXTENSIONS OFF)
  target_link_libraries(h3_parallel_plan_test PRIVATE tessera_flags h3_launch GTest::gtest_main)
  gtest_discover_tests(h3_parallel_plan_test PROPERTIES LABELS fast)
endif()
