#!/usr/bin/env python3
"""Sources that must compile, and headers that must compile alone, without code for them.

    compiles.py [--alone] FILE... -- COMPILER FLAG...

With --alone each FILE is a header, and the unit includes it twice: the second one must find
#pragma once. Prints what the compiler says of those that do not compile.
"""

import subprocess
import sys
from pathlib import Path


def main():
    split = sys.argv.index("--")
    files, command = sys.argv[1:split], sys.argv[split + 1:]
    alone = "--alone" in files
    files = [Path(file).resolve() for file in files if file != "--alone"]
    if not files or not command:
        sys.exit(__doc__)
    wrong = 0
    for file in files:
        source = f'#include "{file}"\n' * (2 if alone else 1)
        result = subprocess.run([*command, "-fsyntax-only", "-x", "c++", "-"], input=source, text=True,
                                capture_output=True)
        if result.returncode != 0:
            wrong += 1
            print(f"FAILED: {file}\n{result.stderr}", flush=True)
    print(f"{len(files)} compiled, {wrong} of them wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
