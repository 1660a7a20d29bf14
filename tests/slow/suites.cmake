# The slower suites, label slow: tests that build again. Those of one thread run two at a time, the
# longest first; the others have the machine to themselves at the end.

# megacpp_slow_test(NAME LABEL label TIMEOUT seconds [SHARD n] [ONE_THREAD] [LOCK] [MAY_SKIP] [COST n]
#                   [NEEDS target...] COMMAND ...)
#   SHARD      one of those that runs share (tests/CMakeLists.txt), or several: "0;4"
#   LOCK       builds in the folder of the tests, as others do
#   COST       about how many seconds it takes: the longest begin first
#   MAY_SKIP   exit code 77 says that this machine lacks something, which is a failure where all tests
#              are asked for
#   NEEDS      targets that tests/run.sh builds beforehand, so that both cores have work
add_custom_target(slow_tests)
function(megacpp_slow_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "ONE_THREAD;LOCK;MAY_SKIP" "LABEL;TIMEOUT;COST;SHARD" "COMMAND;NEEDS")
  megacpp_in_shard(ours "${arg_SHARD}" ${name})
  if(NOT ours)
    return()
  endif()
  if(arg_NEEDS)
    add_dependencies(slow_tests ${arg_NEEDS})
  endif()
  add_test(NAME ${name} COMMAND ${arg_COMMAND})
  set_tests_properties(${name} PROPERTIES LABELS "slow;${arg_LABEL}" TIMEOUT ${arg_TIMEOUT}
                       COST "${arg_COST}")
  if(NOT arg_ONE_THREAD)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
  if(arg_LOCK)
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK build)
  endif()
  if(arg_MAY_SKIP AND NOT complete)
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  endif()
endfunction()

# Tests again, in a build of its own without slow suites: those whose names match TESTS.
# SHARD may be "".
function(megacpp_suite name shard cost tests)
  set(of_shard)
  if(NOT shard STREQUAL "")
    set(of_shard SHARD ${shard})
  endif()
  megacpp_slow_test(suite_${name} ${of_shard} LABEL ${name} TIMEOUT 4800 ONE_THREAD COST ${cost}
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/suite.sh ${PROJECT_SOURCE_DIR}
      ${CMAKE_CURRENT_BINARY_DIR}/${name}
      -G ${CMAKE_GENERATOR} -DMEGACPP_WERROR=${MEGACPP_WERROR} -DMEGACPP_UNITE_TESTS=ON
      -DMEGACPP_SHARED_DIR=${MEGACPP_SHARED_DIR} -DMEGACPP_TESTS=${tests} ${ARGN})
endfunction()

# Built beforehand; the test says whether that failed.
megacpp_slow_test(headers_linked_twice SHARD 15 LABEL headers TIMEOUT 3600 ONE_THREAD LOCK
  NEEDS headers_linked_twice
  COMMAND ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target headers_linked_twice)

# Headers (headers.cmake): what is missing in one that compiles alone is missing for every compiler.
set(compiles Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/structure/compiles.py)
megacpp_slow_test(headers_alone_self_test LABEL headers TIMEOUT 300 ONE_THREAD COST 10
  COMMAND ${compiles} --self-test)
# One header in as many as there are shards, of a run that does one.
set(alone_here ${alone})
if(NOT MEGACPP_SHARD STREQUAL "")
  set(alone_here)
  set(number 0)
  foreach(header IN LISTS alone)
    math(EXPR number "(${number} + 1) % ${shards}")
    if(number EQUAL MEGACPP_SHARD)
      list(APPEND alone_here ${header})
    endif()
  endforeach()
endif()
megacpp_slow_test(headers_alone LABEL headers TIMEOUT 2400 ONE_THREAD COST 90
  COMMAND ${compiles} --alone ${include_dir} ${alone_here} -- ${read_by} -std=c++20 ${reading})
megacpp_slow_test(headers_cxx23 SHARD 15 LABEL headers TIMEOUT 600 ONE_THREAD COST 45
  COMMAND ${compiles} ${two} ${PROJECT_SOURCE_DIR}/examples/ten_lines.cpp
    -- ${CMAKE_CXX_COMPILER} -std=c++23 ${reading})
# Behind <complex.h>, which defines I for GNU C++.
foreach(compiler IN ITEMS ${CMAKE_CXX_COMPILER} ${MEGACPP_CLANG})
  get_filename_component(name ${compiler} NAME)
  string(MAKE_C_IDENTIFIER ${name} name)
  megacpp_slow_test(headers_after_complex_${name} LABEL headers TIMEOUT 300 ONE_THREAD COST 10
    COMMAND ${compiles} ${CMAKE_CURRENT_SOURCE_DIR}/structure/after_complex.cpp
      -- ${compiler} -std=gnu++20 ${reading})
endforeach()
if(MEGACPP_EXHAUSTIVE_TESTS)
  megacpp_slow_test(headers_alone_cxx23 LABEL headers TIMEOUT 4800 ONE_THREAD COST 500
    COMMAND ${compiles} --alone ${include_dir} ${alone} -- ${CMAKE_CXX_COMPILER} -std=c++23 ${reading})
endif()

# Memory errors and undefined behaviour: what reads files, every op on every small shape, whole models
# interpreted, and a program with its command line. By clang, where there is one: it compiles the
# instrumented suite in half the time of GNU's, and this way reads these tests with its warnings. What
# the passes compute is found free of both by every compilation.
set(sanitized -DMEGACPP_SANITIZE=address,undefined -DCMAKE_CXX_FLAGS_RELEASE=-O0 -DMEGACPP_OPTIMISE=0)
if(MEGACPP_CLANG)
  list(APPEND sanitized -DCMAKE_CXX_COMPILER=${MEGACPP_CLANG})
endif()
if(MEGACPP_EXHAUSTIVE_TESTS)
  megacpp_suite(asan "" 900 . ${sanitized})
else()
  megacpp_suite(asan_files 11 190
    "^unit_(chat|data|folder|gpt_indices|hf_config|indexed|json|machine|mapped_file|observe|options|safetensors|schedule|shard_index|state|text|tokenizer)$"
    ${sanitized})
  foreach(part_shard 1_2 2_3 3_6 4_10 5_22 6_28)
    string(REPLACE "_" ";" part_shard ${part_shard})
    list(GET part_shard 0 part)
    list(GET part_shard 1 shard)
    megacpp_suite(asan_cli_${part} ${shard} 220 "^cli_${part}_of_6$" ${sanitized})
  endforeach()
  megacpp_suite(asan_data 12 110 "^cli_data" ${sanitized})
  megacpp_suite(asan_models 1 220 "^laws_(packing|patterns|rounds|shapes)$|^parity|^unit_threads$"
                ${sanitized})
endif()

# Races between ranks that are threads: their exchanges, steps under every kind of layout, and whole
# runs with their files. Products by Eigen, whose code is instrumented.
set(racing -DMEGACPP_SANITIZE=thread -DMEGACPP_WITH_ONEDNN=OFF -DMEGACPP_OPTIMISE=1)
if(MEGACPP_CLANG)
  list(APPEND racing -DCMAKE_CXX_COMPILER=${MEGACPP_CLANG})
endif()
megacpp_suite(tsan_exchanges 7 200 "^unit_communicators$" ${racing})
megacpp_suite(tsan_ranks 26 200 "^laws_(ranks|runs_of_ranks)$" ${racing})

# Kernels as on a processor without AVX-512, and optimised by another compiler.
set(of_kernels "unit_(attention|cached_attention|product|rows|rows_bits|sampling|threads|vec_math)|laws_patterns|parity_hugging_face")
set(other ${CMAKE_CXX_COMPILER})
if(MEGACPP_CLANG)
  set(other ${MEGACPP_CLANG})
endif()
megacpp_suite(avx2 13 150 "${of_kernels}" -DMEGACPP_MARCH=x86-64-v3 -DMEGACPP_OPTIMISE=0
              -DCMAKE_CXX_COMPILER=${other})
set(suites_avx2 suite_avx2)
if(MEGACPP_EXHAUSTIVE_TESTS AND MEGACPP_CLANG)
  megacpp_suite(clang "" 600 . -DMEGACPP_OPTIMISE=2 -DCMAKE_CXX_COMPILER=${MEGACPP_CLANG})
  megacpp_suite(gnu_avx2 "" 600 "${of_kernels}" -DMEGACPP_MARCH=x86-64-v3
                -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER})
  list(APPEND suites_avx2 suite_gnu_avx2)
endif()
foreach(suite IN LISTS suites_avx2)
  if(TEST ${suite})
    set_tests_properties(${suite} PROPERTIES ENVIRONMENT ONEDNN_MAX_CPU_ISA=AVX2)
  endif()
endforeach()

if(MEGACPP_NVCC)
  get_target_property(eigen_includes Eigen3::Eigen INTERFACE_INCLUDE_DIRECTORIES)
  list(TRANSFORM eigen_includes PREPEND "-isystem;" OUTPUT_VARIABLE eigen_flags)
  set(nvcc ${MEGACPP_NVCC} -std=c++20 -arch=sm_90a --expt-relaxed-constexpr
      -ccbin=${CMAKE_CXX_COMPILER} -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-ffp-contract=off
      -I${PROJECT_SOURCE_DIR}/include ${eigen_flags})
  # Headers for CUDA alone: code of the host is the host compiler's, the rest nvcc's.
  file(GLOB_RECURSE cuda_headers RELATIVE ${PROJECT_SOURCE_DIR}/include CONFIGURE_DEPENDS
       ${PROJECT_SOURCE_DIR}/include/megacpp/*/cuda/*.hpp ${PROJECT_SOURCE_DIR}/include/megacpp/*/cuda/*.cuh)
  list(FILTER cuda_headers EXCLUDE REGEX cutlass) # it needs CUTLASS's headers; nvcc_cutlass compiles it
  foreach(header IN LISTS cuda_headers)
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/headers/${header}.cu)
    file(CONFIGURE OUTPUT ${unit} CONTENT "#include <${header}>\n#include <${header}>\n")
    string(MAKE_C_IDENTIFIER ${header} name)
    set(compile ${nvcc} -c)
    if(header MATCHES "[.]hpp$")
      set(compile ${CMAKE_CXX_COMPILER} -std=c++20 ${reading} -isystem ${MEGACPP_CUDA_INCLUDE} -x c++ -c)
    endif()
    megacpp_slow_test(nvcc_${name} SHARD 26 LABEL nvcc TIMEOUT 1200 ONE_THREAD COST 10
      COMMAND ${compile} -o ${CMAKE_CURRENT_BINARY_DIR}/${name}.o ${unit})
  endforeach()

  # The program for a GPU, which has every row body, linked; without a GPU it says so.
  megacpp_slow_test(nvcc_megacpp_gpu SHARD 21 LABEL nvcc TIMEOUT 1800 ONE_THREAD COST 50
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/gpu_program.sh ${PROJECT_SOURCE_DIR}
      ${CMAKE_CURRENT_BINARY_DIR}/megacpp_gpu -G ${CMAKE_GENERATOR}
      -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DCMAKE_CUDA_HOST_COMPILER=${CMAKE_CXX_COMPILER})

  # Registers, stacks and spills of all bodies.
  megacpp_slow_test(nvcc_registers SHARD 20 LABEL nvcc TIMEOUT 1200 ONE_THREAD COST 60
    COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/slow/registers.py ${PROJECT_SOURCE_DIR}
      ${MEGACPP_NVCC} ${CMAKE_CURRENT_SOURCE_DIR}/slow/registers_sm_90a.txt -- -arch=sm_90a
      -ccbin=${CMAKE_CXX_COMPILER})

  # Presets for CUDA, from a project of their own.
  foreach(half_shard 1_5 2_30)
    string(REPLACE "_" ";" half_shard ${half_shard})
    list(GET half_shard 0 half)
    list(GET half_shard 1 shard)
    megacpp_slow_test(nvcc_presets_${half}_of_2 SHARD ${shard} LABEL nvcc TIMEOUT 2400 ONE_THREAD COST 240
      COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/cuda_presets.sh --half ${half} ${PROJECT_SOURCE_DIR}
        ${CMAKE_CURRENT_BINARY_DIR}/cuda_presets_${half} -G ${CMAKE_GENERATOR}
        -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER})
  endforeach()

  # Kernels of CUTLASS, whose headers pip installs.
  megacpp_slow_test(nvcc_cutlass SHARD 0 LABEL nvcc TIMEOUT 1800 ONE_THREAD MAY_SKIP COST 150
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/cutlass.sh ${PROJECT_SOURCE_DIR}
      ${CMAKE_CURRENT_BINARY_DIR}/cuda_cutlass ${CMAKE_CURRENT_BINARY_DIR}/venvs -G ${CMAKE_GENERATOR}
      -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER})
  # A newer cuBLASLt, which pip installs, takes what programs tell it of products of experts.
  find_library(MEGACPP_NVCC_CUBLASLT NAMES cublasLt HINTS ${nvcc_folder}/../lib64)
  mark_as_advanced(MEGACPP_NVCC_CUBLASLT)
  if(MEGACPP_CUDA_INCLUDE AND MEGACPP_NVCC_CUBLASLT)
    get_filename_component(libraries ${MEGACPP_NVCC_CUBLASLT} DIRECTORY)
    megacpp_slow_test(cublaslt_grouped SHARD 0 LABEL nvcc TIMEOUT 900 ONE_THREAD MAY_SKIP COST 40
      COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/cublaslt.sh ${PROJECT_SOURCE_DIR}
        ${CMAKE_CURRENT_BINARY_DIR}/cublaslt_grouped ${CMAKE_CURRENT_BINARY_DIR}/venvs
        ${MEGACPP_CUDA_INCLUDE} ${libraries} ${CMAKE_CXX_COMPILER})
  else()
    megacpp_left_out("cublaslt_grouped: there is no libcublasLt.so; install CUDA's toolkit")
  endif()
  if(MEGACPP_EXHAUSTIVE_TESTS)
    # Bodies for a B200, which no program is built for by default.
    foreach(bodies ELEMENT=mc::bf16 ELEMENT=float SUM=float)
      string(MAKE_C_IDENTIFIER "nvcc_sm_100a_${bodies}" name)
      megacpp_slow_test(${name} LABEL nvcc TIMEOUT 1200 ONE_THREAD COST 60
        COMMAND ${MEGACPP_NVCC} ${megacpp_nvcc_flags} -arch=sm_100a -ccbin=${CMAKE_CXX_COMPILER}
          -Werror=all-warnings -I${PROJECT_SOURCE_DIR}/include -DMEGACPP_${bodies} -c -o ${CMAKE_CURRENT_BINARY_DIR}/${name}.o
          ${PROJECT_SOURCE_DIR}/src/cuda_bodies.cu)
    endforeach()
    # And by another toolkit, which pip installs.
    megacpp_slow_test(nvcc_second_toolkit LABEL nvcc TIMEOUT 4800 ONE_THREAD MAY_SKIP COST 400
      COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/second_toolkit.sh ${PROJECT_SOURCE_DIR}
        ${CMAKE_CURRENT_BINARY_DIR}/second_toolkit -G ${CMAKE_GENERATOR}
        -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER})
  endif()
else()
  megacpp_left_out("the CUDA compile checks: there is no nvcc on the PATH or in /usr/local/cuda/bin; install CUDA's compiler")
endif()

# megacpp in a stranger's project: installed, and as a subdirectory.
megacpp_slow_test(package SHARD 17 LABEL package TIMEOUT 1800 ONE_THREAD COST 160
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/package/check.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}
    ${CMAKE_CURRENT_BINARY_DIR}/package -G ${CMAKE_GENERATOR}
    -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=)

# The same by Conan, which pip installs.
set(MEGACPP_PEER_VENVS ${CMAKE_CURRENT_BINARY_DIR}/venvs CACHE PATH
    "Folder of virtual environments of Python, made where they are missing")
megacpp_slow_test(conan SHARD 16 LABEL package TIMEOUT 1800 ONE_THREAD MAY_SKIP COST 180
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/package/conan.sh ${PROJECT_SOURCE_DIR}
    ${CMAKE_CURRENT_BINARY_DIR}/conan ${MEGACPP_PEER_VENVS})

# Images of programs, built and run in roots of a minimal Debian.
set(images Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/slow/images.py ${PROJECT_SOURCE_DIR})
megacpp_slow_test(images SHARD 31 LABEL package TIMEOUT 2400 ONE_THREAD MAY_SKIP COST 240
  COMMAND ${images} ${CMAKE_CURRENT_BINARY_DIR}/images --bases ${CMAKE_CURRENT_BINARY_DIR}/fresh)
if(MEGACPP_EXHAUSTIVE_TESTS)
  megacpp_slow_test(images_mpi LABEL package TIMEOUT 2400 ONE_THREAD MAY_SKIP COST 240
    COMMAND ${images} ${CMAKE_CURRENT_BINARY_DIR}/images_mpi --bases ${CMAKE_CURRENT_BINARY_DIR}/fresh --mpi)
  megacpp_slow_test(images_v4 LABEL package TIMEOUT 2400 ONE_THREAD MAY_SKIP COST 240
    COMMAND ${images} ${CMAKE_CURRENT_BINARY_DIR}/images_v4 --bases ${CMAKE_CURRENT_BINARY_DIR}/fresh --march x86-64-v4)
  if(MEGACPP_NVCC)
    get_filename_component(toolkit ${MEGACPP_NVCC} REALPATH)
    get_filename_component(toolkit ${toolkit}/../.. ABSOLUTE)
    megacpp_slow_test(images_cuda LABEL package TIMEOUT 3600 ONE_THREAD MAY_SKIP COST 400
      COMMAND ${images} ${CMAKE_CURRENT_BINARY_DIR}/images_cuda --bases ${CMAKE_CURRENT_BINARY_DIR}/fresh --cuda ${toolkit})
  endif()
endif()

# Hugging Face configurations as programs, through the script.
megacpp_slow_test(build_preset SHARD 9 LABEL package TIMEOUT 2400 ONE_THREAD COST 210
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/build_preset.sh ${PROJECT_SOURCE_DIR}
    ${CMAKE_CURRENT_BINARY_DIR}/build_preset)

# Launchers that the tests install: PyTorch's torchrun, MPICH's mpiexec, and Slurm; and nodes that are namespaces.
if(TARGET cli_tiny_gpt)
  set(mpi ${CMAKE_CURRENT_SOURCE_DIR}/mpi)
  set(torchrun ${CMAKE_CURRENT_BINARY_DIR}/torchrun)
  megacpp_slow_test(launch_torchrun LABEL mpi TIMEOUT 1200 ONE_THREAD MAY_SKIP COST 60
    COMMAND ${mpi}/torchrun.sh $<TARGET_FILE:cli_tiny_gpt> ${torchrun} Torchrun.test_a_start_of_two_ranks)
  megacpp_slow_test(launch_torchrun_restarts SHARD "3;19" LABEL mpi TIMEOUT 1200 ONE_THREAD MAY_SKIP COST 90
    COMMAND ${mpi}/torchrun.sh $<TARGET_FILE:cli_tiny_gpt> ${torchrun})
  megacpp_slow_test(launch_soak SHARD "11;27" LABEL mpi TIMEOUT 1200 ONE_THREAD MAY_SKIP COST 60
    COMMAND ${PROJECT_SOURCE_DIR}/bench/soak/soak.py $<TARGET_FILE:cli_tiny_gpt> --torchrun ${torchrun}/bin/torchrun
      --faults 10 --seed 0 --no-result)
  foreach(one launch_torchrun_restarts launch_soak)
    if(TEST ${one})
      set_tests_properties(${one} PROPERTIES DEPENDS launch_torchrun)
    endif()
  endforeach()
  megacpp_slow_test(launch_networks SHARD "5;21" LABEL mpi TIMEOUT 600 ONE_THREAD MAY_SKIP COST 10
    COMMAND ${mpi}/networks.py $<TARGET_FILE:cli_tiny_gpt>)
  megacpp_slow_test(launch_mpich SHARD "7;23" LABEL mpi TIMEOUT 600 ONE_THREAD MAY_SKIP COST 10
    COMMAND ${mpi}/mpich.sh $<TARGET_FILE:cli_tiny_gpt>)
  megacpp_slow_test(launch_slurm SHARD "9;25" LABEL mpi TIMEOUT 900 ONE_THREAD MAY_SKIP COST 90
    COMMAND ${mpi}/slurm.sh $<TARGET_FILE:cli_tiny_gpt>)
endif()

# The manifests of examples/deploy by schemas and models of PyPI.
if(TARGET cli_tiny_gpt)
  set(crds)
  if(EXISTS ${shared_dir}/data/crds)
    set(crds ${shared_dir}/data/crds)
  endif()
  megacpp_slow_test(deploy_models SHARD "2;18" LABEL peer TIMEOUT 900 ONE_THREAD MAY_SKIP COST 30
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/deploy/models.sh ${PROJECT_SOURCE_DIR} $<TARGET_FILE:cli_tiny_gpt>
      ${MEGACPP_PEER_VENVS} ${crds})
endif()

# transformers loads what we export, and we what it saves.
add_executable(transformers_peer EXCLUDE_FROM_ALL slow/transformers_peer.cpp)
target_link_libraries(transformers_peer PRIVATE megacpp_own megacpp_test_kernels)
target_include_directories(transformers_peer PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_options(transformers_peer PRIVATE -O0) # models of a few thousand parameters
megacpp_slow_test(transformers SHARD 21 LABEL peer TIMEOUT 2400 ONE_THREAD LOCK MAY_SKIP COST 60
  NEEDS transformers_peer
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/transformers.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}
    ${CMAKE_CURRENT_BINARY_DIR}/transformers ${MEGACPP_PEER_VENVS})

# bitsandbytes and we quantise alike, and transformers loads what we write in NF4.
add_executable(bitsandbytes_peer EXCLUDE_FROM_ALL slow/bitsandbytes_peer.cpp)
target_link_libraries(bitsandbytes_peer PRIVATE megacpp_own)
target_include_directories(bitsandbytes_peer PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
megacpp_slow_test(bitsandbytes SHARD 21 LABEL peer TIMEOUT 1200 ONE_THREAD LOCK MAY_SKIP COST 25
  NEEDS bitsandbytes_peer transformers_peer
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/bitsandbytes.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}
    ${CMAKE_CURRENT_BINARY_DIR}/bitsandbytes ${MEGACPP_PEER_VENVS})

# Readers of what observers write and send.
if(TARGET cli_tiny_gpt)
  megacpp_slow_test(observers SHARD "2;18" LABEL peer TIMEOUT 600 ONE_THREAD MAY_SKIP COST 20
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/observers.sh ${PROJECT_SOURCE_DIR} $<TARGET_FILE:cli_tiny_gpt>
      ${CMAKE_CURRENT_BINARY_DIR}/observers ${MEGACPP_PEER_VENVS})
endif()

# Adapters with a mistake on purpose, which laws and figures must find.
set(mutated ${CMAKE_CURRENT_BINARY_DIR}/adapter_mutants)
set(adapter_mutants Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/slow/adapter_mutants.py)
set(of_adapters)
foreach(header IN ITEMS pass/adapt recipe/lora kernel/rows/nf4 hf/adapter_tensors)
  list(APPEND of_adapters ${PROJECT_SOURCE_DIR}/include/megacpp/${header}.hpp)
endforeach()
add_custom_command(OUTPUT ${mutated}/chosen.hpp
  COMMAND ${adapter_mutants} write ${PROJECT_SOURCE_DIR} ${mutated}
  DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/slow/adapter_mutants.py ${of_adapters} VERBATIM)
set(programs)
foreach(source IN ITEMS unit/emulated_nf4 laws/adapters parity/adapters)
  if(source MATCHES "^parity" AND NOT shared_dir)
    continue()
  endif()
  string(REPLACE "/" "_" name mutants_${source})
  add_executable(${name} EXCLUDE_FROM_ALL ${source}.cpp ${mutated}/chosen.hpp)
  target_include_directories(${name} BEFORE PRIVATE ${mutated})
  target_compile_options(${name} PRIVATE -include ${mutated}/chosen.hpp)
  target_link_libraries(${name} PRIVATE megacpp_test megacpp_test_kernels)
  set_target_properties(${name} PROPERTIES MEGACPP_OPTIMISE 1)
  list(APPEND programs ${name})
endforeach()
set(files ${programs})
list(TRANSFORM files REPLACE "(.+)" "$<TARGET_FILE:\\1>")
megacpp_slow_test(adapter_mutants SHARD 19 LABEL mutants TIMEOUT 1800 ONE_THREAD COST 60
  NEEDS ${programs} COMMAND ${adapter_mutants} run ${files})

# PEFT loads the adapters that four presets write, and they those of PEFT.
megacpp_slow_test(peft SHARD 18 LABEL peer TIMEOUT 3600 ONE_THREAD MAY_SKIP COST 400
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/peft.sh ${PROJECT_SOURCE_DIR}
    ${CMAKE_CURRENT_BINARY_DIR}/peft ${MEGACPP_PEER_VENVS})

# Conversations as transformers writes them by published templates.
if(shared_dir)
  add_executable(chat_peer EXCLUDE_FROM_ALL slow/chat_peer.cpp)
  target_link_libraries(chat_peer PRIVATE megacpp_own)
  target_compile_options(chat_peer PRIVATE -O1)
  megacpp_slow_test(chat SHARD 8 LABEL peer TIMEOUT 1200 ONE_THREAD LOCK MAY_SKIP COST 60
    NEEDS chat_peer
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/chat.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}
      ${CMAKE_CURRENT_BINARY_DIR}/chat ${MEGACPP_PEER_VENVS} ${shared_dir})
endif()

# Texts to ids and back, as the tokenizers library has them.
if(shared_dir AND MEGACPP_BUILD_EXAMPLES)
  megacpp_slow_test(tokenizers SHARD 25 LABEL peer TIMEOUT 1200 ONE_THREAD LOCK MAY_SKIP COST 25
    NEEDS megacpp-data
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/tokenizers.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}
      ${CMAKE_CURRENT_BINARY_DIR}/tokenizers ${MEGACPP_PEER_VENVS} ${shared_dir})
endif()

# megatron-core and we write the same datasets and draw the same samples from them.
add_executable(megatron_peer EXCLUDE_FROM_ALL slow/megatron_peer.cpp)
target_link_libraries(megatron_peer PRIVATE megacpp_own)
target_compile_options(megatron_peer PRIVATE -O0)
megacpp_slow_test(megatron SHARD 25 LABEL peer TIMEOUT 2400 ONE_THREAD LOCK MAY_SKIP COST 20
  NEEDS megatron_peer
  COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/megatron.sh ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}
    ${CMAKE_CURRENT_BINARY_DIR}/megatron ${MEGACPP_PEER_VENVS})

find_program(MEGACPP_TIDY NAMES clang-tidy)
mark_as_advanced(MEGACPP_TIDY)
if(MEGACPP_TIDY AND MEGACPP_CLANG)
  # One check takes as long as all others and finds copies, not errors.
  set(checks --checks=-performance-unnecessary-value-param)
  if(MEGACPP_EXHAUSTIVE_TESTS)
    set(checks)
  endif()
  megacpp_slow_test(clang_tidy SHARD 12 LABEL tidy TIMEOUT 3600 ONE_THREAD COST 50
    COMMAND ${MEGACPP_TIDY} --quiet ${checks} -p ${PROJECT_BINARY_DIR}
      --extra-arg=-Wno-unused-command-line-argument # options of g++ alone
      ${CMAKE_CURRENT_BINARY_DIR}/headers/one.cpp)
else()
  megacpp_left_out("clang_tidy: there is no clang-tidy with clang++; on Debian or Ubuntu, apt install clang clang-tidy")
endif()

# README's first command as a stranger runs it: where nothing is installed but what it installs itself.
if(NOT MEGACPP_EXHAUSTIVE_TESTS)
  megacpp_slow_test(fresh_bookworm SHARD "14;29" LABEL fresh TIMEOUT 1800 ONE_THREAD MAY_SKIP COST 200
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/fresh_machine.sh ${PROJECT_SOURCE_DIR}
      ${CMAKE_CURRENT_BINARY_DIR}/fresh bookworm)
else() # the second one, too, which builds these tests, and Debian 13
  foreach(suite IN ITEMS bookworm trixie)
    megacpp_slow_test(fresh_${suite}_both LABEL fresh TIMEOUT 7200 MAY_SKIP
      COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/fresh_machine.sh ${PROJECT_SOURCE_DIR}
        ${CMAKE_CURRENT_BINARY_DIR}/fresh_both ${suite} both)
  endforeach()
endif()

find_program(MEGACPP_BIBLE NAMES bible)
find_program(MEGACPP_XZ NAMES xz)
mark_as_advanced(MEGACPP_BIBLE MEGACPP_XZ)
if(MEGACPP_EXHAUSTIVE_TESTS AND MEGACPP_BIBLE AND MEGACPP_XZ)
  # The quickstart into another folder, and three programs.
  megacpp_slow_test(commands LABEL quickstart TIMEOUT 1200
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/commands.sh ${PROJECT_SOURCE_DIR}
      ${CMAKE_CURRENT_BINARY_DIR}/commands)
elseif(MEGACPP_EXHAUSTIVE_TESTS)
  megacpp_left_out("commands: there is no bible or no xz; on Debian or Ubuntu, apt install bible-kjv xz-utils")
endif()

# nanoGPT's configuration on tinyshakespeare in fp32, bf16_mixed and bf16_moments, of three seeds, or of
# one and with a quarter of bf16_mixed's iterations.
set(tinyshakespeare ${shared_dir}/data/tinyshakespeare.txt)
if(shared_dir AND NOT EXISTS ${tinyshakespeare})
  megacpp_left_out("learning: there is no ${tinyshakespeare}")
elseif(shared_dir AND MEGACPP_BUILD_EXAMPLES)
  set(learning --seeds 1 --bf16-iters 500)
  if(MEGACPP_EXHAUSTIVE_TESTS)
    set(learning --seeds 3)
  endif()
  megacpp_add_preset(char-gpt-bf16-moments MODEL char_gpt MICRO_BATCH 12 SEQUENCE 64
    PRECISION bf16_moments)
  set_target_properties(char-gpt-bf16-moments PROPERTIES EXCLUDE_FROM_ALL ON)
  megacpp_slow_test(learning SHARD 15 LABEL learning TIMEOUT 3600 ONE_THREAD LOCK COST 75
    NEEDS char-gpt char-gpt-bf16 char-gpt-bf16-moments
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/learning/run.sh ${PROJECT_BINARY_DIR}
      ${tinyshakespeare} ${learning})
endif()

# A newcomer's fine-tuning and data: answers that were not seen, and commands as the pages have them.
if(TARGET megacpp-data)
  # As examples/small_model.sh compiles it.
  megacpp_add_preset(small_model HF_CONFIG ${PROJECT_SOURCE_DIR}/examples/small_model.json
    PRECISION fp32 SEQUENCE 128 MICRO_BATCH 16 PACKED)
  set_target_properties(small_model PROPERTIES EXCLUDE_FROM_ALL ON)
  megacpp_slow_test(finetune SHARD 27 LABEL learning TIMEOUT 1800 ONE_THREAD COST 40
    NEEDS megacpp-data small_model
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/learning/finetune.sh ${PROJECT_SOURCE_DIR}
      $<TARGET_FILE:small_model> $<TARGET_FILE:megacpp-data> ${CMAKE_CURRENT_BINARY_DIR}/finetune)
  # The same by adapters.
  foreach(way_and_shard "lora;13" "qlora;29")
    list(GET way_and_shard 0 way)
    list(GET way_and_shard 1 shard)
    set(base plain)
    if(way STREQUAL "qlora")
      set(base nf4)
    endif()
    megacpp_add_preset(small_${way} HF_CONFIG ${PROJECT_SOURCE_DIR}/examples/small_model.json
      PRECISION fp32 SEQUENCE 128 MICRO_BATCH 16 PACKED LORA 16 LORA_ALPHA 32 BASE ${base})
    set_target_properties(small_${way} PROPERTIES EXCLUDE_FROM_ALL ON)
    megacpp_slow_test(finetune_${way} SHARD ${shard} LABEL learning TIMEOUT 1800 ONE_THREAD COST 60
      NEEDS small_model small_${way}
      COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/learning/finetune_adapter.py ${PROJECT_SOURCE_DIR}
        $<TARGET_FILE:small_model> $<TARGET_FILE:small_${way}> --${way} ${CMAKE_CURRENT_BINARY_DIR}/finetune_${way})
  endforeach()
  # The command lines of examples/deploy by these programs, and its scripts by Slurm.
  megacpp_slow_test(deploy_commands SHARD 29 LABEL deploy TIMEOUT 900 ONE_THREAD COST 20
    NEEDS megacpp-data small_model small_qlora
    COMMAND Python3::Interpreter -B ${CMAKE_CURRENT_SOURCE_DIR}/deploy/commands.py ${CMAKE_CURRENT_BINARY_DIR}/deploy
      $<TARGET_FILE:small_model> $<TARGET_FILE:small_qlora> $<TARGET_FILE:megacpp-data>)
  megacpp_slow_test(deploy_pipelines SHARD 29 LABEL deploy TIMEOUT 900 ONE_THREAD MAY_SKIP COST 20
    NEEDS megacpp-data small_model
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/deploy/pipelines.sh ${PROJECT_SOURCE_DIR} $<TARGET_FILE:small_model>
      $<TARGET_FILE:megacpp-data> ${CMAKE_CURRENT_BINARY_DIR}/deploy_pipelines ${MEGACPP_PEER_VENVS})
  megacpp_slow_test(deploy_batches SHARD 29 LABEL deploy TIMEOUT 900 ONE_THREAD MAY_SKIP COST 60
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/mpi/slurm.sh --tests ${CMAKE_CURRENT_SOURCE_DIR}/deploy/batches.py
      $<TARGET_FILE:small_model> ${CMAKE_CURRENT_BINARY_DIR}/deploy $<TARGET_FILE:megacpp-data>)
  if(TEST deploy_batches)
    set_tests_properties(deploy_batches PROPERTIES DEPENDS deploy_commands)
  endif()
  # Conversations by a template that is not known.
  megacpp_slow_test(render SHARD 23 LABEL peer TIMEOUT 600 ONE_THREAD LOCK MAY_SKIP COST 20
    NEEDS small_model
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/render.sh ${PROJECT_SOURCE_DIR}
      $<TARGET_FILE:small_model> ${CMAKE_CURRENT_BINARY_DIR}/render ${MEGACPP_PEER_VENVS})
endif()

# Every constant of the largest presets, and of a graph 1.6 times as large, within a quarter of
# clang's default step limit.
if(MEGACPP_CLANG)
  megacpp_slow_test(constexpr_steps SHARD 27 LABEL clang TIMEOUT 600 ONE_THREAD COST 20
    COMMAND ${MEGACPP_CLANG} -std=c++20 -fsyntax-only -fconstexpr-steps=262144
      -I${PROJECT_SOURCE_DIR}/include ${CMAKE_CURRENT_SOURCE_DIR}/slow/largest_presets.cpp)
endif()

# A save killed, or failing, at every one of its system calls.
megacpp_slow_test(crash_save SHARD 4 LABEL crash TIMEOUT 2400 ONE_THREAD MAY_SKIP COST 220
  COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/crash/save.py
    $<TARGET_FILE:cli_tiny_gpt>)

# The readers of files under libFuzzer with ASan and UBSan, a bounded number of inputs.
if(MEGACPP_CLANG)
  file(GLOB units CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/*.cpp)
  set(number 0)
  foreach(unit IN LISTS units)
    get_filename_component(name ${unit} NAME_WE)
    math(EXPR number "${number} + 1")
    math(EXPR shard "(${number} + 23) % ${shards}")
    megacpp_slow_test(fuzz_${name} SHARD ${shard} LABEL fuzz TIMEOUT 1800 ONE_THREAD COST 30
      COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slow/fuzz.sh ${PROJECT_SOURCE_DIR} ${unit}
        ${CMAKE_CURRENT_BINARY_DIR}/fuzz ${MEGACPP_CLANG}
        $<IF:$<BOOL:${MEGACPP_EXHAUSTIVE_TESTS}>,1000000,20000>)
  endforeach()
endif()
