// The keys of a build: everything that a user may say when a run is compiled, once. A row gives a
// key as megacpp_add_preset spells it, as examples/build_preset.sh does, and as the flag of
// Megatron-LM, with the member of the run that it decides. megacpp_write_run reads keys and writes
// the run by this table; help, docs, CMake's list of keys and the flags that a program compares
// with what was compiled in are made of it, too.
#pragma once

#include <megacpp/plan/setup.hpp>

#include <array>
#include <cstdint>
#include <string_view>

namespace mc {

/// The kind of value that a key takes.
enum class key_kind : std::uint8_t {
  number,    ///< an integer from 1
  whole,     ///< an integer from 0; no key has it yet, but structure_added_build_key tries it
  decimal,   ///< a number of at least 0, such as 0.05
  on_or_off, ///< KEY alone, or key=1 and key=0
  choice,    ///< one of several values
  layers,    ///< numbers of layers: KEY 3 4 4 1, or key=3,4,4,1
  blocks,    ///< numbers of blocks from 0, and ranges: KEY 0 2-5, or key=0,2-5
  names,     ///< ends of layers' names: KEY q_proj v_proj, or key=q_proj,v_proj
  pattern,   ///< numbers of layers: KEY q_proj:8 o_proj:2, or key=q_proj:8,o_proj:2
  name,      ///< the name of a model in C++
  file,      ///< a path, relative to the folder of the CMakeLists.txt
  headers    ///< several headers
};

/// Tells whether a key takes several values.
constexpr bool takes_several(key_kind k) {
  return k == key_kind::layers || k == key_kind::blocks || k == key_kind::names ||
         k == key_kind::pattern || k == key_kind::headers;
}

/// A row of the table. Keys whose members belong to one struct stand in the order of its members,
/// which C++ wants of their initial values.
struct build_key {
  std::string_view member{}; ///< the member of the run, as `batch.micro`; "": the key makes none
  std::string_view cmake{};  ///< the key as megacpp_add_preset has it
  std::string_view script{}; ///< the key before = of examples/build_preset.sh; "": it takes none
  std::string_view flag{};   ///< the flag of Megatron-LM, or where it has none the flag of this
                             ///< name, without dashes; "": there is none
  const char* sentence;      ///< an explanation of the value, for help and docs
  key_kind kind = key_kind::number;
  /// The choices, with | between. Where C++ spells one otherwise, that follows =.
  const char* choices = "";
  const char* initial = "";    ///< the value where the key is not given, as docs tell it
  bool always = false;         ///< the run has the member where the key is not given, too
  std::string_view declared{}; ///< a member that stands alone, with {} for the value
  bool for_cmake = false;      ///< CMake reads the value, since sources or libraries depend on it

  // The rest says how the flag is compared with a program.
  /// Returns the value that a program has: a number, 0 or 1, or which choice it is.
  std::int64_t (*value)(const setup& run) = nullptr;
  bool stays = false; ///< a run cannot go on from a state that has another value
  /// The choice of a flag that is a switch when it is on, and when it is off.
  std::string_view on{}, off{};
  const char* switch_sentence = ""; ///< explains that flag in help; "": `sentence` explains it
  /// The value of programs that were built before this key was in the table; "": 0.
  const char* before = "";
};

/// All keys.
inline constexpr std::array build_keys{
    build_key{.member = "model",
              .cmake = "MODEL",
              .sentence = "a model of namespace mc::preset, for example gpt2_124m",
              .kind = key_kind::name,
              .declared = "static constexpr auto model = mc::preset::{};"},
    build_key{.member = "model",
              .cmake = "HF_CONFIG",
              .sentence = "the config.json of a Hugging Face model, in place of MODEL",
              .kind = key_kind::file,
              .declared = "static constexpr auto model = mc::preset::{};",
              .for_cmake = true},
    build_key{.cmake = "INCLUDE",
              .sentence = "headers that declare more models in namespace mc::preset",
              .kind = key_kind::headers},
    build_key{.member = "layout.tp",
              .cmake = "TP",
              .script = "tp",
              .flag = "tensor-model-parallel-size",
              .sentence = "ranks that share each layer",
              .initial = "1",
              .value = [](const setup& s) -> std::int64_t { return s.ranks.tp; }},
    build_key{.member = "layout.pp",
              .cmake = "PP",
              .script = "pp",
              .flag = "pipeline-model-parallel-size",
              .sentence = "pipeline stages",
              .initial = "1",
              .value = [](const setup& s) -> std::int64_t { return s.ranks.pp; }},
    build_key{.member = "layout.cp",
              .cmake = "CP",
              .script = "cp",
              .flag = "context-parallel-size",
              .sentence = "ranks that share each sequence",
              .initial = "1",
              .value = [](const setup& s) -> std::int64_t { return s.ranks.cp; }},
    build_key{.member = "layout.ep",
              .cmake = "EP",
              .script = "ep",
              .flag = "expert-model-parallel-size",
              .sentence = "ranks that share the experts",
              .initial = "1",
              .value = [](const setup& s) -> std::int64_t { return s.ranks.ep; }},
    build_key{.member = "layout.etp",
              .cmake = "ETP",
              .script = "etp",
              .flag = "expert-tensor-parallel-size",
              .sentence = "ranks that share each expert",
              .initial = "1 if EP is above 1, else TP",
              .value = [](const setup& s) -> std::int64_t { return s.ranks.expert_tp(); }},
    build_key{.member = "layout.sequence_parallel",
              .cmake = "SEQUENCE_PARALLEL",
              .script = "sp",
              .flag = "sequence-parallel",
              .sentence = "the residual stream is sharded along the sequence, over ranks of TP",
              .kind = key_kind::on_or_off,
              .value = [](const setup& s) -> std::int64_t { return s.ranks.sequence_parallel; }},
    build_key{.member = "layout.virtual_stages",
              .cmake = "VIRTUAL_STAGES",
              .script = "virtual-stages",
              .flag = "num-virtual-stages-per-pipeline-rank",
              .sentence = "runs of layers that each stage has, which take turns",
              .initial = "1",
              .value = [](const setup& s) -> std::int64_t { return s.ranks.virtual_stages; }},
    build_key{.member = "layout.cut.first",
              .cmake = "FIRST_STAGE_LAYERS",
              .script = "first-stage-layers",
              .flag = "decoder-first-pipeline-num-layers",
              .sentence = "layers of the first stage, if not as many as of the others",
              .value = [](const setup& s) -> std::int64_t { return s.ranks.cut.first; }},
    build_key{.member = "layout.cut.last",
              .cmake = "LAST_STAGE_LAYERS",
              .script = "last-stage-layers",
              .flag = "decoder-last-pipeline-num-layers",
              .sentence = "layers of the last stage, if not as many as of the others",
              .value = [](const setup& s) -> std::int64_t { return s.ranks.cut.last; }},
    build_key{.member = "layout.cut.embedding",
              .cmake = "COUNT_EMBEDDING",
              .script = "count-embedding",
              .flag = "account-for-embedding-in-pipeline-split",
              .sentence = "the embedding counts as a layer of its stage",
              .kind = key_kind::on_or_off,
              .value = [](const setup& s) -> std::int64_t { return s.ranks.cut.embedding; }},
    build_key{.member = "layout.cut.loss",
              .cmake = "COUNT_LOSS",
              .script = "count-loss",
              .flag = "account-for-loss-in-pipeline-split",
              .sentence = "the loss counts as a layer of its stage",
              .kind = key_kind::on_or_off,
              .value = [](const setup& s) -> std::int64_t { return s.ranks.cut.loss; }},
    build_key{.member = "layout.cut.layers",
              .cmake = "STAGE_LAYERS",
              .script = "stage-layers",
              .sentence = "layers of each stage, or of each of its runs of layers, one by one",
              .kind = key_kind::layers},
    build_key{.member = "layout.schedule",
              .cmake = "SCHEDULE",
              .script = "schedule",
              .sentence = "the order of a step's micro-batches; gpipe keeps all of them",
              .kind = key_kind::choice,
              .choices = "1f1b=nullptr|gpipe=&mc::gpipe",
              .initial = "1f1b"},
    build_key{.member = "layout.zero",
              .cmake = "ZERO",
              .script = "zero",
              .flag = "use-distributed-optimizer",
              .sentence = "1: replicas share the optimizer's state (ZeRO 1)",
              .kind = key_kind::choice,
              .choices = "0|1",
              .initial = "0",
              .value = [](const setup& s) -> std::int64_t { return s.ranks.zero; },
              .on = "1",
              .off = "0",
              .switch_sentence = "replicas share the optimizer's state (ZeRO 1)"},
    build_key{.member = "batch.micro",
              .cmake = "MICRO_BATCH",
              .script = "micro-batch",
              .flag = "micro-batch-size",
              .sentence = "sequences that go through the model at once",
              .initial = "4",
              .always = true,
              .value = [](const setup& s) -> std::int64_t { return s.batch.micro; }},
    build_key{.member = "batch.sequence",
              .cmake = "SEQUENCE",
              .script = "sequence",
              .flag = "seq-length",
              .sentence = "tokens in a sequence, at most the model's positions",
              .initial = "1024",
              .always = true,
              .value = [](const setup& s) -> std::int64_t { return s.batch.sequence; },
              .stays = true},
    build_key{.member = "batch.packed",
              .cmake = "PACKED",
              .script = "packed",
              .sentence = "attention stays within documents, as conversations need it, and data "
                          "sets with --reset-attention-mask",
              .kind = key_kind::on_or_off},
    build_key{.member = "batch.micro_batches",
              .cmake = "MICRO_BATCHES",
              .script = "micro-batches",
              .sentence = "the most micro-batches of a step on each replica, if not any number"},
    build_key{
        .member = "precision",
        .cmake = "PRECISION",
        .script = "precision",
        .flag = "bf16",
        .sentence = "types of numbers; bf16_mixed has weights and activations of bf16, and "
                    "sums and masters of fp32, and bf16_moments also moments of bf16",
        .kind = key_kind::choice,
        .choices = "fp32|bf16_mixed|bf16_moments|fp64",
        .initial = "bf16_mixed",
        .always = true,
        .declared = "using precision = mc::{};",
        .value = [](const setup& s) -> std::int64_t { return s.precision.weight == dtype::bf16; },
        .stays = true,
        .on = "bf16_mixed",
        .off = "fp32",
        .switch_sentence = "weights and activations are bf16, sums and masters fp32"},
    build_key{.member = "device",
              .cmake = "DEVICE",
              .script = "device",
              .sentence = "where a program computes; cuda is a GPU, and needs CUDA's toolkit",
              .kind = key_kind::choice,
              .choices = "cpu|cuda",
              .initial = "cpu",
              .always = true,
              .declared = "using device = mc::{};",
              .for_cmake = true},
    build_key{.member = "recompute",
              .cmake = "RECOMPUTE",
              .script = "recompute",
              .flag = "recompute-granularity",
              .sentence = "what the backward pass computes again instead of saving it",
              .kind = key_kind::choice,
              .choices = "none|selective|full",
              .initial = "none",
              .always = true,
              .declared = "static constexpr auto recompute = mc::recompute::{};",
              .value = [](const setup& s) -> std::int64_t {
                return static_cast<int>(s.recompute_policy);
              },
              .before = "none"},
    build_key{.member = "numerics",
              .cmake = "NUMERICS",
              .script = "numerics",
              .flag = "numerics",
              .sentence = "how sums over tokens are taken: fast, all of a micro-batch at once, or "
                          "batch_invariant, so that their bits do not depend on it",
              .kind = key_kind::choice,
              .choices = "fast|batch_invariant",
              .initial = "fast",
              .always = true,
              .declared = "static constexpr auto numerics = mc::numerics::{};",
              .value = [](const setup& s) -> std::int64_t { return static_cast<int>(s.sums); },
              .before = "batch_invariant"},
    build_key{.cmake = "ADAPTER",
              .script = "adapter",
              .sentence =
                  "a folder of PEFT, whose adapter_config.json gives the keys of an adapter "
                  "(lora and the keys that begin with it, rslora, modules-to-save)",
              .kind = key_kind::file},
    build_key{.member = "adapter.rank",
              .cmake = "LORA",
              .script = "lora",
              .sentence = "the rank of an adapter (LoRA), beside which the model is frozen"},
    build_key{.member = "adapter.alpha",
              .cmake = "LORA_ALPHA",
              .script = "lora-alpha",
              .sentence = "the adapter's alpha, whose scale is alpha / rank",
              .kind = key_kind::decimal,
              .initial = "16"},
    build_key{.member = "adapter.rslora",
              .cmake = "RSLORA",
              .script = "rslora",
              .sentence = "the adapter's scale is alpha over the root of its rank",
              .kind = key_kind::on_or_off},
    build_key{.member = "adapter.targets",
              .cmake = "LORA_TARGETS",
              .script = "lora-targets",
              .sentence = "the linear layers that have an adapter, by the ends of their names",
              .kind = key_kind::names,
              .initial = "all-linear"},
    build_key{.member = "adapter.excluded",
              .cmake = "LORA_EXCLUDE",
              .script = "lora-exclude",
              .sentence = "layers that have no adapter, though a target means them",
              .kind = key_kind::names},
    build_key{.member = "adapter.layers",
              .cmake = "LORA_LAYERS",
              .script = "lora-layers",
              .sentence = "the blocks that have an adapter, by number from 0, if not all",
              .kind = key_kind::blocks},
    build_key{.member = "adapter.ranks",
              .cmake = "LORA_RANKS",
              .script = "lora-ranks",
              .sentence = "layers whose adapter has another rank, by the ends of their names",
              .kind = key_kind::pattern},
    build_key{.member = "adapter.alphas",
              .cmake = "LORA_ALPHAS",
              .script = "lora-alphas",
              .sentence = "layers whose adapter has another alpha, by the ends of their names",
              .kind = key_kind::pattern},
    build_key{.member = "adapter.saved",
              .cmake = "MODULES_TO_SAVE",
              .script = "modules-to-save",
              .sentence = "modules that are trained as a whole beside an adapter, as lm_head",
              .kind = key_kind::names},
    build_key{.member = "adapter.dropout",
              .cmake = "LORA_DROPOUT",
              .script = "lora-dropout",
              .sentence = "the probability of dropout before the adapter's A, in training",
              .kind = key_kind::decimal,
              .initial = "0"},
    build_key{.member = "adapter.base",
              .cmake = "BASE",
              .script = "base",
              .sentence =
                  "how the frozen linear layers beside an adapter are stored: plain, or nf4, "
                  "in 4.13 bits a weight (QLoRA)",
              .kind = key_kind::choice,
              .choices = "plain=mc::base_storage::plain|nf4=mc::base_storage::nf4",
              .initial = "plain"},
    build_key{.cmake = "BODIES",
              .sentence = "headers of the model's own row bodies, which nvcc compiles for a GPU",
              .kind = key_kind::headers,
              .for_cmake = true}};

/// Returns the row of a key as megacpp_add_preset spells it; nullptr if there is none.
constexpr const build_key* find_build_key(std::string_view cmake) {
  for (const build_key& k : build_keys)
    if (k.cmake == cmake) return &k;
  return nullptr;
}

/// Calls f(name, spelling in C++) for each choice of a key, in order.
template <class F> constexpr void for_each_choice(const build_key& k, F f) {
  for (std::string_view rest = k.choices; !rest.empty();) {
    const std::size_t bar = rest.find('|');
    const std::string_view one = rest.substr(0, bar);
    const std::size_t equals = one.find('=');
    f(one.substr(0, equals), equals == std::string_view::npos ? one : one.substr(equals + 1));
    rest = bar == std::string_view::npos ? std::string_view() : rest.substr(bar + 1);
  }
}

/// Returns the name of a choice by its number, from 0.
constexpr std::string_view choice_of(const build_key& k, std::int64_t number) {
  std::string_view found;
  for_each_choice(k, [&](std::string_view name, std::string_view) {
    if (number-- == 0) found = name;
  });
  return found;
}

} // namespace mc
