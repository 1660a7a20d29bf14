#!/usr/bin/env python3
"""What adapters learn, beside full fine-tuning: two tasks of examples/small_conversations.py are in the
base, the third is learned.

    learning.py MODEL WORK [--seeds 3] [--jobs 1] [--epochs 4]

MODEL is dense, a small Qwen3 (examples/small_model.json), or experts, the same with experts. Compiles it
plain, with LoRA and with QLoRA; trains a base of each seed on two tasks, and the third task on that by every
way; asks what neither has seen. With the adapter off its program must have the base's answers and the base's
loss, bit for bit: beside a base in NF4 those of the folder that `export --quantise nf4` writes, in a plain
program. Bars: the base answers at most 20 % of the third task, full fine-tuning at least 95 %, adapters at
most 3 points fewer. Every run stands in bench/results/, with the CPU model and the commit. --jobs runs train
at once, on one thread each. WORK keeps programs.
"""

import argparse
import concurrent.futures
import json
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402
from programs import last_json, run, spread  # noqa: E402

MOST_OF_BASE, LEAST_OF_FULL, MOST_APART = 0.20, 0.95, 0.03
FIRST, THIRD = "backwards,repeat", "sort"
COMMON = ["precision=fp32", "sequence=128", "micro-batch=16", "packed=1"]
LORA, NF4, EXPERTS = ["lora=16", "lora-alpha=32"], ["base=nf4"], ["lora-targets=experts"]
WAYS = {  # by model: the keys of each way's program
    "dense": {"full": [], "lora": LORA, "qlora": LORA + NF4},
    "experts": {"full": [], "lora": LORA, "qlora": LORA + NF4, "lora, experts alone": LORA + EXPERTS,
                "qlora, experts alone": LORA + EXPERTS + NF4},
}
# By the factors of experts alone, beside attention that stays as it is, the same is learned in more steps.
RATE, RATE_ALONE, LONGER_ALONE = 3e-3, 1e-2, 5
WITH_EXPERTS = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
                "moe_intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2,
                "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
                "router_aux_loss_coef": 0.01}
FLAGS = ["--data-type", "chat", "--split", "98,2,0", "--lr-decay-style", "cosine", "--lr-warmup-iters", 20,
         "--adam-beta2", 0.99, "--weight-decay", 0.1, "--threads", 1]


def prepare(work):
    """The conversations, their tokenizer, and config.json of each model."""
    examples = machine.ROOT / "examples"
    for name, tasks in (("first", FIRST), ("third", THIRD)):
        run([sys.executable, examples / "small_conversations.py", work / name, "--tasks", tasks, "--held-out", 500])
    run([sys.executable, examples / "small_tokenizer.py", work / "tokenizer", work / "first/conversations.jsonl",
         work / "third/conversations.jsonl", "--vocabulary", 512])
    dense = json.loads((examples / "small_model.json").read_text())
    for name, more in (("dense", {}), ("experts", WITH_EXPERTS)):
        (work / f"{name}.json").write_text(json.dumps(dense | more, indent=1))


def program_of(work, model, way):
    return work / f"{model}-{way}".replace(", ", "-").replace(" ", "-")


def compile_all(work, model):
    for way, keys in WAYS[model].items():
        program = program_of(work, model, way)
        if not program.exists():
            run([machine.ROOT / "examples/build_preset.sh", work / f"{model}.json", program, *COMMON, *keys,
                 "--no-install", "--build", work / "build"])


def asked(work, program, model, tasks):
    """The answers to held-out questions, as tokens, and the share of exact ones."""
    done = subprocess.run([program, "generate", "--load", model, "--chat", "--greedy", "--max-new-tokens", "16",
                           "--batch-size", "64", "--threads", "1", "--prompts-file", work / tasks / "questions.txt",
                           "--json"], capture_output=True, text=True, check=True)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    right = (work / tasks / "answers.txt").read_text().splitlines()
    share = sum(s["text"] == r for s, r in zip(said, right, strict=True)) / len(right)
    return [s["tokens"] for s in said], share


def loss(work, program, model, tasks):
    return last_json(run([program, "eval", "--load", model, "--data-type", "chat", "--threads", 1, "--json",
                          "--data-path", work / tasks / "held-out.jsonl"]))["loss"]


def train(work, program, tasks, seed, save, rate, epochs, *more):
    shutil.rmtree(save, ignore_errors=True)
    run([program, "train", *FLAGS, "--data-path", work / tasks / "conversations.jsonl", "--lr", rate, "--epochs",
         epochs, "--seed", seed, "--save", save, *more])


def everything_said(work, program, model):
    """Tokens of all answers and both losses: equal ones come of equal logits."""
    return [(asked(work, program, model, tasks)[0], loss(work, program, model, tasks))
            for tasks in ("first", "third")]


def learned(work, epochs, model, seed):
    """The base of a seed, and the third task by every way: records of runs."""
    here = work / f"run-{model}-{seed}"
    here.mkdir(exist_ok=True)
    plain, quantising = (program_of(work, model, way) for way in ("full", "qlora"))
    base, in_nf4 = here / "base", here / "base-nf4"
    train(work, plain, "first", seed, here / "of-base", RATE, 6, "--tokenizer-model", work / "tokenizer")
    for folder in (base, in_nf4):
        shutil.rmtree(folder, ignore_errors=True)
    run([plain, "export", "--load", here / "of-base", "--save", base])
    run([quantising, "export", "--load", base, "--save", in_nf4, "--quantise", "nf4"])
    said = {False: everything_said(work, plain, base), True: everything_said(work, plain, in_nf4)}

    def record(way, program, folder, **more):
        (_, first), (_, third) = (asked(work, program, folder, tasks) for tasks in ("first", "third"))
        print(f"{model}, seed {seed}, {way}: {third:.1%} of the third task, {first:.1%} of the first two", flush=True)
        return {"seed": seed, "way": way, "third": third, "first_two": first, **more}

    records = [record("base", plain, base), record("base in NF4", plain, in_nf4)]
    for way, keys in WAYS[model].items():
        program, alone = program_of(work, model, way), EXPERTS[0] in keys
        rate, times = (RATE_ALONE, epochs * LONGER_ALONE) if alone else (RATE, epochs)
        more = {"keys": " ".join(COMMON + keys), "rate": rate, "epochs": times}
        train(work, program, "third", seed, here / "tuned", rate, times, "--load", base)
        if keys:
            more["off_is_base"] = everything_said(work, program, base) == said[NF4[0] in keys]
        records.append(record(way, program, here / "tuned", **more))
    shutil.rmtree(here)
    return records


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=WAYS)
    parser.add_argument("work", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()
    work, model = arguments.work.resolve(), arguments.model
    work.mkdir(parents=True, exist_ok=True)
    result = machine.facts()
    result["command"] = " ".join(["learning.py", model, "WORK", *sys.argv[3:]])
    prepare(work)
    result["model"] = json.loads((work / f"{model}.json").read_text())
    compile_all(work, model)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        done = pool.map(lambda seed: learned(work, arguments.epochs, model, seed), range(1, arguments.seeds + 1))
        runs = result["runs"] = [record for records in done for record in records]

    shares = {way: [r["third"] for r in runs if r["way"] == way] for way in ("base", *WAYS[model])}
    failures = [f"{r['way']}, seed {r['seed']}: off is not the base" for r in runs if not r.get("off_is_base", True)]
    for way, of_seeds in shares.items():
        told = spread(of_seeds)
        print(f"{model}, {way}: {told['median']:.1%} ({told['least']:.1%} to {told['most']:.1%})")
        bad = (told["most"] > MOST_OF_BASE if way == "base" else told["least"] < LEAST_OF_FULL if way == "full" else
               any(full - share > MOST_APART for full, share in zip(shares["full"], of_seeds, strict=True)))
        failures += [way] * bad
    result["failures"] = failures
    print(machine.write_result(f"adapters-learning-{model}", result))
    sys.exit("FAILED: " + "; ".join(failures) if failures else 0)


if __name__ == "__main__":
    main()
