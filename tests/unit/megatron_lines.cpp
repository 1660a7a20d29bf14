// Whole command lines of Megatron-LM, as they are published with it and by AWS, against the programs
// that they describe: what they are refused for, all of it, and what is taken without an effect.
#define BOOST_TEST_MODULE megatron_lines
#include <megacpp/cli/parse.hpp>
#include <megacpp/options/compiled_values.hpp>
#include <megacpp/options/loop.hpp>
#include <megacpp/options/rules.hpp>
#include <megacpp/preset/models.hpp>
#include <megacpp/tool/data_flags.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "scratch.hpp"
#include "where.hpp"

using mc::command;
using mc::exit_code;

namespace {

/// A model with the graphs that say what it is made of.
template <class Model> class program {
public:
  program(const Model& m, const mc::setup& s) : model_(m) {
    view_.name = "program", view_.numbers = s;
    view_.layers = m.layers, view_.hidden = m.hidden, view_.vocabulary = m.vocabulary;
    view_.model = mc::view_of_model(model_);
    view_.parts.resize(Model::kinds + mc::other_parts);
    add(0, mc::part_kind::stem, 0);
    for (int kind = 0; kind < Model::kinds; ++kind) add(1 + kind, mc::part_kind::block, kind);
    add(Model::kinds + 1, mc::part_kind::loss, 0);
    for (int l = 0; l < m.layers; ++l) view_.kind_of.push_back(m.kind_of(l));
  }
  operator const mc::program_view&() const { return view_; }

private:
  void add(int number, mc::part_kind part, int kind) {
    auto g = std::make_unique<mc::graph>(mc::forward_graph(model_, view_.numbers, part, kind));
    BOOST_REQUIRE_MESSAGE(g->wrong.code == mc::fault::none, mc::sentence_about(g->wrong));
    view_.parts[static_cast<std::size_t>(number)].g = g.get();
    graphs_.push_back(std::move(g));
  }
  Model model_;
  mc::program_view view_;
  std::vector<std::unique_ptr<mc::graph>> graphs_;
};

mc::setup numbers(mc::layout ranks, int sequence, mc::dtype type = mc::dtype::bf16,
                  mc::recompute again = mc::recompute::none, int micro = 1) {
  mc::setup s;
  s.ranks = ranks, s.batch = {micro, sequence}, s.precision = type, s.recompute_policy = again;
  return s;
}

std::string sorted(std::vector<std::string> words) {
  std::ranges::sort(words);
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : " ") + w;
  return text;
}
std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

/// A command line and what becomes of it.
template <class Flags> struct line {
  Flags flags;
  std::vector<mc::named_flag> list;
  mc::refusals refused;
  mc::detail::parsed_line request;
  mc::told_flags taken;

  line(const std::string& text, std::span<const mc::command_text> among) {
    list = flags_of(flags);
    std::vector<std::string> words = words_of("program " + text);
    for (std::string& word : words) std::ranges::replace(word, '~', ' '); // in quotes there
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    refused.collect([&] {
      request = mc::detail::parse(static_cast<int>(argv.size()), argv.data(), list, among, refused);
    });
    taken.without_effect = request.told.without_effect;
  }
  /// The sentences of what is refused, the exit code before them.
  std::string sentences() const {
    const auto r = test::refusal_of([&] { refused.raise(); });
    return r ? std::to_string(static_cast<int>(r->code)) + " " + r->text : "";
  }
  /// The names of the flags that are refused.
  std::string names() const {
    std::vector<std::string> found;
    for (const auto& [code, one] : refused.all())
      if (const auto at = one.find("--"); at != one.npos)
        found.push_back(one.substr(at + 2, one.find_first_of(" ;", at) - at - 2));
    return sorted(found);
  }
};

/// The line of a run, with the names that are refused and those that change nothing. One that is not
/// refused makes a run of `dp` replicas.
mc::options check(const mc::program_view& p, const std::string& text, const std::string& refused,
                  const std::string& idle, int dp = 1, const std::string& told = "") {
  line<mc::options> l("train " + text, mc::commands);
  mc::check_compiled(l.list, p, l.refused, l.taken);
  BOOST_TEST_CONTEXT(text << "\n" << l.sentences()) {
    BOOST_TEST(l.names() == sorted(words_of(refused)));
    BOOST_TEST(sorted(l.taken.without_effect) == sorted(words_of(idle)));
    if (refused.empty()) {
      std::vector<std::string> beside;
      beside = mc::apply_rules(command::train, l.flags, l.refused, false);
      BOOST_TEST(l.sentences() == "");
      BOOST_TEST(sorted(beside) == sorted(words_of(told)));
      BOOST_CHECK_NO_THROW(mc::loop_request_of(p, l.flags, dp));
    }
  }
  return l.flags;
}

const std::string aws_gpt3 =
    " --tensor-model-parallel-size=4 --pipeline-model-parallel-size=2 --num-layers=36"
    " --hidden-size=4096 --num-attention-heads=32 --seq-length=2048 --max-position-embeddings=2048"
    " --micro-batch-size=1 --global-batch-size=288 --train-samples=146484375"
    " --lr-decay-samples=126953125 --lr-warmup-samples=183105 --lr=6.0e-5 --min-lr=6.0e-6"
    " --lr-decay-style=cosine --log-interval=1 --eval-iters=40 --eval-interval=1000"
    " --data-path=/fsx/gpt2/my-gpt2_text_document --vocab-file=/fsx/gpt2/gpt2-vocab.json"
    " --merge-file=/fsx/gpt2/gpt2-merges.txt --split=98,2,0 --clip-grad=1.0 --weight-decay=0.1"
    " --adam-beta1=0.9 --adam-beta2=0.95 --init-method-std=0.006 --recompute-activations";

mc::gpt gpt3_of(int layers, int hidden, int heads, double std = 0.006, int positions = 2048) {
  return {.layers = layers,
          .hidden = hidden,
          .heads = heads,
          .ffn = 4 * hidden,
          .vocabulary = 51200,
          .positions = positions,
          .std = std};
}

} // namespace

// aws-samples/awsome-distributed-training, megatron-lm/kubernetes/gpt3 and slurm/gpt3.
BOOST_AUTO_TEST_CASE(gpt3_of_aws) {
  const program p(gpt3_of(36, 4096, 32),
                  numbers({.tp = 4, .pp = 2}, 2048, mc::dtype::bf16, mc::recompute::selective));
  check(p, aws_gpt3 + " --bf16", "", "");
  check(p, aws_gpt3 + " --fp16", "fp16", "");
  std::string spaced = aws_gpt3;
  std::ranges::replace(spaced, '=', ' ');
  const mc::options o = check(p, spaced + " --bf16", "", "");
  BOOST_TEST(mc::loop_request_of(p, o).batches.last == 288);
  // What the program is not, all at once.
  const program other(gpt3_of(24, 2048, 16, 0.02), numbers({}, 1024, mc::dtype::f32));
  check(other, aws_gpt3 + " --fp16",
        "fp16 tensor-model-parallel-size pipeline-model-parallel-size num-layers hidden-size "
        "num-attention-heads seq-length init-method-std recompute-activations",
        "");
}

// The same repository, slurm/llama2/pretrain-llama2.sbatch.
BOOST_AUTO_TEST_CASE(llama2_of_aws) {
  const std::string text =
      " --num-layers 80 --hidden-size 8192 --num-attention-heads 64 --group-query-attention"
      " --num-query-groups 8 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4"
      " --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce"
      " --overlap-param-gather --untie-embeddings-and-output-weights --position-embedding-type rope"
      " --no-position-embedding --normalization RMSNorm --swiglu --no-masked-softmax-fusion"
      " --no-rope-fusion --use-flash-attn --transformer-impl transformer_engine --seq-length 4096"
      " --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 2048"
      " --train-iters 5 --split 100,0,0 --use-mcore-models --log-throughput --lr 6.0e-5"
      " --min-lr 6.0e-6 --lr-decay-style cosine --log-interval 1 --eval-iters 0"
      " --data-path /fsx/llama2/my-llama2_text_document --tokenizer-type Llama2Tokenizer"
      " --tokenizer-model /fsx/llama2/tokenizer.model --clip-grad 1.0 --weight-decay 0.1"
      " --adam-beta1 0.9 --adam-beta2 0.95 --wandb-exp-name llama2-megatron-lm"
      " --wandb-project megatron-lm --init-method-std 0.006";
  const std::string idle =
      "overlap-grad-reduce overlap-param-gather no-masked-softmax-fusion no-rope-fusion "
      "use-flash-attn transformer-impl use-mcore-models log-throughput wandb-exp-name "
      "wandb-project max-position-embeddings";
  mc::llama m{.layers = 80,
              .hidden = 8192,
              .heads = 64,
              .kv_heads = 8,
              .ffn = 28672,
              .vocabulary = 32000,
              .positions = 4096,
              .eps = 1e-5,
              .rope_theta = 1e4,
              .std = 0.006};
  const mc::layout ranks{.tp = 4, .pp = 4, .sequence_parallel = true, .zero = 1};
  const program p(m, numbers(ranks, 4096));
  check(p, text + " --bf16", "", idle);
  check(p, text + " --fp16", "fp16", idle);
  m.tied = true, m.std = 0.02;
  check(program(m, numbers(ranks, 4096)), text + " --bf16",
        "untie-embeddings-and-output-weights init-method-std", idle);
  check(program(gpt3_of(80, 8192, 64, 0.006, 8192), numbers(ranks, 4096)), text + " --bf16",
        "group-query-attention num-query-groups position-embedding-type no-position-embedding "
        "normalization swiglu untie-embeddings-and-output-weights max-position-embeddings",
        idle.substr(0, idle.rfind(' ')));
}

// NVIDIA/Megatron-LM, examples/gpt3, examples/llama and examples/mixtral, main of August 2026.
BOOST_AUTO_TEST_CASE(examples_of_megatron) {
  const std::string gpt3 =
      " --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048"
      " --max-position-embeddings 2048 --attention-backend auto --micro-batch-size 1"
      " --global-batch-size 1536 --train-iters 500000 --weight-decay 0.1 --adam-beta1 0.9"
      " --adam-beta2 0.95 --init-method-std 0.006 --clip-grad 1.0 --lr 6.0e-5"
      " --lr-decay-style cosine --min-lr 6.0e-6 --lr-warmup-fraction .001 --lr-decay-iters 430000"
      " --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --data-path my-gpt2"
      " --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --split 949,50,1"
      " --log-interval 100 --save-interval 10000 --eval-interval 1000 --save states --load states"
      " --eval-iters 10 --tensorboard-dir logs";
  const program p(gpt3_of(96, 12288, 96), numbers({.tp = 8, .pp = 16}, 2048));
  check(p, gpt3 + " --fp16 --step-batch-size-schedule 0:16~2.4B:320~12B:1536",
        "fp16 step-batch-size-schedule", "attention-backend");
  const mc::options o = check(p, gpt3 + " --bf16", "", "attention-backend");
  BOOST_TEST(mc::loop_request_of(p, o).rates.warmup == 430.0);

  const std::string llama3 =
      " --use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336"
      " --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128"
      " --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope"
      " --rotary-base 1000000 --rotary-percent 1.0 --attention-dropout 0.0 --hidden-dropout 0.0"
      " --swiglu --normalization RMSNorm --init-method-std 0.0134 --attention-backend fused"
      " --untie-embeddings-and-output-weights --disable-bias-linear --micro-batch-size 1"
      " --global-batch-size 128 --train-samples 1953125000 --lr-decay-samples 1949218748"
      " --lr-warmup-samples 3906252 --lr 0.00015 --min-lr 0.00001 --lr-decay-style cosine"
      " --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --bf16"
      " --cross-entropy-loss-fusion --calculate-per-token-loss --manual-gc"
      " --empty-unused-memory-level 1 --exit-duration-in-mins 235 --use-distributed-optimizer"
      " --overlap-grad-reduce --overlap-param-gather --tensor-model-parallel-size 1"
      " --context-parallel-size 1 --sequence-parallel --data-path web"
      " --tokenizer-type HuggingFaceTokenizer --tokenizer-model llama3 --data-cache-path cache"
      " --split 99,1,0 --no-create-attention-mask-in-dataloader --no-mmap-bin-files"
      " --num-workers 1 --vocab-size 128256 --log-interval 1 --eval-iters 32 --eval-interval 100"
      " --save-interval 1000 --log-throughput --profile --profile-step-start 4"
      " --profile-step-end 6 --ckpt-format torch_dist --distributed-timeout-minutes 60"
      " --save states --load states --tensorboard-dir logs";
  const std::string idle =
      "use-mcore-models max-position-embeddings attention-backend cross-entropy-loss-fusion "
      "calculate-per-token-loss manual-gc empty-unused-memory-level overlap-grad-reduce "
      "overlap-param-gather sequence-parallel no-create-attention-mask-in-dataloader "
      "no-mmap-bin-files num-workers log-throughput ckpt-format";
  mc::llama m = mc::preset::llama3_8b;
  m.std = 0.0134, m.rope_theta = 1e6;
  const program llama(m, numbers({.zero = 1}, 8192));
  check(llama,
        llama3 +
            " --apply-layernorm-1p --decoupled-lr 5.0e-4 --decoupled-min-lr 4.5e-5"
            " --grad-reduce-in-bf16 --fp8-format hybrid --fp8-amax-history-len 1024"
            " --fp8-amax-compute-algo max --fp8-param-gather --tiktoken-pattern v2",
        "apply-layernorm-1p decoupled-lr decoupled-min-lr grad-reduce-in-bf16 fp8-format "
        "fp8-amax-history-len fp8-amax-compute-algo fp8-param-gather tiktoken-pattern",
        idle);
  const mc::options eight =
      check(llama, llama3, "", idle, 1, "profile-step-start profile-step-end");
  BOOST_TEST(eight.machine.collective_timeout() == 3600);
  check(program(mc::preset::llama3_1_8b, numbers({}, 8192)), llama3,
        "rotary-base init-method-std use-distributed-optimizer", idle);

  const std::string mixtral =
      " --use-mcore-models --disable-bias-linear --seq-length 4096 --max-position-embeddings 32768"
      " --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32"
      " --init-method-std 0.01 --attention-dropout 0.0 --hidden-dropout 0.0 --normalization RMSNorm"
      " --position-embedding-type rope --swiglu --untie-embeddings-and-output-weights"
      " --group-query-attention --num-query-groups 8 --no-masked-softmax-fusion"
      " --no-position-embedding --rotary-base 1000000 --num-experts 8 --moe-router-topk 2"
      " --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2 --moe-grouped-gemm"
      " --moe-token-dispatcher-type alltoall --overlap-param-gather --overlap-grad-reduce"
      " --tokenizer-type Llama2Tokenizer --tokenizer-model tokenizer.model --data-path web"
      " --split 99990,8,2 --micro-batch-size 1 --global-batch-size 256 --lr 1e-4"
      " --train-iters 500000 --lr-decay-iters 320000 --lr-decay-style cosine --min-lr 1.0e-5"
      " --weight-decay 0.1 --lr-warmup-iters 500 --clip-grad 1.0 --bf16"
      " --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4"
      " --expert-model-parallel-size 8 --use-distributed-optimizer --sequence-parallel"
      " --log-interval 1 --save-interval 10000 --eval-interval 1000 --eval-iters 10 --save states"
      " --load states --tensorboard-dir states/tensorboard --no-load-rng --wandb-project Mixtral"
      " --wandb-exp-name Mixtral_8x7B";
  const std::string idle_of_mixtral =
      "use-mcore-models max-position-embeddings no-masked-softmax-fusion moe-token-dispatcher-type "
      "overlap-param-gather overlap-grad-reduce sequence-parallel no-load-rng "
      "wandb-project wandb-exp-name";
  mc::qwen3_moe e{.layers = 32,
                  .hidden = 4096,
                  .heads = 32,
                  .kv_heads = 8,
                  .ffn = 14336,
                  .expert_ffn = 14336,
                  .experts = 8,
                  .experts_per_token = 2,
                  .vocabulary = 32000,
                  .positions = 32768,
                  .aux_loss = 1e-2,
                  .std = 0.01};
  const program experts(e, numbers({.pp = 4, .ep = 8, .zero = 1}, 4096));
  check(experts, mixtral + " --no-load-optim", "no-load-optim", idle_of_mixtral);
  check(experts, mixtral + " --no-load-optim --finetune", "", idle_of_mixtral + " no-load-optim",
        8);
  check(program(e, numbers({.pp = 4, .ep = 8}, 4096, mc::dtype::f32)), mixtral,
        "bf16 use-distributed-optimizer", idle_of_mixtral);
}

// The same repository, examples/ of its versions 2.0 to 2.5, and academic_paper_scripts/.
BOOST_AUTO_TEST_CASE(older_examples_of_megatron) {
  const auto of_345m = [](const char* micro, const char* global) {
    return std::string(
               " --num-layers 24 --hidden-size 1024 --num-attention-heads 16"
               " --micro-batch-size ") +
           micro + " --global-batch-size " + global +
           " --seq-length 1024 --max-position-embeddings 1024 --train-iters 500000"
           " --lr-decay-iters 320000 --save states --load states --data-path my-gpt2"
           " --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-impl mmap"
           " --split 949,50,1 --distributed-backend nccl --lr 0.00015 --min-lr 1.0e-5"
           " --lr-decay-style cosine --weight-decay 1e-2 --clip-grad 1.0 --lr-warmup-fraction .01"
           " --checkpoint-activations --log-interval 100 --save-interval 10000"
           " --eval-interval 1000 --eval-iters 10";
  };
  const std::string idle = "data-impl distributed-backend";
  const auto of = [](const mc::layout& ranks, int micro,
                     mc::recompute again = mc::recompute::full) {
    return program(gpt3_of(24, 1024, 16, 0.02, 1024),
                   numbers(ranks, 1024, mc::dtype::bf16, again, micro));
  };
  const program one = of({}, 4);
  check(one, of_345m("4", "8") + " --fp16", "fp16", idle);
  const mc::options o = check(one, of_345m("4", "8"), "", idle);
  BOOST_TEST(mc::loop_request_of(one, o).rates.warmup == 3200.0);
  check(of({}, 8), of_345m("8", "64"), "", idle, 8);
  check(of({.tp = 2, .pp = 2}, 4),
        " --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2" + of_345m("4", "16"), "",
        idle, 2);
  check(of({}, 4, mc::recompute::none), of_345m("4", "8"), "recompute-granularity", idle);

  check(program(gpt3_of(96, 12288, 96),
                numbers({.tp = 8, .pp = 16}, 2048, mc::dtype::bf16, mc::recompute::full)),
        " --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --num-layers 96"
        " --hidden-size 12288 --num-attention-heads 96 --seq-length 2048"
        " --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 1536"
        " --rampup-batch-size 16 16 5859375 --train-samples 146484375"
        " --lr-decay-samples 126953125 --lr-warmup-samples 183105 --lr 6.0e-5 --min-lr 6.0e-6"
        " --lr-decay-style cosine --log-interval 10 --eval-iters 40 --eval-interval 1000"
        " --data-path 0.2 a 0.3 b 0.5 c --vocab-file v --merge-file m --save-interval 1000"
        " --save states --load states --split 98,2,0 --clip-grad 1.0 --weight-decay 0.1"
        " --adam-beta1 0.9 --adam-beta2 0.95 --init-method-std 0.006 --tensorboard-dir logs"
        " --checkpoint-activations",
        "", "");

  const mc::options few =
      check(program(gpt3_of(24, 2304, 24, 0.02), numbers({}, 2048, mc::dtype::f32)),
            " --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --micro-batch-size 1"
            " --global-batch-size 8 --num-layers 24 --hidden-size 2304 --num-attention-heads 24"
            " --DDP-impl local --data-path web --vocab-file v --merge-file m --log-interval 5"
            " --seq-length 2048 --max-position-embeddings 2048 --train-iters 500"
            " --lr-decay-iters 320 --lr 0.0001 --min-lr 0.00001 --lr-decay-style cosine"
            " --lr-warmup-fraction 0.01 --split 969,30,1 --eval-iters 100 --eval-interval 1000"
            " --clip-grad 1.0",
            "", "DDP-impl");
  BOOST_TEST(few.optimizer.lr_warmup_fraction() == 0.01); // 3.2 steps

  const std::string finetuned =
      " --num-layers 24 --hidden-size 2048 --num-attention-heads 32 --micro-batch-size 4"
      " --global-batch-size 512 --seq-length 2048 --max-position-embeddings 2048"
      " --train-iters 600 --save tuned --load states --data-path web --vocab-file v --merge-file m"
      " --split 100,0,0 --distributed-backend nccl --lr-decay-style constant --lr 2e-5"
      " --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95"
      " --checkpoint-activations --log-interval 1 --save-interval 78 --eval-interval 78"
      " --eval-iters 50 --DDP-impl local --finetune --no-load-optim"
      " --log-validation-ppl-to-tensorboard --tensorboard-dir logs";
  check(program(gpt3_of(24, 2048, 32, 0.02),
                numbers({}, 2048, mc::dtype::bf16, mc::recompute::full, 4)),
        finetuned + " --data-path2 more --fp16 --loss-scale 8192", "data-path2 fp16 loss-scale",
        "distributed-backend DDP-impl no-load-optim log-validation-ppl-to-tensorboard");
  // msrasys/nnscaler, benchmark/megatron: GELU without its fusion is another function there.
  check(program(gpt3_of(24, 1024, 16, 0.02, 1024),
                numbers({.tp = 8}, 1024, mc::dtype::f32, mc::recompute::none, 8)),
        " --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024"
        " --max-position-embeddings 1024 --micro-batch-size 8 --global-batch-size 8 --lr 0.00015"
        " --train-iters 500000 --lr-decay-iters 320000 --lr-decay-style cosine"
        " --lr-warmup-fraction .01 --fp16 --fp16-lm-cross-entropy --no-masked-softmax-fusion"
        " --no-bias-gelu-fusion --no-bias-dropout-fusion --tensor-model-parallel-size 8"
        " --pipeline-model-parallel-size 1 --DDP-impl torch",
        "fp16 fp16-lm-cross-entropy no-bias-gelu-fusion",
        "no-masked-softmax-fusion no-bias-dropout-fusion DDP-impl");
}

// The same repository, examples/post_training/modelopt/conf.
BOOST_AUTO_TEST_CASE(configurations_of_megatron) {
  const std::string all =
      " --save-interval 100000 --save states --micro-batch-size 1 --bf16"
      " --no-masked-softmax-fusion --disable-bias-linear --position-embedding-type rope"
      " --no-rope-fusion --normalization RMSNorm --swiglu --group-query-attention"
      " --seq-length 4096 --tokenizer-type HuggingFaceTokenizer --use-mcore-models"
      " --rotary-percent 1.0 --no-bias-swiglu-fusion";
  const std::string idle =
      "no-masked-softmax-fusion no-rope-fusion use-mcore-models no-bias-swiglu-fusion "
      "make-vocab-size-divisible-by max-position-embeddings";
  const mc::setup s = numbers({}, 4096);
  const std::string qwen =
      " --kv-channels 128 --qk-layernorm --max-position-embeddings 40960"
      " --make-vocab-size-divisible-by 1187 --rotary-base 1000000";
  const std::string eight = all + qwen +
                            " --untie-embeddings-and-output-weights --num-layers 36"
                            " --hidden-size 4096 --ffn-hidden-size 12288 --num-attention-heads 32"
                            " --num-query-groups 8";
  check(program(mc::preset::qwen3_8b, s), eight, "", idle);
  check(program(mc::preset::qwen3_0_6b, s),
        all + qwen +
            " --num-layers 28 --hidden-size 1024 --ffn-hidden-size 3072 --num-attention-heads 16"
            " --num-query-groups 8",
        "", idle);
  const std::string half =
      all +
      " --add-qkv-bias --num-layers 24 --hidden-size 896 --ffn-hidden-size 4864"
      " --num-attention-heads 14 --num-query-groups 2 --kv-channels 64"
      " --max-position-embeddings 32768 --padded-vocab-size 151936"
      " --make-vocab-size-divisible-by 1 --rotary-base 1000000";
  check(program(mc::preset::qwen2_5_0_5b, s), half, "", idle);
  mc::llama biased = mc::preset::llama3_8b;
  biased.attention_bias = true;
  check(program(biased, s), half,
        "disable-bias-linear num-layers hidden-size ffn-hidden-size num-attention-heads "
        "num-query-groups kv-channels vocab-size rotary-base",
        idle);
  check(program(mc::preset::qwen3_30b_a3b, s),
        all + qwen +
            " --untie-embeddings-and-output-weights --num-layers 48 --hidden-size 2048"
            " --ffn-hidden-size 6144 --num-attention-heads 32 --num-query-groups 4"
            " --num-experts 128 --moe-ffn-hidden-size 768 --moe-router-topk 8"
            " --moe-router-dtype fp32 --moe-aux-loss-coeff 1e-3"
            " --moe-token-dispatcher-type alltoall --moe-router-load-balancing-type aux_loss"
            " --moe-layer-freq 1 --sequence-parallel",
        "moe-router-dtype", idle + " moe-token-dispatcher-type sequence-parallel");
  const std::string one =
      all +
      " --use-rotary-position-embeddings --no-position-embedding --num-layers 16"
      " --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 32 --num-query-groups 8"
      " --max-position-embeddings 8192 --make-vocab-size-divisible-by 1 --rotary-base 500000"
      " --use-rope-scaling";
  check(program(mc::preset::llama3_2_1b, s), one + " --rope-scaling-factor 32", "", idle);
  check(program(mc::preset::llama3_2_1b, s), one + " --rope-scaling-factor 8",
        "rope-scaling-factor", idle);
  mc::llama plain = mc::preset::llama3_2_1b;
  plain.rope_scaling = {};
  check(program(plain, s), one, "use-rope-scaling", idle);
}

// What a graph says of its model, word by word, also where the family has no member of that name.
BOOST_AUTO_TEST_CASE(each_difference_of_a_model_is_refused) {
  const auto differs = [](const auto& m, const mc::setup& s, const char* text, const char* name) {
    check(program(m, s), std::string(" --mock-data ") + text, name, "");
  };
  const mc::setup s = numbers({}, 256);
  const mc::gpt g = gpt3_of(2, 256, 4, 0.02, 256);
  const mc::llama l{.layers = 2,
                    .hidden = 256,
                    .heads = 4,
                    .kv_heads = 2,
                    .head_dim = 64,
                    .ffn = 512,
                    .vocabulary = 512,
                    .positions = 256};
  for (const auto& [text, name] :
       {std::pair{"--normalization RMSNorm", "normalization"},
        {"--norm-epsilon 1e-6", "norm-epsilon"},
        {"--layernorm-epsilon 1e-6", "norm-epsilon"},
        {"--swiglu", "swiglu"},
        {"--qk-layernorm", "qk-layernorm"},
        {"--position-embedding-type rope", "position-embedding-type"},
        {"--use-rotary-position-embeddings", "position-embedding-type"},
        {"--no-position-embedding", "no-position-embedding"},
        {"--max-position-embeddings 512", "max-position-embeddings"},
        {"--untie-embeddings-and-output-weights", "untie-embeddings-and-output-weights"},
        {"--disable-bias-linear", "disable-bias-linear"},
        {"--hidden-dropout 0.1", "hidden-dropout"},
        {"--attention-dropout 0.1", "attention-dropout"},
        {"--init-method-std 0.01", "init-method-std"},
        {"--no-bias-gelu-fusion", "no-bias-gelu-fusion"},
        {"--kv-channels 32", "kv-channels"},
        {"--group-query-attention", "group-query-attention"},
        {"--fp32-residual-connection", "fp32-residual-connection"}})
    differs(g, s, text, name);
  for (const auto& [text, name] :
       {std::pair{"--normalization LayerNorm", "normalization"},
        {"--norm-epsilon 1e-6", "norm-epsilon"},
        {"--add-qkv-bias", "add-qkv-bias"},
        {"--qk-layernorm", "qk-layernorm"},
        {"--position-embedding-type yarn", "position-embedding-type"},
        {"--rotary-base 10000", "rotary-base"},
        {"--rotary-percent 0.5", "rotary-percent"},
        {"--rotary-seq-len-interpolation-factor 2", "rotary-seq-len-interpolation-factor"},
        {"--moe-router-topk 2", "moe-router-topk"}})
    differs(l, s, text, name);
  check(program(g, s),
        " --mock-data --normalization LayerNorm --norm-epsilon 1e-5 --openai-gelu --kv-channels 64"
        " --position-embedding-type learned_absolute --max-position-embeddings 256 --add-qkv-bias"
        " --hidden-dropout 0 --attention-dropout .0 --init-method-std 2e-2",
        "", "");
  mc::gpt dropping = g;
  dropping.dropout = 0.1;
  check(program(dropping, s), " --mock-data --hidden-dropout 0.1", "", "");
  // Megatron-LM's LayerNorm has a bias whatever its linear layers have.
  mc::gpt bare = g;
  bare.bias = false;
  differs(bare, s, "--normalization LayerNorm", "normalization");
  mc::llama stretched = l;
  stretched.rope_scaling = {.type = mc::rope_type::linear, .factor = 2};
  check(program(stretched, s), " --mock-data --rotary-seq-len-interpolation-factor 2", "", "");
  stretched.rope_scaling = {.type = mc::rope_type::yarn, .factor = 2};
  check(program(stretched, s), " --mock-data --position-embedding-type yarn", "", "");
  // Stretched as Llama 3.1 is, from another number of positions.
  stretched.rope_scaling = {mc::rope_type::llama3, 8, 4096, 1, 4};
  differs(stretched, s, "--use-rope-scaling", "use-rope-scaling");
  mc::qwen3_moe some{.layers = 4,
                     .hidden = 256,
                     .heads = 4,
                     .kv_heads = 2,
                     .head_dim = 64,
                     .ffn = 512,
                     .expert_ffn = 128,
                     .experts = 4,
                     .experts_per_token = 2,
                     .vocabulary = 512,
                     .positions = 256,
                     .sparse_step = 2};
  const program half(some, numbers({}, 256, mc::dtype::f32));
  check(half, " --mock-data --moe-layer-freq [0,1,0,1] --moe-router-dtype fp32", "", "");
  check(half, " --mock-data --moe-layer-freq 1 --moe-router-dtype fp64",
        "moe-layer-freq moe-router-dtype", "");
}

// NVIDIA/Megatron-LM, tools/preprocess_data.py: its README of version 2.5, docs/get-started and
// examples/llama of today, and AWS's jobs.
BOOST_AUTO_TEST_CASE(lines_of_preprocess_data) {
  const auto prepared = [](const std::string& text, const std::string& refused,
                           const std::string& idle) {
    line<mc::data_program_flags> l("prepare " + text, mc::data_commands);
    BOOST_TEST_CONTEXT(text << "\n" << l.sentences()) {
      BOOST_TEST(l.names() == sorted(words_of(refused)));
      BOOST_TEST(sorted(l.taken.without_effect) == sorted(words_of(idle)));
    }
    return l.flags;
  };
  const std::string aws =
      "--input /fsx/oscar-1GB.jsonl --output-prefix /fsx/my-gpt2 --vocab-file /fsx/gpt2-vocab.json"
      " --tokenizer-type GPT2BPETokenizer --merge-file /fsx/gpt2-merges.txt --append-eod"
      " --workers 64";
  BOOST_TEST(prepared(aws, "", "").append_eod());
  const mc::data_program_flags old = prepared(
      "--input my-corpus.json --output-prefix my-gpt2 --vocab gpt2-vocab.json --dataset-impl mmap"
      " --tokenizer-type GPT2BPETokenizer --merge-file gpt2-merges.txt --append-eod",
      "", "dataset-impl");
  BOOST_TEST(old.vocab_file() == "gpt2-vocab.json");
  const mc::data_program_flags folder = prepared(
      "--input data.jsonl --output-prefix processed_data --tokenizer-type HuggingFaceTokenizer"
      " --tokenizer-model /path/to/folder --workers 8 --append-eod --log-interval 1000"
      " --partitions 1",
      "", "log-interval partitions");
  BOOST_TEST(folder.tokenizer() == "/path/to/folder");
  prepared(
      "--input my-corpus.json --output-prefix my-bert --vocab bert-vocab.txt"
      " --dataset-impl lazy --tokenizer-type BertWordPieceLowerCase --split-sentences"
      " --partitions 4",
      "dataset-impl tokenizer-type split-sentences partitions", "");
  prepared(
      "--input /fsx/oscar-1GB.jsonl --output-prefix /fsx/my-llama2"
      " --tokenizer-type Llama2Tokenizer --tokenizer-model /fsx/tokenizer.model --append-eod"
      " --workers 64",
      "tokenizer-type", "");
}

// argparse keeps the last one, whole.
BOOST_AUTO_TEST_CASE(the_last_of_a_repeated_flag_counts) {
  line<mc::options> l(
      "train --lr 1 --data-path 1 a 2 b --lr 2 --lr=3 --mock-data --mock-data=false "
      "--rampup-batch-size 4 4 16 --data-path c d --rampup-batch-size 8 8 32 "
      "--seed 5 --seed 5 --num-workers 1 --num-workers 2",
      mc::commands);
  BOOST_TEST(l.sentences() == "");
  BOOST_TEST(l.flags.optimizer.lr() == 3.0);
  BOOST_TEST(!l.flags.data.mock_data());
  BOOST_TEST(l.flags.training.rampup_batch_size() == "8 8 32");
  BOOST_TEST(sorted(l.request.told.repeated) == "lr mock-data rampup-batch-size");
  // Lists collect, and those that Megatron-LM's argparse does not collect are told.
  BOOST_TEST(sorted(l.flags.data.data_path()) == "1 2 a b c d");
  BOOST_TEST(
      l.request.told.notes().at(0).ends_with("; given several times, of which all count: "
                                             "--data-path"));
  BOOST_TEST(sorted(l.taken.without_effect) == "num-workers");
  // It is told of names that mean a flag of this program, or are taken with some values.
  line<mc::options> f(
      "train --mock-data --distributed-timeout-minutes 5 --distributed-timeout-minutes 10 "
      "--optimizer sgd --optimizer adam --use-flash-attn --use-flash-attn",
      mc::commands);
  BOOST_TEST(f.sentences() == "");
  BOOST_TEST(f.flags.machine.collective_timeout() == 600);
  BOOST_TEST(sorted(f.request.told.repeated) == "distributed-timeout-minutes optimizer");
  BOOST_TEST(sorted(f.taken.without_effect) == "optimizer use-flash-attn");
  // Those of which each adds a text are no repetitions.
  line<mc::options> g("generate --prompt a --stop x --prompt b --stop y", mc::commands);
  BOOST_TEST(sorted(g.flags.sampling.prompt()) == "a b");
  BOOST_TEST(sorted(g.flags.sampling.stop()) == "x y");
  BOOST_TEST(g.request.told.repeated.empty());
}

// Each flag takes as many arguments as it has values, and leaves flags and commands to be read.
BOOST_AUTO_TEST_CASE(arguments_that_follow_a_flag) {
  line<mc::options> l(
      "train --data-path a -1 b --mock-data --min-lr -0 --exit-signal-handler false "
      "--rampup-batch-size 4 4 8 --save --new --seed=3 --reset-position-ids --cp-comm-type p2p a2a",
      mc::commands);
  BOOST_TEST(l.sentences() == "");
  BOOST_TEST(l.flags.data.data_path() == (std::vector<std::string>{"a", "-1", "b"}),
             boost::test_tools::per_element());
  BOOST_TEST((l.flags.data.mock_data() && l.flags.data.reset_position_ids()));
  BOOST_TEST((!l.flags.training.exit_signal_handler() && l.flags.optimizer.min_lr() == 0));
  BOOST_TEST(l.flags.training.rampup_batch_size() == "4 4 8");
  BOOST_TEST((l.flags.training.save() == "--new" && l.flags.model.seed() == 3));
  for (const auto& [text, says] :
       {std::pair{"train --data-path a eval", "two commands, train and eval"},
        {"train --mock-data generate", "two commands, train and generate"},
        {"train --mock-data x", "--mock-data is \"x\""},
        {"train --rampup-batch-size 4 4 8 9", "unknown argument \"9\""},
        {"train --seed 3 4", "unknown argument \"4\""},
        {"train --seed --lr=3", "--seed needs one value, but --lr=3 follows"},
        {"train --seed --config", "--seed needs one value, but --config follows"},
        {"train --seed", "--seed needs one value"},
        {"train --seed=", "--seed= has no value"},
        {"train --seed=", "give --seed=VALUE, or leave --seed out"},
        {"train --mock-data=", "give --mock-data, or --mock-data=false"},
        {"train --use-flash-attn=", "give --use-flash-attn, or leave --use-flash-attn out"},
        {"train --config", "--config needs one value"},
        {"train --config=a --config=b", "--config is given twice"},
        {"train -- --lr 1", "--lr stands before the command"},
        {"--lr 1 train", "--lr stands before the command"},
        {"train --version", "unknown flag --version"},
        {"train -", "unknown argument \"-\""},
        {"train - --lr", "--lr needs one value"},
        {"", "give a command: train, eval, generate, export, describe"}}) {
    const std::string sentences = line<mc::options>(text, mc::commands).sentences();
    BOOST_TEST(sentences.starts_with("2 "), text);
    BOOST_TEST(sentences.find(says) != std::string::npos, text << ": " << sentences);
  }
  BOOST_TEST(line<mc::options>("train --foo --help", mc::commands).request.help);
  BOOST_TEST((line<mc::options>("--help eval", mc::commands).request.what->which == command::eval));
  BOOST_TEST(line<mc::options>("-V", mc::commands).request.version);
}

// A name says nothing of what an op of one's own computes.
namespace {

constexpr void own_rule(mc::inference& c) { // x
  c.floats({0}), c.declare(c.in(0));
  place_output(c, 0, mc::algebra::nonlinear, {0});
}
inline constexpr mc::op_info own_swiglu{.name = "own_swiglu", .rule = &own_rule};

struct with_own_op : mc::gpt {
  constexpr mc::var block(mc::context& c, int kind, mc::var x) const {
    const mc::var y = mc::gpt::block(c, kind, x);
    return {y.b, y.b->emit(own_swiglu, {y.id}, mc::here())};
  }
};

} // namespace

BOOST_AUTO_TEST_CASE(an_op_of_ones_own_agrees_with_no_flag) {
  const program p(with_own_op{gpt3_of(2, 256, 4, 0.02, 256)}, numbers({}, 256));
  check(p, " --mock-data --swiglu --openai-gelu", "swiglu", "");
}

// NVIDIA/Megatron-LM, tests/functional_tests, gpt3_mcore_te_tp1_pp4_disable_bias_linear: its checks
// of arguments turn the fusion of GELU off there, and what is not fused is the exact one.
BOOST_AUTO_TEST_CASE(gelu_of_layers_without_biases_is_the_exact_one) {
  const std::string text = " --mock-data --disable-bias-linear";
  mc::gpt m = gpt3_of(2, 256, 4, 0.02, 256);
  m.bias = false;
  const program by_tanh(m, numbers({}, 256));
  check(by_tanh, text, "disable-bias-linear", "");
  line<mc::options> l("train" + text, mc::commands);
  mc::set_compiled(l.flags, by_tanh); // a program's own flags have what is compiled in
  mc::check_compiled(l.list, by_tanh, l.refused, l.taken);
  BOOST_TEST(l.sentences().starts_with("3 --disable-bias-linear makes Megatron-LM compute"));
  check(by_tanh, text + " --openai-gelu", "", "");
  check(by_tanh, " --mock-data --openai-gelu", "", "");
  const mc::llama gated{.layers = 2,
                        .hidden = 256,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = 64,
                        .ffn = 512,
                        .vocabulary = 512,
                        .positions = 256};
  check(program(gated, numbers({}, 256)), text, "", "");
}

// One message has all that is wrong, by whatever it is found.
BOOST_AUTO_TEST_CASE(all_that_is_refused_is_told_at_once) {
  const program p(gpt3_of(2, 256, 4, 0.02, 256), numbers({}, 256));
  const test::scratch_folder folder;
  const std::string config = folder / "run.json";
  test::write_text(config, R"({"num-layres": 2, "lr": "x", "overlap-grad-reduce": true,
                               "num-workers": 2, "dataloader-type": "cyclic"})");
  line<mc::options> l(
      "train --foo 1 2 --fp16 --train-iters 0 --num-layers 3 --max-iters 5 --foo 3 "
      "--config " +
          config,
      mc::commands);
  mc::check_compiled(l.list, p, l.refused, l.taken);
  const std::string says = l.sentences();
  BOOST_TEST(says.starts_with("2 8 things are refused: "), says);
  for (const char* part :
       {"unknown flag --foo; --help shows", "unknown flag --fp16; no program computes in fp16",
        "--train-iters is \"0\", but must be at least 1", "--num-layers is 3, but program was",
        "unknown flag --max-iters; it is --train-iters here",
        "there is no option \"num-layres\"; did you mean num-layers?",
        "option \"lr\" must be a number", "\"dataloader-type\" cyclic is not taken; all windows"})
    BOOST_TEST(says.find(part) != std::string::npos, part << " is not in " << says);
  BOOST_TEST(sorted(l.taken.without_effect) == "num-workers overlap-grad-reduce");
  BOOST_TEST(l.taken.notes().at(0).starts_with("without effect here: --"));
  // So are those that change nothing beside the others.
  line<mc::options> idle("train --mock-data --fp16 --save-interval 5 --finetune --warmup 3",
                         mc::commands);
  const std::vector<std::string> told =
      mc::apply_rules(command::train, idle.flags, idle.refused, false);
  BOOST_TEST(idle.names() == "finetune fp16 warmup");
  BOOST_TEST(told == std::vector<std::string>{"save-interval"});
  // What contradicts the program alone keeps its exit code.
  line<mc::options> two("train --num-layers 3 --hidden-size 5 --seq-length 256", mc::commands);
  mc::check_compiled(two.list, p, two.refused, two.taken);
  BOOST_TEST(two.sentences().starts_with("3 2 things are refused:"));
  BOOST_TEST(two.taken.notes().at(0) == "flags that agree with this program: --seq-length");
}

// A file has a switch as true or false, and a list as one.
BOOST_AUTO_TEST_CASE(flags_of_megatron_in_a_file) {
  const test::scratch_folder folder;
  const auto read = [&](const char* text) {
    const std::string config = folder / "run.json";
    test::write_text(config, text);
    return line<mc::options>("train --config " + config, mc::commands);
  };
  const auto all = read(R"({"use-flash-attn": true, "overlap-grad-reduce": false, "num-workers": 2,
                            "cuda-graph-scope": ["attn", "moe_router"], "profile-ranks": [0, 1],
                            "use-rotary-position-embeddings": false})");
  BOOST_TEST(all.sentences() == "");
  BOOST_TEST(sorted(all.taken.without_effect) ==
             "cuda-graph-scope num-workers profile-ranks use-flash-attn");
  BOOST_TEST(!all.flags.made_of.position_embedding_type.given());
  for (const auto& [text, says] :
       {std::pair{R"({"num-workers": null})", "\"num-workers\" must be a text, a number"},
        {R"({"num-workers": [1, 2]})", "\"num-workers\" must be a text, a number"},
        {R"({"profile-ranks": [[0]]})", "\"profile-ranks\" must be a text, a number, or a list"},
        {R"({"no-load-optim": false, "fp16": false})", "no program computes in fp16"}})
    BOOST_TEST(read(text).sentences().find(says) != std::string::npos, read(text).sentences());
}

// A flag of another name is one that has the same meaning, and is not given beside it.
BOOST_AUTO_TEST_CASE(names_of_megatron_for_flags_of_this_program) {
  const auto says = [](const std::string& text) {
    return line<mc::options>("train " + text, mc::commands).sentences();
  };
  const auto has = [&](const std::string& text, std::string_view part) {
    BOOST_TEST(says(text).find(part) != std::string::npos, says(text));
  };
  BOOST_TEST(says("--distributed-timeout-minutes 10 --collective-timeout 600") == "");
  has("--distributed-timeout-minutes 10 --collective-timeout 60", "as 60, too, and not as 600");
  has("--distributed-timeout-minutes 1.5", "must be a whole number");
  has("--distributed-timeout-minutes 99999999999", "--distributed-timeout-minutes is");
  has("--overlap-grad-reduce=false", "takes no value");
  has("--tensorboard-dir", "needs one value");
  has("--tensorboard-dir --use-flash-attn", "--tensorboard-dir needs one value, but --use-flash");
  has("--tensorboard-dir= x", "--tensorboard-dir= has no value");
  has("--overlap-grad-reduce 1", "unknown argument \"1\"");
  has("--overlap_grad_reduce", "it is spelled --overlap-grad-reduce");
  has("--no-load-optim", "--no-load-optim is not taken; --finetune takes the weights");
  has("--optimizer sgd", "--optimizer sgd is not taken; the optimizer is AdamW");
  // Nothing but train has an optimizer.
  BOOST_TEST(line<mc::options>("eval --load x --no-load-optim", mc::commands).sentences() == "");
  BOOST_TEST(says("--optimizer adam --no-load-optim --finetune --load x --local_rank=3") == "");
  // The value of one is not read as a command.
  BOOST_TEST(says("--wandb-exp-name eval --mock-data") == "");
  line<mc::options> both("train --lr-warmup-iters 3 --lr-warmup-fraction 0.1", mc::commands);
  mc::apply_rules(command::train, both.flags, both.refused);
  BOOST_TEST(
      both.sentences().find("--lr-warmup-fraction and --lr-warmup-iters contradict each other") !=
      std::string::npos);
}

BOOST_AUTO_TEST_CASE(only_names_that_are_near_are_offered) {
  mc::options o;
  const auto list = mc::flags_of(o);
  const auto advice = [&](const char* name) {
    return mc::advice_for(list, "--", name, command::train);
  };
  for (const auto& [name, near] : {std::pair{"train-itres", "train-iters"},
                                   {"trainiters", "train-iters"},
                                   {"Train-Iters", "train-iters"},
                                   {"sede", "seed"},
                                   {"global-batch-sizes", "global-batch-size"},
                                   {"tensor-modle-parallel-size", "tensor-model-parallel-size"}})
    BOOST_TEST(advice(name) == std::string("did you mean --") + near + "?");
  for (const char* name : {"stem", "foo", "threshold", "clip-norm", "rate", "save-format", "train",
                           "layers-per-stage"})
    BOOST_TEST((advice(name) == "--help shows what there is" ||
                advice(name).find("did you mean") == std::string::npos),
               name << ": " << advice(name));
}
