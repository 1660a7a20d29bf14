# This script writes the record of a library of row bodies (megacpp_cuda_bodies.cmake) after the library
# was built. The headers that nvcc read stand in the files of dependencies beside its objects.
#
#   cmake -DFOLDER=folder -DARCHITECTURES=a;b -DTOOLKIT=version -DCUTLASS=version -P cuda_bodies_record.cmake
include(${CMAKE_CURRENT_LIST_DIR}/megacpp_cuda_bodies.cmake)
file(GLOB lists ${FOLDER}/*.o.d)
if(NOT CUTLASS)
  list(FILTER lists EXCLUDE REGEX cutlass_grouped) # left by an earlier build
endif()
set(headers)
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
        list(APPEND headers ${path})
      endif()
    endif()
  endforeach()
endforeach()
list(REMOVE_DUPLICATES headers)
list(SORT headers)
if(NOT headers)
  message(FATAL_ERROR "megacpp: nvcc named no header of ${megacpp_include} in ${FOLDER}: build the library again.")
endif()
megacpp_hash_of_bodies(hash ${headers})
file(WRITE ${FOLDER}/record.cmake "# libmegacpp_cuda_bodies.a was built for and from the following.
set(built_architectures ${ARCHITECTURES})
set(built_toolkit ${TOOLKIT})
set(built_cutlass ${CUTLASS})
set(built_hash ${hash})
set(built_headers ${headers})
")
