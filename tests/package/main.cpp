// Uses headers of both halves and each library behind them.
#include <megacpp/config/config.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/num/dtype.hpp>

#include <fmt/format.h>
#include <Eigen/Core>
#include <boost/hana.hpp>
#include <nlohmann/json.hpp>

int main() {
  static_assert(mc::size_of(mc::dtype::bf16) == 2);
  const nlohmann::json j = {{"major", MEGACPP_VERSION_MAJOR}, {"minor", MEGACPP_VERSION_MINOR}};
  fmt::print("megacpp {}\n", j.dump());
  return boost::hana::length(boost::hana::make_tuple(1, 2)) == boost::hana::size_c<2> ? 0 : 1;
}
