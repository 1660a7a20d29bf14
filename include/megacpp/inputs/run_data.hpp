// What a run trains on and what it is measured by.
#pragma once

#include <megacpp/data/measured_set.hpp>
#include <megacpp/data/sample_set.hpp>
#include <megacpp/inputs/text.hpp>
#include <megacpp/tokenizer/tokenizer.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace mc {

struct run_data {
  std::string name;
  text_data text; ///< what samples are windows of, if they are
  std::shared_ptr<const sample_set> training;
  std::vector<measured_set> validation;
  std::vector<measured_set> test;              ///< measured at the end
  std::string summary;                         ///< how much there is
  std::string unlearned = {};                  ///< what of it is not learned; "" is nothing
  std::string type = {};                       ///< of --data-type, where the data decide it
  std::optional<std::int64_t> steps = {};      ///< of the epochs that were asked for
  std::shared_ptr<const tokenizer> words = {}; ///< of the tokens, where there is one
  std::string template_folder = {};            ///< whose chat template conversations have
  std::function<nlohmann::json()> identity;    ///< what tells it from other data
  std::function<std::uint64_t()> hash; ///< of the same tokens the same, whatever they are called
  /// A file that samples are read from and that was written to since it was opened; "" is none.
  /// Empty where all was read at the start.
  std::function<std::string()> written = {};
};

/// What the ranks of a process read: opened by the one that asks first, while others wait, and
/// shared. Copies are of the same.
template <class T> class opened_once {
public:
  template <class Open> std::shared_ptr<const T> operator()(const Open& open) const {
    const std::scoped_lock hold(all_->lock);
    if (!all_->opened) all_->opened = std::make_shared<const T>(open());
    return all_->opened;
  }

private:
  struct state {
    std::mutex lock;
    std::shared_ptr<const T> opened;
  };
  std::shared_ptr<state> all_ = std::make_shared<state>();
};

} // namespace mc
