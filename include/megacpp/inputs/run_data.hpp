// The data of a run, opened.
#pragma once

#include <megacpp/data/measured_set.hpp>
#include <megacpp/data/sample_set.hpp>
#include <megacpp/inputs/text.hpp>
#include <megacpp/threads/opened_once.hpp>
#include <megacpp/tokenizer/tokenizer.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace mc {

/// The data that a run trains on, and those that it is measured on.
struct run_data {
  std::string name;
  text_data text; ///< the text or file of ids that samples are windows of, if there is one
  std::shared_ptr<const sample_set> training;
  std::vector<measured_set> validation;
  std::vector<measured_set> test;         ///< measured behind the last step
  std::string summary;                    ///< a sentence that says how much there is
  std::string unlearned = {};             ///< names the tokens that are not learned; "" is none
  std::string type = {};                  ///< name of the data_kind, where the data decide it
  std::optional<std::int64_t> steps = {}; ///< of a run of as many epochs as were asked for
  std::shared_ptr<const mc::tokenizer> tokenizer = {}; ///< that made the tokens, where it is known
  std::string template_folder = {};                    ///< has the chat template of conversations
  /// Returns what identifies the data, such as names and counts. A state keeps it, so that a run
  /// that goes on notices other data.
  std::function<nlohmann::json()> identity;
  std::function<std::uint64_t()> hash; ///< follows from the tokens, and not from names of files
  /// Returns the name of a file with samples that was written to since it was opened; "" if there
  /// is none. The function itself is empty where all samples were read at the start.
  std::function<std::string()> written = {};
};

} // namespace mc
