# What ci/cuda.cmake decides, with an nvcc and an nvidia-smi that are scripts here: which nvcc, for which cards,
# with which host compiler, or why without. Run by ctest: cmake -DWORK=FOLDER -P tests/cuda_build.cmake
cmake_minimum_required(VERSION 3.22)
if(DECIDE) # one decision: up to where CMake would look at the compiler
  function(enable_language)
    message(FATAL_ERROR "DECIDED ${CMAKE_CUDA_COMPILER} for ${CMAKE_CUDA_ARCHITECTURES} with ${CMAKE_CUDA_HOST_COMPILER}.")
  endfunction()
  include(${CMAKE_CURRENT_LIST_DIR}/../ci/cuda.cmake)
  return()
endif()

# script(NAME TEXT)
function(script name text)
  file(WRITE ${WORK}/${name} "#!/bin/sh\n${text}\n")
  file(CHMOD ${WORK}/${name} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()
# nvcc(FOLDER RELEASE CODE...): a toolkit, and what it knows.
function(nvcc folder release)
  list(JOIN ARGN " " codes)
  script(${folder}/nvcc "case $1 in --version) echo Cuda, release ${release}, ;; *) printf '%s\\n' ${codes} ;; esac")
endfunction()
file(REMOVE_RECURSE ${WORK})
nvcc(13 13.0 sm_75 sm_80 sm_86 sm_90)
nvcc(11 11.8 sm_35 sm_37 sm_52)
foreach(name g++-9 g++-10 g++-11 g++-13)
  script(bin/${name} "exit 1")
endforeach()
set(GNU12 -DCMAKE_CXX_COMPILER_ID=GNU -DCMAKE_CXX_COMPILER_VERSION=12.2.0 -DCMAKE_CXX_COMPILER=/gnu/g++-12)
set(CLANG -DCMAKE_CXX_COMPILER_ID=Clang)

# decision(CARDS EXPECTED OPTION...): compute capabilities of the cards; OPTIONs are those of cmake and NAME=VALUE
# of the environment.
function(decision cards expected)
  script(bin/nvidia-smi "printf '%s\\n' ${cards}")
  set(options "${ARGN}")
  list(FILTER options INCLUDE REGEX "^-D")
  list(FILTER ARGN EXCLUDE REGEX "^-D")
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env --unset=CUDACXX --unset=CUDAHOSTCXX PATH=${WORK}/bin ${ARGN}
            ${CMAKE_COMMAND} -DDECIDE=yes ${options} -P ${CMAKE_CURRENT_LIST_FILE}
    OUTPUT_VARIABLE said ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  string(FIND "${said}" "${expected}" at)
  if(at LESS 0)
    message(SEND_ERROR "of cards ${cards}, ${ARGN} ${options}: wanted \"${expected}\", was told \"${said}\"")
  endif()
endfunction()
set(nvcc11 ${WORK}/11/nvcc)
set(nvcc13 ${WORK}/13/nvcc)

# Cards that the toolkit does not know.
set(unknown "toolkit 13.0 does not know compute capability 6.1 of the cards here")
decision(6.1 "Without the cuda backend: ${unknown}" -DBANTAM_CUDA=AUTO CUDACXX=${nvcc13} ${GNU12})
decision(6.1 "BANTAM_CUDA=ON, but ${unknown}" -DBANTAM_CUDA=ON CUDACXX=${nvcc13} ${GNU12})
decision("3.7 8.6" "for 86-real with" -DBANTAM_CUDA=AUTO CUDACXX=${nvcc13} ${GNU12})
decision("3.7 8.6" "does not know compute capability 3.7" -DBANTAM_CUDA=AUTO CUDACXX=${nvcc13} ${GNU12})
decision(3.7 "for 37-real with" -DBANTAM_CUDA=AUTO CUDACXX=${nvcc11} ${GNU12})

# A build folder keeps its nvcc and its host compiler, and is not for two.
set(made -DBANTAM_NVCC=${nvcc11} -DBANTAM_NVCC_HOST=/kept/g++)
decision(3.7 "DECIDED ${nvcc11} for 37-real with /kept/g++." -DBANTAM_CUDA=ON ${made} ${GNU12})
decision(3.7 "DECIDED ${nvcc11} for 37-real with /kept/g++." -DBANTAM_CUDA=ON ${made} ${GNU12} CUDACXX=${nvcc11})
decision(3.7 "use a new build folder for ${nvcc13}" -DBANTAM_CUDA=ON ${made} ${GNU12} CUDACXX=${nvcc13})
file(CREATE_LINK ${WORK}/11 ${WORK}/link SYMBOLIC)
decision(3.7 "with /kept/g++." -DBANTAM_CUDA=ON ${made} ${GNU12} CUDACXX=${WORK}/link/nvcc)

# The host compiler: CXX where it suits, else the newest that does.
decision(8.6 "with /gnu/g++-12." -DBANTAM_CUDA=ON CUDACXX=${nvcc13} ${GNU12})
decision(8.6 "with ${WORK}/bin/g++-13." -DBANTAM_CUDA=ON CUDACXX=${nvcc13} ${CLANG})
decision(3.7 "with ${WORK}/bin/g++-11." -DBANTAM_CUDA=ON CUDACXX=${nvcc11} ${GNU12})
