#!/usr/bin/env python3
"""Replicas against one rank: training steps of one program on the same global batch, run in turn.

    compare.py PROGRAM [--ranks 2] [--batch N] [--pairs 5] [--steps 60]

Both have all cores: one rank as threads that compute, several as replicas among which these are
divided. Printed is the median and spread of the ratio of tokens a second, several ranks over one;
written to bench/results/ with the CPU model, the command and the commit.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402
from programs import last_json, run, spread  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, help="sequences a step; two micro-batches a rank if left out")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    program = arguments.program.resolve()

    def measured(ranks, batch):
        return last_json(run([program, "train", "--mock-data", "--train-iters", arguments.steps,
                              "--warmup", 10, "--eval-iters", 0, "--bench-json", "--ranks", ranks,
                              *(["--global-batch-size", batch] if batch else [])]))

    batch = arguments.batch or 2 * arguments.ranks * measured(1, None)["batch"]
    result = machine.facts()
    result["command"] = " ".join(["compare.py", *(Path(word).name for word in sys.argv[1:])])
    result["version"] = run([program, "--version"]).strip()
    result["ranks"], result["batch"] = arguments.ranks, batch
    taken = {1: [], arguments.ranks: []}
    for pair in range(arguments.pairs):
        for ranks in list(taken) if pair % 2 == 0 else list(taken)[::-1]:
            taken[ranks].append(measured(ranks, batch)["tokens_per_s"])
    one, many = taken[1], taken[arguments.ranks]
    result["tokens_per_s"] = {"one": spread(one), "several": spread(many)}
    result["several/one"] = ratio = spread([b / a for a, b in zip(one, many)])
    print(f"{program.name}, batch {batch}: {spread(one)['median']:.0f} tokens/s of one rank, "
          f"{spread(many)['median']:.0f} of {arguments.ranks}, ratio {ratio['median']:.3f} "
          f"({ratio['least']:.3f} to {ratio['most']:.3f})")
    print(machine.write_result(f"ranks-{program.name}", result))


if __name__ == "__main__":
    sys.exit(main())
