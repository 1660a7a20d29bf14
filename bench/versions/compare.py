#!/usr/bin/env python3
"""Two builds of one preset against each other: training steps and generation, run in turn.

    compare.py OLD NEW [--threads 1,2] [--busy 0,2] [--pairs 5] [--steps N] [--tokens N] [--label TEXT]

OLD and NEW are programs of the same preset. Each pair runs `train --mock-data --bench-json` of both,
then `generate` of both from one saved model, the order changing from pair to pair. --busy N keeps N
processes computing beside. Printed are medians over pairs and the median and spread of the ratios
new / old, and, for each build, of two threads over one under the same load; written to
bench/results/ with the CPU model, the commands and the commit.
"""

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402
from programs import last_json, run, spread  # noqa: E402

BUSY = "while True: pass"


def step_ms(program, threads, steps):
    said = run([program, "train", "--mock-data", "--train-iters", steps, "--warmup", min(3, steps - 1),
                "--eval-iters", 0, "--threads", threads, "--bench-json"])
    return last_json(said)["median_ms"]


def tokens_per_second(program, threads, model, tokens):
    said = run([program, "generate", "--load", model, "--ids", "--prompt", "1", "--seed", 1,
                "--max-new-tokens", tokens, "--threads", threads])
    found = re.findall(r"([0-9][0-9.,]*)(k?) tokens/s", said)
    if not found:
        raise SystemExit(f"generation told no speed:\n{said}")
    number, thousands = found[-1]
    return float(number.replace(",", "")) * (1000 if thousands else 1)


@contextlib.contextmanager
def busy(count):
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--busy", default="0,2")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--label", default="")
    arguments = parser.parse_args()
    programs = {"old": arguments.old.resolve(), "new": arguments.new.resolve()}
    threads = [int(word) for word in arguments.threads.split(",")]
    result = machine.facts()
    result["preset"], result["label"] = arguments.new.name, arguments.label
    # A program's name and not its folder: what the two are, "versions" says.
    result["command"] = " ".join(["compare.py", *(Path(word).name for word in sys.argv[1:])])
    result["versions"] = {name: run([p, "--version"]).strip() for name, p in programs.items()}
    result["cases"] = []
    with tempfile.TemporaryDirectory() as folder:
        run([programs["old"], "train", "--mock-data", "--train-iters", 1, "--eval-iters", 0,
             "--save", folder + "/model"])
        for load in (int(word) for word in arguments.busy.split(",")):
            taken = {(name, t, what): [] for name in programs for t in threads
                     for what in ("step_ms", "ms_per_token")}
            with busy(load):
                for pair in range(arguments.pairs):
                    order = list(programs) if pair % 2 == 0 else list(programs)[::-1]
                    for t in threads:
                        for name in order:
                            taken[name, t, "step_ms"].append(
                                step_ms(programs[name], t, arguments.steps))
                        for name in order:
                            speed = tokens_per_second(programs[name], t, folder + "/model",
                                                      arguments.tokens)
                            taken[name, t, "ms_per_token"].append(1000 / speed)
            for what in ("step_ms", "ms_per_token"):
                for t in threads:
                    old, new = taken["old", t, what], taken["new", t, what]
                    result["cases"].append({
                        "what": what, "threads": t, "busy": load, "old": spread(old),
                        "new": spread(new), "new/old": spread([b / a for a, b in zip(old, new)])})
                for name in programs:
                    one = taken[name, threads[0], what]
                    for t in threads[1:]:
                        many = taken[name, t, what]
                        result["cases"].append({
                            "what": what, "busy": load, "program": name, "threads": t,
                            "over_one_thread": spread([b / a for a, b in zip(one, many)])})
    for case in result["cases"]:
        if "old" in case:
            print(f"{case['what']:13} busy {case['busy']} threads {case['threads']}: "
                  f"{case['old']['median']:9.3f} -> {case['new']['median']:9.3f}  "
                  f"ratio {case['new/old']['median']:.3f} "
                  f"({case['new/old']['least']:.3f} to {case['new/old']['most']:.3f})")
        else:
            r = case["over_one_thread"]
            print(f"{case['what']:13} busy {case['busy']} {case['program']}: {case['threads']} threads "
                  f"over one {r['median']:.3f} ({r['least']:.3f} to {r['most']:.3f})")
    print(machine.write_result(f"versions-{arguments.new.name}", result))


if __name__ == "__main__":
    sys.exit(main())
