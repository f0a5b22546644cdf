# CUDA kernels inside the one static library. Machine code only for the listed architectures ("-real": no
# PTX travels along), the runtime linked statically: the result needs nothing but a driver.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
endif()
enable_language(CUDA)
find_package(CUDAToolkit 13.0 REQUIRED)

function(tessera_add_cuda target)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  target_sources(${target} PRIVATE ${ARG_SOURCES})
  target_compile_definitions(${target} PRIVATE TESSERA_WITH_CUDA)
  set_target_properties(${target} PROPERTIES CUDA_RUNTIME_LIBRARY Static)
  # CMake 3.25 does not know CUDA 13's C++20 mode, so the flag is given by hand. -v prints registers and spills.
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-Xptxas=-v>")
  target_link_libraries(${target} PUBLIC CUDA::cudart_static)
endfunction()
