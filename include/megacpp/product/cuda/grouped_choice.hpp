// The choice of a library that computes the products of all groups of a shape by one kernel.
#pragma once

#include <megacpp/product/cuda/device_check.hpp>
#include <megacpp/product/cuda/grouped_product.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mc {

/// The libraries of grouped products, in the order in which they are tried.
class grouped_choice {
public:
  /// Begins with no library. `tell` is called for the first kernel that fails its check.
  grouped_choice(device_check& checks, void (*tell)(std::string_view))
      : checks_(checks), tell_(tell) {}
  /// Adds a library of grouped products, unless it has no function.
  void add(const grouped_library& by) {
    if (by.kernel_for) libraries_.push_back({by});
  }

  /// Makes the product of all groups by the first library whose kernel passes its checks; returns
  /// nullptr if there is none.
  std::unique_ptr<grouped_product> make(const product_shape& s) {
    if (!grouped_product::computes(s)) return nullptr;
    for (auto by = libraries_.begin(); by != libraries_.end(); ++by) {
      std::string fault;
      if (auto made = checked(*by, s, fault)) {
        ++by->products;
        return made;
      }
      if (!fault.empty()) tell(fault, std::next(by));
    }
    return nullptr;
  }
  /// Returns the checks of a kernel for a shape, with the rows of each group: one check with the
  /// shape's matrices and groups of no, one, odd and many rows; and one with small matrices in as
  /// many groups as the shape has, at least 65, since kernels search for a segment in steps of some
  /// 32 segments, and a group may have several.
  static std::array<std::pair<product_shape, std::vector<std::int64_t>>, 2> checks_of(
      const product_shape& s) {
    std::vector<std::int64_t> few, all;
    for (const std::int64_t n : {1, 0, 257, 67}) few.push_back(std::min(n, s.M));
    for (std::int64_t g = 0; g < std::max(s.groups, grouped_product::least_checked); ++g)
      all.push_back(std::min<std::int64_t>(g % 5 * 7, s.M));
    product_shape small = s;
    small.N = 72, small.K = 136, small.x_stride = small.y_stride = 0;
    std::array checks{std::pair(s, few), std::pair(small, all)};
    for (auto& [with, rows] : checks) with.groups = std::ssize(rows);
    return checks;
  }
  /// Returns how many of so many products of groups each library computes, for people.
  std::string text(std::int64_t products) const {
    std::string text;
    for (const auto& by : libraries_) {
      if (by.products == 0) continue;
      const std::string number = std::to_string(by.products) + " of " + std::to_string(products);
      if (!text.empty()) text += ", " + number;
      else text = (by.products < products ? number + " " : "") + "products of experts at once";
      text += " by " + by.is.name;
    }
    return text.empty() ? "products of experts one by one" : text;
  }

private:
  struct library {
    grouped_library is;
    std::int64_t products = 0; ///< number of products that the library computes
  };
  /// Makes the product by a library's kernel. Returns nullptr if there is no kernel, or sets
  /// `fault` to what the kernel does wrong.
  std::unique_ptr<grouped_product> checked(const library& by, const product_shape& s,
                                           std::string& fault) {
    std::shared_ptr<const grouped_kernel> kernel;
    const auto fails = [&](const std::string& how, const std::string& where) {
      fault = checks_.found.refused.emplace_back(by.is.name + " " + how + " in groups of " + where);
      return nullptr;
    };
    try {
      kernel = by.is.kernel_for(s);
    } catch (const error& e) {
      if (e.code() == exit_code::memory) throw; // bits do not depend on others' memory
      ++checks_.found.checked;
      return fails("plans nothing (" + std::string(e.what()) + ")", detail::text_of(s));
    }
    if (kernel == nullptr) return nullptr;
    for (const auto& [with, rows] : checks_of(s)) {
      ++checks_.found.checked;
      const grouped_product p(kernel, with);
      const std::vector<std::int32_t> segments(rows.begin(), rows.end());
      const std::string how =
          checks_.fault_of(product_check(detail::checked_cell(with, std::ranges::max(rows)), rows),
                           [&](const product_call& c) { p.execute_groups(c, segments); });
      if (!how.empty())
        return fails(how, detail::text_of(with) + ", checked with " + std::to_string(with.groups) +
                              " groups");
    }
    return std::make_unique<grouped_product>(std::move(kernel), s);
  }
  void tell(const std::string& fault, std::vector<library>::const_iterator next) {
    if (tell_ == nullptr || std::exchange(told_, true)) return;
    tell_(fault + ": " +
          (next == libraries_.end() ? "cuBLASLt computes these products one by one"
                                    : "a kernel of " + next->is.name + " is tried next") +
          ", and further kernels that fail their check are not told");
  }

  device_check& checks_;
  void (*tell_)(std::string_view);
  std::vector<library> libraries_;
  bool told_ = false;
};

} // namespace mc
