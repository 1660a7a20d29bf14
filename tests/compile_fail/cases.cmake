# What must not compile: one ctest for each case and compiler, and for the mutants of nn/ and
# model/. Sources in this folder that start with "// expect-error:" are cases; mutants_probe.cpp is
# the mutants' probe.

get_target_property(eigen_includes Eigen3::Eigen INTERFACE_INCLUDE_DIRECTORIES)
set(front_end_flags -std=c++20)
foreach(folder IN LISTS eigen_includes)
  list(APPEND front_end_flags -isystem ${folder})
endforeach()
list(TRANSFORM front_end_flags PREPEND "--flag=" OUTPUT_VARIABLE front_end)
list(PREPEND front_end --include ${PROJECT_SOURCE_DIR}/include)

set(front_ends ${CMAKE_CXX_COMPILER})
if(MEGACPP_CLANG AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND NOT MEGACPP_SHORT_TESTS)
  list(APPEND front_ends ${MEGACPP_CLANG})
endif()
if(MEGACPP_NVCC)
  list(APPEND front_ends ${MEGACPP_NVCC})
endif()

file(GLOB cases CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
list(FILTER cases EXCLUDE REGEX "/mutants_probe\\.cpp$")
set(allow)
if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/mutants_allowed.txt)
  set(allow --allow ${CMAKE_CURRENT_LIST_DIR}/mutants_allowed.txt)
endif()

# What one_layer.hpp includes is read once by each compiler that can keep what it has read.
add_custom_target(compile_fail_headers ALL)

foreach(compiler IN LISTS front_ends)
  get_filename_component(name ${compiler} NAME)
  string(REGEX REPLACE "^c\\+\\+$" "g++" name ${name})
  string(REGEX REPLACE "^(g\\+\\+|clang\\+\\+|nvcc).*" "\\1" name ${name})
  set(labels compile_fail)
  set(timeout 300)
  set(flags ${front_end})
  if(name STREQUAL "nvcc")
    list(APPEND labels slow)
    set(timeout 900) # it takes 3 minutes for a whole program on the slowest machines
    list(APPEND flags --flag=-arch=sm_90a --flag=--expt-relaxed-constexpr
         --flag=-ccbin=${CMAKE_CXX_COMPILER})
    set(read)
  else()
    set(header ${CMAKE_CURRENT_BINARY_DIR}/compile_fail/${name}/read_once.hpp)
    file(CONFIGURE OUTPUT ${header}
      CONTENT "#include <megacpp/model/gpt.hpp>\n#include <megacpp/run/program.hpp>\n")
    add_custom_command(OUTPUT ${header}.gch DEPFILE ${header}.d VERBATIM
      COMMAND ${compiler} ${front_end_flags} -I${PROJECT_SOURCE_DIR}/include -x c++-header
        -MD -MF ${header}.d -MT ${header}.gch -o ${header}.gch ${header})
    add_custom_target(compile_fail_headers_${name} DEPENDS ${header}.gch)
    add_dependencies(compile_fail_headers compile_fail_headers_${name})
    set(read --flag=-include --flag=${header})
  endif()

  set(tests)
  set(shard_of_self_test)
  if(name STREQUAL "nvcc")
    set(shard_of_self_test 3) # it takes half a minute
  endif()
  megacpp_in_shard(ours "${shard_of_self_test}" compile_fail_check_self_test_${name})
  if(ours)
    add_test(NAME compile_fail_check_self_test_${name}
      COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/check.py --self-test
        --compiler ${compiler} ${flags})
    list(APPEND tests compile_fail_check_self_test_${name})
  endif()
  if(NOT name STREQUAL "nvcc")
    add_test(NAME compile_fail_documented_${name}
      COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/documented.py ${PROJECT_SOURCE_DIR}
        --compiler ${compiler} ${flags})
    list(APPEND tests compile_fail_documented_${name})
  endif()
  # Each compiler reads the shard's cases, each half alone. But for a short run, one of them also reads
  # the wrong halves of the others, together in a third of the time; those that say "It stands alone"
  # it reads one by one.
  set(number 0)
  set(left 0)
  set(halves_left 0)
  set(together)
  foreach(case IN LISTS cases)
    get_filename_component(case_name ${case} NAME_WE)
    math(EXPR number "(${number} + 1) % ${shards}")
    set(of_shard OFF)
    if(MEGACPP_SHARD STREQUAL "" OR number EQUAL MEGACPP_SHARD)
      set(of_shard ON)
    endif()
    if(NOT of_shard AND (MEGACPP_SHORT_TESTS OR NOT compiler STREQUAL CMAKE_CXX_COMPILER))
      math(EXPR left "${left} + 1")
      continue()
    endif()
    file(STRINGS ${case} stands_alone REGEX "^// .*It stands alone")
    if(NOT of_shard AND NOT stands_alone)
      math(EXPR halves_left "${halves_left} + 1")
      list(APPEND together ${case})
      continue()
    endif()
    file(STRINGS ${case} host_only REGEX "^// .*Host compilers only")
    if(host_only AND name STREQUAL "nvcc")
      continue()
    endif()
    # The right halves of one_layer.hpp's cases are alike: one compiler reads them all.
    file(STRINGS ${case} one_layer REGEX "^#include \"one_layer.hpp\"")
    set(halves)
    if(one_layer)
      list(APPEND halves ${read})
    endif()
    if(NOT of_shard)
      math(EXPR halves_left "${halves_left} + 1")
      list(APPEND halves --wrong-only)
    elseif(one_layer AND NOT compiler STREQUAL CMAKE_CXX_COMPILER AND NOT MEGACPP_EXHAUSTIVE_TESTS)
      list(APPEND halves --wrong-only)
    endif()
    add_test(NAME compile_fail_${case_name}_${name}
      COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/check.py
        --compiler ${compiler} ${flags} ${halves} ${case})
    list(APPEND tests compile_fail_${case_name}_${name})
  endforeach()
  # In two parts, since each needs 2 GiB; neighbours by name share what is evaluated.
  list(LENGTH together count)
  math(EXPR half "(${count} + 1) / 2")
  foreach(part 1 2)
    if(count)
      math(EXPR begin "(${part} - 1) * ${half}")
      list(SUBLIST together ${begin} ${half} of_part)
      add_test(NAME compile_fail_together_${part}_of_2_${name}
        COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/check.py
          --compiler ${compiler} ${flags} ${read} --together ${of_part})
      list(APPEND tests compile_fail_together_${part}_of_2_${name})
    endif()
  endforeach()
  set_tests_properties(${tests} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout})
  if(left)
    set_property(GLOBAL APPEND PROPERTY megacpp_other_shards ${left}_of_compile_fail_under_${name})
  endif()
  if(halves_left)
    set_property(GLOBAL APPEND PROPERTY megacpp_other_shards
                 ${halves_left}_right_halves_of_compile_fail_under_${name})
  endif()

  if(NOT name STREQUAL "nvcc")
    add_test(NAME compile_fail_mutants_self_test_${name}
      COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/mutants.py --self-test
        --compiler ${compiler})
    set_tests_properties(compile_fail_mutants_self_test_${name} PROPERTIES
      LABELS "${labels}" TIMEOUT 300)
    # What is refused is no matter of the compiler. Evaluated by one, each mutant for itself, they take
    # a hundred times as long; the cases show what their errors look like.
    if(MEGACPP_EXHAUSTIVE_TESTS)
      add_test(NAME compile_fail_mutants_evaluated_${name}
        COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/mutants.py
          ${CMAKE_CURRENT_LIST_DIR}/mutants_probe.cpp --tree ${PROJECT_SOURCE_DIR}/include
          --compiler ${compiler} ${flags} --jobs 1 ${allow})
      set_tests_properties(compile_fail_mutants_evaluated_${name} PROPERTIES
        LABELS "${labels};slow" TIMEOUT 4800 COST 850)
    endif()
    if(compiler STREQUAL CMAKE_CXX_COMPILER)
      add_test(NAME compile_fail_mutants
        COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/mutants.py
          ${CMAKE_CURRENT_LIST_DIR}/mutants_probe.cpp --tree ${PROJECT_SOURCE_DIR}/include
          --compiler ${compiler} ${flags} --side-by-side ${allow})
      set_tests_properties(compile_fail_mutants PROPERTIES LABELS "${labels}" TIMEOUT 600)
    endif()
  endif()
endforeach()
