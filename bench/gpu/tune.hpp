// megacpp_gpu --tune: measures in which way cuBLASLt computes products fastest, and keeps the
// results in a product table (product/cuda/product_table.hpp), which programs read.
#pragma once

#include "report.hpp"

#include <optional>
#include <string>

namespace gpu {

/// The requests of the command line.
struct tuning {
  std::string table;    ///< file of the product table
  std::string products; ///< output of a program's `describe --json`; empty: layers of presets
  std::string json;     ///< file of the report; empty: none
  double seconds = 600; ///< time after which no further product begins
  bool tf32 = false;    ///< fp32 operands are rounded to tf32
};

/// Reads the arguments behind the program's name; nothing unless one of them is --tune. Throws
/// mc::error.
std::optional<tuning> tuning_of(int argc, const char* const* argv);

/// Measures the products that the table does not have yet for this machine. The file is written
/// after each product, and is complete at any time. Returns the exit code.
int tune(const tuning& asked, figures facts);

} // namespace gpu
