#!/usr/bin/env python3
"""Every header of row bodies is light: nvcc reads all of it for each unit of bodies.

    body_headers.py ROOT COMPILER [--nvcc NVCC]

- None of kernel/rows reaches a header of threads, locks, strings or functions, by the C++ COMPILER.
- With --nvcc, what nvcc preprocesses of each is at most 6,000 lines above an empty unit.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HEAVY = ("thread", "atomic", "mutex", "condition_variable", "string", "functional", "algorithm", "memory",
         "vector", "map", "iostream")
MOST_LINES = 6000


def preprocessed(command, text, suffix):
    with tempfile.TemporaryDirectory() as folder:
        unit = Path(folder) / f"unit{suffix}"
        unit.write_text(text, encoding="utf-8")
        done = subprocess.run([*command, "-E", str(unit)], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} cannot read {text.strip()}: {done.stderr}")
        return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("compiler")
    parser.add_argument("--nvcc")
    arguments = parser.parse_args()
    include = arguments.root / "include"
    headers = sorted((include / "megacpp/kernel/rows").glob("*.hpp"))
    problems = [] if headers else ["kernel/rows has no headers"]
    flags = ["-std=c++20", f"-I{include}"]
    reached = re.compile(r'^# \d+ "[^"]*/c\+\+/\d+/(' + "|".join(HEAVY) + r')"', re.MULTILINE)
    empty = len(preprocessed([arguments.nvcc, *flags, "-x", "cu"], "\n", ".cu").splitlines()) \
        if arguments.nvcc else 0
    most = 0
    for header in headers:
        text = f"#include <megacpp/kernel/rows/{header.name}>\n"
        heavy = set(reached.findall(preprocessed([arguments.compiler, *flags], text, ".cpp")))
        problems += [f"{header.name} reaches <{name}>" for name in sorted(heavy)]
        if not arguments.nvcc:
            continue
        lines = len(preprocessed([arguments.nvcc, *flags, "-x", "cu"], text, ".cu").splitlines()) - empty
        most = max(most, lines)
        if lines > MOST_LINES:
            problems.append(f"{header.name}: {lines} lines above an empty unit, more than {MOST_LINES}")
    how = f", at most {most} lines above an empty unit of nvcc" if arguments.nvcc else ""
    print("\n".join(problems) or f"{len(headers)} headers{how}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
