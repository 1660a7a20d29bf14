#!/usr/bin/env python3
"""LoRA of megacpp against LoRA of PEFT, run in turn: the losses of a hundred steps, and tokens a second.

    against_peft.py WORK --python PYTHON [--threads 1] [--pairs 5]

PYTHON has torch, transformers and PEFT (tests/slow/peft.txt). Both begin with one base, a Qwen3 of 12.7 M
parameters that has read this project's pages, and with one adapter, as PEFT begins it; both read the same
samples of its headers in the same order, in fp32, with the same numbers of AdamW. Bars: losses of the last
of a hundred steps within 0.5 %, 1.3 times PEFT's tokens a second. Each pair is two shorter runs of each; the
median of the ratios and its spread are written to bench/results/, with the CPU model, the command and the
commit: of tokens a second of the clock, and of the processor, which says more where other programs have the
cores, too. WORK keeps the program and the base.
"""

import argparse
import array
import json
import re
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402
from programs import last_json, run, spread  # noqa: E402

CONFIG = {"vocab_size": 256, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
          "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 1536, "max_position_embeddings": 256,
          "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0}
BATCH, SEQUENCE, RANK, ALPHA, BASE_STEPS = 4, 256, 16, 32, 150
STEPS, LAST = 100, 10  # of these steps the mean loss is compared
# Steps of the runs of a pair, the first of which are not timed. The processor's time of the shorter run is
# taken off that of the longer one.
TIMED, SHORT, WARMUP = 32, 12, 10
NUMBERS = {"lr": 1e-3, "beta2": 0.95, "weight_decay": 0.01, "clip": 1.0}
MOST_APART, LEAST_RATIO = 0.005, 1.3


def prepare(work, python):
    texts = {"base": sorted((machine.ROOT / "docs").glob("*.md")),
             "data": sorted((machine.ROOT / "include/megacpp").glob("**/*.hpp"))}
    for name, files in texts.items():
        if not (work / f"{name}.u16").exists():
            text = b"".join(f.read_bytes() for f in files)[:1 << 20]
            (work / f"{name}.u16").write_bytes(array.array("H", list(text)).tobytes())
    if not (work / "begin").exists():
        more = {"batch": BATCH, "sequence": SEQUENCE, "rank": RANK, "alpha": ALPHA}
        print(run([python, Path(__file__).with_name("peft_step.py"), "make", work, json.dumps(CONFIG | more),
                   BASE_STEPS]).splitlines()[-1], flush=True)
    if not (work / "program").exists():
        run([machine.ROOT / "examples/build_preset.sh", work / "base/config.json", work / "program", "precision=fp32",
             f"micro-batch={BATCH}", f"sequence={SEQUENCE}", f"lora={RANK}", f"lora-alpha={ALPHA}", "--no-install",
             "--build", work / "build"])


def samples(told):
    """Of what --show-mask prints, where no tokenizer is known: the tokens of each sample."""
    rows = []
    for line in told.splitlines():
        if line.startswith("sample "):
            rows.append([])
        elif re.match(r"    (learned| {7}) \d", line):
            rows[-1] += map(int, line[12:].split())
    assert len(rows) == STEPS * BATCH and all(len(r) == SEQUENCE + 1 for r in rows)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    work, python = arguments.work.resolve(), arguments.python.absolute()
    work.mkdir(parents=True, exist_ok=True)
    prepare(work, python)
    ours = [work / "program", "train", "--load", work / "base", "--adapter", work / "begin", "--data-path",
            work / "data.u16", "--data-type", "u16", "--split", "100,0,0", "--eval-iters", 0, "--lr", NUMBERS["lr"],
            "--lr-decay-style", "constant", "--adam-beta2", NUMBERS["beta2"], "--weight-decay",
            NUMBERS["weight_decay"], "--clip-grad", NUMBERS["clip"], "--seed", 1, "--threads", arguments.threads]
    told = run([*ours, "--train-iters", STEPS, "--show-mask", STEPS * BATCH])
    (work / "samples.json").write_text(json.dumps(samples(told)))
    numbers = NUMBERS | {"warmup": WARMUP, "batch": BATCH, "threads": arguments.threads}

    def our_run(steps):
        metrics = work / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        told = last_json(run([*ours, "--train-iters", steps, "--bench-json", "--warmup", WARMUP, "--metrics-jsonl",
                              metrics]))
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        return told | {"losses": [line["loss"] for line in lines if "loss" in line]}

    def their_run(steps):
        return last_json(run([python, Path(__file__).with_name("peft_step.py"), "train", work,
                              json.dumps(numbers | {"steps": steps})]))

    ways = {"megacpp": our_run, "peft": their_run}
    whole = {name: way(STEPS) for name, way in ways.items()}
    clock, processor = ({name: [] for name in ways} for _ in range(2))

    def spent(way, steps):
        """What a run tells, and the processor's seconds that it took."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        told = way(steps)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return told, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    for pair in range(arguments.pairs):
        for name in list(ways) if pair % 2 == 0 else list(ways)[::-1]:
            (told, all_of_it), (_, start) = spent(ways[name], TIMED), spent(ways[name], SHORT)
            clock[name].append(told["tokens_per_s"])
            processor[name].append(BATCH * SEQUENCE * (TIMED - SHORT) / (all_of_it - start))
            print(f"pair {pair + 1}: {name} {clock[name][-1]:.0f} tokens a second, of the processor's "
                  f"{processor[name][-1]:.0f}", flush=True)

    result = machine.facts()
    result["command"] = " ".join(["against_peft.py WORK", *(Path(word).name for word in sys.argv[2:])])
    result["model"] = CONFIG
    result["numbers"] = numbers | {"steps": STEPS, "timed": TIMED, "sequence": SEQUENCE, "rank": RANK, "alpha": ALPHA}
    result["peer"] = {k: v for k, v in whole["peft"].items() if k not in ("losses", "median_ms", "tokens_per_s")}
    ratios = {}
    for what, rates in (("tokens_per_s", clock), ("tokens_per_s_of_processor", processor)):
        result[what] = {name: spread(of_it) for name, of_it in rates.items()}
        ratio = ratios[what] = spread([a / b for a, b in zip(rates["megacpp"], rates["peft"])])
        result[f"{what}, megacpp/peft"] = ratio
        print(f"{what}: megacpp/peft {ratio['median']:.3f} ({ratio['least']:.3f} to {ratio['most']:.3f})")
    losses = {name: told["losses"] for name, told in whole.items()}
    last = {name: sum(all_of_it[-LAST:]) / LAST for name, all_of_it in losses.items()}
    apart = abs(last["megacpp"] / last["peft"] - 1)
    most = max(abs(a / b - 1) for a, b in zip(losses["megacpp"], losses["peft"], strict=True))
    result |= {"loss_of_last_steps": last, "apart": apart, "most_apart_of_any_step": most,
               "losses": losses}
    print(f"losses of the last {LAST} steps {last['megacpp']:.5f} and {last['peft']:.5f}, {apart:.2%} apart; of any "
          f"step {most:.1e}")
    print(machine.write_result("adapters-peft", result))
    return 0 if apart <= MOST_APART and ratios["tokens_per_s"]["median"] >= LEAST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
