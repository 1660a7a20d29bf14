# Finds what megacpp needs and gathers it in megacpp::dependencies. Used by megacpp's own build and by its
# package configuration. All that is missing or too old is named in one sentence, with the Debian packages
# that hold it. Nothing is believed of the machine: what a library needs to be used is compiled and linked.

if(TARGET megacpp::dependencies)
  return()
endif()
if(POLICY CMP0167)
  cmake_policy(SET CMP0167 NEW) # Boost by its own package configuration
endif()

set(megacpp_links)
set(megacpp_definitions)
set(megacpp_includes)
set(megacpp_libraries) # with their versions, as precompiled libraries tell them (megacpp_precompiled.cmake)
set(megacpp_lacks) # what is missing, as words of a sentence
set(megacpp_packages) # of Debian and Ubuntu, which hold it

# megacpp_lack(WHAT PACKAGE...): notes what is missing.
macro(megacpp_lack what)
  list(APPEND megacpp_lacks "${what}")
  list(APPEND megacpp_packages ${ARGN})
endmacro()

# megacpp_require(WHAT VERSION PACKAGE TARGET ARGUMENT...): finds a CMake package; VERSION may be "".
macro(megacpp_require what version debian_package target)
  find_package(${what} ${version} QUIET ${ARGN})
  if(TARGET ${target} AND NOT "${${what}_FOUND}" STREQUAL "0")
    list(APPEND megacpp_links ${target})
    if(${what}_VERSION)
      list(APPEND megacpp_libraries "${what} ${${what}_VERSION}")
    endif()
  elseif("${${what}_CONSIDERED_VERSIONS}${${what}_VERSION}" MATCHES "[0-9]")
    megacpp_lack("${what} ${version} or later (found: ${${what}_CONSIDERED_VERSIONS}${${what}_VERSION})"
                 ${debian_package})
  else()
    megacpp_lack("${what}" ${debian_package})
  endif()
endmacro()

# megacpp_require_library(WHAT PACKAGE HEADER LIBRARY): finds what has no CMake package on Debian.
macro(megacpp_require_library what debian_package header library)
  find_path(MEGACPP_${what}_INCLUDE ${header})
  find_library(MEGACPP_${what}_LIBRARY ${library})
  mark_as_advanced(MEGACPP_${what}_INCLUDE MEGACPP_${what}_LIBRARY)
  if(NOT MEGACPP_${what}_INCLUDE AND NOT MEGACPP_${what}_LIBRARY)
    megacpp_lack("${what}" ${debian_package})
  elseif(NOT MEGACPP_${what}_INCLUDE)
    megacpp_lack("the header ${header} of ${what}" ${debian_package})
  elseif(NOT MEGACPP_${what}_LIBRARY)
    megacpp_lack("the library ${library} of ${what}" ${debian_package})
  else()
    list(APPEND megacpp_links ${MEGACPP_${what}_LIBRARY})
    list(APPEND megacpp_includes ${MEGACPP_${what}_INCLUDE})
  endif()
endmacro()

# megacpp_choice(VARIABLE): AUTO where nothing else is said.
macro(megacpp_choice variable)
  if(NOT DEFINED ${variable} OR "${${variable}}" STREQUAL "")
    set(${variable} AUTO)
  elseif(NOT "${${variable}}" MATCHES "^(AUTO|ON|OFF|TRUE|FALSE|YES|NO|Y|N|1|0)$")
    megacpp_lack("${variable}=${${variable}}, which must be AUTO, ON or OFF")
  endif()
endmacro()

foreach(megacpp_compiler IN ITEMS GNU=12=g++ Clang=14=clang++)
  string(REPLACE "=" ";" megacpp_compiler ${megacpp_compiler})
  list(GET megacpp_compiler 0 megacpp_id)
  list(GET megacpp_compiler 1 megacpp_version_needed)
  list(GET megacpp_compiler 2 megacpp_name)
  if(CMAKE_CXX_COMPILER_ID STREQUAL megacpp_id AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS megacpp_version_needed)
    string(REPLACE "clang++" "clang" megacpp_package ${megacpp_name})
    megacpp_lack("${megacpp_name} ${megacpp_version_needed} or later (${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_VERSION})"
                 ${megacpp_package}-${megacpp_version_needed})
  endif()
endforeach()

# The oldest versions are those of Debian 12.
set(THREADS_PREFER_PTHREAD_FLAG ON)
megacpp_require(Threads "" libc6-dev Threads::Threads)
megacpp_require(fmt 9 libfmt-dev fmt::fmt)
megacpp_require(Eigen3 3.4 libeigen3-dev Eigen3::Eigen)
megacpp_require(Boost 1.74 libboost-dev Boost::headers) # Hana
megacpp_require(nlohmann_json 3.11 nlohmann-json3-dev nlohmann_json::nlohmann_json)
megacpp_require_library(PCRE2 libpcre2-dev pcre2.h pcre2-8) # tokenizers
megacpp_require_library(utf8proc libutf8proc-dev utf8proc.h utf8proc)
megacpp_require_library(xxHash libxxhash-dev xxhash.h xxhash) # checksums of files
megacpp_require_library(OpenSSL libssl-dev openssl/hmac.h crypto) # proofs of ranks that meet

# oneDNN is searched by hand: the CMake package of Debian's libdnnl-dev insists on OpenCL.
set(megacpp_products "Eigen")
megacpp_choice(MEGACPP_WITH_ONEDNN)
if(MEGACPP_WITH_ONEDNN STREQUAL "AUTO" OR MEGACPP_WITH_ONEDNN)
  find_path(MEGACPP_ONEDNN_INCLUDE dnnl.h)
  find_library(MEGACPP_ONEDNN_LIBRARY dnnl)
  mark_as_advanced(MEGACPP_ONEDNN_INCLUDE MEGACPP_ONEDNN_LIBRARY MEGACPP_ONEDNN_WORKS)
  set(megacpp_onednn_lacks)
  if(NOT MEGACPP_ONEDNN_INCLUDE AND NOT MEGACPP_ONEDNN_LIBRARY)
    set(megacpp_onednn_lacks "oneDNN")
  elseif(NOT MEGACPP_ONEDNN_INCLUDE)
    set(megacpp_onednn_lacks "the headers of oneDNN (${MEGACPP_ONEDNN_LIBRARY} is there)")
  elseif(NOT MEGACPP_ONEDNN_LIBRARY)
    set(megacpp_onednn_lacks "the library of oneDNN (${MEGACPP_ONEDNN_INCLUDE}/dnnl.h is there)")
  elseif(NOT MEGACPP_ONEDNN_WORKS STREQUAL "${MEGACPP_ONEDNN_INCLUDE}, ${MEGACPP_ONEDNN_LIBRARY}")
    set(megacpp_probe ${CMAKE_BINARY_DIR}/CMakeFiles/megacpp_onednn)
    file(WRITE ${megacpp_probe}/probe.cpp "#include <dnnl.h>
#if DNNL_VERSION_MAJOR < 2 || (DNNL_VERSION_MAJOR == 2 && DNNL_VERSION_MINOR < 6)
#error too old
#endif
int main() {
  const dnnl_dims_t of = {1, 1};
#if DNNL_VERSION_MAJOR >= 3
  dnnl_memory_desc_t m = nullptr;
  return dnnl_memory_desc_create_with_strides(&m, 2, of, dnnl_f32, of);
#else
  dnnl_memory_desc_t m;
  return dnnl_memory_desc_init_by_strides(&m, 2, of, dnnl_f32, of);
#endif
}
")
    try_compile(megacpp_compiles ${megacpp_probe} ${megacpp_probe}/probe.cpp
                CMAKE_FLAGS -DINCLUDE_DIRECTORIES=${MEGACPP_ONEDNN_INCLUDE}
                LINK_LIBRARIES ${MEGACPP_ONEDNN_LIBRARY})
    if(megacpp_compiles)
      set(MEGACPP_ONEDNN_WORKS "${MEGACPP_ONEDNN_INCLUDE}, ${MEGACPP_ONEDNN_LIBRARY}" CACHE INTERNAL
          "the headers and the library of oneDNN that were compiled and linked")
    else()
      set(megacpp_onednn_lacks "oneDNN 2.6 or later, whose headers and library fit each other (${MEGACPP_ONEDNN_INCLUDE}/dnnl.h and ${MEGACPP_ONEDNN_LIBRARY} do not compile and link)")
    endif()
  endif()
  if(NOT megacpp_onednn_lacks)
    list(APPEND megacpp_definitions MEGACPP_WITH_ONEDNN=1)
    list(APPEND megacpp_includes ${MEGACPP_ONEDNN_INCLUDE})
    list(APPEND megacpp_links ${MEGACPP_ONEDNN_LIBRARY})
    set(megacpp_products "oneDNN, ${MEGACPP_ONEDNN_LIBRARY}")
    file(GLOB megacpp_found ${MEGACPP_ONEDNN_INCLUDE}/dnnl_version.h
         ${MEGACPP_ONEDNN_INCLUDE}/oneapi/dnnl/dnnl_version.h)
    list(GET megacpp_found -1 megacpp_found) # the first one may but include the other
    file(STRINGS "${megacpp_found}" megacpp_found REGEX "define DNNL_VERSION_(MAJOR|MINOR) ")
    string(REGEX REPLACE "[^;0-9]" "" megacpp_found "${megacpp_found}")
    list(JOIN megacpp_found "." megacpp_found)
    list(APPEND megacpp_libraries "oneDNN ${megacpp_found}")
  elseif(NOT MEGACPP_WITH_ONEDNN STREQUAL "AUTO")
    megacpp_lack("${megacpp_onednn_lacks}, since MEGACPP_WITH_ONEDNN is ON" libdnnl-dev)
  elseif(NOT megacpp_onednn_lacks STREQUAL "oneDNN")
    string(APPEND megacpp_products ", for lack of ${megacpp_onednn_lacks}")
  endif()
endif()

# Ranks as processes (docs/parallelism.md). MPI's C functions; found by its C++ compiler wrapper, for a
# project may know no C. The target MPI::MPI_CXX exists where nothing was found, too.
set(megacpp_ranks "threads")
megacpp_choice(MEGACPP_WITH_MPI)
if(MEGACPP_WITH_MPI STREQUAL "AUTO" OR MEGACPP_WITH_MPI)
  # A wrapper that cannot compile, as of MPI whose headers were removed, would end FindMPI with an error.
  find_program(MPI_CXX_COMPILER NAMES mpicxx mpic++ mpicxx.openmpi mpicxx.mpich)
  set(megacpp_works 0)
  if(MPI_CXX_COMPILER)
    set(megacpp_probe ${CMAKE_BINARY_DIR}/CMakeFiles/megacpp_mpi)
    file(WRITE ${megacpp_probe}/probe.cpp "#include <mpi.h>\nint main() { return MPI_Finalize(); }\n")
    execute_process(COMMAND ${MPI_CXX_COMPILER} -o ${megacpp_probe}/probe ${megacpp_probe}/probe.cpp
                    RESULT_VARIABLE megacpp_works OUTPUT_QUIET ERROR_QUIET)
  endif()
  set(MPI_CXX_SKIP_MPICXX ON)
  if(megacpp_works EQUAL 0)
    find_package(MPI QUIET COMPONENTS CXX)
  endif()
  if(megacpp_works EQUAL 0 AND MPI_CXX_FOUND)
    list(APPEND megacpp_definitions MEGACPP_WITH_MPI=1)
    list(APPEND megacpp_links MPI::MPI_CXX)
    file(SHA256 ${MPI_CXX_HEADER_DIR}/mpi.h megacpp_found) # MPI's versions are not those of a library
    list(APPEND megacpp_libraries "MPI ${megacpp_found}")
    string(APPEND megacpp_ranks ", or processes by MPI ${MPI_CXX_VERSION}")
  elseif(NOT MEGACPP_WITH_MPI STREQUAL "AUTO")
    megacpp_lack("MPI whose programs compile and link, since MEGACPP_WITH_MPI is ON" libopenmpi-dev openmpi-bin)
  elseif(MPI_CXX_COMPILER OR MPIEXEC_EXECUTABLE)
    string(APPEND megacpp_ranks " (of MPI, mpi.h or its library is missing)")
  endif()
endif()

# Numbers of a run for Prometheus (docs/observing.md). Its CMake package refuses where a file of it is missing.
set(megacpp_observers "")
megacpp_choice(MEGACPP_WITH_PROMETHEUS)
if(MEGACPP_WITH_PROMETHEUS STREQUAL "AUTO" OR MEGACPP_WITH_PROMETHEUS)
  find_package(prometheus-cpp CONFIG QUIET)
  if(TARGET prometheus-cpp::pull)
    list(APPEND megacpp_definitions MEGACPP_WITH_PROMETHEUS=1)
    list(APPEND megacpp_links prometheus-cpp::pull)
    get_target_property(megacpp_found prometheus-cpp::pull LOCATION)
    file(REAL_PATH "${megacpp_found}" megacpp_found) # its package has no version, and its file's name has one
    list(APPEND megacpp_libraries "prometheus-cpp ${megacpp_found}")
    set(megacpp_observers "; numbers for Prometheus by ${megacpp_found}")
  elseif(NOT MEGACPP_WITH_PROMETHEUS STREQUAL "AUTO")
    megacpp_lack("prometheus-cpp, since MEGACPP_WITH_PROMETHEUS is ON" prometheus-cpp-dev)
  endif()
endif()

# Traces of a run and the status of a TrainJob, sent to servers (docs/observing.md).
megacpp_choice(MEGACPP_WITH_CURL)
if(MEGACPP_WITH_CURL STREQUAL "AUTO" OR MEGACPP_WITH_CURL)
  find_package(CURL 7.85 QUIET)
  if(CURL_FOUND)
    list(APPEND megacpp_definitions MEGACPP_WITH_CURL=1)
    list(APPEND megacpp_links CURL::libcurl)
    list(APPEND megacpp_libraries "libcurl ${CURL_VERSION_STRING}")
    string(APPEND megacpp_observers "; servers are told by libcurl ${CURL_VERSION_STRING}")
  elseif(NOT MEGACPP_WITH_CURL STREQUAL "AUTO")
    megacpp_lack("libcurl 7.85 or later, since MEGACPP_WITH_CURL is ON" libcurl4-openssl-dev)
  endif()
endif()

# What whoever includes this file needs besides.
if(megacpp_more_dependencies)
  include(${megacpp_more_dependencies})
endif()

if(megacpp_lacks)
  list(POP_BACK megacpp_lacks megacpp_last)
  string(REPLACE ";" ", " megacpp_sentence "${megacpp_lacks}")
  string(REGEX REPLACE "(.)$" "\\1 and " megacpp_sentence "${megacpp_sentence}")
  set(megacpp_sentence "megacpp lacks ${megacpp_sentence}${megacpp_last}")
  if(megacpp_packages)
    list(REMOVE_DUPLICATES megacpp_packages)
    string(REPLACE ";" " " megacpp_to_install "${megacpp_packages}")
    string(APPEND megacpp_sentence "; on Debian or Ubuntu: apt install ${megacpp_to_install}")
  endif()
  if(CMAKE_FIND_PACKAGE_NAME STREQUAL "megacpp") # inside find_package(megacpp)
    set(megacpp_FOUND FALSE)
    set(megacpp_NOT_FOUND_MESSAGE "${megacpp_sentence}.")
    return()
  endif()
  message(FATAL_ERROR "${megacpp_sentence}.")
endif()

if(NOT CMAKE_FIND_PACKAGE_NAME STREQUAL "megacpp" OR NOT megacpp_FIND_QUIETLY)
  message(STATUS "megacpp: matrix products by ${megacpp_products}; ranks are ${megacpp_ranks}${megacpp_observers}")
endif()

add_library(megacpp::dependencies INTERFACE IMPORTED)
set_target_properties(megacpp::dependencies PROPERTIES
  INTERFACE_LINK_LIBRARIES "${megacpp_links};${CMAKE_DL_LIBS}"
  INTERFACE_COMPILE_DEFINITIONS "${megacpp_definitions}"
  INTERFACE_INCLUDE_DIRECTORIES "${megacpp_includes}")
set_property(GLOBAL PROPERTY MEGACPP_LIBRARIES "${megacpp_libraries}")
