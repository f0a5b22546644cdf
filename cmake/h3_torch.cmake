# libtorch as plain imported targets. torch's own CMake package insists on a CUDA toolkit and sets
# architecture flags for the whole build; h3 contains no device code and needs neither.
#   h3_torch       headers, libtorch_cpu, libc10 (and the CUDA halves where the package has them)
#   h3_torch_c10d  h3_torch and the Gloo headers that ProcessGroupGloo.hpp includes
set(H3_TORCH_VERSION 2.11.0)
if(NOT H3_TORCH_ROOT)
  file(GLOB h3_torch_candidates ${PROJECT_SOURCE_DIR}/build/venv/lib/python3*/site-packages/torch)
  list(GET h3_torch_candidates 0 h3_torch_candidate)
  set(H3_TORCH_ROOT "${h3_torch_candidate}" CACHE PATH "Folder `torch` of an installed PyTorch" FORCE)
endif()
if(NOT EXISTS "${H3_TORCH_ROOT}/include/ATen/ATen.h")
  message(FATAL_ERROR "H3=ON needs PyTorch ${H3_TORCH_VERSION}, and '${H3_TORCH_ROOT}' is no PyTorch folder. "
                      "Run tools/setup_torch.sh, or give -DH3_TORCH_ROOT=.../site-packages/torch")
endif()
file(STRINGS "${H3_TORCH_ROOT}/version.py" h3_torch_version REGEX "^__version__ *=")
if(NOT h3_torch_version MATCHES "'${H3_TORCH_VERSION}[+']")
  message(FATAL_ERROR "H3=ON is built and tested with PyTorch ${H3_TORCH_VERSION}; ${H3_TORCH_ROOT} holds "
                      "${h3_torch_version}")
endif()

add_library(h3_torch INTERFACE)
# System headers: their warnings are not ours to mend.
target_include_directories(h3_torch SYSTEM INTERFACE "${H3_TORCH_ROOT}/include"
                                                     "${H3_TORCH_ROOT}/include/torch/csrc/api/include")
target_link_directories(h3_torch INTERFACE "${H3_TORCH_ROOT}/lib")
target_link_libraries(h3_torch INTERFACE torch_cpu c10)
target_link_options(h3_torch INTERFACE "LINKER:-rpath,${H3_TORCH_ROOT}/lib")
# The CUDA halves register themselves when loaded; nothing in h3 names one of their symbols, so the
# linker has to be told to keep them. Their own libraries are found by torch's rpath.
if(EXISTS "${H3_TORCH_ROOT}/lib/libtorch_cuda.so")
  target_link_libraries(h3_torch INTERFACE "-Wl,--no-as-needed" torch_cuda c10_cuda torch "-Wl,--as-needed")
  target_link_options(h3_torch INTERFACE "LINKER:--allow-shlib-undefined")
endif()
