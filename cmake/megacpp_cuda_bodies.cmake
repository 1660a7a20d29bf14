# What nvcc compiles of programs for GPUs: row bodies and, with CUTLASS, kernels of products of experts.
# They are the same for all runs: a library that may be precompiled (megacpp_precompiled.cmake).
include(${CMAKE_CURRENT_LIST_DIR}/megacpp_find_cutlass.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/megacpp_precompiled.cmake)
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
    find_path(MEGACPP_CUDA_CUDART_INCLUDE cuda_runtime_api.h HINTS ${megacpp_cuda_folders} PATH_SUFFIXES include)
    find_path(MEGACPP_CUDA_CUBLASLT_INCLUDE cublasLt.h HINTS ${megacpp_cuda_folders} PATH_SUFFIXES include)
    find_library(MEGACPP_CUDA_CUDART_LIBRARY NAMES cudart libcudart.so.13 libcudart.so.12 NAMES_PER_DIR
                 HINTS ${megacpp_cuda_folders} PATH_SUFFIXES lib64 lib)
    find_library(MEGACPP_CUDA_CUBLASLT_LIBRARY NAMES cublasLt libcublasLt.so.13 libcublasLt.so.12 NAMES_PER_DIR
                 HINTS ${megacpp_cuda_folders} PATH_SUFFIXES lib64 lib)
    mark_as_advanced(MEGACPP_CUDA_CUDART_INCLUDE MEGACPP_CUDA_CUBLASLT_INCLUDE MEGACPP_CUDA_CUDART_LIBRARY
                     MEGACPP_CUDA_CUBLASLT_LIBRARY)
    if(MEGACPP_CUDA_CUDART_INCLUDE)
      file(STRINGS ${MEGACPP_CUDA_CUDART_INCLUDE}/cuda_runtime_api.h megacpp_found
           REGEX "^#define CUDART_VERSION +[0-9]+")
      string(REGEX MATCH "[0-9]+" megacpp_found "${megacpp_found}") # 12080 is 12.8
      math(EXPR CUDAToolkit_VERSION_MAJOR "0${megacpp_found} / 1000")
      math(EXPR CUDAToolkit_VERSION_MINOR "0${megacpp_found} % 1000 / 10")
      set(CUDAToolkit_VERSION ${CUDAToolkit_VERSION_MAJOR}.${CUDAToolkit_VERSION_MINOR})
    endif()
    if(MEGACPP_CUDA_CUDART_INCLUDE AND MEGACPP_CUDA_CUBLASLT_INCLUDE AND MEGACPP_CUDA_CUDART_LIBRARY
       AND MEGACPP_CUDA_CUBLASLT_LIBRARY AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
      set(CUDAToolkit_INCLUDE_DIRS ${MEGACPP_CUDA_CUDART_INCLUDE} ${MEGACPP_CUDA_CUBLASLT_INCLUDE})
      list(REMOVE_DUPLICATES CUDAToolkit_INCLUDE_DIRS)
      get_filename_component(CUDAToolkit_LIBRARY_DIR ${MEGACPP_CUDA_CUDART_LIBRARY} DIRECTORY)
      set(CUDAToolkit_NVCC_EXECUTABLE "") # one in the cache is of another toolkit
      foreach(megacpp_library cudart cublasLt)
        string(TOUPPER ${megacpp_library} megacpp_found)
        if(NOT TARGET CUDA::${megacpp_library})
          add_library(CUDA::${megacpp_library} UNKNOWN IMPORTED)
          set_target_properties(CUDA::${megacpp_library} PROPERTIES
            IMPORTED_LOCATION ${MEGACPP_CUDA_${megacpp_found}_LIBRARY}
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

# Adds the library of bodies: a precompiled one, where it serves, or objects that nvcc compiles in FOLDER,
# with their record. Its property MEGACPP_ARCHITECTURES has the GPUs that it is for, which are those that a
# program tells of. CUTLASS is the version of CUTLASS whose kernels programs may use, or nothing.
function(megacpp_add_cuda_bodies library folder cutlass)
  megacpp_cuda_architectures(architectures)
  list(JOIN megacpp_nvcc_flags " " with)
  megacpp_find_precompiled(built lacks cuda_bodies libmegacpp_cuda_bodies.a "${with}" ${architectures})
  if(built)
    megacpp_take_cuda_bodies(${library} ${built} of_cutlass)
  elseif(NOT CUDAToolkit_NVCC_EXECUTABLE)
    message(FATAL_ERROR "megacpp: row bodies for GPUs have to be compiled, there is no nvcc, and ${lacks}: install nvcc of CUDA 12.8 or later, name its toolkit by -DCUDAToolkit_ROOT=..., or name by -DMEGACPP_PRECOMPILED=... the folder of precompiled libraries, which megacpp builds with -DMEGACPP_INSTALL_PRECOMPILED=cuda on a machine with nvcc.")
  else()
    message(STATUS "megacpp: nvcc compiles row bodies for GPUs: ${lacks}")
    megacpp_compile_cuda_bodies(${library} ${folder} of_cutlass "${with}" ${architectures})
  endif()
  target_link_libraries(${library} INTERFACE CUDA::cudart)
  set(${cutlass} "${of_cutlass}" PARENT_SCOPE)
endfunction()

# Adds the library of bodies that is precompiled in the folder BUILT; CUTLASS as above.
function(megacpp_take_cuda_bodies library built cutlass)
  include(${built}/record.cmake)
  list(JOIN built_architectures ", " for)
  message(STATUS "megacpp: row bodies for GPUs of architecture ${for} are precompiled, ${built}: nvcc compiles bodies of a run's own alone")
  megacpp_choice_of_cutlass(wanted megacpp)
  if(wanted STREQUAL "OFF")
    set(built_cutlass)
  elseif(built_cutlass)
    message(STATUS "megacpp: products of experts on GPUs by CUTLASS ${built_cutlass}, ${built}")
  else()
    message(STATUS "megacpp: products of experts on GPUs without CUTLASS: ${built} has no kernels of it")
  endif()
  add_library(${library} STATIC IMPORTED GLOBAL)
  set_target_properties(${library} PROPERTIES IMPORTED_LOCATION ${built}/libmegacpp_cuda_bodies.a
                        MEGACPP_ARCHITECTURES "${built_architectures}")
  set(${cutlass} "${built_cutlass}" PARENT_SCOPE)
endfunction()

# Adds the library of bodies that nvcc compiles in FOLDER for these ARCHITECTURES; CUTLASS as above. WITH is
# for the record.
function(megacpp_compile_cuda_bodies library folder cutlass with) # architecture...
  set(objects ${folder}/cuda_bodies)
  add_library(${library} STATIC EXCLUDE_FROM_ALL)
  set_target_properties(${library} PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME megacpp_cuda_bodies
                        MEGACPP_ARCHITECTURES "${ARGN}")
  file(MAKE_DIRECTORY ${objects})
  megacpp_add_cutlass(${library} ${objects} of_cutlass)
  megacpp_nvcc_command(nvcc ${ARGN})
  foreach(bodies ELEMENT=mc::bf16 ELEMENT=float ELEMENT=double SUM=float SUM=double "")
    set(definition)
    if(bodies)
      set(definition "-DMEGACPP_${bodies}")
    endif()
    string(MAKE_C_IDENTIFIER "bodies_${bodies}" file)
    megacpp_add_cuda_object(${library} ${objects}/${file}.o cuda_bodies.cu ${nvcc} ${definition})
  endforeach()
  megacpp_record(${library} ${folder} cuda_bodies "${with}" "${CUDAToolkit_VERSION}" "${ARGN}" "${of_cutlass}"
                 cuda_bodies.cu cuda_cutlass.cu)
  set(${cutlass} "${of_cutlass}" PARENT_SCOPE)
endfunction()

# Adds to a library the OBJECT that a command of nvcc compiles from a SOURCE of this folder.
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
