# Every public header compiles alone. All of them together are linked from two units into one program,
# where what is not inline shows as a duplicate symbol; one unit has them in alphabetical order and
# one in the opposite order, since what one header names must not hide what another one uses. The
# latter, and a program, compile in C++23, too. Headers of kernel/cuda/ need nvcc and are compiled in
# slow/suites.cmake. Not built with everything else.

set(include_dir ${PROJECT_SOURCE_DIR}/include)
file(GLOB_RECURSE headers RELATIVE ${include_dir} CONFIGURE_DEPENDS ${include_dir}/megacpp/*.hpp)
list(FILTER headers EXCLUDE REGEX "/cuda/")
set(alone)
set(together)
set(backwards)
foreach(header IN LISTS headers)
  # Twice: the second one must find #pragma once.
  set(unit ${CMAKE_CURRENT_BINARY_DIR}/headers/${header}.cpp)
  file(CONFIGURE OUTPUT ${unit} CONTENT "#include <${header}>\n#include <${header}>\n")
  list(APPEND alone ${unit})
  string(APPEND together "#include <${header}>\n")
  string(PREPEND backwards "#include <${header}>\n")
endforeach()

set(one ${CMAKE_CURRENT_BINARY_DIR}/headers/one.cpp)
set(two ${CMAKE_CURRENT_BINARY_DIR}/headers/two.cpp)
file(CONFIGURE OUTPUT ${one} CONTENT "${together}\nint two();\nint main() { return two(); }\n")
file(CONFIGURE OUTPUT ${two} CONTENT "${backwards}\nint two();\nint two() { return 0; }\n")
add_executable(headers_linked_twice EXCLUDE_FROM_ALL ${one} ${two})
add_library(headers_alone_cxx20 OBJECT EXCLUDE_FROM_ALL ${alone})
add_library(headers_alone_cxx23 OBJECT EXCLUDE_FROM_ALL ${alone})
add_library(headers_together_cxx23 OBJECT EXCLUDE_FROM_ALL ${two} # clang-tidy reads one.cpp, in C++20
            ${CMAKE_CURRENT_SOURCE_DIR}/cli/tiny_gpt.cpp)
set_target_properties(headers_alone_cxx23 headers_together_cxx23 PROPERTIES CXX_STANDARD 23)
foreach(target headers_alone_cxx20 headers_alone_cxx23 headers_together_cxx23 headers_linked_twice)
  target_link_libraries(${target} PRIVATE megacpp_own)
  target_compile_options(${target} PRIVATE -O0)
endforeach()
