#!/usr/bin/env python3
"""Training steps of adapters against full fine-tuning's of the same model, run in turn.

    against_full.py FULL ADAPTED... [--threads 2] [--rounds 5] [--steps 6] [--label TEXT]

All are programs of one model and batch; FULL has no adapter. Each round runs `train --mock-data --profile` of
all, the order changing from round to round. Printed are the share of products in the nodes of FULL, and of each
of ADAPTED, over FULL, the median and spread of the time of forward and backward pass, which leaves out the
update, and of whole steps; written to bench/results/ with the CPU model, the commands and the commit.
"""

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402
from programs import last_json, run, spread  # noqa: E402

# part, node, op, phase, line, calls, total ms, share
NODE = re.compile(r"^(\S+(?: \S+)*?) +\d+  (\w+) +(forward|dgrad|wgrad|prologue|epilogue) +\d+ +\d+ +([\d.]+) +[\d.]+%")
WALL = re.compile(r"^sum of nodes ([\d.]+) ms of ([\d.]+) ms wall")
PRODUCTS = ("linear", "grouped_linear", "vocabulary_loss")  # the loss is its product, but for some hundredths


def measured(program, threads, steps):
    """Milliseconds of a step's forward and backward pass, of its update, of products, and of all of it."""
    said = run([program, "train", "--mock-data", "--train-iters", steps + 1, "--warmup", 1, "--eval-iters", 0,
                "--threads", threads, "--profile", "--bench-json"])
    both = update = products = 0.0
    for line in said.splitlines():
        if found := NODE.match(line):
            part, op, phase, ms = found[1], found[2], found[3], float(found[4]) / steps
            if part == "update" or phase == "epilogue":
                update += ms
                continue
            both += ms
            products += ms if op.startswith(PRODUCTS) else 0
        elif line.startswith("others "):
            both += float(line.split()[-2]) / steps
    told = last_json(said)
    return {"forward_and_backward_ms": both, "update_ms": update, "products_ms": products,
            "step_ms": told["median_ms"], "products": told["products"], "batch": told["batch"],
            "sequence": told["sequence"], "precision": told["precision"], "parameters": told["parameters"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("full", type=Path)
    parser.add_argument("adapted", type=Path, nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--label", default="")
    arguments = parser.parse_args()
    programs = [p.resolve() for p in (arguments.full, *arguments.adapted)]
    taken = {p: [] for p in programs}
    for number in range(arguments.rounds):
        for p in programs if number % 2 == 0 else programs[::-1]:
            taken[p].append(measured(p, arguments.threads, arguments.steps))
    full = taken[programs[0]]
    result = machine.facts()
    result["label"] = arguments.label
    result["command"] = " ".join(["against_full.py", *(Path(word).name for word in sys.argv[1:])])
    result["versions"] = {p.name: run([p, "--version"]).strip() for p in programs}
    result["run"] = {name: full[0][name] for name in ("precision", "products", "batch", "sequence", "parameters")}
    result["threads"] = arguments.threads
    result["share_of_products"] = spread([t["products_ms"] / t["step_ms"] for t in full])
    print(f"{programs[0].name}: products take {result['share_of_products']['median']:.2f} of a step")
    result["programs"] = {}
    for p in programs:
        what = ("forward_and_backward_ms", "update_ms", "products_ms", "step_ms")
        told = result["programs"][p.name] = {name: spread([t[name] for t in taken[p]]) for name in what}
        for name in ("forward_and_backward", "step"):
            ms = f"{name}_ms"
            told[f"{name} / full"] = ratio = spread([t[ms] / f[ms] for t, f in zip(taken[p], full)])
            print(f"{p.name}: {name} {told[ms]['median']:.1f} ms, over {programs[0].name}'s "
                  f"{ratio['median']:.3f} ({ratio['least']:.3f} to {ratio['most']:.3f})")
    print(machine.write_result(f"adapters-{programs[0].name}", result))


if __name__ == "__main__":
    sys.exit(main())
