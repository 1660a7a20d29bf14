# Finds what megacpp needs and gathers it in megacpp::dependencies. Used by megacpp's own build and
# by its package configuration. What is missing is one sentence that says what to install.

if(TARGET megacpp::dependencies)
  return()
endif()

macro(megacpp_missing sentence)
  if(CMAKE_FIND_PACKAGE_NAME STREQUAL "megacpp") # inside find_package(megacpp)
    set(megacpp_FOUND FALSE)
    set(megacpp_NOT_FOUND_MESSAGE "${sentence}")
    return()
  else()
    message(FATAL_ERROR "${sentence}")
  endif()
endmacro()

macro(megacpp_require what debian_package target)
  find_package(${what} QUIET ${ARGN})
  if(NOT TARGET ${target})
    megacpp_missing("megacpp needs ${what}: on Debian or Ubuntu, apt install ${debian_package}.")
  endif()
  list(APPEND megacpp_links ${target})
endmacro()

if(POLICY CMP0167)
  cmake_policy(SET CMP0167 NEW) # Boost by its own package configuration
endif()

set(megacpp_links)
set(megacpp_definitions)
set(megacpp_includes)

set(THREADS_PREFER_PTHREAD_FLAG ON)
megacpp_require(Threads libc6-dev Threads::Threads)
megacpp_require(fmt libfmt-dev fmt::fmt)
megacpp_require(Eigen3 libeigen3-dev Eigen3::Eigen)
megacpp_require(Boost libboost-dev Boost::headers) # Hana
megacpp_require(CLI11 libcli11-dev CLI11::CLI11)
megacpp_require(nlohmann_json nlohmann-json3-dev nlohmann_json::nlohmann_json)

# Tokenizers: libraries without a CMake package on Debian.
macro(megacpp_require_library what debian_package header library)
  find_path(MEGACPP_${what}_INCLUDE ${header})
  find_library(MEGACPP_${what}_LIBRARY ${library})
  mark_as_advanced(MEGACPP_${what}_INCLUDE MEGACPP_${what}_LIBRARY)
  if(NOT MEGACPP_${what}_INCLUDE OR NOT MEGACPP_${what}_LIBRARY)
    megacpp_missing("megacpp needs ${what}: on Debian or Ubuntu, apt install ${debian_package}.")
  endif()
  list(APPEND megacpp_links ${MEGACPP_${what}_LIBRARY})
  list(APPEND megacpp_includes ${MEGACPP_${what}_INCLUDE})
endmacro()
megacpp_require_library(PCRE2 libpcre2-dev pcre2.h pcre2-8)
megacpp_require_library(utf8proc libutf8proc-dev utf8proc.h utf8proc)

# oneDNN is searched by hand: the CMake package of Debian's libdnnl-dev insists on OpenCL.
set(megacpp_products "Eigen")
if(NOT DEFINED MEGACPP_WITH_ONEDNN)
  set(MEGACPP_WITH_ONEDNN AUTO)
endif()
if(MEGACPP_WITH_ONEDNN STREQUAL "AUTO" OR MEGACPP_WITH_ONEDNN)
  find_path(MEGACPP_ONEDNN_INCLUDE oneapi/dnnl/dnnl.hpp)
  find_library(MEGACPP_ONEDNN_LIBRARY dnnl)
  mark_as_advanced(MEGACPP_ONEDNN_INCLUDE MEGACPP_ONEDNN_LIBRARY)
  if(MEGACPP_ONEDNN_INCLUDE AND MEGACPP_ONEDNN_LIBRARY)
    set(megacpp_definitions MEGACPP_WITH_ONEDNN=1)
    list(APPEND megacpp_includes ${MEGACPP_ONEDNN_INCLUDE})
    list(APPEND megacpp_links ${MEGACPP_ONEDNN_LIBRARY})
    set(megacpp_products "oneDNN, ${MEGACPP_ONEDNN_LIBRARY}")
  elseif(NOT MEGACPP_WITH_ONEDNN STREQUAL "AUTO")
    megacpp_missing("MEGACPP_WITH_ONEDNN is ON, and oneDNN was not found: on Debian or Ubuntu, apt install libdnnl-dev.")
  endif()
endif()
# Ranks as processes (docs/parallelism.md). MPI's C functions; found by its C++ compiler wrapper, for a
# project may know no C.
if(NOT DEFINED MEGACPP_WITH_MPI)
  set(MEGACPP_WITH_MPI AUTO)
endif()
set(megacpp_ranks "threads")
if(MEGACPP_WITH_MPI STREQUAL "AUTO" OR MEGACPP_WITH_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND) # the target MPI::MPI_CXX is there in any case
    list(APPEND megacpp_definitions MEGACPP_WITH_MPI=1)
    list(APPEND megacpp_links MPI::MPI_CXX)
    string(APPEND megacpp_ranks ", or processes by MPI ${MPI_CXX_VERSION}")
  elseif(NOT MEGACPP_WITH_MPI STREQUAL "AUTO")
    megacpp_missing("MEGACPP_WITH_MPI is ON, and MPI was not found: on Debian or Ubuntu, apt install libopenmpi-dev openmpi-bin.")
  endif()
endif()

if(NOT CMAKE_FIND_PACKAGE_NAME STREQUAL "megacpp" OR NOT megacpp_FIND_QUIETLY)
  message(STATUS "megacpp: matrix products by ${megacpp_products}; ranks are ${megacpp_ranks}")
endif()

add_library(megacpp::dependencies INTERFACE IMPORTED)
set_target_properties(megacpp::dependencies PROPERTIES
  INTERFACE_LINK_LIBRARIES "${megacpp_links};${CMAKE_DL_LIBS}"
  INTERFACE_COMPILE_DEFINITIONS "${megacpp_definitions}"
  INTERFACE_INCLUDE_DIRECTORIES "${megacpp_includes}")
