#!/usr/bin/env python3
"""All-reduce and all-gather of 64 MB among ranks that are threads, against copies by as many threads.

    exchanges.py [--ranks 2] [--rounds 20]

Compiles exchanges.cpp by c++ (or $CXX) and runs it: copies and exchanges come in turn. Printed are
the medians of the shares of copy bandwidth that the local reads and writes of each exchange reach;
written to bench/results/ with the CPU model, the command and the commit.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402
from programs import compiled, rates, run, spread  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    result = machine.facts()
    result["command"] = " ".join(["exchanges.py", *sys.argv[1:]])
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(Path(__file__).with_suffix(".cpp"), folder, "-lfmt")
        taken = rates(run([program, arguments.ranks, arguments.rounds]))
    copy = statistics.median(taken["copy"])
    result["ranks"] = arguments.ranks
    result["bytes_per_s"] = {name: spread(values) for name, values in taken.items()}
    for name in ("all-reduce", "all-gather"):
        share = spread([value / copy for value in taken[name]])
        result[f"{name}/copy"] = share
        print(f"{name} of 64 MB, {arguments.ranks} ranks: {share['median']:.2f} of copy bandwidth "
              f"({share['least']:.2f} to {share['most']:.2f})")
    print(machine.write_result("exchanges", result))


if __name__ == "__main__":
    sys.exit(main())
