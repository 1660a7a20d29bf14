# Every public header compiles alone. All of them together are linked from two units into one program,
# where what is not inline shows as a duplicate symbol; one unit has them in alphabetical order and
# one in the opposite order, since what one header names must not hide what another one uses. The
# latter, and a program, compile in C++23, too. Headers of a folder cuda/ need CUDA's and are compiled in
# slow/suites.cmake, where these tests are. Not built with everything else.

set(include_dir ${PROJECT_SOURCE_DIR}/include)
file(GLOB_RECURSE headers RELATIVE ${include_dir} CONFIGURE_DEPENDS ${include_dir}/megacpp/*.hpp)
list(FILTER headers EXCLUDE REGEX "/cuda/")
set(alone ${headers})
list(TRANSFORM alone PREPEND ${include_dir}/)
set(together)
set(backwards)
foreach(header IN LISTS headers)
  string(APPEND together "#include <${header}>\n")
  string(PREPEND backwards "#include <${header}>\n")
endforeach()

set(one ${CMAKE_CURRENT_BINARY_DIR}/headers/one.cpp) # clang-tidy reads it
set(two ${CMAKE_CURRENT_BINARY_DIR}/headers/two.cpp)
file(CONFIGURE OUTPUT ${one} CONTENT "${together}\nint two();\nint main() { return two(); }\n")
file(CONFIGURE OUTPUT ${two} CONTENT "${backwards}\nint two();\nint two() { return 0; }\n")
add_executable(headers_linked_twice EXCLUDE_FROM_ALL ${one} ${two})
target_link_libraries(headers_linked_twice PRIVATE megacpp_own)
target_compile_options(headers_linked_twice PRIVATE -O0)
