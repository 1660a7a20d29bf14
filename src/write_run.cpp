// This tool writes the run of megacpp_add_preset as a header, when the preset is built.
//
//   megacpp_write_run OUT.hpp STRUCT FOLDER WORD...
//
// A word is a key as CMake spells it (TP), before its value or values, or a key with its value as
// examples/build_preset.sh spells it (tp=2). @FILE stands for the words of a file, one a line. Paths
// are relative to FOLDER. options/build_keys.hpp lists the keys. OUT.hpp then has STRUCT, and before
// it the model of a config.json. Lines that begin with "note: " tell a reader what else there is to
// know. A refusal is one line with the exit code (docs/errors.md) and a sentence, which scripts of
// megacpp read, and leaves OUT.hpp as it is.
#include <megacpp/hf/peft_layers.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/options/build_keys.hpp>
#include <megacpp/options/build_values.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

namespace {

using mc::build_key, mc::build_keys, mc::key_kind;
using mc::is_decimal, mc::is_layer, mc::is_model, mc::is_number;
using text = std::string;

mc::error wrong(const text& sentence) { return {mc::exit_code::usage, sentence}; }

text joined(const std::vector<text>& parts, const char* between = ", ") {
  text all;
  for (const text& part : parts) all += (&part == parts.data() ? "" : between) + part;
  return all;
}

text whole_file(const text& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  text all;
  int problem = file == nullptr ? errno : 0;
  if (file != nullptr) {
    for (int c; (c = std::fgetc(file)) != EOF;) all += static_cast<char>(c);
    if (std::ferror(file) != 0) problem = errno;
    std::fclose(file);
  }
  if (problem != 0) throw wrong(fmt::format("cannot read {}: {}", path, mc::reason_of(problem)));
  return all;
}
/// Writes a file beside its place, and moves it there once it is whole.
void write_text(const text& path, const text& all) {
  const text beside = path + ".new";
  std::FILE* const file = std::fopen(beside.c_str(), "wb");
  bool whole = file != nullptr && std::fwrite(all.data(), 1, all.size(), file) == all.size();
  int problem = whole ? 0 : errno;
  if (file != nullptr && std::fclose(file) != 0 && whole) whole = false, problem = errno;
  if (whole && std::rename(beside.c_str(), path.c_str()) == 0) return;
  if (whole) problem = errno;
  std::remove(beside.c_str());
  throw mc::error(mc::exit_code::output,
                  fmt::format("cannot write {}: {}", path, mc::reason_of(problem)));
}

/// A key as the words give it.
struct given_key {
  bool given = false;
  text spelled; ///< as it was given: TP or tp
  std::vector<text> values;
};
using given_keys = std::array<given_key, build_keys.size()>;

given_key& of(given_keys& all, std::string_view cmake) {
  return all[static_cast<std::size_t>(mc::find_build_key(cmake) - build_keys.data())];
}

/// Refuses a word that is no key and no value.
mc::error unknown(const text& word) {
  const std::size_t equals = word.find('=');
  const text name = word.substr(0, equals);
  if (name == "dp" || name == "DP")
    return wrong(name +
                 " is not compiled in: it is the number of ranks at start over tp x pp x cp");
  std::vector<text> with_value, alone, script;
  for (const build_key& k : build_keys) {
    (k.kind == key_kind::on_or_off ? alone : with_value).emplace_back(k.cmake);
    if (!k.script.empty()) script.push_back(text(k.script) + "=");
  }
  if (equals != text::npos)
    return wrong(fmt::format("unknown key {}; there are {}", name, joined(script)));
  return wrong(fmt::format("unknown argument '{}'; there are {}, each with a value, and {}", word,
                           joined(with_value), joined(alone)));
}

/// Sorts words by their keys. Throws mc::error for one that is none, and for a key that is given
/// twice.
given_keys sorted(const std::vector<text>& words) {
  given_keys all;
  const build_key* reading = nullptr; // takes values yet
  const auto begin = [&](std::size_t i, std::string_view spelled) -> given_key& {
    if (all[i].given) throw wrong(fmt::format("{} is given twice", spelled));
    all[i].given = true, all[i].spelled = spelled;
    return all[i];
  };
  const auto take = [&](const text& word) {
    // A word with = that follows a key in need of a value is that value, such as a path.
    const bool needed = reading != nullptr && of(all, reading->cmake).values.empty();
    const std::size_t equals = needed ? text::npos : word.find('=');
    for (std::size_t i = 0; i < build_keys.size(); ++i) {
      const build_key& k = build_keys[i];
      if (word == k.cmake) {
        begin(i, k.cmake);
        reading = k.kind == key_kind::on_or_off ? nullptr : &k;
        if (reading == nullptr) all[i].values = {"1"};
        return;
      }
      if (equals != text::npos && !k.script.empty() && word.substr(0, equals) == k.script) {
        begin(i, k.script).values = {word.substr(equals + 1)};
        reading = nullptr;
        return;
      }
    }
    if (reading == nullptr) throw unknown(word);
    of(all, reading->cmake).values.push_back(word);
    if (!mc::takes_several(reading->kind)) reading = nullptr;
  };
  for (const text& word : words) take(word);
  return all;
}

/// Returns "q_proj:8" as C++ has it; "" for another text.
text layer_with_number(const text& one) {
  const std::size_t colon = std::min(one.find(':'), one.size() - 1);
  const text layer = one.substr(0, colon), number = one.substr(colon + 1);
  return is_layer(layer) && is_decimal(number) ? fmt::format("{{\"{}\", {}}}", layer, number) : "";
}

/// Returns a list of values, which are given one by one or with commas between, as C++ has it.
/// one_in_cpp(value) returns "" for a value that the key cannot take; then throws mc::error.
template <class F> text listed(const given_key& g, const char* what, F one_in_cpp) {
  const text list = joined(g.values, ",");
  text all;
  for (std::size_t at = 0; at <= list.size();) {
    const text one = list.substr(at, std::min(list.find(',', at), list.size()) - at);
    const text spelled = one_in_cpp(one);
    if (spelled.empty()) throw wrong(fmt::format("{} must be {}, not '{}'", g.spelled, what, list));
    all += fmt::format("{}{}", at == 0 ? "" : ", ", spelled);
    at += one.size() + 1;
  }
  return "{" + all + "}";
}

/// Returns the value of a key as C++ has it; "" is none. Throws mc::error for a value that it cannot
/// take.
text in_cpp(const build_key& k, const given_key& g) {
  if (g.values.empty()) throw wrong(g.spelled + " has no value");
  const text& value = g.values.front();
  const auto must_be = [&](const text& what) {
    return wrong(fmt::format("{} must be {}, not '{}'", g.spelled, what, value));
  };
  switch (k.kind) {
  case key_kind::number:
    if (is_number(value, 9) && value[0] != '0') return value;
    throw must_be("a positive integer below 1000000000");
  case key_kind::whole:
    if (is_number(value, 9) && (value[0] != '0' || value == "0")) return value;
    throw must_be("an integer from 0 to 999999999");
  case key_kind::decimal:
    if (is_decimal(value)) return value;
    throw must_be("a number of at least 0, such as 32 or 0.05");
  case key_kind::on_or_off:
    if (value == "0" || value == "1") return value == "1" ? "true" : "";
    throw must_be("0 or 1");
  case key_kind::name:
    if (is_model(value)) return value;
    throw must_be("a model of namespace mc::preset, for example gpt2_124m");
  case key_kind::choice: {
    text found, names;
    mc::for_each_choice(k, [&](std::string_view name, std::string_view spelled) {
      if (name == value) found = spelled;
      names += fmt::format("{}{}", names.empty() ? "" : " or ", name);
    });
    if (!found.empty()) return found;
    throw must_be(names);
  }
  case key_kind::layers:
    return listed(g, "numbers of layers below 1000, as 3,4,4,1", [](const text& one) {
      return is_number(one, 3) ? fmt::format("{}", std::stoi(one)) : ""; // 08 is no number of C++
    });
  case key_kind::blocks:
    return listed(g, "numbers of blocks from 0 to 255, and ranges, as 0,2-5", mc::layer_numbers);
  case key_kind::names:
    return listed(g, "ends of layers' names, as q_proj,v_proj, or all-linear",
                  [](const text& one) { return is_layer(one) ? fmt::format("\"{}\"", one) : ""; });
  case key_kind::pattern:
    return fmt::format(
        "{{{}}}",
        listed(g, "ends of layers' names with numbers, as q_proj:8,o_proj:2", layer_with_number));
  case key_kind::file:
  case key_kind::headers: break;
  }
  return value;
}

/// Refuses keys that contradict each other.
void agree(given_keys& all) {
  const bool model = of(all, "MODEL").given, config = of(all, "HF_CONFIG").given;
  if (model && config) throw wrong("MODEL and HF_CONFIG both name the model; give one");
  if (!model && !config)
    throw wrong(
        "no key names the model: give MODEL a model of namespace mc::preset, for example "
        "gpt2_124m, or HF_CONFIG a config.json");
  if (!of(all, "LORA").given)
    for (const char* const key :
         {"LORA_ALPHA", "RSLORA", "LORA_TARGETS", "LORA_EXCLUDE", "LORA_LAYERS", "LORA_RANKS",
          "LORA_ALPHAS", "MODULES_TO_SAVE", "LORA_DROPOUT", "BASE"})
      if (const given_key& g = of(all, key);
          g.given && (g.values.front() != "0" || key == text("LORA_LAYERS")) &&
          g.values.front() != "plain")
        throw wrong(g.spelled + " is of an adapter, and there is none: give its rank by LORA");
  const given_key& layers = of(all, "STAGE_LAYERS");
  if (!layers.given) return;
  const auto number = [&](std::string_view cmake) {
    const given_key& g = of(all, cmake);
    return g.given ? std::stoll(g.values.front()) : 1;
  };
  const text list = joined(layers.values, ",");
  const long long stages = number("PP") * number("VIRTUAL_STAGES"),
                  listed = 1 + std::count(list.begin(), list.end(), ',');
  if (stages != listed)
    throw wrong(fmt::format("STAGE_LAYERS lists {} stages, and PP x VIRTUAL_STAGES are {}", listed,
                            stages));
}

text absolute(const text& folder, const text& path) {
  return path[0] == '/' ? path : folder + "/" + path;
}

/// The initial values of a struct's members, whose structs are opened and closed as names change.
class initial_values {
public:
  void add(const text& member, const text& value) { // layout.cut.first
    const text outer = member.substr(0, member.rfind('.'));
    if (outer != open_) {
      close();
      if (outer.find('.') != text::npos)
        all_ += fmt::format("{}.{} = {{", between(), outer.substr(outer.find('.') + 1));
      open_ = outer, first_ = outer.find('.') != text::npos || all_.empty();
    }
    all_ += fmt::format("{}.{} = {}", between(), member.substr(member.rfind('.') + 1), value);
    first_ = false;
  }
  text done() {
    close();
    return all_;
  }

private:
  const char* between() const { return first_ ? "" : ", "; }
  void close() {
    if (open_.find('.') != text::npos) all_ += "}", first_ = false;
    open_.clear();
  }
  text all_, open_;
  bool first_ = true;
};

/// Returns the members of the run.
text members_of(given_keys& all, const text& name) {
  initial_values layout, batch, adapter;
  std::vector<text> before, after;
  for (std::size_t i = 0; i < build_keys.size(); ++i) {
    const build_key& k = build_keys[i];
    given_key g = all[i];
    if (!g.given && k.always) g = {true, text(k.cmake), {k.initial}};
    if (!g.given) continue;
    text value = in_cpp(k, g);
    if (k.kind == key_kind::file) value = name + "_from_config";
    if (value.empty() || k.member.empty()) continue;
    if (k.declared.empty())
      (k.member.starts_with("batch.")     ? batch
       : k.member.starts_with("adapter.") ? adapter
                                          : layout)
          .add(text(k.member), value);
    else
      (k.member == "model" ? before : after)
          .push_back(fmt::format("  {}\n", fmt::format(fmt::runtime(k.declared), value)));
  }
  if (of(all, "LORA").given)
    after.push_back(fmt::format("  static constexpr mc::lora adapter{{{}}};\n", adapter.done()));
  return fmt::format(
      "{}  static constexpr mc::layout layout{{{}}};\n"
      "  static constexpr mc::batching batch{{{}}};\n{}",
      joined(before, ""), layout.done(), batch.done(), joined(after, ""));
}

/// Gives the keys of an adapter by the adapter_config.json of ADAPTER.
void take_adapter(given_keys& all, const text& folder) {
  const given_key& from = of(all, "ADAPTER");
  if (!from.given) return;
  if (from.values.empty()) throw wrong(from.spelled + " has no value");
  for (const char* const key :
       {"LORA", "LORA_ALPHA", "RSLORA", "LORA_TARGETS", "LORA_EXCLUDE", "LORA_LAYERS", "LORA_RANKS",
        "LORA_ALPHAS", "MODULES_TO_SAVE", "LORA_DROPOUT"})
    if (const given_key& g = of(all, key); g.given)
      throw wrong(fmt::format("{} and {} both give the numbers of the adapter; give one", g.spelled,
                              from.spelled));
  const text path = absolute(folder, from.values.front());
  const mc::json_value config = mc::read_json(path + "/adapter_config.json");
  const mc::adapter_config adapter = mc::read_adapter_config(config);
  std::optional<mc::hf_model> model;
  if (const given_key& of_model = of(all, "HF_CONFIG"); of_model.given)
    model = mc::read_hf_model(mc::read_json(absolute(folder, of_model.values.front())),
                              mc::hf_use::program);
  const auto give = [&](const char* key, std::vector<text> values) {
    given_key& g = of(all, key);
    g.given = true, g.spelled = key, g.values = std::move(values);
  };
  give("LORA", {fmt::format("{}", adapter.r)});
  give("LORA_ALPHA", {fmt::format("{}", adapter.alpha)});
  const mc::keys_of_layers layers = mc::layers_of(adapter, model ? &*model : nullptr);
  give("LORA_TARGETS", layers.targets);
  if (!layers.excluded.empty()) give("LORA_EXCLUDE", layers.excluded);
  std::vector<text> numbers;
  for (const int n : layers.layers) numbers.push_back(fmt::format("{}", n));
  if (!numbers.empty()) give("LORA_LAYERS", numbers);
  if (adapter.rslora) give("RSLORA", {"1"});
  if (!adapter.saved.empty()) give("MODULES_TO_SAVE", adapter.saved);
  if (!adapter.rs.empty()) give("LORA_RANKS", mc::pattern_of(adapter, adapter.rs));
  if (!adapter.alphas.empty()) give("LORA_ALPHAS", mc::pattern_of(adapter, adapter.alphas));
  if (config.has("lora_dropout"))
    if (const auto p = config.field<double>("lora_dropout"); p > 0)
      give("LORA_DROPOUT", {fmt::format("{}", p)});
}

/// Returns the header of the run.
text run_text(given_keys& all, const text& name, const text& folder) {
  text includes = "#include <megacpp/megacpp.hpp>\n", model;
  take_adapter(all, folder);
  const text members = members_of(all, name);
  agree(all);
  if (const given_key& device = of(all, "DEVICE"); device.given && device.values.front() == "cuda")
    includes += "#include <megacpp/exec/cuda/device.hpp>\n";
  for (const text& header : of(all, "INCLUDE").values) {
    const text path = absolute(folder, header);
    includes += fmt::format("#include \"{}\"\n", ::access(path.c_str(), F_OK) == 0 ? path : header);
  }
  if (const given_key& config = of(all, "HF_CONFIG"); config.given) {
    std::vector<text> told;
    const mc::hf_model read = mc::read_hf_model(
        mc::read_json(absolute(folder, config.values.front())), mc::hf_use::program, &told);
    for (const text& note : told) std::fputs(fmt::format("note: {}\n", note).c_str(), stderr);
    includes += "#include <megacpp/preset/models.hpp>\n";
    model = fmt::format("namespace mc::preset {{\n{}}} // namespace mc::preset\n\n",
                        mc::hf_model_text(read, name + "_from_config"));
  }
  return fmt::format(
      "// Written by megacpp from the keys of a build, which are to be edited instead: one "
      "training run as one type.\n#pragma once\n\n{}\n{}struct {} {{\n{}}};\n",
      includes, model, name, members);
}

} // namespace

int main(int argc, char** argv) {
  const auto refuse = [](int code, const char* sentence) {
    std::fputs(fmt::format("megacpp_write_run: exit code {}: {}\n", code, sentence).c_str(),
               stderr);
    return code;
  };
  try {
    if (argc < 4) throw wrong("give OUT.hpp, the name of the struct, and the folder of paths");
    std::vector<text> words;
    for (int i = 4; i < argc; ++i) {
      if (argv[i][0] != '@') {
        words.emplace_back(argv[i]);
        continue;
      }
      for (text rest = whole_file(argv[i] + 1); !rest.empty();) {
        const std::size_t end = std::min(rest.find('\n'), rest.size());
        words.push_back(rest.substr(0, end));
        rest.erase(0, end + 1);
      }
    }
    given_keys all = sorted(words);
    write_text(argv[1], run_text(all, argv[2], argv[3]));
    return 0;
  } catch (const mc::error& e) {
    return refuse(static_cast<int>(e.code()), e.what());
  } catch (const std::exception& e) {
    return refuse(static_cast<int>(mc::exit_code::internal), e.what());
  }
}
