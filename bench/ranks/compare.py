#!/usr/bin/env python3
"""Replicas against one rank: training steps of one program on the same global batch, run in turn.

    compare.py PROGRAM [--ranks 2] [--batch N] [--pairs 5] [--steps 60] [--torchrun TORCHRUN]

All have all cores: one rank as threads that compute, several as replicas among which these are
divided, without and with --check-collectives, and as processes that TORCHRUN starts and TCP connects.
Printed are the median and spread of the ratios of tokens a second: several ranks over one, checked ones
over several, and processes over several; written to bench/results/ with the CPU model, the command and
the commit.
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
    parser.add_argument("--torchrun", type=Path)
    arguments = parser.parse_args()
    program = arguments.program.resolve()

    def measured(ranks, batch, checks="false", processes=False):
        start = [arguments.torchrun, "--no-python", "--nproc-per-node", ranks] if processes else []
        return last_json(run([*start, program, "train", "--mock-data", "--train-iters", arguments.steps,
                              "--warmup", 10, "--eval-iters", 0, "--bench-json", *([] if processes else ["--ranks", ranks]),
                              "--check-collectives", checks,
                              *(["--global-batch-size", batch] if batch else [])]))

    batch = arguments.batch or 2 * arguments.ranks * measured(1, None)["batch"]
    result = machine.facts()
    result["command"] = " ".join(["compare.py", *(Path(word).name for word in sys.argv[1:])])
    result["version"] = run([program, "--version"]).strip()
    result["ranks"], result["batch"] = arguments.ranks, batch
    ways = {"one": (1, batch), "several": (arguments.ranks, batch),
            "checked": (arguments.ranks, batch, "true")}
    ratios = [("several", "one"), ("checked", "several")]
    if arguments.torchrun:
        ways["processes"] = (arguments.ranks, batch, "false", True)
        ratios.append(("processes", "several"))
    taken = {way: [] for way in ways}
    for pair in range(arguments.pairs):
        for way in list(ways) if pair % 2 == 0 else list(ways)[::-1]:
            taken[way].append(measured(*ways[way])["tokens_per_s"])
    result["tokens_per_s"] = {way: spread(all_of_it) for way, all_of_it in taken.items()}
    for way, base in ratios:
        ratio = spread([b / a for a, b in zip(taken[base], taken[way])])
        result[f"{way}/{base}"] = ratio
        print(f"{program.name}, {arguments.ranks} ranks, batch {batch}: {way}/{base} "
              f"{ratio['median']:.3f} ({ratio['least']:.3f} to {ratio['most']:.3f}), "
              f"{spread(taken[way])['median']:.0f} tokens/s against "
              f"{spread(taken[base])['median']:.0f}")
    print(machine.write_result(f"ranks-{program.name}", result))


if __name__ == "__main__":
    sys.exit(main())
