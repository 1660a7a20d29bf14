# The slower suites, label slow: tests that build again. Each has the machine to itself, but for
# those of one thread.

# megacpp_slow_test(NAME LABEL label TIMEOUT seconds [ONE_THREAD] COMMAND ...)
function(megacpp_slow_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "ONE_THREAD" "LABEL;TIMEOUT" "COMMAND")
  add_test(NAME ${name} COMMAND ${arg_COMMAND})
  set_tests_properties(${name} PROPERTIES LABELS "slow;${arg_LABEL}" TIMEOUT ${arg_TIMEOUT})
  if(NOT arg_ONE_THREAD)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

# The whole suite in a build of its own; slow suites are not registered there.
function(megacpp_suite name)
  megacpp_slow_test(suite_${name} LABEL ${name} TIMEOUT 2400
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/suite.sh ${PROJECT_SOURCE_DIR}
      ${CMAKE_CURRENT_BINARY_DIR}/${name}
      -G ${CMAKE_GENERATOR} -DMEGACPP_WERROR=${MEGACPP_WERROR}
      -DMEGACPP_SHARED_DIR=${MEGACPP_SHARED_DIR} ${ARGN})
endfunction()

foreach(target headers_alone_cxx20 headers_alone_cxx23 headers_linked_twice)
  megacpp_slow_test(${target} LABEL headers TIMEOUT 1200
    COMMAND ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target ${target} --parallel 2)
endforeach()

# By clang, where there is one: it compiles the instrumented suite in half the time of GNU's.
set(asan_compiler ${CMAKE_CXX_COMPILER})
if(MEGACPP_CLANG)
  set(asan_compiler ${MEGACPP_CLANG})
endif()
megacpp_suite(asan -DMEGACPP_SANITIZE=address,undefined -DCMAKE_CXX_FLAGS_RELEASE=-O1
              -DCMAKE_CXX_COMPILER=${asan_compiler})
if(MEGACPP_CLANG)
  megacpp_suite(clang -DCMAKE_CXX_COMPILER=${MEGACPP_CLANG})
endif()

# Row bodies as CUDA kernels: compiled for Hopper, not run.
if(MEGACPP_NVCC)
  get_target_property(eigen_includes Eigen3::Eigen INTERFACE_INCLUDE_DIRECTORIES)
  list(TRANSFORM eigen_includes PREPEND "-isystem;" OUTPUT_VARIABLE eigen_flags)
  set(nvcc ${MEGACPP_NVCC} -std=c++20 -arch=sm_90a --expt-relaxed-constexpr
      -ccbin=${CMAKE_CXX_COMPILER} -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-ffp-contract=off
      -I${PROJECT_SOURCE_DIR}/include ${eigen_flags})
  file(GLOB units CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/unit/*_cuda.cu)
  foreach(unit IN LISTS units)
    get_filename_component(name ${unit} NAME_WE)
    megacpp_slow_test(nvcc_${name} LABEL nvcc TIMEOUT 600 ONE_THREAD
      COMMAND ${nvcc} -c -o ${CMAKE_CURRENT_BINARY_DIR}/${name}.o ${unit})
  endforeach()

  # Headers for CUDA alone, which the host compiler cannot read.
  file(GLOB_RECURSE cuda_headers RELATIVE ${PROJECT_SOURCE_DIR}/include CONFIGURE_DEPENDS
       ${PROJECT_SOURCE_DIR}/include/megacpp/kernel/cuda/*.hpp)
  foreach(header IN LISTS cuda_headers)
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/headers/${header}.cu)
    file(CONFIGURE OUTPUT ${unit} CONTENT "#include <${header}>\n#include <${header}>\n")
    string(MAKE_C_IDENTIFIER ${header} name)
    megacpp_slow_test(nvcc_${name} LABEL nvcc TIMEOUT 600 ONE_THREAD
      COMMAND ${nvcc} -c -o ${CMAKE_CURRENT_BINARY_DIR}/${name}.o ${unit})
  endforeach()
else()
  message(STATUS "megacpp: no nvcc: the CUDA compile checks are left out")
endif()

# megacpp in a stranger's project: installed, and as a subdirectory.
megacpp_slow_test(package LABEL package TIMEOUT 600
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/package/check.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}
    ${CMAKE_CURRENT_BINARY_DIR}/package -G ${CMAKE_GENERATOR}
    -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER})

# Hugging Face configurations as programs, through the script.
megacpp_slow_test(build_preset LABEL package TIMEOUT 900
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/build_preset.sh ${PROJECT_SOURCE_DIR}
    ${CMAKE_CURRENT_BINARY_DIR}/build_preset)

# transformers loads what we export, and we what it saves.
set(MEGACPP_PEER_VENVS ${CMAKE_CURRENT_BINARY_DIR}/venvs CACHE PATH
    "Folder of the virtual environments with transformers, made where they are missing")
add_executable(transformers_peer EXCLUDE_FROM_ALL slow/transformers_peer.cpp)
target_link_libraries(transformers_peer PRIVATE megacpp_own)
megacpp_slow_test(transformers LABEL peer TIMEOUT 1200 ONE_THREAD
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/transformers.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}
    ${CMAKE_CURRENT_BINARY_DIR}/transformers ${MEGACPP_PEER_VENVS})
set_tests_properties(transformers PROPERTIES SKIP_RETURN_CODE 77)

find_program(MEGACPP_TIDY NAMES clang-tidy)
mark_as_advanced(MEGACPP_TIDY)
if(MEGACPP_TIDY AND MEGACPP_CLANG)
  megacpp_slow_test(clang_tidy LABEL tidy TIMEOUT 1800 ONE_THREAD
    COMMAND ${MEGACPP_TIDY} --quiet -p ${PROJECT_BINARY_DIR}
      ${CMAKE_CURRENT_BINARY_DIR}/headers/one.cpp)
endif()

find_program(MEGACPP_BIBLE NAMES bible)
find_program(MEGACPP_XZ NAMES xz)
mark_as_advanced(MEGACPP_BIBLE MEGACPP_XZ)
if(MEGACPP_BIBLE AND MEGACPP_XZ)
  megacpp_slow_test(quickstart LABEL quickstart TIMEOUT 600
    COMMAND ${PROJECT_SOURCE_DIR}/examples/quickstart.sh --no-install
      --out ${CMAKE_CURRENT_BINARY_DIR}/quickstart)
endif()

# nanoGPT's configuration on tinyshakespeare, three seeds in fp32 and bf16_mixed.
if(shared_dir AND MEGACPP_BUILD_EXAMPLES)
  megacpp_slow_test(learning LABEL learning TIMEOUT 1800
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/learning/run.sh ${PROJECT_BINARY_DIR}
      ${shared_dir}/data/tinyshakespeare.txt)
endif()

# Every constant of the largest presets within half of clang's default step limit.
if(MEGACPP_CLANG)
  megacpp_slow_test(constexpr_steps LABEL clang TIMEOUT 600 ONE_THREAD
    COMMAND ${MEGACPP_CLANG} -std=c++20 -fsyntax-only -fconstexpr-steps=524288
      -I${PROJECT_SOURCE_DIR}/include ${CMAKE_CURRENT_SOURCE_DIR}/slow/largest_presets.cpp)
endif()

# A save killed, or failing, at every one of its system calls.
megacpp_slow_test(crash_save LABEL crash TIMEOUT 1200 ONE_THREAD
  COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/crash/save.py
    $<TARGET_FILE:cli_tiny_gpt>)
set_tests_properties(crash_save PROPERTIES SKIP_RETURN_CODE 77)

# The readers of files under libFuzzer with ASan and UBSan, a bounded number of inputs.
if(MEGACPP_CLANG)
  file(GLOB units CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/*.cpp)
  foreach(unit IN LISTS units)
    get_filename_component(name ${unit} NAME_WE)
    megacpp_slow_test(fuzz_${name} LABEL fuzz TIMEOUT 900 ONE_THREAD
      COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/fuzz.sh ${PROJECT_SOURCE_DIR} ${unit}
        ${CMAKE_CURRENT_BINARY_DIR}/fuzz ${MEGACPP_CLANG})
  endforeach()
endif()
