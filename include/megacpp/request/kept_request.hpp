// The part of a request that a state keeps.
#pragma once

#include <megacpp/exec/product_shape.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/request/loop_request.hpp>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace mc {

/// Values that a request left open, and that have been decided since.
struct settled_values {
  const loop_request& loop;
  std::string data_kind; ///< "" where the data did not decide it
  product_type products = product_type::automatic;
};

/// The part of a request that its states keep: nothing. A class that makes requests from something
/// which a later run should take up again derives from it.
class kept_request {
public:
  virtual ~kept_request() = default;
  /// Adds fields to a state, from which a later run can make its request. Throws mc::error.
  virtual void keep(nlohmann::json& state, const settled_values&) const {
    state["flags"] = nlohmann::json::object();
    state["given"] = nlohmann::json::array();
  }
  /// Returns the values that a state would keep, by name, as reports may show them.
  virtual nlohmann::json shown(const settled_values&) const { return nlohmann::json::object(); }
  /// Returns a line for each value that follows from others and differs from that of a state.
  /// Throws mc::error(exit_code::model).
  virtual std::vector<std::string> derived_changes(const json_value&, const settled_values&) const {
    return {};
  }
};

} // namespace mc
