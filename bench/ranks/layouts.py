#!/usr/bin/env python3
"""Ten layouts, compiled: each has the bits of the interpreter's ranks, and how long it compiles.

    layouts.py [LAYOUT...]

Compiles layouts.cpp by c++ (or $CXX) at -O2, once for what all link and once for each layout, and
runs the programs, whose ranks are threads. What is timed of a layout is its one unit, in which the
tests' and the interpreter's parts stand beside what a build of the layout compiles. Written to
bench/results/ with the CPU model, the command and the commit.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402
from programs import run, spread  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layouts", type=int, nargs="*", default=range(10), metavar="LAYOUT")
    layouts = parser.parse_args().layouts
    root = Path(__file__).resolve().parents[2]
    result = machine.facts()
    result["command"] = " ".join(["layouts.py", *sys.argv[1:]])
    compiled = [os.environ.get("CXX", "c++"), "-std=c++20", "-O2", "-DNDEBUG", "-march=native",
                "-ffp-contract=off", "-DMEGACPP_WITH_ONEDNN=1", f"-I{root / 'include'}",
                f"-I{root / 'tests'}", "-isystem", "/usr/include/eigen3", "-c",
                Path(__file__).with_suffix(".cpp"), "-o"]
    result["layouts"] = []
    with tempfile.TemporaryDirectory() as folder:
        kernels, unit, program = (Path(folder) / name for name in ("kernels.o", "unit.o", "program"))
        run([*compiled, kernels, "-DKERNELS"])
        for layout in layouts:
            began = time.monotonic()
            run([*compiled, unit, f"-DLAYOUT={layout}"])
            seconds = time.monotonic() - began
            run([compiled[0], unit, kernels, "-o", program, "-lfmt", "-ldnnl", "-pthread"])
            said = run([program]).strip()
            print(f"{said}; compiled in {seconds:.1f} s", flush=True)
            result["layouts"].append({"says": said, "compile_s": round(seconds, 1)})
    result["compile_s"] = spread([layout["compile_s"] for layout in result["layouts"]])
    print(machine.write_result("layouts", result))


if __name__ == "__main__":
    sys.exit(main())
