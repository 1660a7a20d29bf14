# The keys of a build. tests/structure/build_keys.py writes this file from the table in
# include/megacpp/options/build_keys.hpp.
#
# megacpp_add_preset(NAME ...) takes
#
#   MODEL name              a model of namespace mc::preset, for example gpt2_124m
#   HF_CONFIG file          the config.json of a Hugging Face model, in place of MODEL
#   INCLUDE header...       headers that declare more models in namespace mc::preset
#   TP N                    ranks that share each layer; by default 1
#   PP N                    pipeline stages; by default 1
#   CP N                    ranks that share each sequence; by default 1
#   EP N                    ranks that share the experts; by default 1
#   ETP N                   ranks that share each expert; by default 1 if EP is above 1, else TP
#   SEQUENCE_PARALLEL       the residual stream is sharded along the sequence, over ranks of TP
#   VIRTUAL_STAGES N        runs of layers that each stage has, which take turns; by default 1
#   FIRST_STAGE_LAYERS N    layers of the first stage, if not as many as of the others
#   LAST_STAGE_LAYERS N     layers of the last stage, if not as many as of the others
#   COUNT_EMBEDDING         the embedding counts as a layer of its stage
#   COUNT_LOSS              the loss counts as a layer of its stage
#   STAGE_LAYERS N N ...    layers of each stage, or of each of its runs of layers, one by one
#   SCHEDULE 1f1b|gpipe     the order of a step's micro-batches; gpipe keeps all of them; by default
#                           1f1b
#   ZERO 0|1                1: replicas share the optimizer's state (ZeRO 1); by default 0
#   MICRO_BATCH N           sequences that go through the model at once; by default 4
#   SEQUENCE N              tokens in a sequence, at most the model's positions; by default 1024
#   PACKED                  attention stays within documents, as conversations need it, and data
#                           sets with --reset-attention-mask
#   MICRO_BATCHES N         the most micro-batches of a step on each replica, if not any number
#   PRECISION fp32|bf16_mixed|bf16_moments|fp64
#                           types of numbers; bf16_mixed has weights and activations of bf16, and
#                           sums and masters of fp32, and bf16_moments also moments of bf16; by
#                           default bf16_mixed
#   DEVICE cpu|cuda         where a program computes; cuda is a GPU, and needs CUDA's toolkit; by
#                           default cpu
#   RECOMPUTE none|selective|full
#                           what the backward pass computes again instead of saving it; by default
#                           none
#   NUMERICS fast|batch_invariant
#                           how sums over tokens are taken: fast, all of a micro-batch at once, or
#                           batch_invariant, so that their bits do not depend on it; by default fast
#   ADAPTER file            a folder of PEFT, whose adapter_config.json gives the keys of an adapter
#                           (lora and the keys that begin with it, rslora, modules-to-save)
#   LORA N                  the rank of an adapter (LoRA), beside which the model is frozen
#   LORA_ALPHA X            the adapter's alpha, whose scale is alpha / rank; by default 16
#   RSLORA                  the adapter's scale is alpha over the root of its rank
#   LORA_TARGETS name name ...
#                           the linear layers that have an adapter, by the ends of their names; by
#                           default all-linear
#   LORA_EXCLUDE name name ...
#                           layers that have no adapter, though a target means them
#   LORA_LAYERS N N-N ...   the blocks that have an adapter, by number from 0, if not all
#   LORA_RANKS name:X name:X ...
#                           layers whose adapter has another rank, by the ends of their names
#   LORA_ALPHAS name:X name:X ...
#                           layers whose adapter has another alpha, by the ends of their names
#   MODULES_TO_SAVE name name ...
#                           modules that are trained as a whole beside an adapter, as lm_head
#   LORA_DROPOUT X          the probability of dropout before the adapter's A, in training; by
#                           default 0
#   BASE plain|nf4          how the frozen linear layers beside an adapter are stored: plain, or
#                           nf4, in 4.13 bits a weight (QLoRA); by default plain
#   BODIES header...        headers of the model's own row bodies, which nvcc compiles for a GPU
#
# and examples/build_preset.sh, whose --help prints these lines:
#
#   tp=N                    ranks that share each layer; by default 1
#   pp=N                    pipeline stages; by default 1
#   cp=N                    ranks that share each sequence; by default 1
#   ep=N                    ranks that share the experts; by default 1
#   etp=N                   ranks that share each expert; by default 1 if EP is above 1, else TP
#   sp=1                    the residual stream is sharded along the sequence, over ranks of TP
#   virtual-stages=N        runs of layers that each stage has, which take turns; by default 1
#   first-stage-layers=N    layers of the first stage, if not as many as of the others
#   last-stage-layers=N     layers of the last stage, if not as many as of the others
#   count-embedding=1       the embedding counts as a layer of its stage
#   count-loss=1            the loss counts as a layer of its stage
#   stage-layers=N,N,...    layers of each stage, or of each of its runs of layers, one by one
#   schedule=1f1b|gpipe     the order of a step's micro-batches; gpipe keeps all of them; by default
#                           1f1b
#   zero=0|1                1: replicas share the optimizer's state (ZeRO 1); by default 0
#   micro-batch=N           sequences that go through the model at once; by default 4
#   sequence=N              tokens in a sequence, at most the model's positions; by default 1024
#   packed=1                attention stays within documents, as conversations need it, and data
#                           sets with --reset-attention-mask
#   micro-batches=N         the most micro-batches of a step on each replica, if not any number
#   precision=fp32|bf16_mixed|bf16_moments|fp64
#                           types of numbers; bf16_mixed has weights and activations of bf16, and
#                           sums and masters of fp32, and bf16_moments also moments of bf16; by
#                           default bf16_mixed
#   device=cpu|cuda         where a program computes; cuda is a GPU, and needs CUDA's toolkit; by
#                           default cpu
#   recompute=none|selective|full
#                           what the backward pass computes again instead of saving it; by default
#                           none
#   numerics=fast|batch_invariant
#                           how sums over tokens are taken: fast, all of a micro-batch at once, or
#                           batch_invariant, so that their bits do not depend on it; by default fast
#   adapter=file            a folder of PEFT, whose adapter_config.json gives the keys of an adapter
#                           (lora and the keys that begin with it, rslora, modules-to-save)
#   lora=N                  the rank of an adapter (LoRA), beside which the model is frozen
#   lora-alpha=X            the adapter's alpha, whose scale is alpha / rank; by default 16
#   rslora=1                the adapter's scale is alpha over the root of its rank
#   lora-targets=name,name,...
#                           the linear layers that have an adapter, by the ends of their names; by
#                           default all-linear
#   lora-exclude=name,name,...
#                           layers that have no adapter, though a target means them
#   lora-layers=N,N-N,...   the blocks that have an adapter, by number from 0, if not all
#   lora-ranks=name:X,name:X,...
#                           layers whose adapter has another rank, by the ends of their names
#   lora-alphas=name:X,name:X,...
#                           layers whose adapter has another alpha, by the ends of their names
#   modules-to-save=name,name,...
#                           modules that are trained as a whole beside an adapter, as lm_head
#   lora-dropout=X          the probability of dropout before the adapter's A, in training; by
#                           default 0
#   base=plain|nf4          how the frozen linear layers beside an adapter are stored: plain, or
#                           nf4, in 4.13 bits a weight (QLoRA); by default plain
#
set(megacpp_build_keys
  MODEL
  HF_CONFIG
  INCLUDE
  TP
  PP
  CP
  EP
  ETP
  SEQUENCE_PARALLEL
  VIRTUAL_STAGES
  FIRST_STAGE_LAYERS
  LAST_STAGE_LAYERS
  COUNT_EMBEDDING
  COUNT_LOSS
  STAGE_LAYERS
  SCHEDULE
  ZERO
  MICRO_BATCH
  SEQUENCE
  PACKED
  MICRO_BATCHES
  PRECISION
  DEVICE
  RECOMPUTE
  NUMERICS
  ADAPTER
  LORA
  LORA_ALPHA
  RSLORA
  LORA_TARGETS
  LORA_EXCLUDE
  LORA_LAYERS
  LORA_RANKS
  LORA_ALPHAS
  MODULES_TO_SAVE
  LORA_DROPOUT
  BASE
  BODIES
  CACHE INTERNAL "Keys of megacpp_add_preset")
# These take no value.
set(megacpp_keys_alone SEQUENCE_PARALLEL COUNT_EMBEDDING COUNT_LOSS PACKED RSLORA CACHE INTERNAL "Keys without a value")
# Keys as examples/build_preset.sh has them.
set(megacpp_script_keys
  tp
  pp
  cp
  ep
  etp
  sp
  virtual-stages
  first-stage-layers
  last-stage-layers
  count-embedding
  count-loss
  stage-layers
  schedule
  zero
  micro-batch
  sequence
  packed
  micro-batches
  precision
  device
  recompute
  numerics
  adapter
  lora
  lora-alpha
  rslora
  lora-targets
  lora-exclude
  lora-layers
  lora-ranks
  lora-alphas
  modules-to-save
  lora-dropout
  base
  CACHE INTERNAL "Keys before =")
# CMake reads the values of these, since sources or libraries depend on them.
set(megacpp_keys_for_cmake HF_CONFIG DEVICE BODIES CACHE INTERNAL "Keys that CMake reads")
set(megacpp_script_of_HF_CONFIG "" CACHE INTERNAL "")
set(megacpp_script_of_DEVICE "device" CACHE INTERNAL "")
set(megacpp_script_of_BODIES "" CACHE INTERNAL "")
