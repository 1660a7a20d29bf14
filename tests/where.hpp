// The folders of the sources and the fixtures. A single source of the build defines them, so that
// all others compile to the same result in every folder, and a compiler's cache finds them.
#pragma once

#include <string>

namespace test {
extern const std::string source_dir; ///< folder of this project
extern const std::string shared_dir; ///< folder of fixtures/ and data/; empty if there is none
} // namespace test
