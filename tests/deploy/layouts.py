#!/usr/bin/env python3
"""The layouts of examples/deploy fit nodes of 8 GPUs of 80 GB, by the plan of the run that their keys make.

    layouts.py WRITE_RUN WORK -- COMPILER FLAG...

The eight sizes come from hyperpod/sizes.txt by hyperpod/build.sh, and the programs of Kubernetes from the commands of
docs/deploying/kubernetes.md. The figures are those of sizes.txt and of the page; what libraries of kernels take is not counted.
"""

import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import recipes  # noqa: E402

WRITE_RUN = WORK = COMPILE = None
HYPERPOD = recipes.DEPLOY / "hyperpod"
PUBLISHED = {"1.7B": 17, "3.6B": 36, "7.5B": 75, "18.4B": 184, "39.1B": 391, "76.1B": 761, "145.6B": 1456, "310.1B": 3101}
QWEN3_30B_A3B = {  # the published config.json
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "decoder_sparse_step": 1, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960,
    "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_sliding_window": False, "vocab_size": 151936}


def compiles(asserts, runs):
    """Has the compiler judge runs, each a name, a config.json and keys."""
    text = ["#include <megacpp/exec/cuda/device.hpp>", "#include <megacpp/run/compiled.hpp>"]
    for name, config, keys in runs:
        header = WORK / f"{name}.hpp"
        subprocess.run([WRITE_RUN, header, name, WORK, "HF_CONFIG", config, *keys], check=True, stdout=subprocess.DEVNULL)
        text.append(f'#include "{header}"')
    unit = WORK / "layouts.cpp"
    unit.write_text("\n".join([*text, 'using mc::operator""_GiB;', *asserts]) + "\n")
    return subprocess.run([*COMPILE, "-fsyntax-only", unit], capture_output=True, text=True, check=False)


class Layouts(unittest.TestCase):
    def variables(self, size):
        lines = subprocess.run([HYPERPOD / "size.sh", size], capture_output=True, text=True, check=True).stdout.split()
        return {**{k: v for k, v in recipes.values().items() if not k.startswith("FSX")}, **dict(line.split("=") for line in lines)}

    def test_the_eight_sizes_and_the_programs_of_kubernetes(self):
        asserts, runs = [], []
        for size, tenths in PUBLISHED.items():
            own = self.variables(size)
            name = "gpt_" + size.replace(".", "_").lower()
            keys = subprocess.run([HYPERPOD / "build.sh", WORK / name, "--print"], env={**os.environ, **own}, capture_output=True, text=True,
                                  check=True).stdout.split()
            runs.append((name, f"{name}.config.json", keys))
            ranks, model = int(own["NUM_NODES"]) * 8, int(own["TENSOR_PARALLEL"]) * int(own["PIPELINE_PARALLEL"])
            asserts.append(f"static_assert(mc::fits<{name}>(52_GiB, {ranks // model}));")
            config = json.loads((WORK / f"{name}.config.json").read_text())
            layers, width, rows = config["n_layer"], config["n_embd"], config["vocab_size"] + config["n_positions"] + 2
            count = layers * (12 * width * width + 13 * width) + rows * width
            self.assertLessEqual(abs(round(count / 1e8) - tenths), 1, size)  # the table pads the vocabulary
        (WORK / "qwen.json").write_text(json.dumps(QWEN3_30B_A3B))
        page = (recipes.DEPLOY.parents[1] / "docs/deploying/kubernetes.md").read_text()
        builds = dict(re.findall(r"examples/build_preset\.sh Qwen3-30B-A3B/config\.json (\w+)((?: (?:\\\n +)?[\w-]+=[\w,]+)+)\n", page))
        self.assertEqual(set(builds), {"full", "qlora", "eval"})
        for name, keys in builds.items():
            runs.append((f"qwen_{name}", "qwen.json", [key for key in keys.split() if key != "\\"]))
        asserts += ["static_assert(mc::fits<qwen_full>(46_GiB, 8));",  # two stages of 8
                    "static_assert(mc::fits<qwen_qlora>(29_GiB, 16));", "static_assert(mc::memory<qwen_eval>().weights < 20_GiB);"]
        done = compiles(asserts, runs)
        self.assertEqual(done.returncode, 0, done.stderr[:4000])

    def test_what_does_not_fit_is_found(self):
        own = {**self.variables("39.1B"), "PIPELINE_PARALLEL": "1", "NUM_NODES": "1"}
        keys = subprocess.run([HYPERPOD / "build.sh", WORK / "large", "--print"], env={**os.environ, **own}, capture_output=True, text=True,
                              check=True).stdout.split()
        done = compiles(["static_assert(mc::fits<large>(75_GiB, 1));"], [("large", "large.config.json", keys)])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("static assertion failed", done.stderr)

    def test_what_build_refuses(self):
        own = self.variables("1.7B")
        for change, sentence in (({"NUM_LAYERS": ""}, "NUM_LAYERS is not set"), ({"HIDDEN_SIZE": "4k"}, "HIDDEN_SIZE is 4k, and must be a number"),
                                 ({"TENSOR_PARALLEL": "3"}, "must be a multiple of")):
            done = subprocess.run([HYPERPOD / "build.sh", WORK / "x", "--print"], env={**os.environ, **own, **change}, capture_output=True, text=True,
                                  check=False)
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, rf"\Abuild\.sh: [^\n]*{sentence}[^\n]*\n\Z")
        words = subprocess.run([HYPERPOD / "build.sh", WORK / "x", "--print", "device=cpu", "precision=fp32"], env={**os.environ, **own},
                               capture_output=True, text=True, check=True).stdout
        self.assertEqual(words, "tp=1 pp=1 zero=1 recompute=selective micro-batch=1 sequence=2048 device=cpu precision=fp32\n")
        self.assertEqual(subprocess.run([HYPERPOD / "size.sh", "2B"], capture_output=True, check=False).returncode, 2)
        self.assertEqual(subprocess.run([HYPERPOD / "size.sh", "--list"], capture_output=True, text=True, check=True).stdout.split(), list(PUBLISHED))


if __name__ == "__main__":
    at = sys.argv.index("--")
    WRITE_RUN, WORK, COMPILE = sys.argv[1], Path(sys.argv[2]).resolve(), sys.argv[at + 1:]
    WORK.mkdir(parents=True, exist_ok=True)
    unittest.main(argv=[sys.argv[0]])
