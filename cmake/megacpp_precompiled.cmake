# Libraries that know no run, and a tool, are the same for all programs that are compiled alike. They are
# compiled once for a folder of a project, or are precompiled: installed with megacpp
# (MEGACPP_INSTALL_PRECOMPILED), or in the folder that MEGACPP_PRECOMPILED names.
#
# A folder of precompiled libraries has a folder for each, with the library and its record, record.cmake,
# which sets:
#   built_with            the compiler, its options, what it knows of the processor, libraries with versions
#   built_toolkit         the version of CUDA's toolkit; empty: none
#   built_architectures   GPUs, as MEGACPP_CUDA_ARCHITECTURES lists them; empty: no code for GPUs
#   built_cutlass         the version of CUTLASS whose kernels it has; empty: none
#   built_sources         of src/
#   built_headers         of megacpp: those that nvcc read; otherwise all that g++ could read
#   built_hash            the hash of sources and headers: a type has one layout in all units of a program
# A library whose record does not agree with a program is not linked with it.
set(megacpp_scripts ${CMAKE_CURRENT_LIST_DIR} CACHE INTERNAL "Folder of this file")
get_filename_component(megacpp_include ${CMAKE_CURRENT_LIST_DIR}/../include REALPATH)
get_filename_component(megacpp_sources ${CMAKE_CURRENT_LIST_DIR}/../src REALPATH)
if(NOT EXISTS ${megacpp_include}/megacpp) # where megacpp is installed
  get_filename_component(megacpp_include ${CMAKE_CURRENT_LIST_DIR}/../../../include REALPATH)
  set(megacpp_sources ${CMAKE_CURRENT_LIST_DIR}/src)
endif()
set(megacpp_include ${megacpp_include} CACHE INTERNAL "Folder of megacpp's headers")
set(megacpp_sources ${megacpp_sources} CACHE INTERNAL "Folder of the sources of every program")

# RESULT is the option that names the processor to compile for, or nothing. An installed package says what
# that is where a project does not (megacpp_march_of_package); everything else is compiled for this processor.
function(megacpp_march result)
  set(march -march=native)
  if(megacpp_march_of_package)
    set(march -march=${megacpp_march_of_package})
  endif()
  if(DEFINED MEGACPP_MARCH)
    set(march)
    if(MEGACPP_MARCH)
      set(march -march=${MEGACPP_MARCH})
    endif()
  endif()
  set(${result} ${march} PARENT_SCOPE)
endfunction()

# RESULT lists what libraries of this folder are compiled with, as a record has it: the compiler, the
# options that the folder gives to all its targets, the libraries that megacpp found, and the macros by
# which the compiler tells what the processor has. Options of warnings change nothing.
function(megacpp_compiled_with result)
  set(standard 20)
  if(CMAKE_CXX_STANDARD MATCHES "^2[1-9]$")
    set(standard ${CMAKE_CXX_STANDARD})
  endif()
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  separate_arguments(options NATIVE_COMMAND "-std=c++${standard} ${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}}")
  get_directory_property(more COMPILE_OPTIONS)
  get_directory_property(definitions COMPILE_DEFINITIONS)
  list(TRANSFORM definitions PREPEND -D)
  list(APPEND options ${more} ${definitions})
  list(FILTER options EXCLUDE REGEX "^(-W[^,]*|-w|-pedantic.*|-pipe|-fdiagnostics-.*)$")
  list(JOIN options " " text)
  list(FILTER options EXCLUDE REGEX "[$]<")
  megacpp_march(march)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} ${options} ${march} -dM -E -x c++ /dev/null
                  OUTPUT_VARIABLE known ERROR_QUIET)
  string(REGEX MATCHALL "#define [A-Z0-9_]+ 1\n" known "${known}")
  list(TRANSFORM known REPLACE "#define ([A-Z0-9_]+) 1\n" "\\1")
  list(SORT known)
  get_property(libraries GLOBAL PROPERTY MEGACPP_LIBRARIES)
  set(${result} "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" "options ${text}" ${libraries} ${known}
      PARENT_SCOPE)
endfunction()

# RESULT is the hash of the sources and headers that the record in scope names.
function(megacpp_hash_of_built result)
  list(TRANSFORM built_sources PREPEND ${megacpp_sources}/ OUTPUT_VARIABLE sources)
  list(TRANSFORM built_headers PREPEND ${megacpp_include}/ OUTPUT_VARIABLE headers)
  set(hashes)
  foreach(file IN LISTS sources headers)
    set(hash none)
    if(EXISTS "${file}")
      file(SHA256 "${file}" hash)
    endif()
    list(APPEND hashes ${hash})
  endforeach()
  string(SHA256 hash "${hashes}")
  set(${result} ${hash} PARENT_SCOPE)
  if(NOT CMAKE_SCRIPT_MODE_FILE) # an edit has the library looked at again
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${sources} ${headers})
  endif()
endfunction()

# RESULT names the first items of the list ALL that are not in the list OTHER, and is empty if there is none.
function(megacpp_items_without result all other)
  set(items ${all})
  list(REMOVE_ITEM items ${other})
  list(LENGTH items count)
  if(count GREATER 4)
    list(SUBLIST items 0 4 items)
    list(APPEND items "...")
  endif()
  list(JOIN items ", " items)
  set(${result} "${items}" PARENT_SCOPE)
endfunction()

# RESULT says why the library whose record is in scope does not serve programs that are compiled WITH this
# and that want GPUs of these ARCHITECTURES; it is empty where the library serves them.
function(megacpp_misfit result with) # architecture...
  set(why)
  megacpp_hash_of_built(hash)
  megacpp_items_without(there "${built_with}" "${with}")
  megacpp_items_without(here "${with}" "${built_with}")
  set(missing)
  if(built_architectures)
    set(missing ${ARGN})
    list(REMOVE_ITEM missing ${built_architectures})
  endif()
  string(REGEX MATCH "^[0-9]+" release "${built_toolkit}")
  string(REGEX MATCH "^[0-9]+[.][0-9]+" minor_release "${built_toolkit}")
  if(NOT "${hash}" STREQUAL "${built_hash}")
    set(why "was built from other headers than those in ${megacpp_include}")
  elseif(there AND here)
    set(why "was built with ${there} in place of ${here}")
  elseif(there)
    set(why "was built with ${there}, which this build has not")
  elseif(here)
    set(why "was built without ${here}, which this build has")
  elseif(missing)
    list(JOIN missing ", " missing)
    list(JOIN built_architectures ", " there)
    set(why "is for GPUs of architecture ${there}, and not for ${missing}")
  elseif(built_toolkit AND (NOT CUDAToolkit_VERSION MATCHES "^${release}[.]"
                            OR CUDAToolkit_VERSION VERSION_LESS minor_release))
    set(why "was built by CUDA ${built_toolkit}, which CUDA's runtime ${CUDAToolkit_VERSION} does not fit")
  elseif(built_architectures AND NOT built_cutlass)
    megacpp_choice_of_cutlass(wanted megacpp)
    if(wanted STREQUAL "ON")
      set(why "has no kernels of CUTLASS, and MEGACPP_WITH_CUTLASS is ON")
    endif()
  endif()
  set(${result} "${why}" PARENT_SCOPE)
endfunction()

# RESULT is the folder of the precompiled library NAME, whose file is called FILE, where it serves programs
# that are compiled WITH this and that want GPUs of these ARCHITECTURES. Otherwise RESULT is empty and LACKS
# says why, which is an error where MEGACPP_PRECOMPILED names the folder.
function(megacpp_find_precompiled result lacks name file with) # architecture...
  set(${result} "" PARENT_SCOPE)
  set(all "${MEGACPP_PRECOMPILED}")
  if(all STREQUAL "")
    set(all ${megacpp_scripts}/precompiled)
    if(NOT EXISTS ${all}/${name})
      set(${lacks} "no precompiled library is installed with megacpp" PARENT_SCOPE)
      return()
    endif()
  elseif(NOT all)
    set(${lacks} "MEGACPP_PRECOMPILED is ${all}" PARENT_SCOPE)
    return()
  endif()
  get_filename_component(folder "${all}/${name}" ABSOLUTE)
  set(why "lacks ${file} or its record, record.cmake")
  if(EXISTS ${folder}/record.cmake AND EXISTS ${folder}/${file})
    include(${folder}/record.cmake)
    megacpp_misfit(why "${with}" ${ARGN})
    if(NOT CMAKE_SCRIPT_MODE_FILE)
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${folder}/record.cmake)
    endif()
  endif()
  if(NOT why)
    set(${result} ${folder} PARENT_SCOPE)
  elseif(MEGACPP_PRECOMPILED)
    message(FATAL_ERROR "megacpp: the precompiled library ${folder} ${why}: build it again, name another folder by MEGACPP_PRECOMPILED, or leave the variable out.")
  else()
    set(${lacks} "the library that is installed with megacpp ${why}" PARENT_SCOPE)
  endif()
endfunction()

# Has the build write the record of a library NAME beside it, in FOLDER/NAME, with these values of the
# record: WITH, TOOLKIT, ARCHITECTURES, CUTLASS. The sources follow.
function(megacpp_record library folder name with toolkit architectures cutlass) # source...
  set(sources ${ARGN})
  set(settings)
  foreach(what with toolkit architectures cutlass sources)
    string(APPEND settings "set(built_${what} [==[${${what}}]==])\n")
  endforeach()
  file(CONFIGURE OUTPUT ${folder}/${name}/settings.cmake CONTENT "${settings}" @ONLY)
  set_target_properties(${library} PROPERTIES MEGACPP_PRECOMPILED ${name}
    ARCHIVE_OUTPUT_DIRECTORY $<1:${folder}/${name}> RUNTIME_OUTPUT_DIRECTORY $<1:${folder}/${name}>)
  add_custom_command(TARGET ${library} POST_BUILD
    COMMAND ${CMAKE_COMMAND} -DFOLDER=${folder}/${name} -P ${megacpp_scripts}/precompiled_record.cmake VERBATIM)
endfunction()

# Adds the library NAME of what knows no run: a precompiled one, where it serves, or these sources of
# megacpp, compiled in FOLDER. CUDA is what the record says of CUDA's toolkit.
function(megacpp_add_runless_library library folder name with cuda) # source...
  set(file libmegacpp_${name}.a)
  megacpp_find_precompiled(built lacks ${name} ${file} "${with}")
  if(built)
    message(STATUS "megacpp: ${name}: precompiled, ${built}")
    add_library(${library} STATIC IMPORTED GLOBAL)
    set_target_properties(${library} PROPERTIES IMPORTED_LOCATION ${built}/${file})
    target_link_libraries(${library} INTERFACE megacpp::megacpp)
    return()
  elseif(lacks MATCHES "^the library")
    message(STATUS "megacpp: ${name}: compiled in this build, since ${lacks}")
  endif()
  list(TRANSFORM ARGN PREPEND ${megacpp_sources}/ OUTPUT_VARIABLE sources)
  list(FILTER sources INCLUDE REGEX "[.]cpp$")
  add_library(${library} STATIC EXCLUDE_FROM_ALL ${sources})
  set_target_properties(${library} PROPERTIES OUTPUT_NAME megacpp_${name})
  megacpp_record(${library} ${folder} ${name} "${with}" "${cuda}" "" "" ${ARGN})
  megacpp_program_options(${library})
endfunction()

# Has this build install what programs for these DEVICES, cpu or cuda, have in common.
function(megacpp_install_precompiled) # device...
  set(MEGACPP_PRECOMPILED OFF) # all of it is compiled
  set(libraries megacpp_write_run)
  megacpp_add_write_run()
  foreach(device IN LISTS ARGN)
    if(NOT device MATCHES "^(cpu|cuda)$")
      message(FATAL_ERROR "megacpp: MEGACPP_INSTALL_PRECOMPILED lists '${device}', and may list cpu and cuda.")
    elseif(device STREQUAL "cuda")
      megacpp_find_cuda()
    endif()
    megacpp_add_runless(runless ${device})
    list(APPEND libraries ${runless})
  endforeach()
  list(REMOVE_DUPLICATES libraries)
  foreach(library IN LISTS libraries)
    get_target_property(name ${library} MEGACPP_PRECOMPILED)
    set_target_properties(${library} PROPERTIES EXCLUDE_FROM_ALL OFF)
    install(TARGETS ${library} DESTINATION lib/cmake/megacpp/precompiled/${name})
    install(FILES $<TARGET_FILE_DIR:${library}>/record.cmake DESTINATION lib/cmake/megacpp/precompiled/${name})
  endforeach()
  set_target_properties(megacpp-data PROPERTIES EXCLUDE_FROM_ALL OFF)
endfunction()
