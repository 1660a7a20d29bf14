#!/usr/bin/env python3
"""Every C++ file is as .clang-format wants it, and formatting leaves comments as they are written:
an equation that is broken like prose says something else.

    formatted.py ROOT CLANG-FORMAT

Exit status 77 for another version than 14, whose output differs.
"""

import re
import subprocess
import sys
from pathlib import Path

FOLDERS = ["include", "tests", "examples", "bench", "src"]
ENDINGS = {".hpp", ".inc", ".cpp", ".cu"}
# Longer than 100 columns, so that a formatter that breaks comments would break it.
COMMENT = ("//   dx = r (e - mean_n e - h mean_n(e h))" + 12 * " " + "e = dy gain,  h = (x - mu) r" +
           12 * " " + "dgain += sum_m dy h\n//   next line\n")


def main():
    root, tool = Path(sys.argv[1]), sys.argv[2]
    version = subprocess.run([tool, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    if not re.search(r"version 14\.", version):
        print(f"needs clang-format 14, and this is {version.strip()}")
        return 77
    style = f"--style=file:{root / '.clang-format'}"
    again = subprocess.run([tool, style, "--assume-filename=x.hpp"], input=COMMENT,
                           stdout=subprocess.PIPE, text=True, check=True).stdout
    if again != COMMENT:
        print(f".clang-format lets the formatter rewrite comments:\n{COMMENT}becomes\n{again}")
        return 1
    files = sorted(str(f) for folder in FOLDERS for f in (root / folder).rglob("*")
                   if f.suffix in ENDINGS)
    done = subprocess.run([tool, style, "--dry-run", "-Werror", *files], stderr=subprocess.PIPE,
                          text=True, check=False)
    sys.stdout.write(done.stderr)
    print(f"{len(files)} files, {'not all formatted: clang-format -i FILE mends one' if done.returncode else 'all formatted'}")
    return 1 if done.returncode or not files else 0


if __name__ == "__main__":
    sys.exit(main())
