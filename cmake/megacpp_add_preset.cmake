# Programs from presets.
#
#   megacpp_add_preset(NAME MODEL gpt2_124m ...)           # or
#   megacpp_add_preset(NAME HF_CONFIG config.json ...)
#
# adds the executable NAME. MODEL is a value in namespace mc::preset; HF_CONFIG is the configuration of a
# Hugging Face model (docs/hugging-face.md). megacpp_build_keys.cmake lists all keys. A key may also be
# given as examples/build_preset.sh spells it: tp=2 is TP 2.
#
# CMake reads only the keys on which sources and libraries depend. The tool megacpp_write_run reads all of
# them when the program is built, and writes run.hpp, the run as a type named after the preset, into the
# build folder, again when a key or config.json was edited. A key that it cannot take fails the build with
# one sentence.
#
#   megacpp_add_run(NAME run.hpp STRUCT [DEVICE cpu|cuda] [BODIES header...])
#
# adds the executable NAME for a run written by hand.
#
# BODIES: headers of row bodies that the library does not have, which nvcc compiles for a GPU.
#
# Both add the target NAME_check, too, built on request: it has the compiler check the run in
# seconds, before minutes go into its kernels.

include(${CMAKE_CURRENT_LIST_DIR}/megacpp_build_keys.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/megacpp_cuda_bodies.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/megacpp_precompiled.cmake)

# The commit of the enclosing checkout, for --version; reconfigures when it changes.
function(megacpp_git_hash result)
  set(${result} "" PARENT_SCOPE)
  find_program(MEGACPP_GIT git)
  mark_as_advanced(MEGACPP_GIT)
  if(NOT MEGACPP_GIT)
    return()
  endif()
  execute_process(COMMAND ${MEGACPP_GIT} rev-parse --short=12 HEAD
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
    OUTPUT_VARIABLE hash OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)
    return()
  endif()
  execute_process(COMMAND ${MEGACPP_GIT} rev-parse --git-path logs/HEAD
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
    OUTPUT_VARIABLE log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  get_filename_component(log "${log}" ABSOLUTE BASE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
  if(EXISTS "${log}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${log}")
  endif()
  set(${result} ${hash} PARENT_SCOPE)
endfunction()

# How programs are compiled: as the project's own sources where this is megacpp's build, otherwise with
# -march as using-megacpp.md says.
function(megacpp_program_options name)
  target_link_libraries(${name} PRIVATE megacpp::megacpp)
  if(NOT MEGACPP_SANITIZE)
    # Kernels spell their vectors; what else is computed often are copies, which this vectorises.
    target_compile_options(${name} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O2>
      $<$<CXX_COMPILER_ID:GNU>:-fvect-cost-model=dynamic>)
  endif()
  if(TARGET megacpp_own)
    target_link_libraries(${name} PRIVATE megacpp_own)
  else()
    megacpp_march(march)
    target_compile_options(${name} PRIVATE ${march})
  endif()
endfunction()

# RESULT is the options, behind those of megacpp_program_options, of units that compute nothing that takes
# long: for them -O1 is enough and saves time. g++ also vectorises their loops, which copy and convert the
# bytes of files, leaves out two passes that take long, and collects its garbage from 1 GiB on.
function(megacpp_options_of_commands result)
  set(options)
  if(NOT MEGACPP_SANITIZE)
    set(optimised $<NOT:$<CONFIG:Debug>>)
    set(gnu $<CXX_COMPILER_ID:GNU>)
    set(options "$<${optimised}:-O1>"
      "$<$<AND:${optimised},${gnu}>:-ftree-loop-vectorize;-fno-tree-pta;-fno-tree-dominator-opts>"
      "$<${gnu}:--param=ggc-min-heapsize=1048576>")
  endif()
  set(${result} "${options}" PARENT_SCOPE)
endfunction()

# Sanitizers make what computes ten times as slow if nothing optimises it.
function(megacpp_optimise_sanitized)
  if(MEGACPP_SANITIZE)
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -O1)
  endif()
endfunction()

# What knows no run, compiled once for all programs that are compiled alike: those of one folder of a
# project, whose flags a folder has in common, with the same MEGACPP_MARCH and standard; or precompiled.
# RESULT is two libraries: what commands do, on any device, and a device with the kernels that no run
# shapes. A third one, for CUDA alone, has the row bodies.
function(megacpp_add_runless result device)
  set(key "${CMAKE_CURRENT_SOURCE_DIR};${MEGACPP_MARCH};${CMAKE_CXX_STANDARD};${CMAKE_CXX_EXTENSIONS};${CMAKE_POSITION_INDEPENDENT_CODE};${CMAKE_INTERPROCEDURAL_OPTIMIZATION}")
  if(TARGET megacpp_own)
    set(key own)
  endif()
  string(MD5 key "${key}")
  string(SUBSTRING ${key} 0 8 key)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/megacpp_${key})
  set(commands megacpp_commands_${key})
  set(kernels megacpp_on_${device}_${key})
  set(bodies)
  if(device STREQUAL "cuda")
    set(bodies megacpp_cuda_bodies_${key})
  endif()
  set(${result} ${commands} ${kernels} ${bodies} PARENT_SCOPE)
  if(NOT TARGET ${commands} OR NOT TARGET ${kernels})
    megacpp_compiled_with(with)
  endif()
  if(NOT TARGET ${commands}) # the unit that takes longest first
    megacpp_add_runless_library(${commands} ${folder} commands "${with}" "" commands.cpp command_line.cpp)
    megacpp_options_of_commands(options)
    set_source_files_properties(${megacpp_sources}/commands.cpp ${megacpp_sources}/command_line.cpp
      PROPERTIES COMPILE_OPTIONS "${options}")
  endif()
  if(TARGET ${kernels})
    return()
  elseif(device STREQUAL "cpu")
    megacpp_optimise_sanitized(${megacpp_sources}/kernels.cpp ${megacpp_sources}/devices.cpp)
    megacpp_add_runless_library(${kernels} ${folder} on_cpu "${with}" "" kernels.cpp devices.cpp kernels.hpp)
  else()
    megacpp_add_on_cuda(${kernels} ${bodies} ${folder} "${with}")
  endif()
  # In megacpp's own build g++ reads the headers of the framework once for these and for the units of
  # runs: an edit of a run compiles its two units again, which had spent a fifth of their time on that.
  # A unit whose flags differ reads the headers itself. Programs of other projects may have sources and
  # such headers of their own, which would meet it; and what lies in it is not warned of.
  get_target_property(imported ${kernels} IMPORTED)
  if(megacpp_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT MEGACPP_SANITIZE
     AND NOT MEGACPP_WERROR AND NOT imported)
    target_precompile_headers(${kernels} PRIVATE <megacpp/megacpp.hpp> <megacpp/program.hpp>)
    set_target_properties(${kernels} PROPERTIES PCH_WARN_INVALID OFF)
  endif()
endfunction()

# Adds the libraries of a CUDA device and of its row bodies. cuDNN, NVTX and CUTLASS are defined for the one
# unit of the device: the headers that units of runs share are the same without them.
function(megacpp_add_on_cuda library bodies folder with)
  megacpp_add_cuda_bodies(${bodies} ${folder} cutlass)
  megacpp_find_cudnn(cudnn)
  megacpp_find_nvtx(nvtx)
  set(definitions)
  set(includes)
  set(links ${bodies} CUDA::cudart CUDA::cublasLt)
  if(cudnn)
    list(APPEND definitions MEGACPP_WITH_CUDNN=1)
    list(APPEND with "cuDNN ${cudnn}")
    list(APPEND includes ${MEGACPP_CUDNN_INCLUDE})
    list(APPEND links ${MEGACPP_CUDNN_LIBRARY})
  endif()
  if(nvtx)
    list(APPEND definitions MEGACPP_WITH_NVTX=1)
    list(APPEND with NVTX)
    list(APPEND includes ${nvtx})
    list(APPEND links ${CMAKE_DL_LIBS})
  endif()
  if(cutlass)
    list(APPEND definitions MEGACPP_WITH_CUTLASS="${cutlass}")
    list(APPEND with "CUTLASS ${cutlass}")
  endif()
  megacpp_add_runless_library(${library} ${folder} on_cuda "${with}" "${CUDAToolkit_VERSION}" cuda_devices.cpp)
  target_link_libraries(${library} INTERFACE ${links})
  get_target_property(imported ${library} IMPORTED)
  if(NOT imported)
    target_link_libraries(${library} PRIVATE CUDA::cudart CUDA::cublasLt)
    target_compile_definitions(${library} PRIVATE ${definitions})
    target_include_directories(${library} SYSTEM PRIVATE ${includes})
  endif()
endfunction()

# RESULT is the version of cuDNN, in which attention on GPUs is fast, or nothing: of CUDA's folders, or of
# CMAKE_PREFIX_PATH.
function(megacpp_find_cudnn result)
  set(${result} "" PARENT_SCOPE)
  if(NOT DEFINED MEGACPP_WITH_CUDNN OR "${MEGACPP_WITH_CUDNN}" STREQUAL "")
    set(MEGACPP_WITH_CUDNN AUTO)
  elseif(NOT "${MEGACPP_WITH_CUDNN}" MATCHES "^(AUTO|ON|OFF|TRUE|FALSE|YES|NO|Y|N|1|0)$")
    message(FATAL_ERROR "megacpp: MEGACPP_WITH_CUDNN is ${MEGACPP_WITH_CUDNN}, and must be AUTO, ON or OFF.")
  endif()
  if(NOT MEGACPP_WITH_CUDNN STREQUAL "AUTO" AND NOT MEGACPP_WITH_CUDNN)
    return()
  endif()
  find_path(MEGACPP_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(MEGACPP_CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 NAMES_PER_DIR HINTS ${CUDAToolkit_LIBRARY_DIR})
  mark_as_advanced(MEGACPP_CUDNN_INCLUDE MEGACPP_CUDNN_LIBRARY)
  set(version 0)
  if(MEGACPP_CUDNN_INCLUDE AND MEGACPP_CUDNN_LIBRARY)
    set(header ${MEGACPP_CUDNN_INCLUDE}/cudnn_version.h)
    if(EXISTS ${header})
      file(STRINGS ${header} lines REGEX "^#define CUDNN_(MAJOR|MINOR|PATCHLEVEL) ")
      string(REGEX REPLACE "[^;0-9]" "" numbers "${lines}")
      list(JOIN numbers "." version)
    endif()
  endif()
  if(version VERSION_GREATER_EQUAL 9.6)
    set(${result} ${version} PARENT_SCOPE)
    message(STATUS "megacpp: attention on GPUs by cuDNN ${version}, ${MEGACPP_CUDNN_LIBRARY}")
    return()
  endif()
  set(lacks "there is no cuDNN 9.6 or later")
  if(NOT version STREQUAL "0")
    string(APPEND lacks " (found: ${version})")
  endif()
  if(MEGACPP_WITH_CUDNN STREQUAL "AUTO")
    message(STATUS "megacpp: attention on GPUs by megacpp's own tiles, which are expected to be slower than cuDNN: ${lacks}; install it, or name its folder by CMAKE_PREFIX_PATH")
  else()
    message(FATAL_ERROR "megacpp: ${lacks}, and MEGACPP_WITH_CUDNN is ${MEGACPP_WITH_CUDNN}: install it, name its folder by CMAKE_PREFIX_PATH, or leave the variable out.")
  endif()
endfunction()

# RESULT is the folder of NVTX's headers, by which tools show tasks and nodes by name, or nothing. They are
# part of CUDA's toolkit.
function(megacpp_find_nvtx result)
  set(${result} "" PARENT_SCOPE)
  find_path(MEGACPP_NVTX_INCLUDE nvtx3/nvToolsExt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(MEGACPP_NVTX_INCLUDE)
  if(MEGACPP_NVTX_INCLUDE)
    set(${result} ${MEGACPP_NVTX_INCLUDE} PARENT_SCOPE)
  else()
    message(STATUS "megacpp: no ranges of NVTX: there is no nvtx3/nvToolsExt.h; install NVTX of CUDA's toolkit")
  endif()
endfunction()

# The executable: main, the run, and its kernels of generation; with them what knows no run: the command
# line, what its commands do, and kernels that no run shapes. A unit each, so that they build side by
# side and an edit of the run builds two of them alone.
function(megacpp_add_program name folder run_header run_struct device) # and headers of bodies
  set(main ${folder}/main.cpp)
  set(megacpp_kernels_elsewhere) # bodies for CUDA are but declared
  if(device STREQUAL "cpu")
    set(megacpp_kernels_elsewhere "#include \"${megacpp_sources}/kernels.hpp\"")
  endif()
  configure_file(${megacpp_sources}/main.cpp.in ${main} @ONLY)
  configure_file(${megacpp_sources}/run.cpp.in ${folder}/run.cpp @ONLY)
  configure_file(${megacpp_sources}/generation.cpp.in ${folder}/generation.cpp @ONLY)
  configure_file(${megacpp_sources}/check.cpp.in ${folder}/check.cpp @ONLY)
  add_library(${name}_check OBJECT EXCLUDE_FROM_ALL ${folder}/check.cpp)
  target_link_libraries(${name}_check PRIVATE megacpp::megacpp)
  add_executable(${name} ${main} ${folder}/run.cpp ${folder}/generation.cpp)
  megacpp_program_options(${name})
  megacpp_optimise_sanitized(${folder}/run.cpp)
  if(device STREQUAL "cuda")
    megacpp_find_cuda() # its targets are those of a folder
  endif()
  megacpp_add_runless(runless ${device})
  target_link_libraries(${name} PRIVATE ${runless})
  list(GET runless 1 kernels)
  get_target_property(precompiled ${kernels} PRECOMPILE_HEADERS)
  if(precompiled)
    target_precompile_headers(${name} REUSE_FROM ${kernels})
    set_target_properties(${name} PROPERTIES PCH_WARN_INVALID OFF)
    set_source_files_properties(${main} PROPERTIES SKIP_PRECOMPILE_HEADERS ON) # it needs none of them
  endif()
  if(device STREQUAL "cuda")
    list(GET runless 2 bodies)
    megacpp_add_own_bodies(${name} ${folder} ${bodies} ${ARGN})
  endif()
  megacpp_git_hash(hash)
  if(NOT hash)
    set(hash unknown)
  endif()
  set_property(SOURCE ${main} APPEND PROPERTY COMPILE_DEFINITIONS MEGACPP_GIT_HASH="${hash}")
endfunction()

# A program for CUDA: its units compute no rows, so that they are compiled as those of commands are; and the
# bodies that it starts and that the library BODIES lacks are compiled of these headers before it is linked.
function(megacpp_add_own_bodies name folder bodies) # header...
  megacpp_options_of_commands(options)
  target_compile_options(${name} PRIVATE ${options})
  # What the CPU's products need is left out.
  target_link_options(${name} PRIVATE LINKER:--as-needed "@${folder}/own_bodies.rsp")
  target_link_libraries(${name}_check PRIVATE CUDA::cudart)
  set(nvcc) # empty: there is none
  if(CUDAToolkit_NVCC_EXECUTABLE)
    # For the GPUs that the program tells of.
    get_target_property(architectures ${bodies} MEGACPP_ARCHITECTURES)
    megacpp_nvcc_command(nvcc ${architectures})
    list(JOIN nvcc "|" nvcc)
    # What g++ compiles the program with, nvcc does, too: a body has one layout.
    set(folders "$<TARGET_PROPERTY:${name},INCLUDE_DIRECTORIES>")
    set(defined "$<TARGET_PROPERTY:${name},COMPILE_DEFINITIONS>")
    string(APPEND nvcc "|-I$<JOIN:$<TARGET_PROPERTY:megacpp::megacpp,INTERFACE_INCLUDE_DIRECTORIES>,|-I>"
      "$<$<BOOL:${folders}>:|-I$<JOIN:${folders},|-I>>$<$<BOOL:${defined}>:|-D$<JOIN:${defined},|-D>>")
  endif()
  list(JOIN ARGN "|" headers)
  set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS ${ARGN})
  add_custom_command(TARGET ${name} PRE_LINK
    COMMAND ${CMAKE_COMMAND} -DPROGRAM=${name} "-DOBJECTS=$<JOIN:$<TARGET_OBJECTS:${name}>,|>"
      -DLIBRARY=$<TARGET_FILE:${bodies}> "-DHEADERS=${headers}" -DFOLDER=${folder} -DNM=${CMAKE_NM}
      "-DNVCC=${nvcc}" -P ${megacpp_scripts}/cuda_own_bodies.cmake
    VERBATIM)
endfunction()

# The tool that writes the run of a preset: one for all presets of a build, built when the first of them is.
function(megacpp_add_write_run)
  if(TARGET megacpp_write_run)
    return()
  endif()
  megacpp_compiled_with(with)
  megacpp_find_precompiled(built lacks write_run megacpp_write_run "${with}")
  if(built)
    add_executable(megacpp_write_run IMPORTED GLOBAL)
    set_target_properties(megacpp_write_run PROPERTIES IMPORTED_LOCATION ${built}/megacpp_write_run)
    return()
  endif()
  add_executable(megacpp_write_run EXCLUDE_FROM_ALL ${megacpp_sources}/write_run.cpp)
  target_link_libraries(megacpp_write_run PRIVATE megacpp::megacpp)
  target_compile_options(megacpp_write_run PRIVATE -O0)
  megacpp_record(megacpp_write_run ${CMAKE_BINARY_DIR}/megacpp_tools write_run "${with}" "" "" "" write_run.cpp)
endfunction()

# RESULT is the paths of headers that a function's BODIES names; WHERE begins the sentence about one that
# is not there.
function(megacpp_headers_of_bodies result where) # header...
  set(paths)
  foreach(header IN LISTS ARGN)
    get_filename_component(path "${header}" ABSOLUTE BASE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
    if(NOT EXISTS "${path}")
      message(FATAL_ERROR "${where} there is no header ${path}.")
    endif()
    list(APPEND paths ${path})
  endforeach()
  set(${result} ${paths} PARENT_SCOPE)
endfunction()

function(megacpp_add_run)
  cmake_parse_arguments(PARSE_ARGV 3 arg "" DEVICE BODIES)
  if(NOT DEFINED arg_DEVICE)
    set(arg_DEVICE cpu)
  endif()
  if(ARGC LESS 3 OR arg_UNPARSED_ARGUMENTS OR arg_KEYWORDS_MISSING_VALUES OR NOT arg_DEVICE MATCHES "^(cpu|cuda)$")
    list(JOIN ARGV " " given)
    message(FATAL_ERROR "megacpp_add_run(${given}): takes NAME HEADER STRUCT and nothing else but DEVICE cpu or DEVICE cuda, and BODIES with headers of row bodies, as in megacpp_add_run(my-gpt my_gpt.hpp my_gpt).")
  endif()
  megacpp_headers_of_bodies(bodies "megacpp_add_run(${ARGV0} ...):" ${arg_BODIES})
  set(name "${ARGV0}")
  set(header "${ARGV1}")
  set(struct "${ARGV2}")
  get_filename_component(run_header "${header}" ABSOLUTE BASE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
  if(NOT EXISTS "${run_header}")
    message(FATAL_ERROR "megacpp_add_run(${name} ...): there is no header ${run_header}.")
  endif()
  megacpp_add_program(${name} ${CMAKE_CURRENT_BINARY_DIR}/${name}.run ${run_header} ${struct} ${arg_DEVICE}
                      ${bodies})
endfunction()

# RESULT lists the values that words give the key KEY, as CMake spells it or as key=value. A value ends
# where the next key begins. A word with = is a value, such as a path, where the key before needs one.
function(megacpp_values_of result key) # word...
  set(values)
  set(reads OFF)
  set(needed OFF)
  foreach(word IN LISTS ARGN)
    set(script)
    if(NOT needed AND "${word}" MATCHES "^([a-z-]+)=(.*)$")
      if(CMAKE_MATCH_1 IN_LIST megacpp_script_keys)
        set(script ${CMAKE_MATCH_1})
      endif()
    endif()
    if("${word}" IN_LIST megacpp_build_keys)
      string(COMPARE EQUAL "${word}" ${key} reads)
      set(needed ON)
      if("${word}" IN_LIST megacpp_keys_alone)
        set(needed OFF)
      endif()
    elseif(script)
      set(reads OFF)
      if(script STREQUAL megacpp_script_of_${key})
        list(APPEND values "${CMAKE_MATCH_2}")
      endif()
    else()
      set(needed OFF)
      if(reads)
        list(APPEND values "${word}")
      endif()
    endif()
  endforeach()
  set(${result} "${values}" PARENT_SCOPE)
endfunction()

function(megacpp_add_preset name) # word...
  set(where "megacpp_add_preset(${name} ...):")
  foreach(key IN LISTS megacpp_keys_for_cmake)
    megacpp_values_of(value_of_${key} ${key} ${ARGN})
  endforeach()
  megacpp_headers_of_bodies(bodies "${where}" ${value_of_BODIES})
  set(config)
  if(value_of_HF_CONFIG)
    list(GET value_of_HF_CONFIG 0 config)
    get_filename_component(config "${config}" ABSOLUTE BASE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
    if(NOT EXISTS "${config}" OR IS_DIRECTORY "${config}")
      message(FATAL_ERROR "${where} HF_CONFIG names ${config}, which is no file; give the config.json of a model.")
    endif()
  endif()
  set(device cpu)
  if(value_of_DEVICE STREQUAL "cuda") # megacpp_write_run refuses what is neither
    set(device cuda)
  endif()
  string(REGEX REPLACE "[^A-Za-z0-9_]" "_" struct ${name})
  string(REGEX REPLACE "^([0-9])" "run_\\1" struct ${struct})
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${name}.run)
  set(words)
  foreach(word IN LISTS ARGN)
    string(APPEND words "${word}\n")
  endforeach()
  file(WRITE ${folder}/configured.words "${words}")
  file(COPY_FILE ${folder}/configured.words ${folder}/run.words ONLY_IF_DIFFERENT)
  megacpp_add_program(${name} ${folder} run.hpp ${struct} ${device} ${bodies})
  megacpp_add_write_run()
  add_custom_command(OUTPUT ${folder}/run.hpp
    COMMAND megacpp_write_run ${folder}/run.hpp ${struct} ${CMAKE_CURRENT_SOURCE_DIR} @${folder}/run.words
    DEPENDS ${folder}/run.words ${config} megacpp_write_run VERBATIM
    COMMENT "Writing the run of ${name}")
  foreach(target ${name} ${name}_check)
    target_sources(${target} PRIVATE ${folder}/run.hpp) # what their units include
  endforeach()
endfunction()
