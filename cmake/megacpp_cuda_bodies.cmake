# What nvcc compiles of programs for GPUs: row bodies and, with CUTLASS, kernels of products of experts.
# They are the same for all runs, so that one library of them serves many build folders.
#
# A folder with such a library has two files: libmegacpp_cuda_bodies.a, and record.cmake, which
# sets what the library was built for and from:
#   built_architectures   those of its GPUs, as MEGACPP_CUDA_ARCHITECTURES lists them
#   built_toolkit         the version of CUDA's toolkit
#   built_cutlass         the version of CUTLASS whose kernels it has; empty: none
#   built_headers         the headers of megacpp that nvcc read
#   built_hash            their hash: a body has one layout on either side of a launch
include(${CMAKE_CURRENT_LIST_DIR}/megacpp_find_cutlass.cmake)
set(megacpp_scripts ${CMAKE_CURRENT_LIST_DIR} CACHE INTERNAL "Folder of this file")
get_filename_component(megacpp_include ${CMAKE_CURRENT_LIST_DIR}/../include REALPATH)
get_filename_component(megacpp_sources ${CMAKE_CURRENT_LIST_DIR}/../src REALPATH)
if(NOT EXISTS ${megacpp_include}/megacpp) # where megacpp is installed
  get_filename_component(megacpp_include ${CMAKE_CURRENT_LIST_DIR}/../../../include REALPATH)
  set(megacpp_sources ${CMAKE_CURRENT_LIST_DIR}/src)
endif()
set(megacpp_include ${megacpp_include} CACHE INTERNAL "Folder of megacpp's headers")
set(megacpp_sources ${megacpp_sources} CACHE INTERNAL "Folder of the sources of every program")
set(megacpp_nvcc_flags -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -Xcompiler=-ffp-contract=off
    CACHE INTERNAL "")
set(megacpp_include_flags
    "-I$<JOIN:$<TARGET_PROPERTY:megacpp::megacpp,INTERFACE_INCLUDE_DIRECTORIES>,;-I>" CACHE INTERNAL "")

# What programs for GPUs need of CUDA: its runtime and cuBLASLt. CMake's own search begins at nvcc, or at a
# file of the version that not every toolkit has; where it finds nothing, headers and libraries are enough.
macro(megacpp_find_cuda)
  find_package(CUDAToolkit 12.8 QUIET)
  if(NOT CUDAToolkit_FOUND OR NOT TARGET CUDA::cublasLt)
    set(megacpp_cuda_folders ${CUDAToolkit_ROOT} $ENV{CUDAToolkit_ROOT})
    if(NOT megacpp_cuda_folders)
      set(megacpp_cuda_folders $ENV{CUDA_PATH} /usr/local/cuda)
    endif()
    find_path(MEGACPP_CUDA_INCLUDE cuda_runtime_api.h HINTS ${megacpp_cuda_folders} PATH_SUFFIXES include)
    find_path(MEGACPP_CUBLASLT_INCLUDE cublasLt.h HINTS ${megacpp_cuda_folders} PATH_SUFFIXES include)
    find_library(MEGACPP_CUDART_LIBRARY NAMES cudart libcudart.so.13 libcudart.so.12 NAMES_PER_DIR
                 HINTS ${megacpp_cuda_folders} PATH_SUFFIXES lib64 lib)
    find_library(MEGACPP_CUBLASLT_LIBRARY NAMES cublasLt libcublasLt.so.13 libcublasLt.so.12 NAMES_PER_DIR
                 HINTS ${megacpp_cuda_folders} PATH_SUFFIXES lib64 lib)
    mark_as_advanced(MEGACPP_CUDA_INCLUDE MEGACPP_CUBLASLT_INCLUDE MEGACPP_CUDART_LIBRARY
                     MEGACPP_CUBLASLT_LIBRARY)
    if(MEGACPP_CUDA_INCLUDE)
      file(STRINGS ${MEGACPP_CUDA_INCLUDE}/cuda_runtime_api.h megacpp_found
           REGEX "^#define CUDART_VERSION +[0-9]+")
      string(REGEX MATCH "[0-9]+" megacpp_found "${megacpp_found}") # 12080 is 12.8
      math(EXPR CUDAToolkit_VERSION_MAJOR "0${megacpp_found} / 1000")
      math(EXPR CUDAToolkit_VERSION_MINOR "0${megacpp_found} % 1000 / 10")
      set(CUDAToolkit_VERSION ${CUDAToolkit_VERSION_MAJOR}.${CUDAToolkit_VERSION_MINOR})
    endif()
    if(MEGACPP_CUDA_INCLUDE AND MEGACPP_CUBLASLT_INCLUDE AND MEGACPP_CUDART_LIBRARY
       AND MEGACPP_CUBLASLT_LIBRARY AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
      set(CUDAToolkit_INCLUDE_DIRS ${MEGACPP_CUDA_INCLUDE} ${MEGACPP_CUBLASLT_INCLUDE})
      list(REMOVE_DUPLICATES CUDAToolkit_INCLUDE_DIRS)
      get_filename_component(CUDAToolkit_LIBRARY_DIR ${MEGACPP_CUDART_LIBRARY} DIRECTORY)
      set(CUDAToolkit_NVCC_EXECUTABLE "") # one in the cache is of another toolkit
      foreach(megacpp_library cudart cublasLt)
        string(TOUPPER ${megacpp_library} megacpp_found)
        if(NOT TARGET CUDA::${megacpp_library})
          add_library(CUDA::${megacpp_library} UNKNOWN IMPORTED)
          set_target_properties(CUDA::${megacpp_library} PROPERTIES
            IMPORTED_LOCATION ${MEGACPP_${megacpp_found}_LIBRARY}
            INTERFACE_INCLUDE_DIRECTORIES "${CUDAToolkit_INCLUDE_DIRS}")
        endif()
      endforeach()
    endif()
  endif()
  if(NOT TARGET CUDA::cublasLt)
    if(NOT CUDAToolkit_VERSION)
      set(CUDAToolkit_VERSION none)
    endif()
    message(FATAL_ERROR "megacpp: a program for DEVICE cuda needs CUDA's runtime and cuBLASLt, 12.8 or later, with their headers (found: ${CUDAToolkit_VERSION}): install CUDA's toolkit, name it by -DCUDAToolkit_ROOT=..., or use DEVICE cpu.")
  endif()
endmacro()

# RESULT is the architectures of the GPUs that programs are built for: those that
# MEGACPP_CUDA_ARCHITECTURES lists, or 90a, an H100 or H200.
function(megacpp_cuda_architectures result)
  if(NOT MEGACPP_CUDA_ARCHITECTURES)
    set(MEGACPP_CUDA_ARCHITECTURES 90a)
  endif()
  foreach(architecture IN LISTS MEGACPP_CUDA_ARCHITECTURES)
    if(NOT architecture MATCHES "^[1-9][0-9]+[af]?$")
      message(FATAL_ERROR "megacpp: MEGACPP_CUDA_ARCHITECTURES lists '${architecture}', which is no architecture of CUDA: write 90a for an H100 or H200, 80 for an A100, or several as in \"80;90a\".")
    endif()
  endforeach()
  set(${result} ${MEGACPP_CUDA_ARCHITECTURES} PARENT_SCOPE)
endfunction()

# RESULT is the command by which nvcc compiles for these ARCHITECTURES.
function(megacpp_nvcc_command result) # architecture...
  set(code)
  foreach(architecture IN LISTS ARGN)
    list(APPEND code -gencode=arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  set(${result} ${CUDAToolkit_NVCC_EXECUTABLE} ${megacpp_nvcc_flags} ${code} -ccbin=${CMAKE_CXX_COMPILER}
      PARENT_SCOPE)
endfunction()

# RESULT is a hash of how nvcc compiles bodies and of what it reads of megacpp for them, where that is these
# HEADERS, by their names in the folder of headers.
function(megacpp_hash_of_bodies result) # header...
  list(TRANSFORM ARGN PREPEND ${megacpp_include}/ OUTPUT_VARIABLE read)
  set(hashes ${megacpp_nvcc_flags})
  foreach(file IN LISTS read ITEMS ${megacpp_sources}/cuda_bodies.cu ${megacpp_sources}/cuda_cutlass.cu)
    set(hash none)
    if(EXISTS "${file}")
      file(SHA256 "${file}" hash)
    endif()
    list(APPEND hashes ${hash})
  endforeach()
  string(SHA256 hash "${hashes}")
  set(${result} ${hash} PARENT_SCOPE)
endfunction()

# RESULT is the folder of a library of bodies that is built already and serves programs for these
# ARCHITECTURES: of MEGACPP_CUDA_BODIES, or the one that was installed with megacpp. CUTLASS is the version
# whose kernels it has for them. Where no library serves, RESULT is empty and LACKS says why.
function(megacpp_find_cuda_bodies result cutlass lacks) # architecture...
  set(${result} "" PARENT_SCOPE)
  set(${cutlass} "" PARENT_SCOPE)
  set(folder "${MEGACPP_CUDA_BODIES}")
  if(folder STREQUAL "")
    set(folder ${megacpp_scripts}/cuda_bodies)
    if(NOT EXISTS ${folder})
      set(${lacks} "no library of them is installed with megacpp" PARENT_SCOPE)
      return()
    endif()
  elseif(NOT folder)
    set(${lacks} "MEGACPP_CUDA_BODIES is ${folder}" PARENT_SCOPE)
    return()
  endif()
  get_filename_component(folder "${folder}" ABSOLUTE)
  set(record ${folder}/record.cmake)
  set(why)
  if(EXISTS ${record} AND EXISTS ${folder}/libmegacpp_cuda_bodies.a)
    include(${record})
    if(NOT CMAKE_SCRIPT_MODE_FILE) # an edit of either has the library looked at again
      list(TRANSFORM built_headers PREPEND ${megacpp_include}/ OUTPUT_VARIABLE read)
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${record} ${read})
    endif()
    set(of_cutlass)
    if("90a" IN_LIST ARGN)
      set(of_cutlass ${built_cutlass})
    endif()
    set(missing ${ARGN})
    list(REMOVE_ITEM missing ${built_architectures})
    megacpp_hash_of_bodies(hash ${built_headers})
    megacpp_choice_of_cutlass(wanted megacpp)
    string(REGEX MATCH "^[0-9]+" release "${built_toolkit}")
    string(REGEX MATCH "^[0-9]+[.][0-9]+" minor_release "${built_toolkit}")
    if(NOT "${hash}" STREQUAL "${built_hash}")
      set(why "was built from other headers than those in ${megacpp_include}")
    elseif(missing)
      list(JOIN missing ", " missing)
      list(JOIN built_architectures ", " there)
      set(why "is for GPUs of architecture ${there}, and not for ${missing}")
    elseif(NOT CUDAToolkit_VERSION MATCHES "^${release}[.]" OR CUDAToolkit_VERSION VERSION_LESS minor_release)
      set(why "was built by CUDA ${built_toolkit}, which CUDA's runtime ${CUDAToolkit_VERSION} does not fit")
    elseif(wanted STREQUAL "ON" AND NOT of_cutlass)
      set(why "has no kernels of CUTLASS for these GPUs, and MEGACPP_WITH_CUTLASS is ON")
    endif()
  else()
    set(why "lacks libmegacpp_cuda_bodies.a or its record, record.cmake")
  endif()
  if(NOT why)
    set(${result} ${folder} PARENT_SCOPE)
    set(${cutlass} "${of_cutlass}" PARENT_SCOPE)
  elseif(MEGACPP_CUDA_BODIES)
    message(FATAL_ERROR "megacpp: the library of row bodies in ${folder} ${why}: build it again, name another one by MEGACPP_CUDA_BODIES, or leave the variable out.")
  else()
    set(${lacks} "the library that is installed with megacpp ${why}" PARENT_SCOPE)
  endif()
endfunction()

# Adds the library of bodies: one that is built already, where it serves, or objects that nvcc compiles in
# FOLDER, with their record. CUTLASS is the version of CUTLASS whose kernels programs may use, or nothing.
function(megacpp_add_cuda_bodies library folder cutlass)
  megacpp_cuda_architectures(architectures)
  megacpp_find_cuda_bodies(built of_cutlass lacks ${architectures})
  if(built)
    list(JOIN architectures ", " for)
    message(STATUS "megacpp: row bodies for GPUs of architecture ${for} are built already, ${built}: nvcc compiles bodies of a run's own alone")
    megacpp_choice_of_cutlass(wanted megacpp)
    if(wanted STREQUAL "OFF")
      set(of_cutlass)
    elseif(of_cutlass)
      message(STATUS "megacpp: products of experts on GPUs by CUTLASS ${of_cutlass}, ${built}")
    else()
      message(STATUS "megacpp: products of experts on GPUs without CUTLASS: ${built} has no kernels of it for these GPUs")
    endif()
    add_library(${library} STATIC IMPORTED GLOBAL)
    set_target_properties(${library} PROPERTIES IMPORTED_LOCATION ${built}/libmegacpp_cuda_bodies.a)
  elseif(NOT CUDAToolkit_NVCC_EXECUTABLE)
    message(FATAL_ERROR "megacpp: row bodies for GPUs have to be compiled, there is no nvcc, and ${lacks}: install nvcc of CUDA 12.8 or later, name its toolkit by -DCUDAToolkit_ROOT=..., or name by -DMEGACPP_CUDA_BODIES=... the folder of a library of them, which megacpp builds with -DMEGACPP_INSTALL_CUDA_BODIES=ON on a machine with nvcc.")
  else()
    message(STATUS "megacpp: nvcc compiles row bodies for GPUs: ${lacks}")
    add_library(${library} STATIC EXCLUDE_FROM_ALL)
    set_target_properties(${library} PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME megacpp_cuda_bodies
      ARCHIVE_OUTPUT_DIRECTORY $<1:${folder}>)
    file(MAKE_DIRECTORY ${folder})
    megacpp_add_cutlass(${library} ${folder} of_cutlass)
    megacpp_nvcc_command(nvcc ${architectures})
    foreach(bodies ELEMENT=mc::bf16 ELEMENT=float ELEMENT=double SUM=float SUM=double "")
      set(definition)
      if(bodies)
        set(definition "-DMEGACPP_${bodies}")
      endif()
      string(MAKE_C_IDENTIFIER "bodies_${bodies}" file)
      megacpp_add_cuda_object(${library} ${folder}/${file}.o cuda_bodies.cu ${nvcc} ${definition})
    endforeach()
    add_custom_command(TARGET ${library} POST_BUILD
      COMMAND ${CMAKE_COMMAND} -DFOLDER=${folder} "-DARCHITECTURES=${architectures}"
        -DTOOLKIT=${CUDAToolkit_VERSION} "-DCUTLASS=${of_cutlass}"
        -P ${megacpp_scripts}/cuda_bodies_record.cmake
      VERBATIM)
  endif()
  target_link_libraries(${library} INTERFACE CUDA::cudart)
  set(${cutlass} "${of_cutlass}" PARENT_SCOPE)
endfunction()

# Adds to a library the OBJECT that a command of nvcc compiles from a SOURCE of src/.
function(megacpp_add_cuda_object library object source) # command...
  get_filename_component(name ${object} NAME_WE)
  add_custom_command(OUTPUT ${object}
    COMMAND ${ARGN} "${megacpp_include_flags}" -MD -MF ${object}.d -c -o ${object} ${megacpp_sources}/${source}
    DEPENDS ${megacpp_sources}/${source} DEPFILE ${object}.d
    COMMAND_EXPAND_LISTS VERBATIM COMMENT "nvcc compiles ${name}")
  target_sources(${library} PRIVATE ${object})
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
endfunction()

# Adds CUTLASS's kernels of grouped products to a library, compiled in FOLDER, where CUTLASS is found and a
# GPU is asked for that runs them. VERSION is then that of CUTLASS, and empty otherwise.
function(megacpp_add_cutlass library folder version)
  set(${version} "" PARENT_SCOPE)
  megacpp_cuda_architectures(architectures)
  megacpp_wanted_cutlass(found megacpp "${architectures}")
  if(NOT found)
    return()
  endif()
  list(GET found 0 include)
  list(GET found 1 of_cutlass)
  megacpp_nvcc_command(nvcc 90a)
  megacpp_add_cuda_object(${library} ${folder}/cutlass_grouped.o cuda_cutlass.cu ${nvcc} -DNDEBUG -isystem ${include})
  set(${version} ${of_cutlass} PARENT_SCOPE)
endfunction()
