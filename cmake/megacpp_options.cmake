# What a builder can choose. Nothing here reaches a project that only links megacpp::megacpp.

option(MEGACPP_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(MEGACPP_BUILD_EXAMPLES "Add the targets of examples/ (programs are built on request)"
       ${PROJECT_IS_TOP_LEVEL})
option(MEGACPP_SLOW_TESTS "Register the tests that configure and build again (label slow)" OFF)
option(MEGACPP_EXHAUSTIVE_TESTS "With MEGACPP_SLOW_TESTS, also what finds little more (CONTRIBUTING.md)" OFF)
option(MEGACPP_UNITE_TESTS "Compile the tests of a folder as one program: half the time for all, more for one" OFF)
set(MEGACPP_SHARD "" CACHE STRING "Of the suites that runs share, those of one shard, 0 to 7; empty: all (CONTRIBUTING.md)")
option(MEGACPP_SHORT_TESTS "Share also laws, cases of one compiler and runs of processes by shard" OFF)
set(MEGACPP_TESTS "." CACHE STRING "Tests of unit/, laws/, parity/, mpi/ and cli to build, a regular expression")
# What the environment says holds for builds within tests, too, which then share objects.
option(MEGACPP_WERROR "Treat warnings as errors in tests, examples and presets" $ENV{MEGACPP_WERROR})
set(MEGACPP_WITH_ONEDNN AUTO CACHE STRING "Matrix products by oneDNN: AUTO, ON or OFF (by Eigen)")
set_property(CACHE MEGACPP_WITH_ONEDNN PROPERTY STRINGS AUTO ON OFF)
set(MEGACPP_WITH_MPI AUTO CACHE STRING "Ranks as processes, by MPI: AUTO, ON or OFF")
set_property(CACHE MEGACPP_WITH_MPI PROPERTY STRINGS AUTO ON OFF)
set(MEGACPP_WITH_PROMETHEUS AUTO CACHE STRING "Numbers of a run for Prometheus, by prometheus-cpp: AUTO, ON or OFF")
set_property(CACHE MEGACPP_WITH_PROMETHEUS PROPERTY STRINGS AUTO ON OFF)
set(MEGACPP_WITH_CURL AUTO CACHE STRING "Traces of a run for servers, by libcurl: AUTO, ON or OFF")
set_property(CACHE MEGACPP_WITH_CURL PROPERTY STRINGS AUTO ON OFF)
set(MEGACPP_WITH_CUDNN AUTO CACHE STRING "Attention on GPUs by cuDNN: AUTO, ON or OFF (by own tiles)")
set_property(CACHE MEGACPP_WITH_CUDNN PROPERTY STRINGS AUTO ON OFF)
set(MEGACPP_WITH_CUTLASS AUTO CACHE STRING "Kernels of CUTLASS for products of experts on GPUs: AUTO, ON or OFF")
set_property(CACHE MEGACPP_WITH_CUTLASS PROPERTY STRINGS AUTO ON OFF)
set(MEGACPP_PRECOMPILED "" CACHE STRING
    "Folder of precompiled libraries; empty: those installed with megacpp; OFF: all is compiled")
set(MEGACPP_INSTALL_PRECOMPILED "" CACHE STRING
    "Devices, cpu or cuda or both, for which what programs have in common is compiled and installed")
set(MEGACPP_MARCH native CACHE STRING "Processor to build for; empty: the compiler's default")
set(MEGACPP_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")
set(MEGACPP_CXX_STANDARD 20 CACHE STRING "C++ standard of tests, examples and presets: 20 or 23")
set(MEGACPP_SHARED_DIR ${PROJECT_SOURCE_DIR}/../shared CACHE PATH
    "Folder with the fixtures of the parity tests and with data/tinyshakespeare.txt")

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  endif()
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  set(CMAKE_CXX_STANDARD ${MEGACPP_CXX_STANDARD})
  set(CMAKE_CXX_STANDARD_REQUIRED ON)
  set(CMAKE_CXX_EXTENSIONS OFF)
  if(MEGACPP_SANITIZE)
    string(REPLACE ";" "," sanitizers "${MEGACPP_SANITIZE}")
    add_compile_options(-fsanitize=${sanitizers} -fno-sanitize-recover=all
                        -fno-omit-frame-pointer -g1)
    if(sanitizers MATCHES "undefined")
      # vptr looks at memory through a pipe, and takes every object for none where tests leave no
      # descriptor for one. What the others find ends the process anyhow, and they double the code;
      # besides, g++ 12 takes a comparison of a function's address with null, as an op without an
      # adjoint is one, for no constant expression when they instrument it.
      add_compile_options(-fno-sanitize=vptr,null,nonnull-attribute,returns-nonnull-attribute
                          $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
    endif()
    add_link_options(-fsanitize=${sanitizers})
  endif()
endif()

# How the project's own sources are compiled: with all warnings, for this processor. g++ collects its
# garbage from 1 GiB on: 4 to 9% less processor time for a test (g++ 12) and up to 0.6 GB more memory.
add_library(megacpp_own INTERFACE)
target_compile_options(megacpp_own INTERFACE -Wall -Wextra -Wpedantic -Wconversion
  $<$<BOOL:${MEGACPP_WERROR}>:-Werror>
  $<$<BOOL:${MEGACPP_MARCH}>:-march=${MEGACPP_MARCH}>
  $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1048576>)
target_link_libraries(megacpp_own INTERFACE megacpp::megacpp)
