# Every public header compiles alone, in C++20 and C++23, and all of them together are linked from
# two units into one program: what is not inline shows as a duplicate symbol. Headers of
# kernel/cuda/ need nvcc and are compiled in slow/suites.cmake. Built by the tests below, not with
# everything else.

set(include_dir ${PROJECT_SOURCE_DIR}/include)
file(GLOB_RECURSE headers RELATIVE ${include_dir} CONFIGURE_DEPENDS ${include_dir}/megacpp/*.hpp)
list(FILTER headers EXCLUDE REGEX "/cuda/")
set(alone)
set(together)
foreach(header IN LISTS headers)
  # Twice: the second one must find #pragma once.
  set(unit ${CMAKE_CURRENT_BINARY_DIR}/headers/${header}.cpp)
  file(CONFIGURE OUTPUT ${unit} CONTENT "#include <${header}>\n#include <${header}>\n")
  list(APPEND alone ${unit})
  string(APPEND together "#include <${header}>\n")
endforeach()

foreach(standard 20 23)
  add_library(headers_alone_cxx${standard} OBJECT EXCLUDE_FROM_ALL ${alone})
  set_target_properties(headers_alone_cxx${standard} PROPERTIES CXX_STANDARD ${standard})
  target_link_libraries(headers_alone_cxx${standard} PRIVATE megacpp_own)
  target_compile_options(headers_alone_cxx${standard} PRIVATE -O0)
endforeach()

set(one ${CMAKE_CURRENT_BINARY_DIR}/headers/one.cpp)
set(two ${CMAKE_CURRENT_BINARY_DIR}/headers/two.cpp)
file(CONFIGURE OUTPUT ${one} CONTENT "${together}\nint two();\nint main() { return two(); }\n")
file(CONFIGURE OUTPUT ${two} CONTENT "${together}\nint two();\nint two() { return 0; }\n")
add_executable(headers_linked_twice EXCLUDE_FROM_ALL ${one} ${two})
target_link_libraries(headers_linked_twice PRIVATE megacpp_own)
target_compile_options(headers_linked_twice PRIVATE -O0)
