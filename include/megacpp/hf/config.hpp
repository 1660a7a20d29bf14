// hf_reader reads config.json of a Hugging Face model field by field, and makes a model of it. A
// field that megacpp would compute otherwise is refused by its name.
//
// Every field is read, checked, known to change no result, or refused. An unknown field is refused,
// though transformers ignores it: it may come from a later version or another family, and then the
// model that trains would silently be another one. A null is Python's None, which transformers
// writes for a field that is not set. A null is refused where a missing field means something else
// than None: there transformers 4 computes with None, and transformers 5 refuses it.
#pragma once

#include <megacpp/io/error.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/model/description.hpp>
#include <megacpp/num/fp8.hpp>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace mc {

/// hf_use says what a configuration is read for: to load weights, or to build a program. Dropout,
/// initial weights and auxiliary losses matter for a program alone, since they change how a model
/// is trained and not what it computes.
enum class hf_use : std::uint8_t { weights, program };

/// hf_limits has the largest extents that are accepted. They are far above any model's, and keep
/// every size of a program, at 16 bytes a parameter, within 63 bits.
struct hf_limits {
  static constexpr int layers = 1 << 11, hidden = 1 << 17, ffn = 1 << 20, heads = 1 << 17,
                       head_dim = 1 << 15, experts = 1 << 11, vocabulary = 1 << 24,
                       positions = 1 << 30;
};

/// hf_field pairs a member of a model with its name in config.json. A family has a table of such
/// pairs, by which configurations are read, written and compared.
template <class Model, class T> struct hf_field {
  const char* theirs;
  T Model::*member;
  bool by_hand = true; ///< The family reads the field itself, since it depends on other fields.
  /// `bound` is the greatest value of a whole number, which must be there and be positive. For
  /// other types it is the value that a missing field stands for; a number lies in [0, 1].
  T bound{};

  constexpr hf_field(const char* name, T Model::*m) : theirs(name), member(m) {}
  constexpr hf_field(const char* name, T Model::*m, T b)
      : theirs(name), member(m), by_hand(false), bound(b) {}
};

/// hf_reader reads the fields of one configuration, and notes which fields were read.
class hf_reader {
public:
  explicit hf_reader(const json_value& config) : config_(config) {}

  const json_value& config() const { return config_; }
  bool has(std::string_view name) {
    known_.emplace(name);
    return config_.has(name);
  }

  /// Returns whether any function of this reader was asked for a field.
  bool asked_for(std::string_view name) const { return known_.find(name) != known_.end(); }

  /// Throws where a field is null. Callers use it for fields whose absence transformers takes for
  /// something else than None.
  void refuse_null(std::string_view name) const {
    if (is_null(name))
      throw refuse(name,
                   "transformers does not take that for a missing field: write a value, or "
                   "remove the field");
  }
  bool is_null(std::string_view name) const {
    const auto at = config_.raw().find(std::string(name));
    return at != config_.raw().end() && at->is_null();
  }

  /// Returns the whole number of a field, from 1 to `high`.
  int extent(std::string_view name, int high) {
    known_.emplace(name);
    return config_.field<int>(name, 1, high);
  }
  int extent(std::string_view name, int high, int absent) {
    return has(name) ? extent(name, high) : absent;
  }
  double number(std::string_view name, double low, double high, double absent) {
    if (absent != 0) refuse_null(name);
    return has(name) ? config_.field<double>(name, low, high) : absent;
  }
  bool flag(std::string_view name, bool absent) {
    if (absent) refuse_null(name);
    return has(name) ? config_.field<bool>(name) : absent;
  }
  std::string text(std::string_view name, std::string_view absent) {
    if (!absent.empty()) refuse_null(name);
    return has(name) ? config_.field<std::string>(name) : std::string(absent);
  }

  /// Reads all fields of a table into m, except those that the family reads by hand.
  template <class Model, class... Fields> void read(Model& m, const std::tuple<Fields...>& fields) {
    std::apply([&](const auto&... f) { (read(m, f), ...); }, fields);
  }
  template <class Model, class T> void read(Model& m, const hf_field<Model, T>& f) {
    if (f.by_hand) return;
    if constexpr (std::is_same_v<T, bool>) m.*f.member = flag(f.theirs, f.bound);
    else if constexpr (std::is_same_v<T, int>) m.*f.member = extent(f.theirs, f.bound);
    else if constexpr (std::is_same_v<T, double>) m.*f.member = number(f.theirs, 0, 1, f.bound);
  }

  /// Throws unless a field, or `absent` where it is missing, is `needed`. `why` says what megacpp
  /// computes.
  void require(std::string_view name, bool needed, bool absent, std::string_view why) {
    if (flag(name, absent) != needed) throw refuse(name, why);
  }
  /// Throws unless a field, or `absent` where it is missing, is one of `accepted`, which all mean
  /// the same.
  void require(std::string_view name, std::initializer_list<std::string_view> accepted,
               std::string_view absent, std::string_view why) {
    const std::string found = text(name, absent);
    if (std::find(accepted.begin(), accepted.end(), found) == accepted.end())
      throw refuse(name, why);
  }
  /// Throws unless a field is missing, null, or an empty list or object.
  void require_unset(std::string_view name, std::string_view why) {
    if (!has(name)) return;
    const nlohmann::json& v = config_.raw().at(std::string(name));
    if (!v.is_structured() || !v.empty()) throw refuse(name, why);
  }
  /// Accepts fields of any value, because they change no result of a language model.
  void ignore(std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) known_.emplace(name);
  }
  /// Throws where two spellings of one field have different values. Either may be missing.
  void require_same(std::string_view one, std::string_view other) {
    if (has(one) && has(other) && shown(one) != shown(other))
      throw contradiction(
          fmt::format("\"{}\" is {} and \"{}\" is {}, which are two names of one "
                      "number; remove one",
                      one, shown(one), other, shown(other)));
  }

  /// Returns an error about one field: "FILE: field "hidden_act" is "relu", but `why`".
  error refuse(std::string_view name, std::string_view why,
               std::optional<double> absent = {}) const {
    if (config_.has(name) || !absent)
      return config_.fault(fmt::format("field \"{}\" is {}, but {}", name, shown(name), why));
    return config_.fault(
        fmt::format("field \"{}\" is missing, which means {}, but {}", name, *absent, why));
  }
  /// Returns an error about fields that cannot be true together.
  error contradiction(std::string_view sentence) const {
    return config_.fault(fmt::format("field {}", sentence));
  }

  /// Throws where the configuration has fields that were never read; one error names all of them.
  void refuse_unknown() const {
    std::vector<std::string> unknown;
    for (const auto& [name, value] : config_.raw().items())
      if (!value.is_null() && !asked_for(name))
        unknown.push_back(fmt::format("\"{}\"", printable(name)));
    if (unknown.empty()) return;
    const bool one = unknown.size() == 1;
    throw config_.fault(fmt::format(
        "field{} {} {} that megacpp knows for this model_type, and may change what the model "
        "computes; remove {} if {} (docs/hugging-face.md lists the fields)",
        one ? "" : "s", fmt::join(unknown, ", "), one ? "is not one" : "are none",
        one ? "it" : "them", one ? "it does not" : "they do not"));
  }

  /// Returns sentences that a user should know about this configuration, though nothing is refused.
  const std::vector<std::string>& told() const { return told_; }
  /// Tells the user of a dropout that transformers trains with and megacpp does not have.
  /// Generation and evaluation use no dropout. `absent` is the dropout that a missing field stands
  /// for.
  void tell_dropout(std::string_view name, double absent) {
    if (const double p = number(name, 0, 1, absent); p != 0)
      tell(name, fmt::format("is {}, but training has no dropout of attention probabilities: it "
                             "trains as with 0",
                             p));
  }
  void tell(std::string_view name, std::string_view what) {
    told_.push_back(fmt::format("{}: field \"{}\" {}", config_.file(), name, what));
  }

private:
  std::string shown(std::string_view name) const {
    const auto at = config_.raw().find(std::string(name));
    if (at == config_.raw().end()) return "missing";
    if (at->is_structured()) return at->is_array() ? "a list" : "an object";
    return printable(at->dump());
  }

  const json_value& config_;
  std::set<std::string, std::less<>> known_;
  std::vector<std::string> told_;
};

/// The ways in which the weights of a folder are stored.
enum class hf_storage { plain, fp8, nf4 };

/// Returns the way in which a config.json says that weights are stored. Throws mc::error of the
/// file's class for one that is not read.
inline hf_storage hf_storage_of(const json_value& config) {
  if (!config.has("quantization_config")) return hf_storage::plain;
  const auto q = config.field<json_value>("quantization_config");
  const auto refuse = [&](const std::string& what) {
    return q.fault(
        fmt::format("field \"quantization_config\" has {}; models are read as they are, "
                    "from fp8 in blocks of 128 by 128, and from nf4 of bitsandbytes",
                    what));
  };
  const auto is = [&](const char* field, const auto& wanted) {
    using T = std::decay_t<decltype(wanted)>;
    using read = std::conditional_t<std::is_same_v<T, const char*>, std::string, T>;
    if (q.has(field) && q.field<read>(field) != wanted)
      throw refuse(fmt::format("{} {}", field, printable(q.raw().at(field).dump())));
  };
  const auto method = q.field<std::string>("quant_method");
  if (method == "fp8") {
    if (!q.has("weight_block_size")) throw refuse("no weight_block_size");
    is("fmt", "e4m3");
    is("weight_block_size", std::vector<std::int64_t>{fp8_block, fp8_block});
    return hf_storage::fp8;
  }
  if (method != "bitsandbytes") throw refuse("quant_method " + printable(method));
  if (!q.has("load_in_4bit") || !q.field<bool>("load_in_4bit")) throw refuse("no load_in_4bit");
  is("bnb_4bit_quant_type", "nf4");
  is("bnb_4bit_quant_storage", "uint8");
  return hf_storage::nf4;
}

/// Returns the class of a model without its head, such as "Qwen3Model" for "Qwen3ForCausalLM".
/// AutoModel saves folders of that class, whose weights have no "model." in their names.
inline std::string without_head(std::string_view architecture) {
  const std::size_t head =
      std::min(architecture.find("ForCausalLM"), architecture.find("LMHeadModel"));
  return std::string(architecture.substr(0, head)) + "Model";
}

/// Reads the fields that every family has: those that must be off, and those that change nothing.
/// `architecture` is transformers' class of the model, such as "Qwen3ForCausalLM".
inline void read_hf_generals(hf_reader& r, std::string_view architecture) {
  if (r.has("architectures")) {
    const auto classes = r.config().field<std::vector<std::string>>("architectures");
    if (classes.size() != 1 ||
        (classes[0] != architecture && classes[0] != without_head(architecture)))
      throw r.contradiction(
          fmt::format("\"architectures\" is [{}], but of this model_type megacpp has {} alone",
                      classes.empty() ? "" : printable(classes[0]), architecture));
  }
  static_cast<void>(hf_storage_of(r.config()));
  r.ignore({"quantization_config"});
  r.require_unset("pruned_heads", "all heads of a layer are computed");
  r.require_unset("cross_attention_hidden_size", "there is no cross-attention");
  for (const char* name : {"is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder"})
    r.require(name, false, false, "only decoders without cross-attention are supported");
  if (r.has("auto_map"))
    r.tell("auto_map",
           "names code of the folder's own, which is not run: what the model_type says "
           "is computed");
  // These name the type of the stored weights; a program has a type of its own.
  r.require_same("dtype", "torch_dtype");
  static_cast<void>(r.text("dtype", "")), static_cast<void>(r.text("torch_dtype", ""));
  // These fields are bookkeeping, belong to other heads, or set outputs of transformers' functions
  // and defaults of its generate().
  r.ignore({"model_type",
            "transformers_version",
            "_name_or_path",
            "name_or_path",
            "_commit_hash",
            "_num_labels",
            "author",
            "created_date",
            "license",
            "output_past",
            "unsloth_fixed",
            "unsloth_version",
            "transformers.js_config",
            "_attn_implementation",
            "_attn_implementation_autoset",
            "_attn_implementation_internal",
            "attn_implementation",
            "_experts_implementation",
            "use_cache",
            "return_dict",
            "output_hidden_states",
            "output_attentions",
            "torchscript",
            "use_bfloat16",
            "tf_legacy_loss",
            "chunk_size_feed_forward",
            "gradient_checkpointing",
            "is_decoder",
            "xla_device",
            "finetuning_task",
            "id2label",
            "label2id",
            "num_labels",
            "problem_type",
            "task_specific_params",
            "tokenizer_class",
            "prefix",
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "sep_token_id",
            "cls_token_id",
            "unk_token_id",
            "mask_token_id",
            "decoder_start_token_id"});
  r.ignore({"max_length",
            "min_length",
            "do_sample",
            "early_stopping",
            "num_beams",
            "num_beam_groups",
            "diversity_penalty",
            "temperature",
            "top_k",
            "top_p",
            "typical_p",
            "repetition_penalty",
            "length_penalty",
            "no_repeat_ngram_size",
            "encoder_no_repeat_ngram_size",
            "bad_words_ids",
            "num_return_sequences",
            "output_scores",
            "return_dict_in_generate",
            "forced_bos_token_id",
            "forced_eos_token_id",
            "remove_invalid_values",
            "exponential_decay_length_penalty",
            "suppress_tokens",
            "begin_suppress_tokens"});
}

// member_text(x) is a value of a member as C++ writes it, exactly.
inline std::string member_text(bool x) { return x ? "true" : "false"; }
inline std::string member_text(int x) { return fmt::format("{}", x); }
inline std::string member_text(double x) { return fmt::format("{}", x); }

/// Returns the members of a model as JSON, under their names in config.json.
template <class Model, class... Fields>
nlohmann::json hf_written(const Model& m, const std::tuple<Fields...>& fields) {
  nlohmann::json config = nlohmann::json::object();
  std::apply([&](const auto&... f) { ((config[f.theirs] = m.*f.member), ...); }, fields);
  return config;
}

/// Returns the fields in which two models of one family differ, such as "n_layer is 3 there and 2
/// in the program", or "" if they are equal.
template <class Model, class... Fields>
std::string hf_difference(const std::tuple<Fields...>& fields, const Model& theirs,
                          const Model& ours) {
  std::string found;
  const auto compare = [&](const auto& f) {
    if (!(theirs.*f.member == ours.*f.member))
      found += fmt::format("{}{} is {} there and {} in the program", found.empty() ? "" : ", ",
                           f.theirs, member_text(theirs.*f.member), member_text(ours.*f.member));
  };
  std::apply([&](const auto&... f) { (compare(f), ...); }, fields);
  return found;
}

} // namespace mc
