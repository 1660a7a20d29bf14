// megacpp_gpu --tune: measures in which way cuBLASLt computes products the fastest, and keeps that in
// a product table (product/cuda/product_table.hpp), which programs read.
#pragma once

#include "report.hpp"

#include <optional>
#include <string>

namespace gpu {

/// What the command line asks for.
struct tuning {
  std::string table; ///< the file
  std::string
      products;     ///< what `describe --json` of a program has printed; empty: layers of presets
  std::string json; ///< for the report; empty: none
  double seconds = 600; ///< after which no further product begins
  bool tf32 = false;    ///< fp32 is rounded
};

/// The words behind the program's name; nothing unless one of them is --tune. Throws mc::error.
std::optional<tuning> tuning_of(int argc, const char* const* argv);

/// Measures what the table does not have yet for this machine. The file is written after each product,
/// and is whole at any time. Returns the exit code.
int tune(const tuning& asked, figures facts);

} // namespace gpu
