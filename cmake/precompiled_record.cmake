# This script writes the record of a library (megacpp_precompiled.cmake) after the library was built in
# FOLDER, where settings.cmake has what was known before. The headers that nvcc read stand in the lists of
# dependencies beside its objects. g++'s lists are not kept by every generator, and g++ reads most headers:
# all of them are named, but for those of GPUs where the library is for none.
#
#   cmake -DFOLDER=folder -P precompiled_record.cmake
include(${CMAKE_CURRENT_LIST_DIR}/megacpp_precompiled.cmake)
file(READ ${FOLDER}/settings.cmake settings)
include(${FOLDER}/settings.cmake)
set(built_headers)
if(built_architectures)
  file(GLOB lists ${FOLDER}/*.o.d)
  if(NOT built_cutlass)
    list(FILTER lists EXCLUDE REGEX cutlass_grouped) # left by an earlier build
  endif()
  foreach(list IN LISTS lists)
    file(READ ${list} read)
    string(REPLACE "\\ " "\t" read "${read}") # within a path
    string(REGEX MATCHALL "/[^ \n]+" read "${read}")
    foreach(path IN LISTS read)
      if(path MATCHES "/megacpp/")
        string(REPLACE "\t" " " path "${path}")
        file(REAL_PATH "${path}" path)
        file(RELATIVE_PATH path ${megacpp_include} "${path}")
        if(NOT path MATCHES "^[.][.]/")
          list(APPEND built_headers ${path})
        endif()
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES built_headers)
  list(SORT built_headers)
else()
  file(GLOB_RECURSE built_headers RELATIVE ${megacpp_include} ${megacpp_include}/megacpp/*.hpp ${megacpp_include}/megacpp/*.inc)
  if(NOT built_toolkit)
    list(FILTER built_headers EXCLUDE REGEX /cuda/)
  endif()
endif()
if(NOT built_headers)
  message(FATAL_ERROR "megacpp: the compiler named no header of ${megacpp_include} in ${FOLDER}: build the library again.")
endif()
megacpp_hash_of_built(hash)
file(WRITE ${FOLDER}/record.cmake "# The library beside this file was built with and from the following.
${settings}set(built_hash ${hash})
set(built_headers ${built_headers})
")
