#!/usr/bin/env python3
"""An all-reduce of 64 MB between two processes that TCP connects, against a plain copy through a socket.

    sockets.py [--rounds 20]

Compiles sockets.cpp by c++ (or $CXX) and starts it twice, as torchrun would: all-reduces and copies of
64 MB from one to the other come in turn. Printed is the median of the ratio of their bytes a second, where
those of the all-reduce are the bytes that each rank has; written to bench/results/ with the CPU model,
the command and the commit.
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
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parents[2]
    result = machine.facts()
    result["command"] = " ".join(["sockets.py", *sys.argv[1:]])
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(Path(__file__).with_suffix(".cpp"), folder, "-lfmt", "-lxxhash", "-lcrypto")
        taken = rates(run([sys.executable, root / "tests" / "mpi" / "start_ranks.py", 2, program, arguments.rounds]))
    copy = statistics.median(taken["copy"])
    result["bytes_per_s"] = {name: spread(values) for name, values in taken.items()}
    ratio = result["all-reduce/copy"] = spread([value / copy for value in taken["all-reduce"]])
    print(f"all-reduce of 64 MB, 2 ranks over loopback: {ratio['median']:.2f} of a copy through a socket "
          f"({ratio['least']:.2f} to {ratio['most']:.2f}), which moves {copy * 1e-9:.2f} GB/s")
    print(machine.write_result("sockets", result))


if __name__ == "__main__":
    sys.exit(main())
