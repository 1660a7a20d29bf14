# What the tests need besides (cmake/megacpp_dependencies.cmake).
find_package(Boost QUIET COMPONENTS unit_test_framework)
if(NOT TARGET Boost::unit_test_framework)
  megacpp_lack("Boost.Test for the tests" libboost-test-dev)
endif()
find_package(Python3 3.9 QUIET COMPONENTS Interpreter)
if(NOT Python3_FOUND)
  megacpp_lack("Python 3.9 or later for the tests" python3)
endif()
