// The flags of the model or adapter that a command starts from, and that it writes.
#pragma once

#include <megacpp/options/flag.hpp>

namespace mc {

// The macro is as in options/compiled_flags.hpp.
#define MEGACPP_FLAG(kind, name, ...) \
  kind##_flag name { this, #name, __VA_ARGS__ }

struct model_flags : flag_group {
  model_flags() : flag_group("Model", train, unsaved) {}
  MEGACPP_FLAG(
      text, load, is("").path().of(all),
      "the folder to start from. eval, generate and export need one, unless weights are random. A "
      "folder that train --save wrote: train goes on where its newest whole state ends; if there "
      "is none and --save names the folder, too, train begins. A Hugging Face model folder: train "
      "begins with its weights. describe lists the states in the folder in place of the model");
  MEGACPP_FLAG(
      text, pretrained_checkpoint, is("").path().of(running | convert),
      "the model or state whose weights train takes where --load has no state yet; and the "
      "model beside an adapter whose state --load has, if it is not where it was");
  MEGACPP_FLAG(texts, adapter, none().path().of(running | convert),
               "the folder of an adapter (LoRA) for the model of --load, in a program that has an "
               "adapter: one that PEFT saved, or a state. train begins with it. generate takes "
               "several, each as NAME=FOLDER; then a prompt is NAME, a tab and its text, and - "
               "names the model without an adapter");
  MEGACPP_FLAG(
      text, adapter_layout,
      is("").one_of("peft|peft-0.18|vllm").of(running | convert).shown("as the folder tells"),
      "the layout of the experts' factors in --adapter: that of PEFT 0.19.1 and later, of versions "
      "before, or of vLLM, tensors of each expert");
  MEGACPP_FLAG(text, export_layout, is("peft").one_of("peft|peft-0.18|vllm").of(convert),
               "the layout of the experts' factors in an adapter that export writes");
  MEGACPP_FLAG(
      text, quantise, is("none").one_of("none|nf4").of(convert),
      "write linear layers in NF4 with double quantisation, as bitsandbytes reads it, of a "
      "program whose base is nf4");
  MEGACPP_FLAG(switch, merge, is(false).of(convert),
               "write the model with the adapter added to its weights, not the adapter by itself");
  MEGACPP_FLAG(switch, dequantised, is(false).of(convert),
               "with --merge: add the adapter to the numbers that NF4 keeps of the weights, beside "
               "which it was trained, not to the weights themselves");
  MEGACPP_FLAG(switch, allow_other_base, is(false).of(running | convert),
               "take an adapter beside other weights than those that it was trained beside");
  MEGACPP_FLAG(switch, random_weights, is(false).of(generate),
               "take a new run's weights, not those of --load, to measure speed; needs --ids");
  MEGACPP_FLAG(switch, finetune, is(false),
               "take the weights of --load alone: optimizer, schedule, data and steps are new");
  MEGACPP_FLAG(whole, seed, is(1234).at_least(0).of(train | generate, must_match),
               "the seed of initial weights, the order of the data, dropout, and sampling. One "
               "seed gives the same bits, whatever --threads is");
  MEGACPP_FLAG(text, dtype, is("stored").one_of("stored|fp32|bf16|fp64").of(convert),
               "the type of the exported weights; stored: each tensor keeps its own");
  MEGACPP_FLAG(text, max_shard_size, is("5GB").of(train | convert, may_change),
               "the most bytes of tensors in one file of a model: a number with KB, MB, GB, TB or "
               "KiB, MiB, GiB, TiB. A larger model has several files and an index");
};

#undef MEGACPP_FLAG

} // namespace mc
