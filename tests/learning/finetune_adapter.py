#!/usr/bin/env python3
"""examples/finetune.sh --lora or --qlora, as a newcomer runs it, and what it leaves: a base that does not
answer the third kind of questions, an adapter that does, and the same answers of what is exported.

    finetune_adapter.py SOURCE SMALL_MODEL ADAPTER_PROGRAM --lora|--qlora WORK
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

source, plain, adapted, way, work = Path(sys.argv[1]), *sys.argv[2:5], Path(sys.argv[5])
SCRIPT = source / "examples/finetune.sh"


def check(holds, sentence):
    print(f"{'ok' if holds else 'FAILED'}: {sentence}", flush=True)
    if not holds:
        sys.exit(1)


def run(*arguments):
    done = subprocess.run(list(map(str, arguments)), cwd=work, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"FAILED: {' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def answers(program, *flags):
    """Tokens of the answers to what is asked of the adapter, and the share of exact ones."""
    said = [json.loads(line) for line in run(program, "generate", *flags, "--chat", "--greedy", "--max-new-tokens", 16,
                                             "--batch-size", 64, "--prompts-file", "questions.txt", "--json").splitlines()]
    right = (work / "answers.txt").read_text().splitlines()
    return [s["tokens"] for s in said], sum(s["text"] == r for s, r in zip(said, right, strict=True)) / len(right)


def loss(program, *flags):
    return run(program, "eval", *flags, "--data-type", "chat", "--data-path", "held-out.jsonl", "--json")


shutil.rmtree(work, ignore_errors=True)
subprocess.run([SCRIPT, way, "--no-install", "--epochs", "2", "--answers-at-least", "0.95", "--program", plain,
                "--adapter-program", adapted, "--out", work], check=True)
plain, adapted, beside = "./small-model", "./small-lora", ("--load", "base/model")
check(answers(plain, *beside)[1] <= 0.2, "the base does not answer what its adapter has learned")
check((answers(adapted, "--load", "model"), loss(adapted, "--load", "model")) ==
      (answers(adapted, *beside, "--adapter", "adapter"), loss(adapted, *beside, "--adapter", "adapter")),
      "the exported adapter has the bits of the state")
check(answers(plain, "--load", "exported")[1] >= 0.95, "the merged model answers, in a program without adapters")
numbers = json.loads((work / "adapter/adapter_config.json").read_text())
check((numbers["peft_type"], numbers["r"], numbers["lora_alpha"]) == ("LORA", 16, 32), "its folder is one of PEFT")
# Without an adapter the model is the one that it stands beside, which NF4 has rounded.
off = beside
if way == "--qlora":
    run(adapted, "export", *beside, "--save", "base-nf4", "--quantise", "nf4")
    off = ("--load", "base-nf4")
check((answers(adapted, *beside), loss(adapted, *beside)) == (answers(plain, *off), loss(plain, *off)),
      "without the adapter its program has the bits of the base")

for flags, words in ((("--lora", "--qlora"), "contradict each other"), (("--adapter-program", plain), "needs --lora"),
                     ((way, "--adapter-program", "none"), "names no file")):
    done = subprocess.run([SCRIPT, *flags, "--out", work], capture_output=True, text=True, cwd=work)
    check(done.returncode == 2 and words in done.stderr, f"{' '.join(flags)} is refused")
