// Where the sources and the fixtures lie. One source of the build says so, so that the others are compiled
// alike in every folder, and a compiler's cache knows them again.
#pragma once

#include <string>

namespace test {
extern const std::string source_dir; ///< of this project
extern const std::string shared_dir; ///< of fixtures/ and data/; empty where there is none
} // namespace test
