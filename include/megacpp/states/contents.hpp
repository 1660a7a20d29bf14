// The contents of the states of one run.
#pragma once

#include <megacpp/chat/chat_template.hpp>
#include <megacpp/exec/device.hpp>
#include <megacpp/hf/tokenizer_files.hpp>
#include <megacpp/inputs/run_data.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/states/losses.hpp>
#include <megacpp/states/state.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace mc {

namespace detail {

/// Adds the token that ends a turn to the files, so that a model that has learned conversations
/// ends there wherever it is served.
inline void end_at_turns(std::vector<extra_file>& files, const program_view& p,
                         const run_data& data) {
  const auto end =
      data.tokenizer->id_of(chat_template::of_folder(data.template_folder).end_of_turn());
  if (!end) return;
  const std::string name = "generation_config.json";
  auto at = std::ranges::find(files, name, &extra_file::first);
  if (at == files.end())
    at = files.emplace(at, name,
                       is_hugging_face_model(p)
                           ? config_texts(hf_family_of(p).config(p), storage_type::f32).at(name)
                           : "{}");
  at->second = with_end_token(at->second, data.template_folder + '/' + name, *end);
}

} // namespace detail

/// Reads the files that a request names, or else those in the folder that the run starts from, ""
/// being none. Throws mc::error.
inline std::vector<extra_file> files_of_run_tokenizer(const program_view& p,
                                                      const tokenizer_request& r,
                                                      const run_data& data,
                                                      const std::string& from) {
  std::vector<extra_file> files;
  if (r.model && !r.of_sentencepiece()) {
    files = tokenizer_files(*r.model);
  } else if (r.vocabulary) {
    files = gpt2_tokenizer_files(*r.vocabulary, r.merges.value_or(""));
  } else {
    files = tokenizer_files(from);
  }
  if (!data.template_folder.empty()) detail::end_at_turns(files, p, data);
  return files;
}

/// Writes the files of a state: weights and moments, and beside them the files of the tokenizer,
/// the position and losses of the run, its request, and what its data are.
class state_contents {
public:
  /// A run that saves reads the files of its tokenizer now: those of its request, or of the folder
  /// that it starts from, "" being none. References must stay valid. Throws mc::error.
  state_contents(const program_view& p, const training_request& request,
                 std::shared_ptr<const run_data> data, device& on, communicator& hosts,
                 const std::string& starts_from)
      : program_(p), request_(request), data_(std::move(data)), device_(on), hosts_(hosts) {
    if (!request_.loop.save) return;
    extra_ = files_of_run_tokenizer(p, request_.data.tokenizer, *data_, starts_from);
    if (data_->text.characters)
      extra_.emplace_back(characters_name, characters_text(*data_->text.characters));
  }

  /// Returns what tells the data of the run from other data. The first call looks at the data.
  /// The rank that writes states calls it before the first one.
  const nlohmann::json& identity_of_data() {
    if (identity_.is_null()) identity_ = data_->identity();
    return identity_;
  }
  /// Returns the values that the request left open, as they have been decided.
  settled_values settled() const {
    const bool bf16 = program_.numbers.precision.weight == dtype::bf16;
    return {request_.loop, data_->type, bf16 ? device_.products().type() : product_type::automatic};
  }
  /// Writes the files of a state at a position of the run. All ranks call it, each with what it
  /// holds of the weights. Throws mc::error, as write_state.
  void fill(folder_writer& out, const mc::stores& weights, const run_position& at,
            const run_losses& losses) const {
    nlohmann::json state{{"data", identity_}};
    losses.save(state, at);
    request_.kept->keep(state, settled());
    write_state(out, program_, weights, at, std::move(state), extra_,
                request_.loop.max_shard.value_or(hf_shard_limit), hosts_);
  }

private:
  const program_view& program_;
  const training_request& request_;
  std::shared_ptr<const run_data> data_;
  device& device_;
  communicator& hosts_;
  std::vector<extra_file> extra_;
  nlohmann::json identity_; ///< null on ranks that write no file
};

} // namespace mc
