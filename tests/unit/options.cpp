// Flags: one list, complete and consistent; reading values; configuration files; the nearest name.
#define BOOST_TEST_MODULE options
#include <megacpp/chat/chat_template.hpp>
#include <megacpp/cli/advice.hpp>
#include <megacpp/cli/option_file.hpp>
#include <megacpp/exec/product_shape.hpp>
#include <megacpp/optim/schedule.hpp>
#include <megacpp/options/chat_keys.hpp>
#include <megacpp/options/compiled_values.hpp>
#include <megacpp/options/flags_of_values.hpp>
#include <megacpp/options/loop.hpp>
#include <megacpp/options/rules.hpp>
#include <megacpp/preset/models.hpp>
#include <megacpp/tool/data_flags.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "scratch.hpp"
#include "where.hpp"

using mc::command;
using mc::exit_code;

namespace {
void read_file(const std::string& path, const std::vector<mc::named_flag>& list) {
  mc::refusals refused;
  std::vector<mc::given_foreign> foreign;
  mc::read_option_file(path, list, refused, foreign);
  refused.raise();
  BOOST_TEST(foreign.empty());
}
} // namespace

BOOST_AUTO_TEST_CASE(every_flag_is_explained_and_has_a_name_of_its_own) {
  mc::options o;
  std::set<std::string> names;
  for (const mc::named_flag& e : mc::flags_of(o)) {
    BOOST_TEST_CONTEXT(e.name) {
      BOOST_TEST(names.insert(e.name).second);
      BOOST_TEST(std::string_view(e.flag->help()).size() > 4);
      BOOST_TEST(!e.flag->given());
      BOOST_TEST(e.name.find('_') == std::string::npos);
    }
  }
  BOOST_TEST(names.size() > 50);
}

BOOST_AUTO_TEST_CASE(the_names_are_megatrons) {
  mc::options o;
  const auto list = mc::flags_of(o);
  for (const char* name : {"train-iters",
                           "lr",
                           "min-lr",
                           "lr-decay-style",
                           "lr-warmup-iters",
                           "lr-decay-iters",
                           "lr-wsd-decay-iters",
                           "weight-decay",
                           "clip-grad",
                           "adam-beta1",
                           "adam-beta2",
                           "adam-eps",
                           "global-batch-size",
                           "eval-interval",
                           "eval-iters",
                           "log-interval",
                           "save",
                           "load",
                           "seed",
                           "data-path",
                           "split",
                           "micro-batch-size",
                           "seq-length",
                           "tensor-model-parallel-size",
                           "pipeline-model-parallel-size",
                           "context-parallel-size",
                           "expert-model-parallel-size",
                           "sequence-parallel",
                           "use-distributed-optimizer",
                           "num-layers",
                           "hidden-size",
                           "num-attention-heads",
                           "ffn-hidden-size",
                           "num-query-groups",
                           "num-experts",
                           "moe-ffn-hidden-size",
                           "moe-router-topk",
                           "moe-router-load-balancing-type",
                           "moe-aux-loss-coeff",
                           "moe-z-loss-coeff",
                           "moe-expert-capacity-factor",
                           "rampup-batch-size",
                           "recompute-activations",
                           "expert-tensor-parallel-size",
                           "bf16",
                           "recompute-granularity",
                           "numerics",
                           "vocab-size"})
    BOOST_TEST(mc::find_flag(list, name) != nullptr, name);
}

BOOST_AUTO_TEST_CASE(defaults_pass_their_own_checks) {
  mc::options o;
  for (const mc::named_flag& e : mc::flags_of(o)) {
    const std::string text = e.flag->default_text();
    if (e.compiled || e.flag->is_text() || text != e.flag->text()) continue;
    BOOST_TEST_CONTEXT(e.name) { BOOST_CHECK_NO_THROW(e.flag->read(text, e.name)); }
  }
}

BOOST_AUTO_TEST_CASE(values_out_of_range_are_refused) {
  mc::options o;
  const auto list = mc::flags_of(o);
  const auto read = [&](const char* name, const char* value) {
    mc::find_flag(list, name)->flag->read(value, std::string("--") + name);
  };
  CHECK_REFUSED(read("lr", "nan"), exit_code::usage, "--lr is \"nan\"");
  CHECK_REFUSED(read("lr", "inf"), exit_code::usage, "finite");
  CHECK_REFUSED(read("lr", "-1e-9"), exit_code::usage, "0 or at least");
  CHECK_REFUSED(read("lr", "1e999"), exit_code::usage, "finite");
  CHECK_REFUSED(read("lr", "1e-3x"), exit_code::usage, "must be a number");
  CHECK_REFUSED(read("lr", ""), exit_code::usage, "must be a number");
  CHECK_REFUSED(read("train-iters", "0"), exit_code::usage, "at least 1");
  CHECK_REFUSED(read("train-iters", "1.5"), exit_code::usage, "whole number");
  CHECK_REFUSED(read("train-iters", "99999999999999999999"), exit_code::usage, "at most ");
  CHECK_REFUSED(read("top-p", "0"), exit_code::usage, "above 0");
  CHECK_REFUSED(read("lr-decay-style", "cosin"), exit_code::usage, "constant|linear|cosine|WSD");
  CHECK_REFUSED(read("lr-decay-style", "cosine|WSD"), exit_code::usage, "must be one of");
  CHECK_REFUSED(read("profile", "yes"), exit_code::usage, "true or false");
  read("lr", "1e30");
  BOOST_TEST(o.optimizer.lr() == 1e30);
  BOOST_TEST(o.optimizer.lr.given());
  BOOST_TEST(mc::given_flags(list, command::train) == "lr=1e+30");
}

BOOST_AUTO_TEST_CASE(a_file_sets_flags_of_every_command) {
  const test::scratch_folder folder;
  const std::string path = folder / "run.json";
  test::write_text(
      path, R"({"lr": 0.25, "train-iters": 7, "save": "m", "profile": true, "prompt": "x"})");
  mc::options o;
  read_file(path, mc::flags_of(o));
  BOOST_TEST(o.optimizer.lr() == 0.25);
  BOOST_TEST(o.training.train_iters() == 7);
  BOOST_TEST(o.training.save() == "m");
  BOOST_TEST(o.report.profile());
  BOOST_TEST(o.sampling.prompt() == std::vector<std::string>{"x"},
             boost::test_tools::per_element());
  BOOST_TEST(!o.training.eval_iters.given());
}

BOOST_AUTO_TEST_CASE(a_wrong_file_is_refused) {
  const test::scratch_folder folder;
  const std::string path = folder / "run.json";
  const auto read = [&](std::string_view text) {
    test::write_text(path, text);
    mc::options o;
    read_file(path, mc::flags_of(o));
  };
  CHECK_REFUSED(read(R"({"train-itres": 7})"), exit_code::usage, "did you mean train-iters?");
  CHECK_REFUSED(read(R"({"lr": "0.1"})"), exit_code::usage, "must be a number");
  CHECK_REFUSED(read(R"({"lr": [1]})"), exit_code::usage, "must be a number");
  CHECK_REFUSED(read(R"({"save": 1})"), exit_code::usage, "text in quotes");
  CHECK_REFUSED(read(R"({"profile": 1})"), exit_code::usage, "true or false");
  CHECK_REFUSED(read(R"({"lr": -1})"), exit_code::usage, "0 or at least");
  CHECK_REFUSED(read(R"({"train-iters": 1e3})"), exit_code::usage, "whole number");
  CHECK_REFUSED(read(R"({"lr": 1, "lr": 2})"), exit_code::usage, "twice");
  CHECK_REFUSED(read("[1]"), exit_code::usage, "object");
  CHECK_REFUSED(read("{"), exit_code::usage, "not valid JSON");
  CHECK_REFUSED(read(""), exit_code::usage, "empty");
}

BOOST_AUTO_TEST_CASE(distances_of_names) {
  BOOST_TEST(mc::edit_distance("", "abc") == 3u);
  BOOST_TEST(mc::edit_distance("kitten", "sitting") == 3u);
  BOOST_TEST(mc::edit_distance("same", "same") == 0u);
  mc::options o;
  const auto list = mc::flags_of(o);
  BOOST_TEST(mc::advice_for(list, "--", "lr-warmup-iter", command::train) ==
             "did you mean --lr-warmup-iters?");
  // Only flags of the command are offered.
  BOOST_TEST(mc::advice_for(list, "--", "temperatur", command::train).find("temperature") ==
             std::string::npos);
  BOOST_TEST(mc::advice_for(list, "--", "temperature", command::train) ==
             "--temperature is a flag of generate");
}

namespace {
bool takes_key_of_script(std::string_view key) {
  return std::ranges::find(mc::build_keys, key, &mc::build_key::script) != mc::build_keys.end();
}
std::vector<mc::foreign_flag> all_foreign() {
  std::vector<mc::foreign_flag> all;
  for (const mc::foreign_row& row : mc::foreign_flags)
    mc::each_between(row.names, ' ', [&](std::string_view name) { all.push_back({name, &row}); });
  return all;
}
} // namespace

// Who comes from another program is told what its flag is here, never what is spelled alike.
BOOST_AUTO_TEST_CASE(flags_of_other_programs) {
  mc::options o;
  const auto list = mc::flags_of(o);
  std::set<std::string> names;
  for (const auto& [name_there, row] : all_foreign()) {
    BOOST_TEST_CONTEXT(name_there) {
      const std::string name(name_there), ours(row->ours), says = row->sentence();
      BOOST_TEST(names.insert(name).second);
      BOOST_TEST(!name.empty());
      BOOST_TEST((!ours.empty() || !says.empty() || row->is_taken()));
      BOOST_TEST((!row->is_honoured() || !ours.empty()));
      BOOST_TEST((row->beside.empty() || mc::find_flag(list, row->beside) != nullptr));
      const mc::named_flag* const same = mc::find_flag(list, name);
      BOOST_TEST((same == nullptr || !overlaps(same->flag->commands(), command::train)));
      std::string underscored = name;
      std::replace(underscored.begin(), underscored.end(), '-', '_');
      for (const std::string& spelled : {name, underscored}) {
        const std::string advice = mc::advice_for(list, "--", spelled, command::train);
        BOOST_TEST(advice.find("did you mean") == std::string::npos, advice);
        BOOST_TEST(advice.find("--help") == std::string::npos, advice);
      }
      if (!ours.empty()) BOOST_TEST(mc::find_flag(list, ours) != nullptr);
      for (const char* unit : {"-ratio", "-fraction", "-samples", "-tokens", "-epochs"})
        if (name.ends_with(unit) && !ours.ends_with(unit))
          BOOST_TEST(ours.empty(), name << " is not --" << ours);
      // Every flag that a sentence names exists, and so does every argument of the build.
      for (std::size_t at = 0; (at = says.find("--", at)) != says.npos; at += 2) {
        const auto end = says.find_first_of(" ,;:", at);
        BOOST_TEST(mc::find_flag(list, says.substr(at + 2, end - at - 2)) != nullptr, says);
      }
      if (const auto of = says.find(" of megacpp_add_preset"); of != says.npos) {
        const std::string before = says.substr(0, of); // KEY, or KEY and a value
        const auto end = before.find_last_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ") + 1;
        const auto begin = before.find_last_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", end - 1) + 1;
        BOOST_TEST(mc::find_build_key(before.substr(begin, end - begin)) != nullptr, says);
        const auto build = says.find(" of examples/build_preset.sh"),
                   word = says.rfind(' ', build - 1) + 1;
        const auto key = says.substr(word, says.find('=', word) + 1 - word);
        if (key.ends_with('='))
          BOOST_TEST(takes_key_of_script(key.substr(0, key.size() - 1)), says);
      }
    }
  }
  for (const auto& [name, says] : {std::pair{"max-iters", "it is --train-iters here"},
                                   {"learning_rate", "it is --lr here"},
                                   {"batch-size", "MICRO_BATCH of megacpp_add_preset"},
                                   {"tp", "TP of megacpp_add_preset"},
                                   {"per_device_train_batch_size", "--global-batch-size"},
                                   {"output_dir", "it is --save here"},
                                   // Another unit or meaning than the flag of this kind has here.
                                   {"warmup_ratio", "--lr-warmup-fraction as a share"},
                                   {"total_batch_size", "counts sequences, not tokens"},
                                   {"max_length", "without those of the prompt"},
                                   {"num_workers", "it is spelled --num-workers"},
                                   {"decay_lr", "constant"},
                                   {"dataset-name", "names a file"},
                                   {"tensor-parallel-size", "or the struct of megacpp_add_run"},
                                   {"skip-train", "the command eval"},
                                   {"eval_only", "the command eval"},
                                   {"ckpt-step", "--load takes the folder of one step"},
                                   {"no-load-optim", "--finetune takes the weights"},
                                   {"report-to", "--metrics-jsonl writes"},
                                   {"dataloader-type", "in an order that --seed draws"},
                                   {"exit_interval", "--train-iters says where a run ends"},
                                   {"window-size", "numbers of the model"},
                                   {"fp16", "no program computes in fp16"},
                                   {"top_k", "--top-k is a flag of generate"},
                                   {"dtype", "PRECISION of megacpp_add_preset"},
                                   {"torch-dtype", "PRECISION of megacpp_add_preset"},
                                   {"topk", "--top-k is a flag of generate"}})
    BOOST_TEST(mc::advice_for(list, "--", name, command::train).find(says) != std::string::npos,
               mc::advice_for(list, "--", name, command::train));
}

// A flag that the command lacks is named with whose it is.
BOOST_AUTO_TEST_CASE(advice_names_flags_of_the_command) {
  mc::options o;
  const auto list = mc::flags_of(o);
  for (const mc::foreign_flag& f : all_foreign())
    for (const mc::command_text& c : mc::commands) {
      if (const auto* own = mc::find_flag(list, f.name);
          own && overlaps(own->flag->commands(), c.which))
        continue;
      const std::string advice = mc::advice_for(list, "--", f.name, c.which);
      BOOST_TEST_CONTEXT(c.name << " --" << f.name << ": " << advice) {
        BOOST_TEST((overlaps(mc::detail::having_flags_of(list, advice), c.which) ||
                    advice.starts_with("for ") || advice.find(" is a flag of ") != advice.npos));
        BOOST_TEST(!advice.starts_with("for ,"));
      }
    }
  const auto advice = [&](const char* name, command c) {
    return mc::advice_for(list, "--", name, c);
  };
  BOOST_TEST(advice("batch-size", command::convert).ends_with("or the struct of megacpp_add_run"));
  BOOST_TEST(advice("batch-size", command::train).starts_with("--global-batch-size"));
  BOOST_TEST(advice("batch-size", command::convert).starts_with("a build decides it: MICRO_BATCH"));
  BOOST_TEST(advice("num-epochs", command::eval).starts_with("for train, --train-iters gives"));
  BOOST_TEST(advice("torch-dtype", command::convert) == "it is --dtype here");
}

BOOST_AUTO_TEST_CASE(the_help_names_every_flag_of_its_command_in_80_columns) {
  mc::options o;
  const auto list = mc::flags_of(o);
  for (const mc::command_text& c : mc::commands) {
    const std::string help = mc::command_help("gpt", "A model.", c, list);
    for (const mc::named_flag& e : list)
      BOOST_TEST((help.find("\n  --" + e.name + " ") != std::string::npos ||
                  help.find("\n  --" + e.name + "\n") != std::string::npos) ==
                     mc::overlaps(e.flag->commands(), c.which),
                 c.name << " " << e.name);
    std::size_t begin = 0;
    for (std::size_t end; (end = help.find('\n', begin)) != std::string::npos; begin = end + 1)
      BOOST_TEST(end - begin <= 90u, help.substr(begin, end - begin));
  }
}

// Every number of the optimizer and of its rates is that of its flag.
BOOST_AUTO_TEST_CASE(a_run_has_the_numbers_of_its_flags) {
  mc::program_view p;
  p.name = "model", p.numbers.batch = {2, 16};
  mc::options o;
  const auto list = mc::flags_of(o);
  for (const auto& [name, value] : {std::pair{"train-iters", "300"},
                                    {"global-batch-size", "6"},
                                    {"lr", "0.5"},
                                    {"min-lr", "0.25"},
                                    {"lr-warmup-iters", "7"},
                                    {"lr-decay-iters", "200"},
                                    {"lr-decay-style", "WSD"},
                                    {"lr-wsd-decay-iters", "30"},
                                    {"lr-wsd-decay-style", "linear"},
                                    {"adam-beta1", "0.75"},
                                    {"adam-beta2", "0.625"},
                                    {"adam-eps", "0.125"},
                                    {"weight-decay", "0.375"},
                                    {"clip-grad", "3"},
                                    {"seed", "11"}})
    mc::find_flag(list, name)->flag->read(value, name);
  const mc::loop_request t = mc::loop_request_of(p, o);
  BOOST_TEST(t.steps == 300);
  BOOST_TEST(t.sequences_of_all_replicas == 2);
  BOOST_TEST(t.batches.after(0) == 6);
  BOOST_TEST(t.rates.lr == 0.5);
  BOOST_TEST(t.rates.min_lr == 0.25);
  BOOST_TEST(t.rates.warmup == 7);
  BOOST_TEST(t.rates.decay == 200);
  BOOST_TEST((t.rates.style == mc::decay_style::wsd));
  BOOST_TEST(t.rates.wsd_decay == 30);
  BOOST_TEST((t.rates.wsd == mc::wsd_style::linear));
  BOOST_TEST(t.numbers.beta1 == 0.75);
  BOOST_TEST(t.numbers.beta2 == 0.625);
  BOOST_TEST(t.numbers.epsilon == 0.125);
  BOOST_TEST(t.numbers.weight_decay == 0.375);
  BOOST_TEST(t.numbers.clip == 3.0);
  BOOST_TEST(t.numbers.seed == 11u);
}

namespace {
// The flags of Megatron-LM's groups of parallelism, communication, recomputation and experts (main
// of August 2026), without those of uneven and virtual stages.
const char* const megatrons_parallel_flags =
    "activation-offload-fraction checkpoint-activations context-parallel-size cp-comm-type "
    "cpu-offloading-num-layers cpu-offloading-retain-pinned-cpu-buffers "
    "create-all-gather-group data-parallel-sharding-strategy ddp-average-in-collective "
    "ddp-bucket-size ddp-num-buckets ddp-pad-buckets-for-high-nccl-busbw "
    "ddp-param-name-patterns-for-fp32-local-accumulation "
    "ddp-reduce-scatter-with-fp32-accumulation defer-embedding-wgrad-compute "
    "delay-offload-until-cuda-graph delay-wgrad-compute delta-offload-bytes-across-pp-ranks "
    "disable-align-grad-reduce disable-flight-recorder-dump-on-timeout "
    "disable-flight-recorder-extra-dump-on-exec disable-flight-recorder-include-only-active "
    "disable-gloo-process-groups disable-jit-fuser disable-symmetric-registration "
    "disable-tp-comm-bulk-dgrad disable-tp-comm-bulk-wgrad disable-tp-comm-overlap-ag "
    "disable-tp-comm-overlap-rs disable-tp-comm-split-ag disable-tp-comm-split-rs "
    "distribute-saved-activations distributed-backend distributed-timeout-minutes "
    "distributed-timeout-seconds-after-init enable-full-sharding-in-hsdp "
    "ep-overlap-early-attn-memory-release expert-model-parallel-size "
    "expert-tensor-parallel-num-weight-shards expert-tensor-parallel-size fake-process-group "
    "fine-grained-activation-offloading fine-grained-offloading-max-inflight-offloads "
    "flight-recorder-dump-path flight-recorder-include-stack-trace "
    "flight-recorder-trace-buffer-size fsdp-double-buffer fsdp-manual-registration "
    "gtp-expert-remat-nccl-ub gtp-remat-nccl-ub gtp-remat-opt-in-modules "
    "gtp-remat-reduce-scatter-with-fp32-accumulation hierarchical-context-parallel-sizes "
    "high-priority-a2a-comm-stream high-priority-stream-groups hybrid-context-parallel "
    "inference-fuse-tp-communication inference-moe-disable-fused-quant-kernels "
    "inference-moe-token-dispatcher-type keep-fp8-transpose-cache lazy-mpu-init local-rank "
    "max-seqlen-per-dp-cp-rank megatron-fsdp-version mhc-recompute-layer-num "
    "microbatch-group-size-per-virtual-pipeline-stage min-offloaded-tensor-size "
    "model-parallel-size moe-apply-probs-on-input moe-aux-loss-coeff moe-combine-bwd-dtype "
    "moe-deepep-num-sms moe-dispatch-fwd-dtype moe-enable-deepep moe-enable-routing-replay "
    "moe-expert-capacity-factor moe-expert-rank-capacity-factor moe-ffn-hidden-size "
    "moe-flex-dispatcher-backend moe-flex-dispatcher-num-sms moe-grouped-gemm "
    "moe-hybridep-num-blocks-permute moe-hybridep-num-blocks-unpermute moe-hybridep-num-sms "
    "moe-hybridep-num-sms-preprocessing moe-hybridep-pad-uneven-dispatch-inputs "
    "moe-input-jitter-eps moe-latent-size moe-layer-freq moe-layer-recompute "
    "moe-mlp-glu-interleave-size moe-ncclep-zero-copy moe-pad-expert-input-to-capacity "
    "moe-pad-experts-for-cuda-graph-inference moe-paged-stash "
    "moe-paged-stash-buffer-size-factor-cpu moe-paged-stash-buffer-size-factor-cuda "
    "moe-paged-stash-page-size moe-per-layer-logging moe-permute-fusion "
    "moe-permute-fusion-into-hybridep moe-router-bias-update-rate moe-router-dtype "
    "moe-router-enable-expert-bias moe-router-force-biased moe-router-force-load-balancing "
    "moe-router-fusion moe-router-group-topk moe-router-load-balancing-type "
    "moe-router-num-groups moe-router-padding-for-fp8 moe-router-padding-for-quantization "
    "moe-router-pre-softmax moe-router-quantile-balancing-ema moe-router-score-function "
    "moe-router-topk moe-router-topk-scaling-factor moe-shared-expert-gate "
    "moe-shared-expert-glu-interleave-size moe-shared-expert-intermediate-size "
    "moe-shared-expert-overlap moe-single-grouped-bias moe-single-grouped-weight "
    "moe-token-dispatcher-type moe-token-drop-policy moe-upcycling-granularity "
    "moe-use-grouped-tensor moe-use-upcycling moe-z-loss-coeff mtp-standalone "
    "nccl-communicator-config-path no-align-grad-reduce no-align-param-gather "
    "no-flight-recorder-dump-on-timeout no-flight-recorder-extra-dump-on-exec "
    "no-flight-recorder-include-only-active no-gradient-accumulation-fusion "
    "no-gradient-reduce-div-fusion no-overlap-p2p-communication no-pin-cpu-grads "
    "no-pin-cpu-params no-tp-comm-bulk-dgrad no-tp-comm-bulk-wgrad no-tp-comm-overlap-ag "
    "no-tp-comm-overlap-rs no-tp-comm-split-ag no-tp-comm-split-rs "
    "no-use-layer-wise-param-layout num-distributed-optimizer-instances num-experts "
    "offload-modules optimizer-cpu-offload optimizer-offload-fraction "
    "outer-dp-sharding-strategy overlap-cpu-optimizer-d2h-h2d "
    "overlap-dispatch-backward-with-experts-wgrad overlap-grad-reduce "
    "overlap-moe-expert-parallel-comm overlap-p2p-communication-warmup-flush "
    "overlap-param-gather overlap-param-gather-with-optimizer-step "
    "pipeline-model-parallel-comm-backend pipeline-model-parallel-layout "
    "pipeline-model-parallel-size recompute-activations recompute-granularity "
    "recompute-method recompute-modules recompute-num-layers sequence-parallel "
    "sharp-enabled-group suggested-communication-unit-size tensor-model-parallel-size "
    "tensor-parallel-num-weight-shards torch-fsdp2-no-reshard-after-forward "
    "tp-comm-bootstrap-backend tp-comm-overlap tp-comm-overlap-cfg tp-comm-overlap-rs-dgrad "
    "use-distributed-optimizer use-grouped-gemm-for-shared-expert use-megatron-fsdp "
    "use-nccl-ub use-ring-exchange-p2p use-sharp use-torch-fsdp2 "
    "use-torch-optimizer-for-cpu-offload use-tp-pp-dp-mapping wgrad-deferral-limit";
} // namespace

// Each is accepted with the program's own value, or told how its program would be built.
BOOST_AUTO_TEST_CASE(megatrons_flags_of_parallelism_are_known) {
  mc::options o;
  const auto list = mc::flags_of(o);
  std::istringstream names(megatrons_parallel_flags);
  int accepted = 0, told = 0;
  for (std::string name; names >> name;) {
    const bool ours = mc::find_flag(list, name) != nullptr;
    BOOST_TEST((ours || mc::find_foreign(name).row != nullptr), "--" << name);
    ++(ours ? accepted : told);
  }
  BOOST_TEST(accepted > 25);
  BOOST_TEST(told > 100);
  BOOST_TEST(mc::find_foreign("moe-hybridep-num-blocks-permute").name == "moe-hybridep-*");
  BOOST_TEST(mc::find_foreign("moe-no-such-thing").name == "moe-*");
  BOOST_TEST(mc::find_foreign("no-such-thing").row == nullptr);
  BOOST_TEST(mc::find_foreign("local_rank").name == "local_rank");
}

// What another value of a compiled flag needs is an argument of the build that there is.
BOOST_AUTO_TEST_CASE(what_is_compiled_in_says_how_to_build_another) {
  mc::program_view p;
  p.name = "model", p.numbers.batch = {2, 16}, p.model.extents.heads = 4;
  p.model.extents.ffn = 4;
  p.numbers.ranks.tp = 2; // one rank has no use for --sequence-parallel
  p.parts.resize(1 + mc::other_parts);
  const auto g = std::make_unique<mc::graph>();
  p.parts[1].g = g.get();
  const auto refusal = [&](const std::string& name, const std::string& value) {
    mc::options o;
    const auto list = mc::flags_of(o);
    mc::find_flag(list, name)->flag->read(value, name);
    const auto refused = test::refusal_of([&] {
      mc::refusals all;
      mc::told_flags taken;
      mc::check_compiled(list, p, all, taken);
      all.raise();
    });
    return refused && refused->code == exit_code::mismatch ? refused->text : std::string();
  };
  mc::options o;
  for (const mc::named_flag& e : mc::flags_of(o)) {
    if (!e.compiled) continue;
    const std::string choices = e.flag->argument();
    for (const char* value : {"3", "true", "false", "full", "selective", "block", "global_aux_loss",
                              "fast", "batch_invariant", "p2p", "sigmoid", "probs", "flex"}) {
      std::string says;
      try {
        says = refusal(e.name, value);
      } catch (const mc::error&) {
        continue; // no value of this flag
      }
      if (says.empty()) continue; // the program's own
      BOOST_TEST_CONTEXT(says) {
        BOOST_TEST(
            says.starts_with("--" + e.name + " is " + value + ", but model was compiled with "));
        const auto advice = says.substr(says.find("leave the flag out, or ") + 23);
        BOOST_TEST((advice.starts_with("build ") || advice.starts_with("do without")));
        BOOST_TEST(advice.find('{') == std::string::npos);
        if (const auto of = advice.find(" of megacpp_add_preset"); of != std::string::npos) {
          const std::string before = advice.substr(0, of); // TP 3, or a word
          const auto end = before.find_last_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ") + 1;
          const auto word = before.find_last_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", end - 1) + 1;
          BOOST_TEST(mc::find_build_key(before.substr(word, end - word)) != nullptr);
        }
        if (const auto at = advice.find('='); at != std::string::npos) {
          const auto key = advice.rfind(' ', at) + 1;
          BOOST_TEST(takes_key_of_script(advice.substr(key, at - key)));
        }
      }
    }
  }
  const auto says = [&](const char* name, const char* value, const char* what) {
    BOOST_TEST(refusal(name, value).find(what) != std::string::npos, refusal(name, value));
  };
  says("tensor-model-parallel-size", "4", "build it with TP 4 of megacpp_add_preset, tp=4 of ");
  says("use-distributed-optimizer", "true",
       "build it with ZERO 1 of megacpp_add_preset, zero=1 of ");
  says("sequence-parallel", "true", "build it with SEQUENCE_PARALLEL of megacpp_add_preset, sp=1 ");
  says("bf16", "true", "build it with PRECISION bf16_mixed of megacpp_add_preset, precision=bf16");
  says("recompute-activations", "true", "RECOMPUTE selective of megacpp_add_preset, recompute=sel");
  says("moe-router-load-balancing-type", "global_aux_loss", "aux_global in the struct of megacpp");
  says("moe-grouped-gemm", "false", "do without");
}

BOOST_AUTO_TEST_CASE(batches_that_grow_fit_the_program) {
  mc::program_view p;
  p.name = "model", p.numbers.batch = {2, 16};
  const auto settings = [&](const char* global, const char* rampup, int dp) {
    mc::options o;
    o.training.global_batch_size.read(global, "--global-batch-size");
    o.training.rampup_batch_size.read(rampup, "--rampup-batch-size");
    return mc::loop_request_of(p, o, dp);
  };
  const mc::batch_schedule s = settings("16", " 4 2  60", 1).batches;
  BOOST_TEST((s.start == 4 && s.increment == 2 && s.samples == 60 && s.last == 16));
  BOOST_TEST(settings("16", "16 1 1", 4).batches.after(0) == 16);
  CHECK_REFUSED(settings("16", "18 2 60", 1), exit_code::usage, "is above batch_schedule::last");
  CHECK_REFUSED(settings("15", "4 2 60", 1), exit_code::usage,
                "must be a multiple of 2: the one replica takes 2 at once");
  CHECK_REFUSED(settings("15", "4 2 60", 3), exit_code::usage,
                "must be a multiple of 6: each of 3 replicas takes 2 at once");
  CHECK_REFUSED(settings("16", "4 8 60", 1), exit_code::usage,
                "must be a multiple of batch_schedule::increment");
  CHECK_REFUSED(settings("16", "3 13 60", 1), exit_code::usage,
                "START of --rampup-batch-size is 3, but must be a multiple of 2");
  CHECK_REFUSED(settings("16", "4 2 60", 2), exit_code::usage,
                "INCREMENT of --rampup-batch-size is 2, but must be a multiple of 4, the sequences "
                "that 2 replicas take at once");
  for (const char* wrong : {"", "4", "4 2", "4 2 0", "0 2 60", "4 -2 60", "4 2 60 1", "4 2 6x"})
    CHECK_REFUSED(settings("16", wrong, 1), exit_code::usage,
                  "must be 3 whole numbers above 0: START INCREMENT SAMPLES");
}

BOOST_AUTO_TEST_CASE(a_program_of_several_ranks_is_refused_by_one) {
  mc::program_view p;
  p.name = "model";
  BOOST_CHECK_NO_THROW(mc::require_one_rank(p));
  for (const mc::layout& l : {mc::layout{.tp = 2}, {.pp = 2}, {.cp = 2}, {.ep = 2}}) {
    p.numbers.ranks = l;
    CHECK_REFUSED(mc::require_one_rank(p), exit_code::mismatch,
                  "model is laid out over at least 2");
  }
}

namespace {
template <class Model> std::string compiled_values(const Model& m, const mc::layout& ranks) {
  mc::setup s;
  s.ranks = ranks, s.batch = {1, 16};
  // Half of the layers of a mixture may be dense: the first kind says nothing of the other.
  const auto g = std::make_unique<mc::graph>(mc::forward_graph(m, s, mc::part_kind::block, 0));
  BOOST_REQUIRE(g->wrong.code == mc::fault::none);
  mc::program_view p;
  p.numbers = s, p.layers = m.layers, p.hidden = m.hidden, p.vocabulary = m.vocabulary;
  p.model = mc::view_of_model(m);
  p.parts.resize(1 + mc::other_parts);
  p.parts[1].g = g.get();
  mc::options o;
  mc::set_compiled(o, p);
  std::string text;
  for (const mc::named_flag& e : mc::flags_of(o))
    if (e.compiled) text += fmt::format("{}={} ", e.name, e.flag->text());
  return text;
}
} // namespace

// The numbers that Megatron-LM's own examples give for these models.
BOOST_AUTO_TEST_CASE(what_is_compiled_in_has_megatrons_meaning) {
  const auto has = [](const std::string& all, std::initializer_list<const char*> values) {
    for (const char* value : values)
      BOOST_TEST((" " + all).find(std::string(" ") + value + " ") != std::string::npos,
                 value << " is not in " << all);
  };
  has(compiled_values(mc::preset::qwen3_30b_a3b, {.tp = 2, .ep = 8}),
      {"num-layers=48", "hidden-size=2048", "ffn-hidden-size=6144", "num-attention-heads=32",
       "num-query-groups=4", "num-experts=128", "moe-ffn-hidden-size=768", "moe-router-topk=8",
       "expert-model-parallel-size=8", "expert-tensor-parallel-size=1",
       "tensor-model-parallel-size=2", "moe-router-load-balancing-type=aux_loss",
       "moe-aux-loss-coeff=0.001", "moe-router-pre-softmax=false",
       "moe-token-drop-policy=position"});
  mc::qwen3_moe other = mc::preset::qwen3_30b_a3b;
  other.aux_global = true, other.norm_topk = false, other.bias_rate = 0.125, other.capacity = 1.5;
  other.shared_ffn = 768, other.router_z_loss = 0.25;
  has(compiled_values(other, {}),
      {"moe-router-load-balancing-type=global_aux_loss", "moe-router-pre-softmax=true",
       "moe-router-enable-expert-bias=true", "moe-router-bias-update-rate=0.125",
       "moe-expert-capacity-factor=1.5", "moe-shared-expert-intermediate-size=768",
       "moe-z-loss-coeff=0.25"});
  other.aux_global = false, other.aux_per_sequence = true;
  has(compiled_values(other, {}), {"moe-router-load-balancing-type=seq_aux_loss"});
  other.aux_loss = 0;
  has(compiled_values(other, {}), {"moe-router-load-balancing-type=none", "moe-aux-loss-coeff=0"});
  has(compiled_values(mc::preset::qwen3_8b, {.zero = 1}), {"use-distributed-optimizer=true"});
  has(compiled_values(mc::preset::qwen3_8b, {.tp = 4}),
      {"ffn-hidden-size=12288", "num-attention-heads=32", "num-query-groups=8", "num-experts=0",
       "moe-ffn-hidden-size=0", "moe-router-topk=0", "expert-tensor-parallel-size=4",
       "use-distributed-optimizer=false"});
  has(compiled_values(mc::preset::qwen3_8b, {.pp = 4, .virtual_stages = 3}),
      {"pipeline-model-parallel-size=4", "num-virtual-stages-per-pipeline-rank=3",
       "num-layers-per-virtual-pipeline-stage=3", "decoder-first-pipeline-num-layers=0",
       "account-for-loss-in-pipeline-split=false"});
  has(compiled_values(mc::preset::qwen3_8b, {.pp = 4, .cut = {.first = 8, .last = 4}}),
      {"decoder-first-pipeline-num-layers=8", "decoder-last-pipeline-num-layers=4",
       "num-virtual-stages-per-pipeline-rank=1", "num-layers-per-virtual-pipeline-stage=0"});
  has(compiled_values(mc::preset::qwen3_8b, {.pp = 2, .cut = {.embedding = true, .loss = true}}),
      {"account-for-embedding-in-pipeline-split=true", "account-for-loss-in-pipeline-split=true"});
  has(compiled_values(mc::preset::gpt2_124m, {}),
      {"ffn-hidden-size=3072", "num-attention-heads=12", "num-query-groups=12", "num-experts=0",
       "expert-tensor-parallel-size=1"});
}

// The advice for a number is one that megacpp_write_run takes: a key of a number from 1 has no 0.
BOOST_AUTO_TEST_CASE(advice_for_a_number_that_is_0) {
  mc::options o;
  auto& first = o.keys.of<mc::whole_flag>("FIRST_STAGE_LAYERS");
  first.set(3);
  BOOST_TEST(first.otherwise().find("build it with FIRST_STAGE_LAYERS 3 of") == 0);
  first.set(0);
  BOOST_TEST(first.otherwise().find("build it without FIRST_STAGE_LAYERS of") == 0);
}

// Who gave flags is told flags, and of a value that has none its name.
BOOST_AUTO_TEST_CASE(sentences_call_request_values_by_their_flags) {
  BOOST_TEST(mc::in_flags("loop_request::save names data_request::paths: give one") ==
             "--save names --data-path: give one");
  BOOST_TEST(mc::in_flags("(report_request::trace_after, report_request::trace)") ==
             "(--profile-step-start, --trace)");
  BOOST_TEST(mc::in_flags("sampling_request::stops: byte 3") == "--stop: byte 3");
  BOOST_TEST(mc::in_flags("sampling_request::stop_tokens 7") == "--stop-tokens 7");
  for (const char* same : {"", "a::b of std::vector", "my_loop_request::save", "loop_request",
                           "loop_request::saved", "a: b", "::", "/tmp/loop_request"})
    BOOST_TEST(mc::in_flags(same) == same);
  mc::options o;
  mc::data_program_flags d;
  const auto list = mc::flags_of(o), list_of_data = mc::flags_of(d);
  mc::for_each_flag_of_value([&](const std::string& value, const std::string& flag) {
    const std::string name = flag.substr(flag.find("--") + 2);
    BOOST_TEST((mc::find_flag(list, name) || mc::find_flag(list_of_data, name)),
               value << " is of " << flag);
  });
}

// The flags of a copy are parts of it, so that what they read stays in it.
BOOST_AUTO_TEST_CASE(flags_of_a_copy_are_its_own) {
  mc::options first;
  mc::options copy = first;
  const auto read = [](mc::options& o, const std::string& value) {
    for (const char* name : {"lr", "num-layers", "tensor-model-parallel-size"})
      mc::find_flag(mc::flags_of(o), name)->flag->read(value, name);
  };
  const auto values = [](const mc::options& o) {
    return std::vector<double>{o.optimizer.lr(), static_cast<double>(o.compiled.num_layers()),
                               static_cast<double>(o.keys.of<mc::whole_flag>("TP")())};
  };
  for (const bool assigned : {false, true}) {
    if (assigned) copy = first;
    read(copy, "3"), read(first, "2");
    BOOST_TEST(values(copy) == (std::vector<double>(3, 3)), boost::test_tools::per_element());
    BOOST_TEST(values(first) == (std::vector<double>(3, 2)), boost::test_tools::per_element());
  }
  const auto in_first = mc::flags_of(first), in_copy = mc::flags_of(copy);
  BOOST_REQUIRE(in_first.size() == in_copy.size());
  for (std::size_t i = 0; i < in_first.size(); ++i) {
    BOOST_TEST(in_first[i].name == in_copy[i].name);
    BOOST_TEST(in_first[i].flag != in_copy[i].flag);
  }
}

// A text that a flag takes is the choice of its name.
BOOST_AUTO_TEST_CASE(choices_are_enumerators) {
  mc::options o;
  const auto are = [](mc::text_flag& flag, const auto&... choices) {
    std::string all;
    const auto check = [&](const auto& choice) {
      flag.read(choice.first, flag.name());
      using chosen = std::decay_t<decltype(choice.second)>;
      BOOST_TEST((flag.choice<chosen>() == choice.second), flag.name() << " " << choice.first);
      all += (all.empty() ? "" : "|") + std::string(choice.first);
    };
    (check(choices), ...);
    BOOST_TEST(flag.argument() == all);
  };
  using std::pair;
  using decay = mc::decay_style;
  are(o.optimizer.lr_decay_style, pair{"constant", decay::constant}, pair{"linear", decay::linear},
      pair{"cosine", decay::cosine}, pair{"WSD", decay::wsd});
  using wsd_of = mc::wsd_style;
  are(o.optimizer.lr_wsd_decay_style, pair{"linear", wsd_of::linear},
      pair{"cosine", wsd_of::cosine}, pair{"exponential", wsd_of::exponential},
      pair{"minus_sqrt", wsd_of::minus_sqrt});
  using product = mc::product_type;
  are(o.machine.product_type, pair{"auto", product::automatic}, pair{"bf16", product::bf16},
      pair{"widened", product::widened});
  using learned = mc::trained_on;
  are(o.data.chat_loss, pair{"assistant", learned::assistant}, pair{"all", learned::all});
  using kind = mc::data_kind;
  are(o.data.data_type, pair{"text", kind::text}, pair{"u16", kind::u16}, pair{"i32", kind::i32},
      pair{"indexed", kind::indexed}, pair{"chat", kind::chat});
}

// A rule is of flags that the command has, and is not said twice; each flag of its condition exists
// and could have the value that is asked for.
BOOST_AUTO_TEST_CASE(fields_of_conversations_have_one_name_for_each_role) {
  const auto fields_of = [](const std::string& text) {
    mc::options o;
    o.data.chat_keys.ask(text, "--chat-keys");
    return mc::chat_fields_of(o.data.chat_keys);
  };
  BOOST_TEST(!mc::chat_fields_of(mc::options().data.chat_keys));
  const auto orca = fields_of("system=system_prompt,user=question,assistant=response");
  BOOST_REQUIRE(orca);
  BOOST_TEST((orca->system == "system_prompt" && orca->user == "question" &&
              orca->assistant == "response"));
  const auto turned = fields_of("assistant=a=b,user= q");
  BOOST_REQUIRE(turned);
  BOOST_TEST((turned->system.empty() && turned->user == " q" && turned->assistant == "a=b"));
  for (const auto& row : std::vector<std::pair<std::string, std::string>>{
           {"user=q,assistant=a,tool=t", "\"tool\" is no role; name fields for system, user and"},
           {"user=q,assistant=a, system=s", "\" system\" is no role"},
           {"user=q,assistant=a,=s", "\"\" is no role"},
           {"user=q,user=p,assistant=a", "names user twice"},
           {"assistant=a", "names no field for the user; add user=FIELD"},
           {"system=s,user=q", "names no field for the assistant; add assistant=FIELD"},
           {"user=,assistant=a", "the field of user has no name"},
           {"user=q,assistant=a,system=", "the field of system has no name"},
           {"user=q,assistant=q", "\"q\" is the field of two roles"},
           {"question,response", "\"question\" has no =; write a role"},
           {"user=q,assistant=a,", "\"\" has no ="},
           {"", "--chat-keys is \"\", but"}})
    CHECK_REFUSED(fields_of(row.first), mc::exit_code::usage, row.second);
}

BOOST_AUTO_TEST_CASE(rules_are_of_flags_that_there_are) {
  mc::options o;
  const auto list = mc::flags_of(o);
  std::set<std::tuple<std::string, std::string, unsigned>> seen;
  for (const mc::flag_rule& rule : mc::flag_rules) {
    const std::string fault = mc::detail::fault_of(rule);
    mc::each_between(rule.flags, ' ', [&](std::string_view name) {
      const mc::named_flag* const e = mc::find_flag(list, name);
      BOOST_REQUIRE_MESSAGE(e != nullptr, name);
      BOOST_TEST(mc::overlaps(e->flag->commands(), rule.commands), name << " " << fault);
      if ((rule.how & mc::detail::told) != 0) return;
      const auto all = static_cast<unsigned>(rule.commands);
      BOOST_TEST(seen.insert({std::string(name), fault, all}).second,
                 name << " " << fault << " is said twice");
    });
    mc::each_between(rule.when, ' ', [&](std::string_view term) {
      mc::each_between(term, '|', [&](std::string_view one) {
        const mc::detail::flag_term t(one);
        if (t.name == "data") {
          bool known = false;
          for (const auto k : {mc::data_kind::text, mc::data_kind::u16, mc::data_kind::i32,
                               mc::data_kind::indexed, mc::data_kind::chat, mc::data_kind::random})
            known = known || t.value == mc::name_of(k);
          BOOST_TEST(known, one);
          return;
        }
        const mc::named_flag* const e = mc::find_flag(list, t.name);
        BOOST_REQUIRE_MESSAGE(e != nullptr, one);
        if (t.has_value) BOOST_CHECK_NO_THROW(e->flag->read(t.value, one));
        if (t.has_value) BOOST_TEST(e->flag->text() == t.value);
      });
    });
  }
}

// A condition is terms that all hold, each of alternatives.
BOOST_AUTO_TEST_CASE(conditions_of_rules) {
  mc::options o;
  const auto list = mc::flags_of(o);
  const auto holds = [&](std::string_view when) { return mc::detail::holds(when, o, list); };
  BOOST_TEST((!holds("save") && holds("!save") && !holds("keep-best") && holds("!keep-best")));
  BOOST_TEST((holds("lr-decay-style=linear") && !holds("!lr-decay-style=linear")));
  o.training.save.read("x", "save");
  o.training.keep_best.read("false", "keep-best");
  o.training.eval_iters.ask("0", "eval-iters");
  BOOST_TEST((holds("save") && !holds("keep-best") && holds("eval-iters=0")));
  BOOST_TEST((holds("asked:eval-iters") && !holds("asked:save") && holds("!asked:save")));
  BOOST_TEST((holds("save|keep-best") && holds("keep-best|save") && !holds("save keep-best")));
  BOOST_TEST((holds("save !keep-best|load") && !holds("load|keep-best save")));
  BOOST_TEST((holds("data=text") && !holds("data=indexed|data=chat")));
}

// Where two flags contradict each other, and where one changes nothing, the command line is refused;
// what a state or a file of flags has, only where it cannot be meant.
BOOST_AUTO_TEST_CASE(flags_beside_flags) {
  const auto said = [](mc::command c, const std::vector<std::pair<std::string, std::string>>& flags,
                       bool asked) {
    mc::options o;
    const auto list = mc::flags_of(o);
    for (const auto& [name, value] : flags) {
      mc::flag_base& flag = *mc::find_flag(list, name)->flag;
      asked ? flag.ask(value, name) : flag.read(value, name);
    }
    mc::refusals refused;
    std::string text;
    for (const std::string& told : mc::apply_rules(c, o, refused)) text += "told " + told + "; ";
    for (const auto& [code, sentence] : refused.all()) {
      BOOST_TEST((code == mc::exit_code::usage));
      text += sentence + "; ";
    }
    return text;
  };
  using mc::command;
  BOOST_TEST(said(command::train, {{"warmup", "3"}}, true) ==
             "--warmup changes nothing without --bench-json; leave --warmup out; ");
  BOOST_TEST(said(command::train, {{"warmup", "3"}}, false) == "");
  BOOST_TEST(said(command::eval, {{"warmup", "3"}}, true) == "");
  BOOST_TEST(said(command::train, {{"lr-decay-style", "constant"}, {"min-lr", "0"}}, true) ==
             "told min-lr; ");
  for (const bool asked : {false, true}) {
    BOOST_TEST(said(command::train, {{"mock-data", "true"}, {"data-path", "x"}}, asked) ==
               "--data-path and --mock-data contradict each other: random tokens are not read from "
               "anything; leave --data-path out" +
                   std::string(asked ? "" : ", which the state or a file of flags has") + "; ");
    BOOST_TEST(said(command::generate, {{"random-weights", "true"}}, asked) ==
               "--random-weights needs --ids, since such weights have no tokenizer; give both; ");
  }
  // What names data beside random tokens is not left unread.
  BOOST_TEST(said(command::train,
                  {{"bench-json", "true"}, {"data-type", "text"}, {"train-data-path", "x"}}, true)
                 .find("--train-data-path changes nothing beside --bench-json") !=
             std::string::npos);
  BOOST_TEST(said(command::generate, {{"greedy", "true"}, {"num-samples", "2"}, {"chat", "true"}},
                  false) == "");
  BOOST_TEST(said(command::generate, {{"greedy", "true"}, {"num-samples", "1"}}, false) == "");
  BOOST_TEST(said(command::generate, {{"greedy", "true"}, {"num-samples", "2"}}, false) != "");
  BOOST_TEST(said(command::train, {{"data-type", "u16"}, {"eod-mask-loss", "true"}}, true) ==
             "--eod-mask-loss changes nothing without an indexed data set, which megacpp-data "
             "prepares; leave --eod-mask-loss out; ");
  BOOST_TEST(said(command::train, {{"chat-keys", "user=q,assistant=a"}}, true) ==
             "--chat-keys changes nothing without --data-type chat; leave --chat-keys out; ");
  BOOST_TEST(said(command::eval, {{"chat-keys", "user=q,assistant=a"}, {"data-type", "chat"}},
                  true) == "");
  // What a program of another type refuses.
  const std::string f32 = "fp32-residual-connection";
  BOOST_TEST(said(command::train, {{"tf32", "true"}, {"bf16", "true"}}, true) ==
             "--tf32 is for programs of f32; leave --tf32 out; ");
  BOOST_TEST(said(command::generate, {{"tf32", "true"}, {f32, "true"}}, true) == "");
  BOOST_TEST(said(command::train, {{"no-deterministic-attention", "true"}, {f32, "true"}}, true) ==
             "--no-deterministic-attention is for programs of bf16; leave "
             "--no-deterministic-attention out; ");
  BOOST_TEST(
      said(command::train, {{"no-deterministic-attention", "true"}, {"bf16", "true"}}, true) == "");
  BOOST_TEST(said(command::describe, {{"roofline", "h100"}}, true) ==
             "--roofline is for programs of bf16 and f32; leave --roofline out; ");
  for (const std::string& type : {f32, std::string("bf16")})
    BOOST_TEST(said(command::describe, {{"roofline", "h100"}, {type, "true"}}, true) == "");
}
