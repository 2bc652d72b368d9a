# The cuda backend for real cards: finds a toolkit, decides which cards to build for, makes the
# module. Reads BANTAM_CUDA, BANTAM_CUDA_COMPILER, BANTAM_CUDA_ARCHITECTURES, CUDA_SOURCES and
# CUDA_KERNELS. The module needs no CUDA library where it is loaded: the runtime is linked in,
# cuBLAS is opened by the backend once there is a card.

# cuda_missing(WHY): fails where the backend was asked for, else says so.
macro(cuda_missing why)
  if(BANTAM_CUDA STREQUAL "AUTO")
    message(STATUS "Without the cuda backend: ${why}")
    return()
  endif()
  message(FATAL_ERROR "BANTAM_CUDA=ON, but ${why}")
endmacro()

if(BANTAM_CUDA STREQUAL "AUTO" AND (BANTAM_STATIC OR BANTAM_SANITIZE))
  return()
elseif(NOT BANTAM_CUDA STREQUAL "AUTO" AND NOT BANTAM_CUDA)
  return()
endif()
if(BANTAM_CUDA_COMPILER)
  set(nvcc ${BANTAM_CUDA_COMPILER})
else()
  find_program(BANTAM_NVCC nvcc HINTS /usr/local/cuda/bin)
  mark_as_advanced(BANTAM_NVCC)
  set(nvcc ${BANTAM_NVCC})
endif()
if(NOT nvcc)
  cuda_missing("there is no nvcc in PATH (BANTAM_CUDA_COMPILER names one)")
endif()
execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE version ERROR_QUIET)
if(NOT version MATCHES "release ([0-9]+)\\.([0-9]+)")
  cuda_missing("${nvcc} does not tell its version")
endif()
set(toolkit ${CMAKE_MATCH_1}.${CMAKE_MATCH_2})
if(toolkit VERSION_LESS 11.8)
  cuda_missing("toolkit ${toolkit} is too old: 11.8 is the least")
endif()

# All that this toolkit and Bantam know: machine code, and for the newest also PTX, which later cards
# translate (not with 11.8: a driver of the 470 series cannot read it).
if(toolkit VERSION_LESS 12)
  set(all 37-real 52-real 60-real 70-real 75-real 80-real 86-real 90-real)
elseif(toolkit VERSION_LESS 13)
  set(all 52-real 60-real 70-real 75-real 80-real 86-real 90)
else()
  set(all 75-real 80-real 86-real 90)
endif()
# Always named. By default: the cards of this machine; without one the backend is built only where it
# was asked for, for all.
if(BANTAM_CUDA_ARCHITECTURES STREQUAL "all")
  set(CMAKE_CUDA_ARCHITECTURES ${all})
elseif(BANTAM_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES ${BANTAM_CUDA_ARCHITECTURES})
else()
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE cards ERROR_QUIET RESULT_VARIABLE status)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]+" cards "${cards}")
  if(status EQUAL 0 AND cards)
    string(REPLACE "." "" cards "${cards}")
    list(REMOVE_DUPLICATES cards)
    list(TRANSFORM cards APPEND -real OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
  elseif(BANTAM_CUDA STREQUAL "AUTO")
    cuda_missing("no card is here to build for (BANTAM_CUDA=ON builds for all)")
  else()
    set(CMAKE_CUDA_ARCHITECTURES ${all})
  endif()
endif()
# 11.8 knows g++ up to 11 and clang++ up to 14.
if(toolkit VERSION_LESS 12.1 AND NOT CMAKE_CUDA_HOST_COMPILER)
  find_program(BANTAM_CUDA_HOST NAMES g++-11 clang++-14 g++-10)
  mark_as_advanced(BANTAM_CUDA_HOST)
  if(NOT BANTAM_CUDA_HOST)
    cuda_missing("toolkit ${toolkit} wants g++-11 or clang++-14 (CMAKE_CUDA_HOST_COMPILER)")
  endif()
  set(CMAKE_CUDA_HOST_COMPILER ${BANTAM_CUDA_HOST})
endif()
set(CMAKE_CUDA_COMPILER ${nvcc})
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
list(JOIN CMAKE_CUDA_ARCHITECTURES ", " names)
message(STATUS "The cuda backend: toolkit ${toolkit}, for ${names}")

add_library(bantam_cuda MODULE ${CUDA_SOURCES} ${CUDA_KERNELS})
target_include_directories(bantam_cuda PRIVATE ${CMAKE_SOURCE_DIR})
target_include_directories(bantam_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(bantam_cuda PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS} m)
target_compile_options(bantam_cuda PRIVATE
                       "$<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v,-warn-spills>"
                       "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wno-unused-function>")
# What `bantam devices` says of a card that is none of these.
string(REPLACE "-real" "" names "${names}")
target_compile_definitions(bantam_cuda PRIVATE BTCU_BUILT_FOR="${names}")
set_target_properties(bantam_cuda PROPERTIES PREFIX "" CUDA_RUNTIME_LIBRARY Static
                      CUDA_COMPILER_LAUNCHER ${CMAKE_SOURCE_DIR}/ci/ptxas_log.sh)
install(TARGETS bantam_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/bantam)
